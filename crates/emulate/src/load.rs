//! Traces from files.

use std::fs;
use std::path::Path;

use crate::capacity::{Capacity, Opportunities};
use crate::csv::{Unknown, parse_csv};
use crate::error::TraceError;
use crate::mahimahi::parse_mahimahi;
use crate::trace::Trace;

/// The largest file that is read as a trace, bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// Reads a CSV recording.
///
/// # Errors
/// [`TraceError`] when the file cannot be read, is too large or breaks its format.
pub fn read_csv(file: &Path, unknown: Unknown) -> Result<Trace, TraceError> {
    parse_csv(&file.display().to_string(), &read(file)?, unknown)
}

/// Reads the delivery opportunities of a Mahimahi trace.
///
/// # Errors
/// [`TraceError`] when the file cannot be read, is too large or breaks its format.
pub fn read_mahimahi(file: &Path) -> Result<Opportunities, TraceError> {
    parse_mahimahi(&file.display().to_string(), &read(file)?)
}

/// Reads a trace of the kind that the file's name says: `.csv`, or else Mahimahi's format, to which
/// `unknown` adds delay and loss.
///
/// # Errors
/// [`TraceError`] when the file cannot be read, is too large or breaks its format.
pub fn read_trace(file: &Path, unknown: Unknown) -> Result<Trace, TraceError> {
    if file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv")) {
        return read_csv(file, unknown);
    }
    let opportunities = Capacity::Opportunities(read_mahimahi(file)?);
    Ok(unknown.trace().with_capacity(opportunities))
}

fn read(file: &Path) -> Result<String, TraceError> {
    let failed = |source| TraceError::Read { file: file.into(), source };
    let bytes = fs::metadata(file).map_err(failed)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(TraceError::TooLarge { file: file.into(), bytes });
    }
    fs::read_to_string(file).map_err(failed)
}
