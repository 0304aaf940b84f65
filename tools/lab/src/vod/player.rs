//! A player of video on demand: what it requests, what it plays, and when it stalls.
//!
//! ```text
//! request ─► first frame ─► half a second buffered ─► plays ⇄ stalls         one video to the end
//!  ▲                                                    │
//!  └────────────── swiped after some seconds ◄──────────┘                    or one after another
//! ```
//!
//! It requests chunks one after the other, each when most of the previous one has arrived, up to a
//! limited time ahead. Parts of a chunk can be played as soon as there is no gap before them.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::{Instant, Rate, SplitMix64, earliest};
use roadweave_tunnel::Qoe;
use serde::{Deserialize, Serialize};

use super::seen::Viewing;

/// What the viewer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProgramKind {
    /// Watches one video.
    Long,
    /// Watches short videos, and swipes to the next after some seconds.
    Short,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Program {
    pub kind: ProgramKind,
    pub bitrate: Rate,
    pub lasting: Duration,
    /// Seed of the sizes of chunks and of swipes.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkId {
    pub video: u32,
    pub chunk: u32,
}

#[derive(Debug)]
pub struct Player {
    program: Program,
    end: Instant,
    video: u32,
    begun: Instant,
    first_frame: Option<Instant>,
    loading: BTreeMap<u32, Loading>,
    next: u32,
    play: Play,
    next_sample: Instant,
    seen: Viewing,
}

#[derive(Clone, Copy, Debug)]
struct Loading {
    bytes: u64,
    came: u64,
    asked: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Play {
    Starting,
    Moving(Instant, Duration),
    Still(Instant, Duration),
    Over,
}

impl Player {
    pub fn new(program: Program, start: Instant) -> Self {
        Self {
            program,
            end: start + program.lasting,
            video: 0,
            begun: start,
            first_frame: None,
            loading: BTreeMap::new(),
            next: 0,
            play: Play::Starting,
            next_sample: start,
            seen: Viewing::default(),
        }
    }

    fn bytes(&self, id: ChunkId) -> u64 {
        let index = u64::from(id.video) << 32 | u64::from(id.chunk);
        let varies = SplitMix64::new(SplitMix64::word(self.program.seed, index)).unit();
        let mean = self.program.bitrate.bytes_in(CHUNK) as f64;
        ((mean * (1.0 - VARIES + 2.0 * VARIES * varies)) as u64).max(FRAMES_OF_CHUNK)
    }

    fn loaded(&self) -> Duration {
        let (whole, part) = match self.loading.first_key_value() {
            Some((chunk, loading)) => (*chunk, loading.came as f64 / loading.bytes as f64),
            None => (self.next, 0.0),
        };
        CHUNK * whole + CHUNK.mul_f64(part)
    }

    fn position(&self, now: Instant) -> Duration {
        match self.play {
            Play::Moving(since, from) => from + now.since(since),
            Play::Still(_, at) => at,
            Play::Starting | Play::Over => Duration::ZERO,
        }
    }

    pub fn left(&self, now: Instant) -> Duration {
        self.loaded().saturating_sub(self.position(now))
    }

    pub fn qoe(&self, now: Instant) -> Option<Qoe> {
        let left = self.left(now);
        let bitrate = self.program.bitrate;
        (self.play != Play::Over).then(|| Qoe {
            cached_bytes: bitrate.bytes_in(left),
            cached_frames: (left.as_secs_f64() * FPS) as u64,
            bps: bitrate.as_bps(),
            fps: FPS,
        })
    }

    /// The chunk to request now, and its size.
    pub fn wants(&self, now: Instant) -> Option<(ChunkId, u64)> {
        let id = ChunkId { video: self.video, chunk: self.next };
        let has_begun = |loading: &Loading| loading.came * 4 >= loading.bytes * 3;
        let is_free = self.loading.len() < LOADING_MAX && self.loading.values().all(has_begun);
        let ends = self.program.kind == ProgramKind::Short && self.next >= SHORT_CHUNKS;
        let wanted = self.play != Play::Over && is_free && !ends && now >= self.wants_at();
        wanted.then(|| (id, self.bytes(id)))
    }

    fn wants_at(&self) -> Instant {
        let ahead = CHUNK * (self.next + 1);
        match self.play {
            Play::Moving(since, from) => since + ahead.saturating_sub(from + AHEAD_MAX),
            Play::Still(_, at) if ahead > at + AHEAD_MAX => Instant::FAR_FUTURE,
            Play::Starting if ahead > AHEAD_MAX => Instant::FAR_FUTURE,
            _ => Instant::ZERO,
        }
    }

    pub fn on_asked(&mut self, now: Instant) {
        let bytes = self.bytes(ChunkId { video: self.video, chunk: self.next });
        self.loading.insert(self.next, Loading { bytes, came: 0, asked: now });
        self.next += 1;
    }

    /// Records more bytes of a chunk; returns whether it is complete. Past videos do not count.
    pub fn on_came(&mut self, now: Instant, id: ChunkId, bytes: u64) -> bool {
        let loading = self.loading.get_mut(&id.chunk).filter(|_| id.video == self.video);
        let Some(loading) = loading else { return true };
        loading.came = (loading.came + bytes).min(loading.bytes);
        let (is_whole, asked) = (loading.came == loading.bytes, loading.asked);
        let has_frame = loading.came * FRAMES_OF_CHUNK >= loading.bytes;
        if id.chunk == 0 && has_frame && self.first_frame.is_none() && self.play != Play::Over {
            self.first_frame = Some(now);
            self.seen.first_frames.push(now.since(self.begun));
        }
        if is_whole {
            self.loading.remove(&id.chunk);
            self.seen.requests.push(now.since(asked));
        }
        self.move_on(now);
        is_whole
    }

    /// Restarts the request of a chunk from its beginning; its time continues.
    pub fn on_failed(&mut self, id: ChunkId) -> Option<u64> {
        let loading = self.loading.get_mut(&id.chunk).filter(|_| id.video == self.video)?;
        loading.came = 0;
        Some(loading.bytes)
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.play == Play::Over {
            return None;
        }
        let runs_dry = match self.play {
            Play::Moving(since, from) => Some(since + self.loaded().saturating_sub(from)),
            _ => None,
        };
        // Room in the buffer is used at the next sample.
        earliest([runs_dry, Some(self.next_sample), self.swipes_at(), Some(self.end)])
    }

    fn swipes_at(&self) -> Option<Instant> {
        if self.program.kind == ProgramKind::Long {
            return None;
        }
        let seed = SplitMix64::word(!self.program.seed, self.video.into());
        let watched =
            WATCHED_MIN + (WATCHED_MAX - WATCHED_MIN).mul_f64(SplitMix64::new(seed).unit());
        Some(self.first_frame.map_or(self.begun + FIRST_FRAME_TIMEOUT, |at| at + watched))
    }

    /// Handles due timers; returns whether the viewer left this video, which ends its requests.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        self.move_on(now);
        if self.play != Play::Over && now >= self.next_sample {
            self.next_sample = now + SAMPLE;
            if !matches!(self.play, Play::Starting) {
                self.seen.levels.push(self.left(now));
            }
        }
        if self.play != Play::Over && now >= self.end {
            self.leave(now);
            self.play = Play::Over;
            return false;
        }
        let swipes = self.play != Play::Over && self.swipes_at().is_some_and(|at| now >= at);
        if swipes {
            self.leave(now);
            (self.video, self.begun, self.first_frame) = (self.video + 1, now, None);
            (self.next, self.play) = (0, Play::Starting);
            self.loading.clear();
        }
        swipes
    }

    fn leave(&mut self, now: Instant) {
        match self.play {
            Play::Moving(since, _) => self.seen.played += now.since(since),
            Play::Still(since, _) => self.seen.stalled += now.since(since),
            Play::Starting | Play::Over => {}
        }
        if self.first_frame.is_none()
            && now >= self.begun + FIRST_FRAME_TIMEOUT.min(self.program.lasting)
        {
            self.seen.first_frames.push(now.since(self.begun));
        }
    }

    fn move_on(&mut self, now: Instant) {
        let left = self.left(now);
        let ends = self.program.kind == ProgramKind::Short && self.loaded() >= CHUNK * SHORT_CHUNKS;
        match self.play {
            Play::Starting if left >= START => self.play = Play::Moving(now, Duration::ZERO),
            Play::Still(since, at) if left >= START || (ends && !left.is_zero()) => {
                self.seen.stalled += now.since(since);
                self.play = Play::Moving(now, at);
            }
            Play::Moving(since, from) if left.is_zero() => {
                self.seen.played += now.since(since);
                if ends {
                    // A short video starts again at its end.
                    self.play = Play::Moving(now, Duration::ZERO);
                } else {
                    self.play = Play::Still(now, from + now.since(since));
                }
            }
            _ => {}
        }
    }

    pub fn is_loading(&self) -> bool {
        !self.loading.is_empty()
    }

    /// The viewer's results; incomplete requests count with their time until `now`.
    pub fn finish(mut self, now: Instant) -> Viewing {
        for loading in self.loading.values() {
            self.seen.requests.push(now.since(loading.asked));
        }
        self.seen
    }
}

pub const CHUNK: Duration = Duration::from_secs(1);
pub const AHEAD_MAX: Duration = Duration::from_secs(8);
const START: Duration = Duration::from_millis(500);
const VARIES: f64 = 0.25;
/// The first frame is this fraction of its chunk.
pub const FRAMES_OF_CHUNK: u64 = 8;
const FPS: f64 = 30.0;
const LOADING_MAX: usize = 2;
const SHORT_CHUNKS: u32 = 15;
/// Range of times after the first frame at which the viewer swipes.
const WATCHED_MIN: Duration = Duration::from_secs(2);
const WATCHED_MAX: Duration = Duration::from_secs(10);
const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(10);
const SAMPLE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
