//! Files and directories, protected against accidental overwriting.

use std::path::Path;
use std::{fs, io};

use anyhow::Context as _;
use roadweave_emulate::FILE_BYTES_MAX;
use roadweave_terminal::exit::BadInput;

/// Creates `directory`, or takes an empty one, or with `force` any. [`BadInput`] otherwise, except
/// for a full disk, which is not a fault of the input.
pub fn make_directory(directory: &Path, force: bool) -> anyhow::Result<()> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            anyhow::Error::new(error).context(format!("cannot make {}", directory.display()))
        }
        _ => BadInput::new(format!("--out {}: {error}", directory.display())).into(),
    };
    fs::create_dir_all(directory).map_err(failed)?;
    if !force && fs::read_dir(directory).map_err(failed)?.next().is_some() {
        let problem = format!("--out {}: not empty; overwrite with --force", directory.display());
        return Err(BadInput::new(problem).into());
    }
    Ok(())
}

pub fn write(file: &Path, text: &str, force: bool) -> anyhow::Result<()> {
    if !force && file.exists() {
        let problem = format!("{}: exists; overwrite it with --force", file.display());
        return Err(BadInput::new(problem).into());
    }
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

pub fn check_size(what: &str, text: &str) -> Result<(), BadInput> {
    if text.len() as u64 <= FILE_BYTES_MAX {
        return Ok(());
    }
    Err(BadInput::new(format!(
        "{what}: {} MB, but at most {} MB are read; use fewer --seconds",
        text.len() / 1_000_000,
        FILE_BYTES_MAX / 1_000_000
    )))
}
