//! The phases of a recording's cycles.
//!
//! ```text
//!  prelude    cycle 1                                        cycle 2
//! |. . . . .|fill|======= counted =======|drain|. . . . . .|fill|=== ...
//!   probes    data, at full throttle            probes
//!   2 s      0.5 s  1/2 of the cycle      <=1/4  the rest
//! ```
//!
//! Both directions of all links follow one plan, each from its own sender's start.
//!
//! Source: LoLa section 4.2: 5 s of saturation, then draining, then 2 to 5 s of probes, which are
//! the fractions above at the default of 10 s. Our additions are the prelude, which wakes the radio
//! and measures the delay before saturation, and the time to fill the pipe, whose deliveries do not
//! count because the sender does not know the capacity yet.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Buf as _;
use roadweave_proto::{Instant, Rate};
use thiserror::Error;

/// The plan of a recording of all links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPlan {
    /// How capacity is measured.
    pub mode: RecordMode,
    /// Whether the capacity from the vehicle is measured.
    pub up: bool,
    /// Whether the capacity to the vehicle is measured.
    pub down: bool,
    /// Length after the prelude, see [`RecordPlan::LENGTHS`].
    pub length: Duration,
    /// One cycle of saturation, draining and probing, see [`RecordPlan::CYCLES`].
    pub cycle: Duration,
    /// The largest IP packet, bytes, see [`RecordPlan::PACKETS`].
    pub packet_bytes: u16,
    /// A sender's highest rate.
    pub rate_max: Rate,
}

/// How capacity is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordMode {
    /// In cycles, by keeping the link's queue filled (LoLa section 4.2).
    Saturate,
    /// Without pause, by sending at this rate (CellFusion appendix D).
    Constant(Rate),
}

/// Why a plan is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {problem}")]
pub struct PlanError {
    /// The field of [`RecordPlan`].
    pub field: &'static str,
    /// The valid range.
    pub problem: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Data is sent; deliveries count from the end of the fill on.
    Saturate,
    /// The queue drains, then probes are sent.
    Probe,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub phase: Phase,
    /// 0 for the prelude.
    pub cycle: u16,
    /// End of the phase since the start.
    pub until: Duration,
}

/// A plan's elapsed time by the clock of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanClock {
    at: Instant,
    elapsed: Duration,
}

impl PlanClock {
    pub fn new(at: Instant, elapsed: Duration) -> Self {
        Self { at, elapsed }
    }

    /// Elapsed time at `now`; zero before the start.
    pub fn elapsed(&self, now: Instant) -> Duration {
        (self.elapsed + now.since(self.at)).saturating_sub(self.at.since(now))
    }

    pub fn elapsed_us(&self, now: Instant) -> u64 {
        u64::try_from(self.elapsed(now).as_micros()).unwrap_or(u64::MAX)
    }

    pub fn instant(&self, elapsed: Duration) -> Instant {
        (self.at + elapsed.saturating_sub(self.elapsed)) - self.elapsed.saturating_sub(elapsed)
    }
}

impl Default for RecordPlan {
    /// Both directions for three minutes, in cycles of 10 s.
    fn default() -> Self {
        Self {
            mode: RecordMode::Saturate,
            up: true,
            down: true,
            length: Duration::from_secs(180),
            cycle: Duration::from_secs(10),
            packet_bytes: 1_400,
            rate_max: Rate::from_kbps(200_000),
        }
    }
}

impl RecordPlan {
    /// Valid [`RecordPlan::length`].
    pub const LENGTHS: RangeInclusive<Duration> =
        Duration::from_secs(2)..=Duration::from_secs(7_200);
    /// Valid [`RecordPlan::cycle`]: probes need some time, and delays change every few seconds.
    pub const CYCLES: RangeInclusive<Duration> = Duration::from_secs(4)..=Duration::from_secs(60);
    /// Valid [`RecordPlan::packet_bytes`].
    pub const PACKETS: RangeInclusive<u16> = 200..=1_500;
    /// Valid rates.
    pub const RATES: RangeInclusive<Rate> = Rate::from_kbps(100)..=Rate::from_kbps(10_000_000);
    pub(crate) const PRELUDE: Duration = Duration::from_secs(2);
    /// The time in which a cycle's first data do not count.
    const FILL: Duration = Duration::from_millis(500);
    pub(crate) const PROBE_INTERVAL: Duration = Duration::from_millis(100);

    /// Checks every field.
    pub fn check(&self) -> Result<(), PlanError> {
        let error = |field, problem: String| Err(PlanError { field, problem });
        let seconds = |range: RangeInclusive<Duration>| {
            format!("from {} to {} s", range.start().as_secs(), range.end().as_secs())
        };
        let rates = || format!("from {} to {}", Self::RATES.start(), Self::RATES.end());
        if !(self.up || self.down) {
            return error("direction", "up, down or both".into());
        }
        if !Self::LENGTHS.contains(&self.length) {
            return error("length", seconds(Self::LENGTHS));
        }
        if !Self::CYCLES.contains(&self.cycle) {
            return error("cycle", seconds(Self::CYCLES));
        }
        if !Self::PACKETS.contains(&self.packet_bytes) {
            let (least, most) = (Self::PACKETS.start(), Self::PACKETS.end());
            return error("packet", format!("from {least} to {most} bytes"));
        }
        match self.mode {
            RecordMode::Constant(rate) if !Self::RATES.contains(&rate) => error("rate", rates()),
            _ if !Self::RATES.contains(&self.rate_max) => error("rate", rates()),
            _ => Ok(()),
        }
    }

    pub fn cycles(&self) -> u16 {
        match self.mode {
            RecordMode::Constant(_) => 1,
            RecordMode::Saturate => {
                let cycles = self.length.as_nanos().div_ceil(self.cycle.as_nanos().max(1));
                u16::try_from(cycles).unwrap_or(u16::MAX)
            }
        }
    }

    /// Length of the whole plan, prelude included.
    pub fn duration(&self) -> Duration {
        Self::PRELUDE + self.cycle_length() * u32::from(self.cycles())
    }

    /// The time in which deliveries count in each cycle.
    pub(crate) fn counted(&self) -> Duration {
        match self.mode {
            RecordMode::Constant(_) => self.length,
            RecordMode::Saturate => self.cycle / 2,
        }
    }

    /// When deliveries begin to count in `cycle`, from 1, since the sender's start.
    pub(crate) fn counts_from(&self, cycle: u16) -> Duration {
        self.cycle_start(cycle) + Self::FILL
    }

    /// The longest wait for the queue to drain before probes are sent.
    pub(crate) fn drain_max(&self) -> Duration {
        self.cycle / 4
    }

    pub(crate) fn sending_rate_max(&self) -> Rate {
        match self.mode {
            RecordMode::Constant(rate) => rate,
            RecordMode::Saturate => self.rate_max,
        }
    }

    /// The phase of a sender at `elapsed` since its start; without saturation it only sends probes.
    pub(crate) fn moment(&self, elapsed: Duration, saturates: bool) -> Moment {
        let moment = |phase, cycle, until| Moment { phase, cycle, until };
        if elapsed < Self::PRELUDE {
            return moment(Phase::Probe, 0, Self::PRELUDE);
        }
        let in_cycles = elapsed - Self::PRELUDE;
        let index = in_cycles.as_nanos() / self.cycle_length().as_nanos().max(1);
        let cycle = u16::try_from(index + 1).unwrap_or(u16::MAX);
        if cycle > self.cycles() {
            return moment(Phase::Done, cycle, Duration::MAX);
        }
        let saturated_until = self.counts_from(cycle) + self.counted();
        if saturates && elapsed < saturated_until {
            return moment(Phase::Saturate, cycle, saturated_until);
        }
        moment(Phase::Probe, cycle, self.cycle_start(cycle) + self.cycle_length())
    }

    fn cycle_start(&self, cycle: u16) -> Duration {
        Self::PRELUDE + self.cycle_length() * u32::from(cycle.saturating_sub(1))
    }

    fn cycle_length(&self) -> Duration {
        match self.mode {
            RecordMode::Constant(_) => Self::FILL + self.length,
            RecordMode::Saturate => self.cycle,
        }
    }

    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        let constant = match self.mode {
            RecordMode::Saturate => 0,
            RecordMode::Constant(rate) => rate.as_bps(),
        };
        to.push(u8::from(self.up) | u8::from(self.down) << 1);
        to.extend(constant.to_be_bytes());
        to.extend(millis(self.length).to_be_bytes());
        to.extend(millis(self.cycle).to_be_bytes());
        to.extend(self.packet_bytes.to_be_bytes());
        to.extend(self.rate_max.as_bps().to_be_bytes());
    }

    pub(crate) fn decode(reader: &mut &[u8]) -> Option<Self> {
        let directions = reader.try_get_u8().ok()?;
        let constant = reader.try_get_u64().ok()?;
        Some(Self {
            mode: match constant {
                0 => RecordMode::Saturate,
                bps => RecordMode::Constant(Rate::from_bps(bps)),
            },
            up: directions & 1 != 0,
            down: directions & 2 != 0,
            length: Duration::from_millis(reader.try_get_u32().ok()?.into()),
            cycle: Duration::from_millis(reader.try_get_u32().ok()?.into()),
            packet_bytes: reader.try_get_u16().ok()?,
            rate_max: Rate::from_bps(reader.try_get_u64().ok()?),
        })
    }
}

/// Durations of a valid plan fit.
fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_saturates_drains_and_probes_as_lola_says() {
        let plan = RecordPlan { length: Duration::from_secs(20), ..RecordPlan::default() };
        let at = |ms| {
            let moment = plan.moment(Duration::from_millis(ms), true);
            (moment.phase, moment.cycle, moment.until.as_millis())
        };
        for (ms, expected) in [
            (0, (Phase::Probe, 0, 2_000)),
            (2_000, (Phase::Saturate, 1, 7_500)),
            (7_499, (Phase::Saturate, 1, 7_500)),
            (7_500, (Phase::Probe, 1, 12_000)),
            (12_000, (Phase::Saturate, 2, 17_500)),
        ] {
            assert_eq!(at(ms), expected);
        }
        assert_eq!(at(22_000).0, Phase::Done);
        assert_eq!(plan.counts_from(2), Duration::from_millis(12_500));
        assert_eq!(plan.counted(), Duration::from_secs(5));
        // 2 s are left for probes after the longest drain.
        assert_eq!(plan.drain_max() + Duration::from_secs(2), Duration::from_millis(4_500));
        assert_eq!(plan.duration(), Duration::from_secs(22));
        // A direction that is not measured is probed all the time.
        let moment = plan.moment(Duration::from_secs(3), false);
        assert_eq!((moment.phase, moment.cycle), (Phase::Probe, 1));
    }

    #[test]
    fn a_constant_rate_has_one_cycle_without_end() {
        let plan = RecordPlan {
            mode: RecordMode::Constant(Rate::from_kbps(50_000)),
            length: Duration::from_secs(90),
            ..RecordPlan::default()
        };
        let phase = |secs| plan.moment(Duration::from_secs(secs), true).phase;
        assert_eq!(
            [phase(1), phase(2), phase(92)],
            [Phase::Probe, Phase::Saturate, Phase::Saturate]
        );
        assert_eq!(phase(93), Phase::Done);
        assert_eq!((plan.cycles(), plan.counted()), (1, plan.length));
    }

    #[test]
    fn plans_out_of_their_ranges_are_refused_by_field() {
        let check = |field: &str, change: fn(&mut RecordPlan)| {
            let mut plan = RecordPlan::default();
            assert_eq!(plan.check(), Ok(()));
            change(&mut plan);
            assert_eq!(plan.check().unwrap_err().field, field);
        };
        check("direction", |plan| (plan.up, plan.down) = (false, false));
        check("length", |plan| plan.length = Duration::from_secs(7_201));
        check("cycle", |plan| plan.cycle = Duration::ZERO);
        check("packet", |plan| plan.packet_bytes = 9_000);
        check("rate", |plan| plan.rate_max = Rate::ZERO);
        check("rate", |plan| plan.mode = RecordMode::Constant(Rate::from_bps(u64::MAX)));
    }
}
