//! Files that are replaced atomically: after a full disk or a power cut there is the old one or the
//! new one. Files that other users may write beside are not read.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Replaces the file at `path`, whose folder exists, with `contents` and `mode`. On an error the
/// old file stays, and no temporary file is left.
pub fn replace(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let new = beside(path);
    let result = write(&new, contents, mode).and_then(|()| fs::rename(&new, path));
    if result.is_err() {
        let _ = fs::remove_file(&new);
    }
    result
}

/// The path of the temporary file that [`replace`] writes first.
pub fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path.file_name().unwrap_or_default());
    name.push(".roadweave");
    path.with_file_name(name)
}

/// Creates a folder for this user alone, unless it exists.
pub fn make_private(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Options for a file with mode 0600 that is not a symbolic link.
pub fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
}

/// The error of malformed contents.
pub fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Opens a file to read it, unless other users may write in its folder.
pub fn open(path: &Path) -> io::Result<File> {
    check_owner(path.parent().unwrap_or(Path::new(".")))?;
    private(OpenOptions::new().read(true)).open(path)
}

/// Reads a text file of at most 256 MiB, unless other users may write in its folder.
pub fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let length = open(path)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if length as u64 > BYTES_MAX {
        return Err(invalid(format!("it is longer than {BYTES_MAX} bytes")));
    }
    Ok(text)
}

/// Checks that other users cannot write in the folder; they may read it.
pub fn check_owner(directory: &Path) -> io::Result<()> {
    let there = fs::metadata(directory)?;
    let me = rustix::process::geteuid().as_raw();
    if there.uid() != me && there.uid() != 0 || there.mode() & 0o022 != 0 {
        let (owner, mode) = (there.uid(), there.mode() & 0o7777);
        let why = format!(
            "other users can write in its folder (uid {owner}, mode {mode:04o}): change its owner \
             to the user that runs this program, and chmod 700"
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(())
}

fn write(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = private(options.write(true).create(true).truncate(true)).mode(mode);
    let mut file = options.open(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

const BYTES_MAX: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        replace(&path, b"old", 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let taken = folder.path().join("taken");
        fs::create_dir(&taken).unwrap();
        assert!(replace(&taken, b"new", 0o600).is_err());
        std::os::unix::fs::symlink("elsewhere", beside(&path)).unwrap();
        assert!(replace(&path, b"new", 0o600).is_err(), "a link is not followed");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        let names = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 2, "nothing lies beside them");
    }
}
