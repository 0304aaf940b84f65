//! Errors of recordings and of descriptions of links.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::timeline::TimelineError;

/// Why a trace cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file or directory cannot be read.
    #[error("{}: {source}", file.display())]
    Read {
        /// The file or directory.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is too large to be a trace.
    #[error("{}: too large for a trace; at most {} bytes are read", file.display(), bytes_max)]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// The limit in bytes.
        bytes_max: u64,
    },
    /// The file's text breaks its format.
    #[error("{file}:{line}:{column}: {problem}; {cure}")]
    Format {
        /// The file, as the caller named it.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The column, from 1, in characters.
        column: usize,
        /// The problem.
        problem: String,
        /// The fix.
        cure: String,
    },
    /// The directory contains no trace.
    #[error("{}: no links; a drive is a directory with a file NAME.csv or NAME.up per link", dir.display())]
    EmptyDrive {
        /// The directory.
        dir: PathBuf,
    },
    /// A downlink without its uplink.
    #[error("{}: no uplink; a link's `{}` is missing", file.display(), uplink.display())]
    NoUplink {
        /// The downlink.
        file: PathBuf,
        /// The missing file.
        uplink: PathBuf,
    },
    /// Two files describe the same direction of the same link.
    #[error("{}: {} describes this link already", file.display(), other.display())]
    Twice {
        /// The second file.
        file: PathBuf,
        /// The first file.
        other: PathBuf,
    },
    /// The values do not form a timeline.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
}
