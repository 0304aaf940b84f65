//! Traces from files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use crate::capacity::{Capacity, Opportunities};
use crate::csv::parse_csv;
use crate::error::TraceError;
use crate::mahimahi::parse_mahimahi;
use crate::timeline::Timeline;
use crate::trace::Trace;

/// The largest accepted trace file, bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// Reads the delivery opportunities of a Mahimahi trace.
pub fn read_mahimahi(file: &Path) -> Result<Opportunities, TraceError> {
    parse_mahimahi(&file.display().to_string(), &read(file)?)
}

/// Reads a CSV trace (`.csv`), or otherwise Mahimahi's format, which has neither delay nor loss.
/// `rtt` is the round-trip time if the file has none.
pub fn read_trace(file: &Path, rtt: Duration) -> Result<Trace, TraceError> {
    if file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv")) {
        return parse_csv(&file.display().to_string(), &read(file)?, rtt);
    }
    let opportunities = Capacity::Opportunities(read_mahimahi(file)?);
    Ok(Trace::new(opportunities, Timeline::constant(rtt / 2), Timeline::constant(0.0)))
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
    use crate::csv::UNKNOWN_RTT;

    #[test]
    fn a_file_without_an_end_is_too_large() {
        let error = read_trace(Path::new("/dev/zero"), UNKNOWN_RTT).unwrap_err();
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
