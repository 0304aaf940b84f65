//! Converts received packets to a link's trace: CellNem's overlay.
//!
//! ```text
//!  recorded   |fill|== deliveries 1 ==|..probes 1..|fill|== deliveries 2 ==|..probes 2..|
//!                   \                  \               /                  /
//!  replayed         |== deliveries 1 ==|== deliveries 2 ==|
//!                   |   delay 1        |   delay 2        |     the smallest of the cycle's probes
//! ```
//!
//! A delivery means that its bytes left the queue one propagation delay earlier. Deliveries
//! therefore count from the moment at which the first byte sent after the fill could arrive, and
//! the replay delays them by the cycle's delay again.
//!
//! Source: LoLa section 4.2.

use std::time::Duration;

use roadweave_emulate::{Capacity, Drive, Opportunities, Timeline, Trace};
use roadweave_proto::Rate;
use serde::Serialize;

use crate::arrivals::{Arrivals, CycleArrivals};
use crate::error::RecordError;
use crate::plan::{RecordMode, RecordPlan};

/// How one-way delays are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DelayClock {
    /// Half of the cycle's smallest round trip, up and down.
    HalfRoundTrip,
    /// By the synchronised wall clocks of both sides.
    Synchronized,
}

/// Both directions of a link, measured.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkRecording {
    /// From the vehicle.
    pub up: DirectionRecording,
    /// To the vehicle.
    pub down: DirectionRecording,
    /// How delays were measured; half of the round trip also if the wall clocks turned out to
    /// differ by more than the delay.
    pub delay_clock: DelayClock,
    /// Entries of the server's log that the client lacks, each up to a millisecond of deliveries.
    pub entries_missing: u64,
}

/// One direction of a link, measured.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectionRecording {
    pub trace: Trace,
    /// Figures of the trace.
    pub summary: DirectionSummary,
}

/// The figures of one direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DirectionSummary {
    /// Number of evaluated cycles.
    pub cycles: u16,
    /// Length of a replay, s.
    pub seconds: f64,
    /// The mean capacity; absent if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bps: Option<u64>,
    /// The smallest one-way delay, ms.
    pub delay_ms_min: f64,
    /// The largest one-way delay of a cycle, ms.
    pub delay_ms_max: f64,
    /// The mean loss, 0..1; absent if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Bytes that arrived while deliveries counted, as IP packets.
    pub bytes: u64,
}

/// The plan's start on the wall clocks of both sides, us since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wall {
    pub client_us: u64,
    pub server_us: u64,
}

pub(crate) struct Measured<'a> {
    pub plan: &'a RecordPlan,
    pub elapsed: Duration,
    pub up: &'a Arrivals,
    pub down: &'a Arrivals,
    /// The wall clocks, if delays are measured by them.
    pub wall: Option<Wall>,
    pub entries_missing: u64,
}

/// An evaluated cycle, and its position in the replay.
#[derive(Clone, Copy, Debug)]
struct Segment {
    cycle: u16,
    begins: Duration,
    lasts: Duration,
}

impl Measured<'_> {
    pub fn recording(&self) -> Result<LinkRecording, RecordError> {
        let segments = self.segments();
        if segments.is_empty() {
            return Err(RecordError::TooShort);
        }
        let by_wall = self.wall.and_then(|wall| self.delays_by_wall(&segments, wall));
        let (delay_clock, delays) = match by_wall {
            Some(delays) => (DelayClock::Synchronized, delays),
            None => (DelayClock::HalfRoundTrip, self.delays_by_round_trip(&segments)?),
        };
        let direction = |arrivals, saturated, delays: &[Duration]| {
            self.direction(&segments, arrivals, saturated, delays)
        };
        Ok(LinkRecording {
            up: direction(self.up, self.plan.up, &delays[0])?,
            down: direction(self.down, self.plan.down, &delays[1])?,
            delay_clock,
            entries_missing: self.entries_missing,
        })
    }

    fn segments(&self) -> Vec<Segment> {
        let mut begins = Duration::ZERO;
        let mut segments = Vec::new();
        for cycle in 1..=self.plan.cycles() {
            let done = self.elapsed.saturating_sub(self.plan.counts_from(cycle));
            let lasts = done.min(self.plan.counted());
            if lasts >= SEGMENT_MIN {
                segments.push(Segment { cycle, begins, lasts });
                begins += lasts;
            }
        }
        segments
    }

    /// The delay of each segment up and down by synchronised clocks; `None` if they are not.
    fn delays_by_wall(&self, segments: &[Segment], wall: Wall) -> Option<[Vec<Duration>; 2]> {
        let ahead = i128::from(wall.server_us) - i128::from(wall.client_us);
        let delays = |arrivals: &Arrivals, ahead: i128| {
            let delay = |segment: &Segment| {
                let micros = i128::from(arrivals.difference(segment.cycle)?) + ahead;
                u64::try_from(micros)
                    .ok()
                    .filter(|&us| us <= DELAY_US_MAX)
                    .map(Duration::from_micros)
            };
            segments.iter().map(delay).collect::<Option<Vec<Duration>>>()
        };
        Some([delays(self.up, ahead)?, delays(self.down, -ahead)?])
    }

    /// Half of each segment's smallest round trip; the offset of the clocks cancels out.
    fn delays_by_round_trip(
        &self,
        segments: &[Segment],
    ) -> Result<[Vec<Duration>; 2], RecordError> {
        let delay = |segment: &Segment| {
            let up = self.up.difference(segment.cycle)?;
            let down = self.down.difference(segment.cycle)?;
            let round_trip = u64::try_from(up.saturating_add(down)).unwrap_or(0);
            Some(Duration::from_micros(round_trip.min(2 * DELAY_US_MAX) / 2))
        };
        let delays: Option<Vec<Duration>> = segments.iter().map(delay).collect();
        let delays = delays.ok_or(RecordError::NoProbe)?;
        Ok([delays.clone(), delays])
    }

    fn direction(
        &self,
        segments: &[Segment],
        arrivals: &Arrivals,
        saturated: bool,
        delays: &[Duration],
    ) -> Result<DirectionRecording, RecordError> {
        let last = segments.last().ok_or(RecordError::TooShort)?;
        let length = last.begins + last.lasts;
        let mut slots = Vec::new();
        for segment in segments.iter().filter(|_| saturated) {
            let difference = arrivals.difference(segment.cycle).ok_or(RecordError::NoProbe)?;
            slots.extend(self.slots(segment, arrivals.cycle(segment.cycle), difference));
        }
        let bytes = slots.iter().map(|slot: &(Duration, u64)| slot.1).sum();
        let capacity = match saturated {
            true => Capacity::Opportunities(
                Opportunities::with_bytes(slots, length).ok_or(RecordError::TooShort)?,
            ),
            false => Capacity::constant(Drive::DOWNLINK),
        };
        let losses = self.losses(segments, arrivals);
        let known: Vec<f64> = losses.iter().filter_map(|loss| *loss).collect();
        let mean_loss = known.iter().sum::<f64>() / known.len().max(1) as f64;
        let trace = Trace::new(
            capacity,
            timeline(segments, delays.iter().copied(), length),
            timeline(segments, filled(&losses), length),
        );
        let millis = |delay: Option<&Duration>| delay.map_or(0.0, |d| d.as_nanos() as f64 / 1e6);
        let summary = DirectionSummary {
            cycles: u16::try_from(segments.len()).unwrap_or(u16::MAX),
            seconds: length.as_secs_f64(),
            capacity_bps: saturated.then(|| trace.capacity().mean_rate()).map(Rate::as_bps),
            delay_ms_min: millis(delays.iter().min()),
            delay_ms_max: millis(delays.iter().max()),
            loss: (!known.is_empty()).then_some(mean_loss),
            bytes,
        };
        Ok(DirectionRecording { trace, summary })
    }

    /// Times in the replay, to the millisecond, at which bytes left the queue in `segment`.
    fn slots(
        &self,
        segment: &Segment,
        arrived: Option<&CycleArrivals>,
        difference: i64,
    ) -> Vec<(Duration, u64)> {
        let counts_from = self.plan.counts_from(segment.cycle).as_micros();
        let first = i64::try_from(counts_from).unwrap_or(i64::MAX).saturating_add(difference);
        let slot = |&(at_ms, bytes): &(u32, u32)| {
            // The middle of its millisecond.
            let since = i64::from(at_ms) * 1_000 + 500 - first;
            let since = Duration::from_millis(u64::try_from(since).ok()? / 1_000);
            (since < segment.lasts).then_some((segment.begins + since, u64::from(bytes)))
        };
        arrived.map_or(Vec::new(), |arrived| arrived.deliveries.iter().filter_map(slot).collect())
    }

    /// The share of each segment's probes that were lost; `None` if no probe arrived or was sent.
    ///
    /// A constant rate has no time for probes. Without arrivals the link was dead.
    fn losses(&self, segments: &[Segment], arrivals: &Arrivals) -> Vec<Option<f64>> {
        let loss = |segment: &Segment| {
            let arrived = arrivals.cycle(segment.cycle)?;
            let sent = f64::from(arrived.probes_sent.max(1));
            let is_known = arrived.probes > 0 && self.plan.mode == RecordMode::Saturate;
            is_known.then(|| (1.0 - f64::from(arrived.probes) / sent).max(0.0))
        };
        segments.iter().map(loss).collect()
    }
}

fn timeline<V: Copy + PartialEq>(
    segments: &[Segment],
    values: impl Iterator<Item = V>,
    length: Duration,
) -> Timeline<V> {
    let steps = segments.iter().zip(values).map(|(segment, value)| (segment.begins, value));
    Timeline::of_changes(steps, length).expect("segments ascend from zero and have a length")
}

/// Unknown values take the previous one, or the first known, or 0.
fn filled(values: &[Option<f64>]) -> impl Iterator<Item = f64> + '_ {
    let first = values.iter().find_map(|value| *value).unwrap_or(0.0);
    values.iter().scan(first, |last, value| {
        *last = value.unwrap_or(*last);
        Some(*last)
    })
}

/// Cycles cut shorter than this do not count.
const SEGMENT_MIN: Duration = Duration::from_millis(500);
/// Longest delay, us.
const DELAY_US_MAX: u64 = 60_000_000;
