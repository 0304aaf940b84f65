//! `roadweave qoe`: what a viewer saw, from files.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use roadweave_lab::scenario::DRAIN;
use roadweave_lab::video::quality::{self, Player, Playout, Quality};
use roadweave_lab::video::stream_log::{Arrivals, SentStream};

use crate::demo::decode::{self, Comparison, RunFiles};

/// The two logs of a stream.
#[derive(Clone, Debug)]
pub struct Logs {
    /// The source's.
    pub sent: PathBuf,
    /// The sink's.
    pub arrived: PathBuf,
}

/// What the logs of a stream tell.
#[derive(Debug)]
pub struct View {
    /// What was sent.
    pub stream: SentStream,
    /// What arrived.
    pub arrivals: Arrivals,
    /// What the player made of it.
    pub playout: Playout,
    /// What a viewer saw.
    pub quality: Quality,
    arrived: PathBuf,
}

impl Logs {
    /// The logs of the run whose files lie in `directory`.
    pub fn of(directory: &Path) -> Self {
        Self { sent: directory.join("sent.csv"), arrived: directory.join("arrived.log") }
    }
}

impl View {
    /// Reads `logs` and plays what arrived. Frames that are open two seconds after the end of the
    /// stream are given up.
    ///
    /// # Errors
    /// When a log cannot be read or is malformed, with its name.
    pub fn of(logs: &Logs, player: &Player) -> anyhow::Result<Self> {
        let stream = read(&logs.sent, |file| Ok(SentStream::read(file)?))?;
        let arrivals = read(&logs.arrived, |file| Ok(Arrivals::read(&stream, file)?))?;
        let last = stream.log.frames.last().map(|frame| frame.captured).unwrap_or_default();
        let end = last + Duration::from_secs(1) / player.fps + DRAIN;
        let playout = Playout::new(&stream.log, &arrivals.first, player, end);
        let quality = quality::measure(&stream.log, &arrivals.first, &playout, player);
        Ok(Self { stream, arrivals, playout, quality, arrived: logs.arrived.clone() })
    }

    /// Decodes what arrived and compares it with `clip`, with files of its own in `scratch`.
    ///
    /// # Errors
    /// When ffmpeg or a file fails.
    pub fn compare(&self, clip: &Path, scratch: &Path) -> anyhow::Result<Comparison> {
        let files = RunFiles {
            clip: clip.to_owned(),
            arrivals: self.arrived.clone(),
            scratch: scratch.to_owned(),
        };
        Ok(decode::compare(&self.stream, &self.playout, &files)?)
    }
}

fn read<T>(
    path: &Path,
    parse: impl FnOnce(BufReader<File>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    parse(BufReader::with_capacity(1 << 20, file)).with_context(|| path.display().to_string())
}
