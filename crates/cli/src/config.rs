//! The configuration files: what may stand in them, and errors that say what would be right.
//!
//! Every field has a default where one makes sense, its unit in its name, and a line in
//! docs/configuration.md, which a test holds against these types.

mod client;
mod destinations;
mod fields;
mod router;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use roadweave_lab::scenario::line_of;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

pub use client::ClientFile;
#[cfg(test)]
pub use fields::PrivateKey;
pub use fields::host_port;
pub use router::RouterFile;
pub use server::ServerFile;

/// A configuration file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Everybody on the machine may read or change it, and it holds a private key.
    #[error(
        "{path}: everybody on this machine may {what} it (mode {mode:04o}), and it holds a private \
         key: chmod 600 {path}",
        path = path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// What everybody may do.
        what: &'static str,
        /// Its mode.
        mode: u32,
    },
    /// It is no TOML, or a field in it is unknown or has a value that cannot be.
    #[error("{}: {message}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Line, column, field, and what would be right.
        message: String,
    },
}

/// A field that does not go with the rest of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where it stands: names, and numbers from 0, divided by dots, as in `peers.1.expires`.
    field: String,
    /// The field as the user calls it, and what would be right.
    message: String,
}

impl Fault {
    /// A fault at `field`.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// A file that can be checked beyond the types of its fields.
pub trait Validate {
    /// Whether the file holds a private key, and so must be kept from others.
    const HAS_SECRET: bool = false;

    /// # Errors
    /// Says which field does not go with the others.
    fn validate(&self) -> Result<(), Fault>;

    /// What is possible and most likely not meant. `now_unix` is the time of day, seconds
    /// since 1970.
    fn warnings(&self, _now_unix: u64) -> Vec<String> {
        Vec::new()
    }
}

/// The fields in which two files differ, in the order of their names. Values are not told: some are
/// secret.
pub fn differing<T: Serialize>(old: &T, new: &T) -> BTreeSet<String> {
    let leaves = |file: &T| {
        let mut leaves = BTreeMap::new();
        // What was read from a file can be written again.
        if let Ok(value) = toml::Value::try_from(file) {
            flatten("", &value, &mut leaves);
        }
        leaves
    };
    let (old, new) = (leaves(old), leaves(new));
    let names = old.keys().chain(new.keys());
    names.filter(|name| old.get(*name) != new.get(*name)).cloned().collect()
}

/// All leaves of a file, named as the documentation names them: the elements of a list of tables
/// share their names.
fn flatten(prefix: &str, value: &toml::Value, leaves: &mut BTreeMap<String, Vec<String>>) {
    match value {
        toml::Value::Table(table) => {
            for (name, value) in table {
                let dot = if prefix.is_empty() { "" } else { "." };
                flatten(&format!("{prefix}{dot}{name}"), value, leaves);
            }
        }
        toml::Value::Array(items) if items.iter().any(toml::Value::is_table) => {
            items.iter().for_each(|item| flatten(prefix, item, leaves));
        }
        leaf => leaves.entry(prefix.to_owned()).or_default().push(leaf.to_string()),
    }
}

/// Reads and checks a configuration file.
///
/// # Errors
/// Names the file, the line, the field and what would be right.
pub fn load<T: DeserializeOwned + Validate>(path: &Path) -> Result<T, ConfigFileError> {
    let text = read(path, T::HAS_SECRET)?;
    parse(&text).map_err(|message| ConfigFileError::Invalid { path: path.to_owned(), message })
}

/// The text of a file, which is wiped when it is dropped.
fn read(path: &Path, has_secret: bool) -> Result<Zeroizing<String>, ConfigFileError> {
    let failed = |source| ConfigFileError::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let there = file.metadata().map_err(failed)?;
    let mode = there.mode() & 0o7777;
    // What is no file is told by the reading.
    if has_secret && !there.is_dir() {
        if mode & 0o006 != 0 {
            let what = if mode & 0o004 != 0 { "read" } else { "write" };
            return Err(ConfigFileError::Exposed { path: path.to_owned(), what, mode });
        }
        if mode & 0o060 != 0 {
            tracing::warn!(
                "{path}: its group (gid {gid}) may read or write it (mode {mode:04o}), and it holds a \
                 private key; chmod 600 {path} unless that is meant",
                path = path.display(),
                gid = there.gid(),
            );
        }
    }
    // All of it at once: a text that grows while it is read leaves copies behind.
    let length = usize::try_from(there.len()).unwrap_or(0).min(TEXT_MAX);
    let mut text = Zeroizing::new(String::with_capacity(length + 1));
    file.read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// What is set aside for a file at most before it is read.
const TEXT_MAX: usize = 16 << 20;

fn parse<T: DeserializeOwned + Validate>(text: &str) -> Result<T, String> {
    let file: T = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
    file.validate().map_err(|fault| match line_of(text, &fault.field) {
        Some(line) => format!("line {line}: {}", fault.message),
        None => fault.message,
    })?;
    Ok(file)
}

#[cfg(test)]
mod tests;
