//! The clairvoyant bound: what no scheduler can beat on given links.
//!
//! ```text
//!   links' traces ──> slots ──┬──> matching: bytes that can arrive within d ──> delays, losses, fps
//!                             └──> gaps in which nothing can be shown ────────> stalls
//!   links' traces ──> greedy: each packet on the path of earliest arrival ────> what is reachable
//! ```
//!
//! Each figure of [`Bound`] is a bound by itself; no single schedule need reach all of them.
//! [`Bound::reachable`] is what one clairvoyant schedule reaches; the optimum lies between the two.
//!
//! # Why it is a bound
//!
//! Take any schedule on these links, with any redundancy, coding, splitting, order, or omission.
//!
//! 1. *Bytes.* A byte of capacity at `t` carries information about packets released by then, which
//!    arrives at `t + delay` or later: queues and FIFO order only delay it further, loss only
//!    removes it. (A packet has the delay of the moment at which its last byte departs; see
//!    `bound/slots.rs`.) Overheads are not charged.
//! 2. *Delays.* Let the packets of a set `S` arrive complete within `d` of their release. For every
//!    subset `X`, suppose that the receiver gets all other packets for free. A byte of capacity is
//!    useful to `X` only if some packet `x` of `X` has `release(x) <= t` and `t + delay <=
//!    release(x) + d`. Before the first such release it cannot carry anything about `X`; if it
//!    arrives after the deadlines of all packets of `X` released by `t`, these are decoded already.
//!    Contents are incompressible, so `X` is no larger than the capacity usable for it, coded or
//!    not. That is Hall's condition: `S` can be matched, byte by byte, to usable capacity. So no
//!    schedule delivers more bytes within `d` than the greatest matching (`bound/matching.rs`). The
//!    missing bytes are the fewest packets if these are the largest. A percentile is the least `d`
//!    within which enough packets can arrive, out of *all packets sent*.
//! 3. *Losses, frames per second.* The same with the deadline in place of `d`, and for whole frames
//!    with the end of the observation.
//! 4. *Stalls* (`bound/stalls.rs`). The picture changes only when something can arrive or within
//!    the player's frame wait after that, and not before the first frame can be complete.
//!
//! Dropping slow packets would improve a percentile over delivered packets, so comparisons use
//! [`delays_of_all`]: a packet that has not arrived by the deadline counts as the deadline.
//!
//! The stall ratio is a weak bound where links are slow but never silent: a clairvoyant schedule
//! can hold frames back almost complete and finish one every 200 ms with a few bytes.
//! [`Bound::reachable`] is more informative there.

use std::time::Duration;

use roadweave_emulate::{Direction, LinkSettings, Trace};
use roadweave_proto::Instant;
use serde::{Deserialize, Serialize};

use crate::scenario::{DRAIN, Scenario};
use crate::traffic::TrafficKind;
use crate::video::quality::{self, Percentiles, Player, Playout, StreamLog};

mod greedy;
mod informed;
mod matching;
mod offered;
mod slots;
mod stalls;

use self::informed::Copies;
use self::matching::{Batch, Matching};
use self::slots::nanos;
use self::stalls::BoundFrame;

use self::offered::Offered;

/// The links, the stream and the player that a bound is for.
#[derive(Clone, Debug)]
struct Question<'a> {
    /// In the direction of the stream.
    links: &'a [&'a Trace],
    /// When the traces start; the links are empty then.
    origin: Instant,
    /// Packets ascend by the time of sending, none before `origin`.
    stream: &'a StreamLog,
    /// One entry per packet, as the sender gave it to the tunnel.
    bytes: &'a [usize],
    player: &'a Player,
    end: Instant,
}

/// The best value of each figure on given links.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// Delay of all packets sent, ms; later packets and losses count as the deadline.
    pub delay_ms: Percentiles,
    /// Share of the stream time in unavoidable stalls, 0..1.
    pub stall_ratio: f64,
    /// Frames per second that can be complete.
    pub fps: f64,
    /// Share of packets that cannot arrive by the deadline, 0..1.
    pub residual_loss: f64,
    /// What one schedule of the clairvoyant scheduler reaches.
    pub reachable: Reachable,
    /// What schedulers reach without knowing the future.
    #[serde(default)]
    pub informed: Informed,
}

/// Figures of schedulers that know the links but not the future (`bound/informed.rs`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Informed {
    /// Sees the links as they are.
    pub at_once: Reachable,
    /// Sees the links a round trip later.
    pub late: Reachable,
    /// `late` with copies of 30 % of the packets, where there is room without a queue.
    pub insured: Reachable,
    /// `late` with copies of all packets, where there is room without a queue.
    pub doubled: Reachable,
    /// `late` with copies of every packet on every link at every time, at no cost.
    pub copies: Reachable,
}

/// Figures of the clairvoyant scheduler, which sends each packet, in order, on the path of its
/// earliest arrival and drops none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reachable {
    /// Delay of all packets sent, ms; later packets and losses count as the deadline.
    pub delay_ms: Percentiles,
    /// Share of the stream time in stalls, 0..1.
    pub stall_ratio: f64,
    /// Undamaged frames shown per second.
    pub fps: f64,
    /// Share of packets lost or later than the deadline, 0..1.
    pub residual_loss: f64,
}

/// Delays in ms, ascending, and the share of all packets that can arrive within each, 0..1.
pub type Curve = Vec<(f64, f64)>;

const INSURED_SHARE: f64 = 0.3;
/// Precision of the delays; errors are to the low side.
const DELAY_STEP: Duration = Duration::from_micros(10);

impl Bound {
    fn new(question: &Question<'_>) -> Self {
        let Question { stream, player, .. } = *question;
        assert_eq!(stream.packets.len(), question.bytes.len(), "one size per packet");
        let clairvoyant = Clairvoyant::new(question);
        let packets = question.bytes.len();
        let seconds = stream.frames.len() as f64 / f64::from(player.fps);
        let frames = stream.frames.len() - clairvoyant.frames_missing();
        let missing = clairvoyant.packets_missing(player.deadline);
        Self {
            delay_ms: clairvoyant.percentiles(),
            stall_ratio: clairvoyant.stall_ratio(),
            fps: if seconds > 0.0 { frames as f64 / seconds } else { 0.0 },
            residual_loss: missing as f64 / packets.max(1) as f64,
            reachable: Reachable::new(question),
            informed: Informed::new(question),
        }
    }

    /// The bound of a scenario's judged stream, and its curve of delays.
    ///
    /// `None` if the stream reacts to arrivals, or if a link has jitter, which makes some packets
    /// faster than the trace. Dead links and cross traffic only make results worse than the bound.
    pub fn of_scenario(scenario: &Scenario) -> Option<(Self, Curve)> {
        let index = scenario.judged()?;
        let spec = &scenario.traffic[index];
        let links = scenario.links_with_events();
        let links: Vec<&LinkSettings> = links
            .iter()
            .map(|link| if spec.direction == Direction::Up { &link.up } else { &link.down })
            .collect();
        if links.iter().any(|link| link.jitter.is_some()) {
            return None;
        }
        let seed = scenario.seed.wrapping_add(index as u64);
        let offered = Offered::new(spec, Instant::ZERO, seed);
        let player = match &spec.kind {
            TrafficKind::Video { player, .. } => player.clone(),
            _ => Player::default(),
        };
        let question = Question {
            links: &links.iter().map(|link| &link.trace).collect::<Vec<_>>(),
            origin: Instant::ZERO,
            stream: &offered.stream,
            bytes: &offered.bytes,
            player: &player,
            end: Instant::ZERO + scenario.duration() + DRAIN,
        };
        let delays: Vec<Duration> = curve_delays(player.deadline);
        let shares = Self::shares_within(&question, &delays);
        let curve = delays.iter().map(|delay| delay.as_secs_f64() * 1e3).zip(shares);
        (!offered.bytes.is_empty()).then(|| (Self::new(&question), curve.collect()))
    }

    /// Upper bound of the share of all packets that arrive within each of `delays`, 0..1.
    fn shares_within(question: &Question<'_>, delays: &[Duration]) -> Vec<f64> {
        let clairvoyant = Clairvoyant::new(question);
        let packets = question.bytes.len();
        let share = |delay: &Duration| {
            (packets - clairvoyant.packets_missing(*delay)) as f64 / packets.max(1) as f64
        };
        delays.iter().map(share).collect()
    }
}

fn curve_delays(deadline: Duration) -> Vec<Duration> {
    let first = Duration::from_millis(1);
    let next = |delay: &Duration| (*delay < deadline).then(|| (*delay * 21 / 20).min(deadline));
    std::iter::successors(Some(first), next).collect()
}

impl Reachable {
    fn new(question: &Question<'_>) -> Self {
        let Question { links, origin, stream, bytes, end, .. } = *question;
        let packets = stream.packets.iter().copied().zip(bytes.iter().copied());
        let choices = greedy::schedule(links, origin, packets, end.since(origin));
        let arrival = |choice: Option<greedy::Choice>| {
            choice.map(|choice| choice.arrives).filter(|&arrives| arrives <= end)
        };
        Self::of_arrivals(question, choices.into_iter().map(arrival).collect())
    }

    fn of_arrivals(question: &Question<'_>, arrivals: Vec<Option<Instant>>) -> Self {
        let Question { stream, player, end, .. } = *question;
        let playout = Playout::new(stream, &arrivals, player, end);
        let quality = quality::measure(stream, &arrivals, &playout, player);
        Self {
            delay_ms: Percentiles::of_sorted(&delays_of_all(stream, &arrivals, player.deadline)),
            stall_ratio: quality.stall_ratio,
            fps: quality.fps,
            residual_loss: quality.residual_loss(),
        }
    }
}

impl Informed {
    fn new(question: &Question<'_>) -> Self {
        let Question { links, origin, stream, bytes, player, end } = *question;
        let of = |is_late, copies| {
            let packets = stream.packets.iter().copied().zip(bytes.iter().copied());
            let means = informed::Means { is_late, copies, deadline: player.deadline };
            let arrivals = informed::arrivals(links, origin, packets, end.since(origin), means);
            let in_time = |arrival: Option<Instant>| arrival.filter(|&arrives| arrives <= end);
            Reachable::of_arrivals(question, arrivals.into_iter().map(in_time).collect())
        };
        Self {
            at_once: of(false, Copies::None),
            late: of(true, Copies::None),
            insured: of(true, Copies::Insured(INSURED_SHARE)),
            doubled: of(true, Copies::Insured(1.0)),
            copies: of(true, Copies::Free),
        }
    }
}

/// Delays of all packets sent, ascending; a packet lost or later than `deadline` counts as
/// `deadline`. `arrivals` has one entry per packet of `stream`.
pub fn delays_of_all(
    stream: &StreamLog,
    arrivals: &[Option<Instant>],
    deadline: Duration,
) -> Vec<Duration> {
    let delay = |(sent, arrival): (&Instant, &Option<Instant>)| {
        arrival.map_or(deadline, |arrival| arrival.since(*sent).min(deadline))
    };
    let mut delays: Vec<_> = stream.packets.iter().zip(arrivals).map(delay).collect();
    delays.sort_unstable();
    delays
}

struct Clairvoyant<'a> {
    question: &'a Question<'a>,
    slots: Vec<slots::Slot>,
    frames: Vec<BoundFrame>,
    batches: Vec<Batch>,
    /// Bytes of the `i + 1` largest packets.
    largest_packets: Vec<u64>,
    end: u64,
}

impl<'a> Clairvoyant<'a> {
    fn new(question: &'a Question<'a>) -> Self {
        let Question { links, origin, stream, bytes, end, .. } = *question;
        let since = |at: Instant| nanos(at.since(origin));
        let batch = |(sent, bytes): (&Instant, &usize)| Batch {
            released: since(*sent),
            bytes: *bytes as u64,
        };
        let frame = |frame: &quality::SentFrame| BoundFrame {
            captured: since(frame.captured),
            released: since(stream.packets[frame.packets.start]),
            bytes: bytes[frame.packets.clone()].iter().map(|&bytes| bytes as u64).sum(),
        };
        Self {
            slots: slots::slots(links, end.since(origin)),
            frames: stream.frames.iter().filter(|f| !f.packets.is_empty()).map(frame).collect(),
            batches: stream.packets.iter().zip(bytes).map(batch).collect(),
            largest_packets: largest_first(bytes.iter().map(|&bytes| bytes as u64)),
            end: since(end),
            question,
        }
    }

    fn packets_missing(&self, deadline: Duration) -> usize {
        let matching = Matching::new(&self.slots, self.batches.clone(), self.end);
        fewest(&self.largest_packets, matching.missing_bytes(nanos(deadline)))
    }

    fn frames_missing(&self) -> usize {
        let matching = Matching::new(&self.slots, self.batches.clone(), self.end);
        let largest = largest_first(self.frames.iter().map(|frame| frame.bytes));
        fewest(&largest, matching.missing_bytes(self.end))
    }

    fn percentiles(&self) -> Percentiles {
        let matching = Matching::new(&self.slots, self.batches.clone(), self.end);
        let packets = self.largest_packets.len();
        let deadline = nanos(self.question.player.deadline);
        let missing = |delay| fewest(&self.largest_packets, matching.missing_bytes(delay));
        let missing_for_good = missing(deadline);
        let mut low = 0;
        let mut at = |per_mille: usize| {
            let late = packets - (packets * per_mille).div_ceil(1_000);
            // `low`, the previous percentile, is too small; `high` is enough.
            let mut high = deadline;
            while missing_for_good <= late && high - low > nanos(DELAY_STEP) {
                let middle = low + (high - low) / 2;
                if missing(middle) <= late { high = middle } else { low = middle }
            }
            if missing_for_good > late {
                low = deadline
            }
            if packets == 0 { 0.0 } else { low as f64 / 1e6 }
        };
        Percentiles { p50: at(500), p95: at(950), p99: at(990), p999: at(999) }
    }

    fn stall_ratio(&self) -> f64 {
        let player = self.question.player;
        let (Some(first), Some(last)) = (self.frames.first(), self.frames.last()) else {
            return 0.0;
        };
        let stream_end = last.captured + nanos(Duration::from_secs(1) / player.fps);
        let stalled = stalls::unavoidable(&self.slots, &self.frames, player, stream_end, self.end);
        // The stream time may last until the last arrival observed.
        let stream_time = stream_end.max(self.end) - first.captured;
        stalled.as_secs_f64() / Duration::from_nanos(stream_time).as_secs_f64()
    }
}

fn largest_first(bytes: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sorted: Vec<u64> = bytes.collect();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let sums = sorted.iter().scan(0, |sum, bytes| {
        *sum += bytes;
        Some(*sum)
    });
    sums.collect()
}

fn fewest(largest_first: &[u64], missing: u64) -> usize {
    if missing == 0 { 0 } else { largest_first.partition_point(|&sum| sum < missing) + 1 }
        .min(largest_first.len())
}

#[cfg(test)]
mod tests;
