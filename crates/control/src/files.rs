//! Files that are read if they are there, and replaced atomically.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use roadweave_terminal::exit::BadInput;

pub fn bad(path: &Path, why: impl std::fmt::Display) -> BadInput {
    BadInput::new(format!("{}: {why}", path.display()))
}

pub fn read_if_there(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Replaces a file atomically, readable by its owner alone.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    put(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// As [`replace`], with the system's error alone.
pub fn put(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    write_new(&new, text)?;
    fs::rename(&new, path)
}

pub fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
