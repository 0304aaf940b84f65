//! The drives of a directory.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::Context as _;
use ring::digest::{self, SHA256};
use roadweave_emulate::{Drive, TraceError};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

/// Options of the drives to run.
#[derive(Clone, Debug, clap::Args)]
pub struct DriveOptions {
    /// The directory of the drives
    #[arg(long, value_name = "DIR")]
    drives: PathBuf,
    /// Run only these drives, separated by commas
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    only: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct NamedDrive {
    /// Name of its directory.
    pub name: String,
    pub drive: Drive,
    pub fingerprint: String,
}

/// Reads the drives of `directory`: one per subdirectory, or the directory itself without any.
/// [`BadInput`] names an unreadable directory or recording.
pub fn read(directory: &Path) -> anyhow::Result<Vec<NamedDrive>> {
    let unreadable = |error| BadInput::new(format!("{}: {error}", unreadable_directory(directory)));
    let mut folders = entries(directory).map_err(unreadable)?;
    folders.retain(|path| path.is_dir());
    if folders.is_empty() {
        folders.push(directory.canonicalize()?);
    }
    let mut drives = Vec::new();
    for folder in folders {
        match Drive::read(&folder) {
            Ok(drive) => drives.push(NamedDrive {
                name: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                fingerprint: fingerprint(&folder)?,
                drive,
            }),
            Err(TraceError::EmptyDrive { dir }) => {
                out::note(format_args!("{}: no recordings, skipped", dir.display()));
            }
            Err(error) => return Err(BadInput::new(error).into()),
        }
    }
    if drives.is_empty() {
        let problem = format!(
            "{}: no drives; a drive is a directory with a file LINK.csv per link, and DIR has a \
             directory per drive",
            directory.display()
        );
        return Err(BadInput::new(problem).into());
    }
    Ok(drives)
}

impl DriveOptions {
    /// The drives; [`BadInput`] names one that does not exist.
    pub fn read(&self) -> anyhow::Result<Vec<NamedDrive>> {
        let (mut all, only) = (read(&self.drives)?, &self.only);
        let unknown = only.iter().find(|name| !all.iter().any(|drive| drive.name == **name));
        if let Some(unknown) = unknown {
            return Err(BadInput::new(format!("--only: there is no drive `{unknown}`")).into());
        }
        all.retain(|drive| only.is_empty() || only.contains(&drive.name));
        Ok(all)
    }
}

/// A digest of a file's bytes, 16 hexadecimal digits.
pub fn digest_of_file(file: &Path) -> anyhow::Result<String> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(hex(&digest::digest(&SHA256, &bytes)))
}

pub fn digest_of(texts: &[&str]) -> String {
    let mut context = digest::Context::new(&SHA256);
    for text in texts {
        context.update(&(text.len() as u64).to_be_bytes());
        context.update(text.as_bytes());
    }
    hex(&context.finish())
}

fn fingerprint(folder: &Path) -> anyhow::Result<String> {
    let mut context = digest::Context::new(&SHA256);
    let files = entries(folder).with_context(|| unreadable_directory(folder))?;
    for file in files.into_iter().filter(|path| path.is_file()) {
        context.update(file.file_name().unwrap_or_default().as_encoded_bytes());
        context.update(digest_of_file(&file)?.as_bytes());
    }
    Ok(hex(&context.finish()))
}

fn hex(digest: &digest::Digest) -> String {
    digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unreadable_directory(directory: &Path) -> String {
    format!("cannot read the directory {}", directory.display())
}

/// The entries of a directory, sorted by name.
pub fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = paths.collect::<io::Result<Vec<PathBuf>>>()?;
    paths.sort_unstable();
    Ok(paths)
}
