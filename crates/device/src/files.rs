//! Files that are replaced atomically: after a full disk or a power cut there is the old one or the
//! new one.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// On an error the old file stays, and no temporary file is left.
pub(crate) fn replace(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let new = beside(path);
    let result = write(&new, contents, mode).and_then(|()| fs::rename(&new, path));
    if result.is_err() {
        let _ = fs::remove_file(&new);
    }
    result
}

pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path.file_name().unwrap_or_default());
    name.push(".roadweave");
    path.with_file_name(name)
}

pub(crate) fn make_private(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

pub(crate) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
}

pub(crate) fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn write(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = private(options.write(true).create(true).truncate(true)).mode(mode);
    let mut file = options.open(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

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
        // A folder in place of the file refuses the last step.
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
