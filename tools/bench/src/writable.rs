//! Checks whether a file can be written, ahead of the work whose result it will hold.

use std::fs::{self, OpenOptions};
use std::path::Path;

use roadweave_terminal::exit::BadInput;

/// Opens `file` for writing and changes nothing. `option` is its name on the command line.
pub fn check(option: &str, file: &Path) -> Result<(), BadInput> {
    let was_there = file.symlink_metadata().is_ok();
    let opened = OpenOptions::new().append(true).create(true).open(file);
    let opened = opened.map_err(|error| {
        BadInput::new(format!("{option} {}: cannot write it: {error}", file.display()))
    });
    if opened.is_ok() && !was_there {
        // The later write creates it again; a file that stays does no harm.
        let _ = fs::remove_file(file);
    }
    opened.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_is_named_and_one_that_can_stays_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("report.html");
        check("--report", &file).unwrap();
        assert!(!file.exists());
        fs::write(&file, "of yesterday").unwrap();
        check("--report", &file).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"of yesterday");
        for wrong in [folder.path().join("nowhere/report.html"), folder.path().to_owned()] {
            let error = check("--report", &wrong).unwrap_err().to_string();
            let expected = format!("--report {}: cannot write it: ", wrong.display());
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}
