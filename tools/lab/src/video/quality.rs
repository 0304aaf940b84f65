//! Quality for a viewer, computed from send and arrival times of packets.
//!
//! ```text
//!   StreamLog (frames, packets, send times) --+
//!                                             +--> Playout (each frame's fate) --> Quality
//!   arrivals (one time per packet or none) ---+
//! ```
//!
//! Player: a frame is *complete* when all its packets have arrived. Frames are shown in order, when
//! they are complete and all earlier ones are shown or given up. A frame is given up when a later
//! one has been complete for [`Player::frame_wait`] or, if the player [jumps](Player::jumps), as
//! soon as a later IDR frame is complete; afterwards it is neither shown nor decoded.
//!
//! Figures: *stall ratio* is the sum of gaps above 200 ms between shown frames divided by the
//! stream time; the times before the first and after the last shown frame are gaps too. Stream time
//! ends one frame interval after the last capture, or at the last shown frame if later, so the
//! ratio stays within 0..1. *fps*: frames shown undamaged (complete, like every frame back to an
//! IDR frame), by the duration of the stream. *Residual loss*: packets lost or after the deadline.
//!
//! Source: CellFusion appendix C (fps, stall ratio).

use std::ops::Range;
use std::time::Duration;

use roadweave_proto::Instant;
use serde::{Deserialize, Serialize};

/// A longer gap between shown frames is a stall (CellFusion appendix C).
pub const STALL_GAP: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFrame {
    pub captured: Instant,
    /// Whether decoding can start here.
    pub idr: bool,
    /// Its packets, as indices into [`StreamLog::packets`].
    pub packets: Range<usize>,
}

/// A stream as sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamLog {
    /// In order of capture at equal intervals; frame IDs are indices.
    pub frames: Vec<SentFrame>,
    pub packets: Vec<Instant>,
}

impl StreamLog {
    /// The frame of packet `index`.
    pub fn frame_of(&self, index: usize) -> usize {
        self.frames.partition_point(|frame| frame.packets.end <= index)
    }
}

/// Parameters of the receiving application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Player {
    /// How long a complete frame waits for an earlier, incomplete one.
    pub frame_wait: Duration,
    /// Later packets count as residual loss.
    pub deadline: Duration,
    /// Frames per second, at least 1.
    pub fps: u32,
    /// Whether a complete IDR frame is shown without waiting.
    pub jumps: bool,
}

impl Default for Player {
    /// A live player: 100 ms of frame wait (half a stall), 30 frames per second, and the 700 ms
    /// after which CellFusion's XNC abandons a packet.
    fn default() -> Self {
        Self {
            frame_wait: Duration::from_millis(100),
            deadline: Duration::from_millis(700),
            fps: 30,
            jumps: false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameFate {
    /// Arrival of its last packet; `None` if one is missing.
    pub completed: Option<Instant>,
    /// When it was shown or given up.
    pub closed: Instant,
    /// Whether it was shown, at `closed`.
    pub shown: bool,
    /// Whether it and every frame back to an IDR frame were shown.
    pub undamaged: bool,
}

/// Fate of every frame, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Playout {
    /// One entry per frame; `closed` never decreases.
    pub frames: Vec<FrameFate>,
}

/// Percentiles of durations, milliseconds; zero for an empty set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
}

/// Figures of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quality {
    /// Undamaged frames shown per second.
    pub fps: f64,
    /// 0..1.
    pub stall_ratio: f64,
    /// Begin and end of each stall, since the start of the stream.
    pub stalls: Vec<(Duration, Duration)>,
    pub packet_delay: Percentiles,
    /// From capture to the last packet, of complete frames.
    pub frame_delay: Percentiles,
    /// Share of packets that never arrived, 0..1.
    pub lost: f64,
    /// Share of packets that arrived after the deadline, 0..1.
    pub late: f64,
    pub frames: usize,
    /// Frames with all packets, in time or not.
    pub frames_complete: usize,
    /// Complete frames whose packets arrived in send order, for decoders that do not reorder.
    pub frames_in_order: usize,
    pub frames_undamaged: usize,
}

impl Quality {
    /// Share of packets lost or later than the deadline, 0..1.
    pub fn residual_loss(&self) -> f64 {
        self.lost + self.late
    }
}

impl Playout {
    /// Plays `log` with one entry of `arrivals` per packet. Open frames are closed at `end`.
    pub fn new(
        log: &StreamLog,
        arrivals: &[Option<Instant>],
        player: &Player,
        end: Instant,
    ) -> Self {
        debug_assert_eq!(log.packets.len(), arrivals.len(), "one entry per packet");
        let completed: Vec<_> =
            log.frames.iter().map(|frame| completion(frame, arrivals)).collect();
        let mut given_up = vec![end; completed.len()];
        let mut earliest_later = Instant::FAR_FUTURE;
        let mut earliest_jump = Instant::FAR_FUTURE;
        for (index, completed) in completed.iter().enumerate().rev() {
            given_up[index] = end.min(earliest_later + player.frame_wait).min(earliest_jump);
            let completed = completed.unwrap_or(Instant::FAR_FUTURE);
            earliest_later = earliest_later.min(completed);
            if player.jumps && log.frames[index].idr {
                earliest_jump = earliest_jump.min(completed);
            }
        }
        let mut previous = Instant::ZERO;
        let mut chain = false;
        let mut frames = Vec::with_capacity(completed.len());
        for ((frame, completed), given_up) in log.frames.iter().zip(completed).zip(given_up) {
            // Earlier frames may have delayed it until now.
            let latest = previous.max(given_up);
            let shown = completed.is_some_and(|completed| completed <= latest);
            let closed = match completed {
                Some(completed) if shown => previous.max(completed),
                _ => latest,
            };
            chain = shown && (chain || frame.idr);
            frames.push(FrameFate { completed, closed, shown, undamaged: chain });
            previous = closed;
        }
        Self { frames }
    }

    fn stalls(&self, log: &StreamLog, player: &Player) -> (Vec<(Duration, Duration)>, Duration) {
        let Some(start) = log.frames.first().map(|frame| frame.captured) else {
            return (Vec::new(), Duration::ZERO);
        };
        let last = log.frames.last().map_or(start, |frame| frame.captured);
        let mut shown: Vec<_> = self
            .frames
            .iter()
            .filter(|frame| frame.shown)
            .map(|frame| frame.closed - start)
            .collect();
        let end = (last + Duration::from_secs(1) / player.fps - start)
            .max(shown.last().copied().unwrap_or(Duration::ZERO));
        shown.insert(0, Duration::ZERO);
        shown.push(end);
        let gaps = shown.windows(2).map(|pair| (pair[0], pair[1]));
        (gaps.filter(|(from, to)| *to - *from > STALL_GAP).collect(), end)
    }
}

/// Measures a run; `arrivals` has one entry per packet of `log`.
pub fn measure(
    log: &StreamLog,
    arrivals: &[Option<Instant>],
    playout: &Playout,
    player: &Player,
) -> Quality {
    let delays = packet_delays(log, arrivals);
    let late = delays.iter().filter(|delay| **delay > player.deadline).count();
    let mut frame_delays: Vec<_> = playout
        .frames
        .iter()
        .zip(&log.frames)
        .filter_map(|(fate, frame)| Some(fate.completed? - frame.captured))
        .collect();
    frame_delays.sort_unstable();
    let (stalls, stream_time) = playout.stalls(log, player);
    let stalled: Duration = stalls.iter().map(|(from, to)| *to - *from).sum();
    let undamaged = playout.frames.iter().filter(|frame| frame.undamaged).count();
    let seconds = log.frames.len() as f64 / f64::from(player.fps);
    Quality {
        fps: ratio(undamaged as f64, seconds),
        stall_ratio: ratio(stalled.as_secs_f64(), stream_time.as_secs_f64()),
        stalls,
        packet_delay: Percentiles::of_sorted(&delays),
        frame_delay: Percentiles::of_sorted(&frame_delays),
        lost: ratio((arrivals.len() - delays.len()) as f64, arrivals.len() as f64),
        late: ratio(late as f64, arrivals.len() as f64),
        frames: log.frames.len(),
        frames_complete: frame_delays.len(),
        frames_in_order: frames_in_order(log, arrivals),
        frames_undamaged: undamaged,
    }
}

/// Number of complete frames in send order; simultaneous packets count as ordered.
fn frames_in_order(log: &StreamLog, arrivals: &[Option<Instant>]) -> usize {
    let mut arrived: Vec<(Instant, usize)> =
        (0..).zip(arrivals).filter_map(|(index, at)| Some(((*at)?, index))).collect();
    arrived.sort_unstable();
    let mut in_order = vec![false; arrivals.len()];
    let mut newest = None;
    for (_, index) in arrived {
        in_order[index] = Some(index) > newest;
        newest = newest.max(Some(index));
    }
    let is_in_order = |frame: &&SentFrame| in_order[frame.packets.clone()].iter().all(|is| *is);
    log.frames.iter().filter(is_in_order).count()
}

/// Delays of arrived packets, ascending.
pub fn packet_delays(log: &StreamLog, arrivals: &[Option<Instant>]) -> Vec<Duration> {
    let arrived = log.packets.iter().zip(arrivals);
    let mut delays: Vec<_> =
        arrived.filter_map(|(sent, arrival)| Some(arrival.as_ref()?.since(*sent))).collect();
    delays.sort_unstable();
    delays
}

impl Percentiles {
    /// By nearest rank; `durations` are ascending.
    pub fn of_sorted(durations: &[Duration]) -> Self {
        let at = |per_mille: usize| {
            let rank = (durations.len() * per_mille).div_ceil(1_000);
            durations.get(rank.saturating_sub(1)).map_or(0.0, |d| d.as_secs_f64() * 1e3)
        };
        Self { p50: at(500), p95: at(950), p99: at(990), p999: at(999) }
    }
}

fn completion(frame: &SentFrame, arrivals: &[Option<Instant>]) -> Option<Instant> {
    let mut completed = Instant::ZERO;
    for arrival in &arrivals[frame.packets.clone()] {
        completed = completed.max((*arrival)?);
    }
    Some(completed)
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests;
