//! Reads configuration files; errors contain the position and the remedy.
//!
//! ```text
//! file ─► text ─► toml: syntax, fields, types ─► Validate: fields that must fit each other
//!          │               │                              │ Fault: names of tables and fields
//!          └► FileError ◄──┴─────── line and column ◄─────┘
//! ```

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::{getegid, geteuid};
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use zeroize::Zeroizing;

/// A configuration file is not usable.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// This user may not read the file.
    #[error("cannot read {path}: permission denied to user {user}: {mend}", path = path.display())]
    Denied {
        /// The file.
        path: PathBuf,
        /// The user's name, or number without a name.
        user: String,
        /// The remedy.
        mend: String,
    },
    /// The file holds a private key, and everyone on the machine may read or change it.
    #[error(
        "{path}: everybody on this machine may {what} it (mode {mode:04o}), and it holds a private \
         key: chmod 600 {path}",
        path = path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// What everyone may do.
        what: &'static str,
        /// Its mode.
        mode: u32,
    },
    /// The file is no TOML, or a field is unknown or has an invalid value.
    #[error("{}: {message}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The position, the field and the remedy.
        message: String,
    },
}

/// A field that conflicts with the rest of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The path: names, and numbers from 0, separated by dots, as in `peers.1.expires`.
    pub field: String,
    /// The user's name of the field, and the remedy.
    pub message: String,
}

impl Fault {
    /// A fault at `field`.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }

    /// Converts it to an error of the file at `path` with this `text`.
    pub fn in_file(self, path: &Path, text: &str) -> FileError {
        let message = with_position(text, offset_of(text, &self.field), &self.message);
        FileError::Invalid { path: path.to_owned(), message }
    }
}

/// A file that is validated beyond the types of its fields.
pub trait Validate {
    /// Whether the file holds a secret, such as a private key, which others must not read.
    const HAS_SECRET: bool = true;

    /// The fields that count without a restart; a name stands for all that is below it.
    const RELOADED: &'static [&'static str] = &[];

    /// Validates what the types of single fields cannot.
    fn validate(&self) -> Result<(), Fault>;

    /// Valid but probably unintended settings. `now_unix`: seconds since 1970.
    fn warnings(&self, _now_unix: u64) -> Vec<String> {
        Vec::new()
    }
}

/// Reads and validates a configuration file.
pub fn load<T: DeserializeOwned + Validate>(path: &Path) -> Result<T, FileError> {
    check(path, &read_text(path, T::HAS_SECRET)?)
}

/// Parses and validates `text`; `path` is for errors.
pub fn check<T: DeserializeOwned + Validate>(path: &Path, text: &str) -> Result<T, FileError> {
    let file: T = parse(path, text)?;
    file.validate().map_err(|fault| fault.in_file(path, text))?;
    Ok(file)
}

/// Parses `text` by the types of its fields only; `path` is for errors.
pub fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, FileError> {
    toml::from_str(text).map_err(|error| FileError::Invalid {
        path: path.to_owned(),
        message: redacted_message(text, &error),
    })
}

/// Without the line if that may contain a key.
fn redacted_message(text: &str, error: &toml::de::Error) -> String {
    let whole = error.to_string().trim_end().to_owned();
    let is_of_a_key = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    let has_key = |text: &str| text.split(|c| !is_of_a_key(c)).any(|word| word.len() >= KEY_MIN);
    if !has_key(&whole) {
        return whole;
    }
    let message = if has_key(error.message()) { "this cannot be read" } else { error.message() };
    with_position(text, error.span().map(|span| span.start), message)
}

/// A key has 44 letters in base64; a part shorter than this is no secret.
const KEY_MIN: usize = 24;

/// The text of a file, wiped when it is dropped.
///
/// # Errors
/// [`FileError::Exposed`] if it holds a secret that others may read.
pub fn read_text(path: &Path, has_secret: bool) -> Result<Zeroizing<String>, FileError> {
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(|error| unreadable(path, error))?;
    let there = file.metadata().map_err(failed)?;
    let mode = there.mode() & 0o7777;
    if has_secret && !there.is_dir() {
        if mode & 0o006 != 0 {
            let what = if mode & 0o004 != 0 { "read" } else { "write" };
            return Err(FileError::Exposed { path: path.to_owned(), what, mode });
        }
        let is_shared = mode & 0o020 == 0 && reading_group(path) == Some(there.gid());
        if mode & 0o060 != 0 && !is_shared {
            tracing::warn!(
                "{path}: its group (gid {gid}) may read or write it (mode {mode:04o}), and it holds a \
                 private key; chmod 600 {path} unless that is meant",
                path = path.display(),
                gid = there.gid(),
            );
        }
    }
    // One allocation: growing the text would leave copies behind.
    let length = usize::try_from(there.len()).unwrap_or(0).min(TEXT_MAX);
    let mut text = Zeroizing::new(String::with_capacity(length + 1));
    file.read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

fn unreadable(path: &Path, source: io::Error) -> FileError {
    if source.kind() != io::ErrorKind::PermissionDenied {
        return FileError::Read { path: path.to_owned(), source };
    }
    let user = name("/etc/passwd", geteuid().as_raw());
    // The folder that this user may not search, or else the file.
    let closed = path.ancestors().find(|part| fs::metadata(part).is_ok()).unwrap_or(path);
    let shown = closed.display();
    let mend = match closed.is_dir() {
        true => {
            let group = name("/etc/group", getegid().as_raw());
            format!(
                "{shown} is closed to it: move the file, or chgrp {group} {shown} && chmod 750 \
                 {shown}"
            )
        }
        false => format!("chown {user} {shown}, or run this as another user"),
    };
    FileError::Denied { path: path.to_owned(), user, mend }
}

fn name(file: &str, number: u32) -> String {
    let number = number.to_string();
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut lines = text.lines().map(|line| line.split(':'));
    let known = lines.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)? == number).then(|| name.to_owned())
    });
    known.unwrap_or(number)
}

const TEXT_MAX: usize = 16 << 20;

/// The offset of a field's value in `text`, or of the innermost existing part of its path.
fn offset_of(text: &str, field: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut steps = field.split('.');
    let mut value = find(table.get_ref(), steps.next()?)?;
    for step in steps {
        let inner = match value.get_ref() {
            DeValue::Table(table) => find(table, step),
            DeValue::Array(array) => step.parse().ok().and_then(|at: usize| array.get(at)),
            _ => None,
        };
        let Some(inner) = inner else { break };
        value = inner;
    }
    Some(value.span().start)
}

fn find<'a, 'i>(table: &'a DeTable<'i>, name: &str) -> Option<&'a Spanned<DeValue<'i>>> {
    table.iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| value)
}

fn with_position(text: &str, at: Option<usize>, message: &str) -> String {
    let Some(at) = at else { return message.to_owned() };
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("line {line}, column {column}: {message}")
}

/// The group that may read private files beside `path`: the folder's, if the folder belongs to root
/// and has mode 0750, as `/etc/roadweave` has for the services' user.
pub fn reading_group(path: &Path) -> Option<u32> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = fs::metadata(folder.unwrap_or(Path::new("."))).ok()?;
    let is_shared = folder.uid() == 0 && folder.gid() != 0 && folder.mode() & 0o077 == 0o050;
    is_shared.then(|| folder.gid())
}
