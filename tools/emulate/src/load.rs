//! Traces from files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::capacity::{Capacity, Opportunities};
use crate::csv::{Unknown, parse_csv};
use crate::error::TraceError;
use crate::mahimahi::parse_mahimahi;
use crate::trace::Trace;

/// The largest accepted trace file, bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// Reads the delivery opportunities of a Mahimahi trace.
///
/// # Errors
/// [`TraceError`] if the file cannot be read, is too large or breaks its format.
pub fn read_mahimahi(file: &Path) -> Result<Opportunities, TraceError> {
    parse_mahimahi(&file.display().to_string(), &read(file)?)
}

/// Reads a CSV trace (`.csv`), or otherwise Mahimahi's format, to which `unknown` adds delay and
/// loss.
///
/// # Errors
/// [`TraceError`] if the file cannot be read, is too large or breaks its format.
pub fn read_trace(file: &Path, unknown: Unknown) -> Result<Trace, TraceError> {
    if file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv")) {
        return parse_csv(&file.display().to_string(), &read(file)?, unknown);
    }
    let opportunities = Capacity::Opportunities(read_mahimahi(file)?);
    Ok(unknown.trace().with_capacity(opportunities))
}

fn read(file: &Path) -> Result<String, TraceError> {
    let failed = |source| TraceError::Read { file: file.into(), source };
    match read_at_most(file, FILE_BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            Err(TraceError::TooLarge { file: file.into(), bytes_max: FILE_BYTES_MAX })
        }
        Err(error) => Err(failed(error)),
        Ok(bytes) => String::from_utf8(bytes).map_err(|error| failed(io::Error::other(error))),
    }
}

/// The bytes of a file, at most `bytes_max`, which also bounds devices and pipes.
///
/// # Errors
/// If the file cannot be read, and [`io::ErrorKind::FileTooLarge`].
pub fn read_at_most(file: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let problem = format!("more than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_end_is_too_large() {
        let error = read_trace(Path::new("/dev/zero"), Unknown::default()).unwrap_err();
        assert!(matches!(error, TraceError::TooLarge { .. }), "{error}");
    }

    #[test]
    fn a_file_of_the_allowed_size_is_read_and_one_byte_more_refused() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let bytes = read_at_most(&file, u64::MAX).unwrap();
        let size = bytes.len() as u64;
        assert_eq!(read_at_most(&file, size).unwrap(), bytes);
        let error = read_at_most(&file, size - 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
