//! Errors of recordings and of descriptions of links.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::timeline::TimelineError;

/// Why a trace cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraceError {
    #[error("{}: {source}", file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("{}: too large for a trace; at most {} bytes are read", file.display(), bytes_max)]
    TooLarge { file: PathBuf, bytes_max: u64 },
    #[error("{file}:{line}:{column}: {problem}; {cure}")]
    Format {
        /// The file, as the caller named it.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The column, from 1, in characters.
        column: usize,
        problem: String,
        cure: String,
    },
    #[error("{}: no links; a drive is a directory with a file NAME.csv or NAME.up per link", dir.display())]
    EmptyDrive { dir: PathBuf },
    #[error("{}: no uplink; a link's `{}` is missing", file.display(), uplink.display())]
    NoUplink { file: PathBuf, uplink: PathBuf },
    #[error("{}: {} describes this link already", file.display(), other.display())]
    Twice { file: PathBuf, other: PathBuf },
    #[error(transparent)]
    Timeline(#[from] TimelineError),
}
