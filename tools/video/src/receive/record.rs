//! The files of `receive`: display times of pictures, and the stream.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::log_file::LogFile;
use crate::stamp::Stamp;

#[derive(Debug)]
pub struct Record {
    frames: Option<LogFile>,
    stream: Option<LogFile>,
}

#[derive(Serialize)]
struct ShownPicture {
    number: u16,
    captured_unix_ms: f64,
    shown_unix_ms: f64,
}

impl Record {
    pub fn new(frames: Option<&Path>, stream: Option<&Path>) -> Result<Self> {
        let frames = frames.map(LogFile::create).transpose()?;
        Ok(Self { frames, stream: stream.map(LogFile::create).transpose()? })
    }

    pub fn wants_stream(&self) -> bool {
        self.stream.as_ref().is_some_and(LogFile::is_open)
    }

    pub fn on_frame(&mut self, unix: Duration, stamp: Stamp) {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let Some(file) = &mut self.frames else { return };
        let Stamp { captured, number } = stamp;
        let line = ShownPicture { number, captured_unix_ms: ms(captured), shown_unix_ms: ms(unix) };
        file.write((serde_json::to_string(&line).unwrap_or_default() + "\n").into_bytes());
    }

    pub fn on_coded(&mut self, bytes: &[u8]) {
        if let Some(file) = self.stream.as_mut().filter(|file| file.is_open()) {
            file.write(bytes.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let (frames, stream) = (folder.path().join("frames"), folder.path().join("stream"));
        let mut record = Record::new(Some(&frames), Some(&stream)).unwrap();
        assert!(record.wants_stream());
        let captured = Duration::from_micros(1_500_250);
        record.on_frame(captured + Duration::from_millis(40), Stamp { captured, number: 7 });
        record.on_coded(b"abc");
        drop(record);
        assert_eq!(std::fs::read(&stream).unwrap(), b"abc");
        let line = "{\"number\":7,\"captured_unix_ms\":1500.25,\"shown_unix_ms\":1540.25}\n";
        assert_eq!(std::fs::read_to_string(&frames).unwrap(), line);
        let nowhere = Path::new("/nowhere/frames");
        assert!(Record::new(Some(nowhere), None).is_err());
        Record::new(None, None).unwrap().on_coded(b"nobody wants it");
    }
}
