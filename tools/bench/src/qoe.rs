//! `roadweave qoe`: what a viewer saw, computed from files.
//!
//! ```text
//!   RUN/sent.csv ────┐
//!                    ├─► View: playout, quality ──► fps, stalls, delays ─┐
//!   RUN/arrived.log ─┤                                                   ├─► table, JSON
//!   --clip ──────────┴─► decode, compare by frame ID ─────────► SSIM ────┘
//! ```
//!
//! `roadweave demo --keep` and `roadweave lab run --keep` write such files; docs/video.md describes
//! their formats. The demo measures its own runs with [`View`] too.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use roadweave_lab::bound::delays_of_all;
use roadweave_lab::scenario::DRAIN;
use roadweave_lab::video::quality::{self, Percentiles, Player, Playout, Quality, StreamLog};
use roadweave_lab::video::stream_log::{Arrivals, SentStream};
use roadweave_proto::Instant;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use serde::Serialize;

use crate::demo::clip;
use crate::demo::decode::{self, Comparison};
use crate::demo::ffmpeg;
use crate::demo::table::{known, millis, percent};
use crate::table::{Column, filled, plain, right_aligned};

/// Computes what a viewer saw, from the files of a run
///
/// RUN is a directory with sent.csv and arrived.log, such as `roadweave demo --keep` and `roadweave
/// lab run --keep` write. Frames are shown in order, after a wait of 100 ms for a missing one.
#[derive(Debug, clap::Args)]
pub struct QoeArgs {
    /// Directories, each with the files of a run
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// Also decode what arrived with ffmpeg and compare it with this clip, which was sent
    #[arg(long, value_name = "FILE")]
    clip: Option<PathBuf>,
    /// Print the figures as one JSON object
    #[arg(long)]
    json: bool,
    /// With --json: also the fate of every frame
    #[arg(long, requires = "json")]
    details: bool,
}

#[derive(Debug, Serialize)]
struct QoeTable {
    strategies: Vec<StrategyQoe>,
}

#[derive(Debug, Serialize)]
struct StrategyQoe {
    strategy: String,
    fps: f64,
    stall_ratio: f64,
    ssim: Option<f64>,
    /// Of all packets sent; lost and later packets count as the deadline.
    delay_ms: Percentiles,
    delay_arrived_ms: Percentiles,
    /// Time from a frame's capture to its last packet, of complete frames.
    frame_delay_ms: Percentiles,
    residual_loss: f64,
    late: f64,
    /// Unknown from these logs; the names are the same in every measuring command.
    redundancy: Option<f64>,
    cpu_percent: Option<f64>,
    packets: usize,
    duplicates: u64,
    foreign: u64,
    frames: usize,
    frames_complete: usize,
    frames_undamaged: usize,
    stalls_ms: Vec<(f64, f64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<Vec<SeenFrame>>,
}

#[derive(Debug, Serialize)]
struct SeenFrame {
    frame: usize,
    captured_ms: f64,
    /// Time from its capture to its last packet; absent for an incomplete frame.
    delay_ms: Option<f64>,
    shown: bool,
    undamaged: bool,
    ssim: Option<f32>,
}

impl QoeArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        if self.clip.is_some() {
            ffmpeg::check()?;
        }
        let seen: anyhow::Result<Vec<StrategyQoe>> =
            self.runs.iter().map(|run| self.see(run)).collect();
        let table = QoeTable { strategies: seen? };
        if self.json { out::json(&table) } else { Ok(out::line(table.in_words())?) }
    }

    fn see(&self, run: &Path) -> anyhow::Result<StrategyQoe> {
        let logs = Logs::of(run);
        let view = View::of(&logs, None).map_err(|error| BadInput::new(format!("{error:#}")))?;
        view.check(&logs)?;
        let comparison = match &self.clip {
            None => None,
            Some(clip) => {
                check_clip(clip, view.stream.log.frames.len())?;
                let scratch = tempfile::tempdir().context("cannot create a directory")?;
                Some(view.compare(clip, scratch.path())?)
            }
        };
        if let Some(comparison) = &comparison {
            comparison.warn_of_nothing_decoded(&run.display().to_string());
        }
        if let Some(Comparison { unreadable: unreadable @ 1.., decoded, .. }) = comparison {
            out::note(format_args!(
                "{}: {unreadable} of {decoded} pictures have no readable frame ID, and count as \
                 the next frame that arrived at least in part",
                run.display()
            ));
        }
        let name = run.canonicalize().unwrap_or_else(|_| run.to_owned());
        let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut seen = view.seen(name);
        seen.ssim = comparison.as_ref().map(Comparison::mean);
        if self.details {
            let ssim = comparison.map(|comparison| comparison.ssim).unwrap_or_default();
            seen.detail = Some(view.frames(&ssim));
        }
        Ok(seen)
    }
}

impl QoeTable {
    fn in_words(&self) -> String {
        right_aligned(filled(plain(), COLUMNS, &self.strategies), 1)
    }
}

const COLUMNS: &[Column<StrategyQoe>] = &[
    ("run", |seen| seen.strategy.clone()),
    ("fps", |seen| format!("{:.1}", seen.fps)),
    ("stall", |seen| percent(seen.stall_ratio)),
    ("SSIM", |seen| known(seen.ssim, |ssim| format!("{ssim:.3}"))),
    ("delay p50", |seen| millis(seen.delay_ms.p50)),
    ("p95", |seen| millis(seen.delay_ms.p95)),
    ("p99", |seen| millis(seen.delay_ms.p99)),
    ("p99.9", |seen| millis(seen.delay_ms.p999)),
    ("frame p50", |seen| millis(seen.frame_delay_ms.p50)),
    ("p99", |seen| millis(seen.frame_delay_ms.p99)),
    ("residual loss", |seen| percent(seen.residual_loss)),
    ("of it late", |seen| percent(seen.late)),
];

#[derive(Clone, Debug)]
pub struct Logs {
    pub sent: PathBuf,
    pub arrived: PathBuf,
}

#[derive(Debug)]
pub struct View {
    pub stream: SentStream,
    pub arrivals: Arrivals,
    pub playout: Playout,
    pub quality: Quality,
    pub delay_ms: Percentiles,
    arrived: PathBuf,
}

impl Logs {
    pub fn of(directory: &Path) -> Self {
        Self { sent: directory.join("sent.csv"), arrived: directory.join("arrived.log") }
    }

    pub fn of_run(directory: &Path, strategy: &str) -> Self {
        // Colons in file names are a problem for other programs.
        Self::of(&directory.join(strategy.replace(':', "-")))
    }
}

impl View {
    /// Reads `logs` and plays the arrived packets with `player`, or the default player at the
    /// stream's own rate. Frames still open two seconds after the end of the stream are given up.
    pub fn of(logs: &Logs, player: Option<&Player>) -> anyhow::Result<Self> {
        let stream = read(&logs.sent, |file| Ok(SentStream::read(file)?))?;
        let player = match player {
            Some(player) => player.clone(),
            None => Player { fps: fps(&stream.log), ..Player::default() },
        };
        let arrivals = read(&logs.arrived, |file| Ok(Arrivals::read(&stream, file)?))?;
        let last = stream.log.frames.last().map(|frame| frame.captured).unwrap_or_default();
        let end = last + Duration::from_secs(1) / player.fps + DRAIN;
        let playout = Playout::new(&stream.log, &arrivals.first, &player, end);
        let quality = quality::measure(&stream.log, &arrivals.first, &playout, &player);
        let delays = delays_of_all(&stream.log, &arrivals.first, player.deadline);
        let delay_ms = Percentiles::of_sorted(&delays);
        Ok(Self { stream, arrivals, playout, quality, delay_ms, arrived: logs.arrived.clone() })
    }

    fn check(&self, logs: &Logs) -> Result<(), BadInput> {
        let problem = |log: &Path, problem: String| {
            Err(BadInput::new(format!("{}: {problem}", log.display())))
        };
        if self.stream.log.packets.is_empty() {
            return problem(&logs.sent, "no packet was sent".into());
        }
        let none_came = self.arrivals.first.iter().all(Option::is_none);
        let is_empty = std::fs::metadata(&logs.arrived).is_ok_and(|file| file.len() == 0);
        if none_came && !is_empty {
            let what = match self.arrivals.foreign {
                0 => "no complete record".to_owned(),
                count => format!("none of its {count} datagrams was sent in this run"),
            };
            return problem(&logs.arrived, format!("{what}; is it the log of this run?"));
        }
        let sent = &self.stream.log.packets;
        let early =
            |(sent, arrived): (&Instant, &Option<Instant>)| arrived.is_some_and(|at| at < *sent);
        match sent.iter().zip(&self.arrivals.first).position(early) {
            None => Ok(()),
            Some(index) => {
                let number = index + 1;
                let what = format!(
                    "the packet of line {number} of {} arrived before it was sent; \
                    both logs need the same clock",
                    logs.sent.display()
                );
                problem(&logs.arrived, what)
            }
        }
    }

    fn seen(&self, strategy: String) -> StrategyQoe {
        let quality = &self.quality;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        StrategyQoe {
            strategy,
            fps: quality.fps,
            stall_ratio: quality.stall_ratio,
            ssim: None,
            delay_ms: self.delay_ms.clone(),
            delay_arrived_ms: quality.packet_delay.clone(),
            frame_delay_ms: quality.frame_delay.clone(),
            residual_loss: quality.residual_loss(),
            late: quality.late,
            redundancy: None,
            cpu_percent: None,
            packets: self.stream.log.packets.len(),
            duplicates: self.arrivals.duplicates,
            foreign: self.arrivals.foreign,
            frames: quality.frames,
            frames_complete: quality.frames_complete,
            frames_undamaged: quality.frames_undamaged,
            stalls_ms: quality.stalls.iter().map(|(from, to)| (ms(*from), ms(*to))).collect(),
            detail: None,
        }
    }

    fn frames(&self, ssim: &[f32]) -> Vec<SeenFrame> {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let frames = &self.stream.log.frames;
        let start = frames.first().map(|frame| frame.captured).unwrap_or_default();
        let seen = |(index, fate): (usize, &quality::FrameFate)| SeenFrame {
            frame: index,
            captured_ms: ms(frames[index].captured.since(start)),
            delay_ms: fate.completed.map(|at| ms(at.since(frames[index].captured))),
            shown: fate.shown,
            undamaged: fate.undamaged,
            ssim: ssim.get(index).copied(),
        };
        self.playout.frames.iter().enumerate().map(seen).collect()
    }

    /// Decodes the arrived packets and compares them with `clip`; `scratch` has temporary files.
    pub fn compare(&self, clip: &Path, scratch: &Path) -> anyhow::Result<Comparison> {
        Ok(decode::compare(&self.stream, &self.playout, &self.arrived, clip, scratch)?)
    }
}

fn read<T>(
    path: &Path,
    parse: impl FnOnce(BufReader<File>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    parse(BufReader::with_capacity(1 << 20, file)).with_context(|| path.display().to_string())
}

fn check_clip(clip: &Path, frames: usize) -> Result<(), BadInput> {
    let problem = |problem: String| BadInput::new(format!("--clip {}: {problem}", clip.display()));
    if !clip::is_byte_stream(clip) {
        return File::open(clip).map(drop).map_err(|error| problem(error.to_string()));
    }
    let units = clip::read(clip).map_err(|error| problem(format!("{error:#}")))?;
    if units.len() < frames {
        return Err(problem(format!("{} pictures, but {frames} frames were sent", units.len())));
    }
    Ok(())
}

fn fps(log: &StreamLog) -> u32 {
    let (Some(first), Some(last)) = (log.frames.first(), log.frames.last()) else {
        return Player::default().fps;
    };
    let seconds = last.captured.since(first.captured).as_secs_f64();
    match seconds > 0.0 {
        true => ((log.frames.len() - 1) as f64 / seconds).round().max(1.0) as u32,
        false => Player::default().fps,
    }
}
