//! What a viewer saw, computed from when each packet was sent and when it arrived.
//!
//! ```text
//!   StreamLog (frames, packets, send times) --+
//!                                             +--> Playout (each frame's fate) --> Quality
//!   arrivals (one time per packet or none) ---+
//! ```
//!
//! The player. A frame is *complete* when its last packet is there. Frames are shown in order, each
//! as soon as it is complete and every earlier frame was shown or given up. A frame is given up
//! when a later one has been complete for [`Player::frame_wait`], or, by a player that
//! [jumps](Player::jumps), as soon as a later IDR frame is: what comes of it afterwards is neither
//! shown nor decoded. With no such wait, frames are shown at completion, and one that
//! completes after a later one was shown is not shown.
//!
//! The figures. *Stall ratio*: the sum of the gaps above 200 ms between the moments at which frames
//! are shown, whole gaps, divided by the stream time; the time from the start of the stream to the
//! first frame and from the last frame to the end of the stream are gaps too. The stream time runs
//! from the first frame's capture to one frame interval after the last one's, or to the moment the
//! last frame is shown if that is later, so that the ratio stays within 0..1. *fps*: frames shown
//! undamaged (all packets there, and so for every frame before it back to an IDR frame), by the
//! duration of the stream. *Residual loss*: packets lost, or later than the deadline.
//!
//! Source: CellFusion appendix C (fps, stall ratio).

use std::ops::Range;
use std::time::Duration;

use roadweave_proto::Instant;
use serde::{Deserialize, Serialize};

/// A gap between two shown frames longer than this is a stall (CellFusion appendix C).
pub const STALL_GAP: Duration = Duration::from_millis(200);

/// One frame as the source sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFrame {
    /// When the camera took it.
    pub captured: Instant,
    /// Whether decoding can begin with it.
    pub idr: bool,
    /// Its packets, as indices into [`StreamLog::packets`].
    pub packets: Range<usize>,
}

/// Everything that the source sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamLog {
    /// In order of capture, at equal intervals; frame IDs are indices.
    pub frames: Vec<SentFrame>,
    /// When each packet was sent.
    pub packets: Vec<Instant>,
}

impl StreamLog {
    /// The frame that packet `index` is of.
    pub fn frame_of(&self, index: usize) -> usize {
        self.frames.partition_point(|frame| frame.packets.end <= index)
    }
}

/// The behaviour of the receiving application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Player {
    /// How long a complete frame waits for an earlier one that is not.
    pub frame_wait: Duration,
    /// A packet that takes longer counts as residual loss.
    pub deadline: Duration,
    /// Frames of the stream per second, at least 1.
    pub fps: u32,
    /// Whether a complete IDR frame waits for nothing before it.
    pub jumps: bool,
}

impl Default for Player {
    /// A live player: 100 ms of frame wait (half a stall), 30 frames per second, and the 700 ms
    /// after which CellFusion's XNC gives a packet up.
    fn default() -> Self {
        Self {
            frame_wait: Duration::from_millis(100),
            deadline: Duration::from_millis(700),
            fps: 30,
            jumps: false,
        }
    }
}

/// What became of one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameFate {
    /// When its last packet arrived; `None` if one never did.
    pub completed: Option<Instant>,
    /// When the player was through with it: shown, or given up.
    pub closed: Instant,
    /// Whether it was shown, at `closed`.
    pub shown: bool,
    /// Whether it was shown and every frame back to an IDR frame was decoded whole.
    pub undamaged: bool,
}

/// The fate of every frame, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Playout {
    /// One entry per frame of the stream; `closed` never decreases.
    pub frames: Vec<FrameFate>,
}

/// Percentiles of a set of durations, milliseconds; zero for an empty set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// 95 of 100 are at most this.
    pub p95: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// 999 of 1,000 are at most this.
    pub p999: f64,
}

/// The figures of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quality {
    /// Undamaged frames shown per second.
    pub fps: f64,
    /// 0..1.
    pub stall_ratio: f64,
    /// Begin and end of every stall, since the start of the stream.
    pub stalls: Vec<(Duration, Duration)>,
    /// Delay of the packets that arrived, from the source to the sink.
    pub packet_delay: Percentiles,
    /// From the capture of a frame to its last packet, of complete frames.
    pub frame_delay: Percentiles,
    /// Share of packets that never arrived, 0..1.
    pub lost: f64,
    /// Share of packets that arrived after the deadline, 0..1.
    pub late: f64,
    /// Frames of the stream.
    pub frames: usize,
    /// Frames with all packets, in time or not.
    pub frames_complete: usize,
    /// Complete frames each of whose packets came behind all that were sent before it: what a
    /// decoder gets whole that takes packets as they come.
    pub frames_in_order: usize,
    /// Frames shown undamaged.
    pub frames_undamaged: usize,
}

impl Quality {
    /// Share of packets lost or later than the deadline, 0..1.
    pub fn residual_loss(&self) -> f64 {
        self.lost + self.late
    }
}

impl Playout {
    /// Plays `log` with its packets arriving as in `arrivals` (one entry per packet).
    ///
    /// `end`: when the observation ended; frames that were open then are closed then.
    pub fn new(
        log: &StreamLog,
        arrivals: &[Option<Instant>],
        player: &Player,
        end: Instant,
    ) -> Self {
        debug_assert_eq!(log.packets.len(), arrivals.len(), "one entry per packet");
        let completed: Vec<_> =
            log.frames.iter().map(|frame| completion(frame, arrivals)).collect();
        // When the player gives a frame up: the frame wait after the first later frame is complete.
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
            // The frames before it may have kept it waiting until now.
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

    /// The stalls, and the end of the stream time, both since the start of the stream.
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

/// Measures a run: `arrivals` has one entry per packet of `log`.
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

/// How many frames came whole, none of their packets behind one that was sent later. Packets of one
/// moment came in order.
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

/// The delays of the packets that arrived, ascending.
pub fn packet_delays(log: &StreamLog, arrivals: &[Option<Instant>]) -> Vec<Duration> {
    let arrived = log.packets.iter().zip(arrivals);
    let mut delays: Vec<_> =
        arrived.filter_map(|(sent, arrival)| Some(arrival.as_ref()?.since(*sent))).collect();
    delays.sort_unstable();
    delays
}

impl Percentiles {
    /// By nearest rank, of durations in ascending order.
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
