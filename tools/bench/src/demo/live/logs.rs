//! The logs of `roadweave-video`: a JSON line for each frame, of sender and receiver. Both use the
//! system's clock of the same machine.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::demo::clip::FPS;

#[derive(Clone, Debug)]
pub struct LiveLogs {
    pub sent: PathBuf,
    pub shown: PathBuf,
    pub received: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SentFrame {
    number: u16,
    at_ms: f64,
    captured_unix_ms: f64,
    /// Bytes allowed by the tunnel, with headers.
    pub target_bytes: usize,
    /// Bytes of the encoded frame, without headers.
    pub frame_bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ShownFrame {
    number: u16,
    shown_unix_ms: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LiveFrame {
    pub index: usize,
    pub captured: Duration,
    pub sent: SentFrame,
    pub shown_after: Option<Duration>,
}

impl LiveLogs {
    pub fn of(directory: &Path) -> Self {
        Self {
            sent: directory.join("sent.jsonl"),
            shown: directory.join("shown.jsonl"),
            received: directory.join("received.h264"),
        }
    }

    pub fn all(&self) -> [&Path; 3] {
        [&self.sent, &self.shown, &self.received]
    }

    /// When the film began, since the epoch; `None` before its first frame is sent.
    pub fn began(&self) -> Option<Duration> {
        let text = fs::read_to_string(&self.sent).ok()?;
        let frame: SentFrame = serde_json::from_str(text.lines().next()?).ok()?;
        Some(millis(frame.captured_unix_ms - frame.at_ms))
    }

    pub fn frames(&self) -> anyhow::Result<Vec<LiveFrame>> {
        Ok(join(read(&self.sent)?, read(&self.shown)?))
    }
}

/// Joins both logs by frame number. A run is too short for a number to occur twice.
fn join(sent: Vec<SentFrame>, shown: Vec<ShownFrame>) -> Vec<LiveFrame> {
    let mut first = HashMap::new();
    for frame in shown {
        first.entry(frame.number).or_insert(frame.shown_unix_ms);
    }
    let frame = |sent: SentFrame| LiveFrame {
        index: (sent.at_ms * f64::from(FPS) / 1e3).round() as usize,
        captured: millis(sent.captured_unix_ms),
        shown_after: first.get(&sent.number).map(|at| millis(at - sent.captured_unix_ms)),
        sent,
    };
    sent.into_iter().map(frame).collect()
}

fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<T>> {
    let text = fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let line = |(number, line): (usize, &str)| {
        serde_json::from_str(line)
            .with_context(|| format!("{}: line {} is malformed", path.display(), number + 1))
    };
    text.lines().enumerate().map(line).collect()
}

fn millis(ms: f64) -> Duration {
    Duration::from_secs_f64((ms / 1e3).max(0.0))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn frame(index: usize, captured: Duration, shown_after: Option<Duration>) -> LiveFrame {
        let number = u16::try_from(index).unwrap();
        let (at_ms, captured_unix_ms) = (0.0, captured.as_secs_f64() * 1e3);
        let (target_bytes, frame_bytes) = (9_000, 7_000);
        let sent = SentFrame { number, at_ms, captured_unix_ms, target_bytes, frame_bytes };
        LiveFrame { index, captured, sent, shown_after }
    }

    #[test]
    fn lines_of_both_ends_are_put_together() {
        let folder = tempfile::tempdir().unwrap();
        let logs = LiveLogs::of(folder.path());
        assert_eq!(logs.began(), None);
        let sent = |number: u32, at: f64| {
            format!(
                "{{\"number\":{number},\"at_ms\":{at},\"captured_unix_ms\":{},\"target_bytes\":9000,\
                 \"limit_bytes\":8000,\"frame_bytes\":7000,\"key\":false}}\n",
                5_000.0 + at
            )
        };
        // The second frame of the film was not encoded, the last one not shown.
        let lines = sent(0, 0.0) + &sent(1, 66.667) + &sent(2, 100.0);
        fs::write(&logs.sent, lines).unwrap();
        let shown = "{\"number\":1,\"captured_unix_ms\":5066.667,\"shown_unix_ms\":5100.667}\n\
                     {\"number\":0,\"captured_unix_ms\":5000,\"shown_unix_ms\":5040}\n";
        fs::write(&logs.shown, shown).unwrap();
        assert_eq!(logs.began(), Some(Duration::from_secs(5)));
        let frames = logs.frames().unwrap();
        let seen: Vec<_> =
            frames.iter().map(|it| (it.index, it.shown_after.map(|it| it.as_millis()))).collect();
        assert_eq!(seen, [(0, Some(40)), (2, Some(34)), (3, None)]);
        fs::write(&logs.shown, "{\"number\":1}").unwrap();
        let error = format!("{:#}", logs.frames().unwrap_err());
        assert!(error.contains("line 1 is malformed"), "{error}");
    }
}
