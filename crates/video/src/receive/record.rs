//! What `receive` leaves in files, for who wants to see afterwards what was shown, and when.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use roadweave_terminal::exit::BadInput;
use serde::Serialize;

use crate::options::Codec;
use crate::stamp::Stamp;

/// What has to be asked for as a byte stream: it could not be read from a file otherwise.
pub fn form(codec: Codec) -> Option<&'static str> {
    match codec {
        Codec::H264 | Codec::OpenH264 => Some("video/x-h264"),
        Codec::H265 => Some("video/x-h265"),
        Codec::Vp8 => None,
    }
}

/// The files, as far as they are wanted.
#[derive(Debug)]
pub struct Record {
    frames: Option<Bounded>,
    stream: Option<Bounded>,
}

/// A file that a sender cannot make as large as it likes.
#[derive(Debug)]
struct Bounded {
    file: File,
    left: usize,
}

/// A line about a picture that was shown.
#[derive(Serialize)]
struct Line {
    number: u16,
    captured_unix_ms: f64,
    shown_unix_ms: f64,
}

impl Record {
    /// `frames`: lines about pictures; `stream`: what is decoded, as it came.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn new(frames: Option<&Path>, stream: Option<&Path>) -> Result<Self> {
        let create = |path: &Path| -> Result<Bounded> {
            let refused =
                |error| BadInput::new(format!("cannot write {}: {error}", path.display()));
            Ok(Bounded { file: File::create(path).map_err(refused)?, left: BYTES_MOST })
        };
        Ok(Self {
            frames: frames.map(create).transpose()?,
            stream: stream.map(create).transpose()?,
        })
    }

    /// Whether anybody wants what is decoded.
    pub fn wants_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// A picture was shown at `unix`, since the epoch.
    pub fn on_frame(&mut self, unix: Duration, stamp: Stamp) {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let Stamp { captured, number } = stamp;
        let line = Line { number, captured_unix_ms: ms(captured), shown_unix_ms: ms(unix) };
        let text = serde_json::to_string(&line).unwrap_or_default() + "\n";
        write(&mut self.frames, text.as_bytes(), "the file about frames");
    }

    /// These bytes go to the decoder.
    pub fn on_coded(&mut self, bytes: &[u8]) {
        write(&mut self.stream, bytes, "the file with what is decoded");
    }
}

/// A disk that is full, or a file that is, ends the file and not the receiving.
fn write(to: &mut Option<Bounded>, bytes: &[u8], what: &str) {
    let Some(bounded) = to else { return };
    if let Err(error) = bounded.write(bytes) {
        tracing::warn!("{what} ends here: {error}");
        *to = None;
    }
}

impl Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let full = || io::Error::from(io::ErrorKind::FileTooLarge);
        self.left = self.left.checked_sub(bytes.len()).ok_or_else(full)?;
        self.file.write_all(bytes)
    }
}

/// Whoever reaches the port can fill the files up to here.
const BYTES_MOST: usize = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_is_written_and_a_file_that_is_full_ends() {
        let folder = tempfile::tempdir().unwrap();
        let (frames, stream) = (folder.path().join("frames"), folder.path().join("stream"));
        let mut record = Record::new(Some(&frames), Some(&stream)).unwrap();
        assert!(record.wants_stream());
        let captured = Duration::from_micros(1_500_250);
        record.on_frame(captured + Duration::from_millis(40), Stamp { captured, number: 7 });
        record.on_coded(b"abc");
        record.stream.as_mut().unwrap().left = 2;
        record.on_coded(b"def");
        record.on_coded(b"g");
        assert!(!record.wants_stream());
        assert_eq!(std::fs::read(&stream).unwrap(), b"abc");
        let line = "{\"number\":7,\"captured_unix_ms\":1500.25,\"shown_unix_ms\":1540.25}\n";
        assert_eq!(std::fs::read_to_string(&frames).unwrap(), line);
        let nowhere = Path::new("/nowhere/frames");
        assert!(Record::new(Some(nowhere), None).is_err());
        Record::new(None, None).unwrap().on_coded(b"nobody wants it");
    }
}
