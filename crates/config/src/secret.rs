//! Private keys: their type, and files that hold them.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, fchown,
};
use std::path::{Path, PathBuf};

use roadweave_identity::{Identity, PublicKey};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use crate::reader::{Fault, reading_group};

/// A private key; never displayed, and wiped when it is dropped.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PrivateKey(Zeroizing<String>);

impl PrivateKey {
    /// Wraps `text`, which need not be a valid key.
    pub fn new(text: Zeroizing<String>) -> Self {
        Self(text)
    }

    /// The key pair.
    pub fn identity(&self) -> Result<Identity, String> {
        Identity::from_base64(self.0.trim())
            .map_err(|error| format!("private_key is {error}; `roadweave keygen` makes one"))
    }

    /// Removes the key from here: a daemon keeps its file for as long as it runs.
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    pub(crate) fn is_written_as(&self, key: &PublicKey) -> bool {
        self.0.trim() == key.to_string()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.trim().is_empty()
    }

    /// Validates the key; an empty one is valid.
    pub fn validate(&self) -> Result<(), Fault> {
        if self.is_empty() {
            return Ok(());
        }
        self.identity().map(drop).map_err(|message| Fault::new("private_key", message))
    }
}

impl<'de> Deserialize<'de> for PrivateKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

impl Serialize for PrivateKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// A file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", path.display())]
pub struct WriteError {
    path: PathBuf,
    source: io::Error,
}

/// Writes files that only their owner and [`reading_group`] may read, replacing existing ones: all
/// of them, or none if the disk is full.
pub fn write_secrets(files: &[(&Path, &str)]) -> Result<(), WriteError> {
    let new = |path: &Path| path.with_extension("toml.new");
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| WriteError { path, source }
    };
    let written =
        files.iter().try_for_each(|(path, text)| write_new(&new(path), text).map_err(failed(path)));
    if written.is_err() {
        files.iter().for_each(|(path, _)| _ = fs::remove_file(new(path)));
        return written;
    }
    files.iter().try_for_each(|(path, _)| fs::rename(new(path), path).map_err(failed(path)))
}

/// Writes a new file that only its owner and [`reading_group`] may read. Fails if it exists; then
/// nothing new is left.
pub fn create_secret(path: &Path, text: &str) -> Result<(), WriteError> {
    let failed = |source| WriteError { path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    let shared = reading_group(path).map_or(Ok(()), |group| {
        fchown(&file, None, Some(group))?;
        file.set_permissions(fs::Permissions::from_mode(0o640))
    });
    let written = shared.and_then(|()| file.write_all(text.as_bytes()));
    written.and_then(|()| file.sync_all()).map_err(|error| {
        let _ = fs::remove_file(path);
        failed(error)
    })
}

/// Replaces the file at `path` atomically, or not at all; owner, group and mode stay.
pub(crate) fn replace_secret(path: &Path, text: &str) -> Result<(), WriteError> {
    let failed = |source| WriteError { path: path.to_owned(), source };
    let before = fs::metadata(path).map_err(failed)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!(".{name}.{}.new", std::process::id()));
    create_secret(&new, text)?;
    let put = || {
        let now = fs::metadata(&new)?;
        if (now.uid(), now.gid()) != (before.uid(), before.gid()) {
            chown(&new, Some(before.uid()), Some(before.gid()))?;
        }
        fs::set_permissions(&new, fs::Permissions::from_mode(before.mode() & 0o660))?;
        fs::rename(&new, path)
    };
    put().map_err(|error| {
        let _ = fs::remove_file(&new);
        failed(error)
    })?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = fs::File::open(folder.unwrap_or(Path::new(".")));
    folder.and_then(|folder| folder.sync_all()).map_err(failed)
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    // A leftover may have another mode, or be a link.
    let _ = fs::remove_file(path);
    create_secret(path, text).map_err(|error| error.source)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn a_file_that_is_overwritten_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("client.toml");
        fs::write(&path, "old").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        write_secrets(&[(&path, "new")]).expect("written");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_private_file_of_root_is_for_the_group_of_a_folder_that_lets_only_that_in() {
        let folder = tempfile::tempdir().expect("a folder");
        if chown(folder.path(), None, Some(65_534)).is_err() {
            return;
        }
        let path = folder.path().join("client.toml");
        let check = |folder_mode: u32, expected: (u32, u32)| {
            let mode = Permissions::from_mode(folder_mode);
            fs::set_permissions(folder.path(), mode).expect("set");
            write_secrets(&[(&path, "new")]).expect("written");
            let there = fs::metadata(&path).expect("there");
            assert_eq!((there.gid(), there.mode() & 0o777), expected, "{folder_mode:o}");
        };
        check(0o750, (65_534, 0o640));
        for folder_mode in [0o700, 0o755, 0o770] {
            check(folder_mode, (0, 0o600));
        }
        chown(folder.path(), Some(65_534), None).expect("given away");
        check(0o750, (0, 0o600));
    }
}
