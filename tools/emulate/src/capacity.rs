//! When bytes leave a link's queue.
//!
//! Capacity is a budget of bytes that grows with time: continuously at a [`Rate`], or in steps, the
//! delivery opportunities of a Mahimahi trace. A packet departs when the budget covers its last
//! byte. Budget without a waiting packet is lost, as on a real medium.

use std::sync::Arc;
use std::time::Duration;

use roadweave_proto::{Instant, Rate};

use crate::timeline::{Timeline, nanos};

/// A link's capacity over time.
#[derive(Clone, Debug, PartialEq)]
pub enum Capacity {
    /// A rate that changes at known times.
    Rates(Timeline<Rate>),
    /// Moments at which bytes may leave.
    Opportunities(Opportunities),
}

/// Moments at which bytes may leave, repeated endlessly.
///
/// An opportunity at zero coincides with one at the end of the previous pass.
///
/// Source: mahimahi, src/frontend/link_queue.cc, where each opportunity carries
/// [`Opportunities::BYTES`]; in a recording each has its own number of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opportunities {
    /// Time in ns since the start, never descending, and bytes, above 0.
    slots: Vec<(u64, u64)>,
    /// ns, above 0, not before the last slot.
    period: u64,
}

/// Sends packets one after another, as fast as a [`Capacity`] allows.
#[derive(Clone, Debug)]
pub struct Transmitter {
    capacity: Arc<Capacity>,
    origin: Instant,
    busy_until: Instant,
    /// The next unused opportunity, counted over all passes.
    opportunity: u64,
    /// Bytes left from the previous opportunity.
    opportunity_left: u64,
    /// Budget left from the nanosecond in which the last packet departed, in units of [`BIT`].
    nanosecond_left: u128,
}

/// One bit in bit/s x ns: in this unit a budget has no fractions.
const BIT: u128 = 1_000_000_000;

impl Capacity {
    /// A rate that never changes.
    pub fn constant(rate: Rate) -> Self {
        Self::Rates(Timeline::constant(rate))
    }

    /// The mean rate of one pass.
    pub fn mean_rate(&self) -> Rate {
        let (bytes, length) = match self {
            Self::Opportunities(opportunities) => {
                (opportunities.bytes() as f64, opportunities.period())
            }
            Self::Rates(rates) => {
                let Some(length) = rates.length() else {
                    return rates.at(Duration::ZERO);
                };
                let bytes = rates
                    .iter()
                    .map(|(lasting, rate)| lasting.as_secs_f64() * rate.as_bps() as f64 / 8.0)
                    .sum();
                (bytes, length)
            }
        };
        Rate::from_bps((bytes * 8.0 / length.as_secs_f64()).round() as u64)
    }

    /// The mean rate in each `step` up to `end`, bit/s; both above 0, the last step may be shorter.
    ///
    /// An opportunity counts for the step that it ends, since it serves packets that have waited.
    pub fn mean_rates(&self, step: Duration, end: Duration) -> Vec<f64> {
        let opportunities = match self {
            Self::Rates(rates) => {
                return rates.means(nanos(step), nanos(end), |rate| rate.as_bps() as f64);
            }
            Self::Opportunities(opportunities) => opportunities,
        };
        let (step, end) = (nanos(step), nanos(end));
        let mut rates = vec![0.0; usize::try_from(end.div_ceil(step)).unwrap_or(usize::MAX)];
        for (at, bytes) in opportunities.until(Duration::from_nanos(end)) {
            let index = nanos(at).saturating_sub(1) / step;
            let lasting = (end - index * step).min(step);
            rates[index as usize] += bytes as f64 * 8e9 / lasting as f64;
        }
        rates
    }

    /// How long one pass takes; `None` for a constant rate.
    pub fn length(&self) -> Option<Duration> {
        match self {
            Self::Rates(rates) => rates.length(),
            Self::Opportunities(opportunities) => Some(opportunities.period()),
        }
    }
}

impl Opportunities {
    /// Bytes of IP packets that one opportunity of Mahimahi carries.
    pub const BYTES: u64 = 1_500;

    /// Opportunities of [`Opportunities::BYTES`] at the times `at` after the start, in any order;
    /// the last time is the period. `None` unless one is later than zero.
    pub fn new(at: impl IntoIterator<Item = Duration>) -> Option<Self> {
        let mut slots: Vec<(u64, u64)> =
            at.into_iter().map(|at| (nanos(at), Self::BYTES)).collect();
        slots.sort_unstable();
        let period = slots.last().map_or(0, |last| last.0);
        (period > 0).then_some(Self { slots, period })
    }

    /// Opportunities with a time after the start and a number of bytes, in any order, repeated
    /// after `period`. Those of zero bytes are dropped; an empty list is a link that never carries
    /// anything.
    ///
    /// `None` if the period is zero or shorter than a time.
    pub fn with_bytes(
        slots: impl IntoIterator<Item = (Duration, u64)>,
        period: Duration,
    ) -> Option<Self> {
        let mut slots: Vec<(u64, u64)> = slots
            .into_iter()
            .filter(|&(_, bytes)| bytes > 0)
            .map(|(at, bytes)| (nanos(at), bytes))
            .collect();
        slots.sort_unstable();
        let period = nanos(period);
        let last = slots.last().map_or(0, |last| last.0);
        (period > 0 && last <= period).then_some(Self { slots, period })
    }

    pub fn period(&self) -> Duration {
        Duration::from_nanos(self.period)
    }

    /// The opportunities of one pass, ascending: time and bytes.
    pub fn iter(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.slots.iter().map(|&(at, bytes)| (Duration::from_nanos(at), bytes))
    }

    /// The opportunities of all passes up to and including `end`: time and bytes.
    pub fn until(&self, end: Duration) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let end = nanos(end);
        let passes = if self.slots.is_empty() { 0 } else { end.div_ceil(self.period) };
        (0..passes)
            .flat_map(|pass| {
                let begin = pass * self.period;
                self.slots.iter().map(move |&(at, bytes)| (begin.saturating_add(at), bytes))
            })
            .take_while(move |&(at, _)| at <= end)
            .map(|(at, bytes)| (Duration::from_nanos(at), bytes))
    }

    /// The bytes of one pass.
    pub fn bytes(&self) -> u64 {
        self.slots.iter().fold(0, |sum, slot| sum.saturating_add(slot.1))
    }

    fn first_after(&self, time: u64) -> u64 {
        let within = self.slots.partition_point(|slot| slot.0 <= time % self.period);
        (time / self.period).saturating_mul(self.slots.len() as u64).saturating_add(within as u64)
    }

    /// The time in ns since the start and the bytes of opportunity `number`, counted over all
    /// passes; `None` if the list is empty.
    fn slot(&self, number: u64) -> Option<(u64, u64)> {
        let count = self.slots.len() as u64;
        let within = usize::try_from(number.checked_rem(count)?).ok()?;
        let (at, bytes) = self.slots[within];
        Some(((number / count).saturating_mul(self.period).saturating_add(at), bytes))
    }
}

impl Transmitter {
    /// A transmitter whose capacity starts at `origin`; nothing departs before.
    pub fn new(capacity: Arc<Capacity>, origin: Instant) -> Self {
        Self {
            capacity,
            origin,
            busy_until: origin,
            opportunity: 0,
            opportunity_left: 0,
            nanosecond_left: 0,
        }
    }

    /// When a packet of `bytes` bytes queued at `ready` departs, after all before; `ready` ascends.
    ///
    /// [`Instant::FAR_FUTURE`] if there will never be capacity.
    pub fn transmit(&mut self, ready: Instant, bytes: usize) -> Instant {
        if self.busy_until == Instant::FAR_FUTURE {
            return Instant::FAR_FUTURE;
        }
        let bytes = bytes as u64;
        let capacity = Arc::clone(&self.capacity);
        // Only a packet that waited can use the rest of the previous budget.
        let waited = ready < self.busy_until;
        let departs = match &*capacity {
            Capacity::Rates(rates) => self.finish_at_rates(rates, ready, waited, bytes),
            Capacity::Opportunities(opportunities) => {
                self.finish_at_opportunities(opportunities, ready, waited, bytes)
            }
        };
        let departs =
            departs.map_or(Instant::FAR_FUTURE, |since| self.origin + Duration::from_nanos(since));
        self.busy_until = departs;
        departs
    }

    /// Discards the packets that have not departed by `now`.
    pub fn reset(&mut self, now: Instant) {
        self.busy_until = self.busy_until.min(now.max(self.origin));
    }

    /// Departure in ns since the origin; `None`: never.
    fn finish_at_rates(
        &mut self,
        rates: &Timeline<Rate>,
        ready: Instant,
        waited: bool,
        bytes: u64,
    ) -> Option<u64> {
        let mut time = nanos(ready.max(self.busy_until).since(self.origin));
        let mut missing = u128::from(bytes) * 8 * BIT;
        missing = missing.saturating_sub(if waited { self.nanosecond_left } else { 0 });
        let mut steps_without_capacity = 0;
        while steps_without_capacity <= rates.steps() {
            let span = rates.span(time);
            let rate = u128::from(span.value.as_bps());
            let end = span.end.unwrap_or(u64::MAX);
            let available = u128::from(end.saturating_sub(time)) * rate;
            if rate > 0 && missing <= available {
                let takes = missing.div_ceil(rate);
                self.nanosecond_left = takes * rate - missing;
                return time.checked_add(u64::try_from(takes).ok()?);
            }
            if end == u64::MAX {
                break;
            }
            missing -= available;
            time = end;
            steps_without_capacity = if rate > 0 { 0 } else { steps_without_capacity + 1 };
        }
        None
    }

    /// Departure in ns since the origin.
    ///
    /// An opportunity serves packets queued before it, not those of the same moment: mahimahi
    /// updates its link before it accepts a packet.
    fn finish_at_opportunities(
        &mut self,
        opportunities: &Opportunities,
        ready: Instant,
        waited: bool,
        bytes: u64,
    ) -> Option<u64> {
        if !waited {
            self.opportunity = opportunities.first_after(nanos(ready.since(self.origin)));
            self.opportunity_left = 0;
        }
        if bytes <= self.opportunity_left {
            self.opportunity_left -= bytes;
            return Some(nanos(self.busy_until.since(self.origin)));
        }
        let mut missing = bytes - self.opportunity_left;
        loop {
            let (at, carries) = opportunities.slot(self.opportunity)?;
            self.opportunity = self.opportunity.checked_add(1)?;
            if missing <= carries {
                self.opportunity_left = carries - missing;
                return Some(at);
            }
            missing -= carries;
        }
    }
}

impl From<Rate> for Capacity {
    fn from(rate: Rate) -> Self {
        Self::constant(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn mean_rates_count_every_byte_once() {
        let slots = [(0, 100), (2, 1_000), (5, 50), (10, 10)].map(|(at, bytes)| (MS * at, bytes));
        let opportunities = Opportunities::with_bytes(slots, MS * 10).expect("within the period");
        let capacity = Capacity::Opportunities(opportunities);
        let bytes = |step: u32, end: u32| -> Vec<f64> {
            let rates = capacity.mean_rates(MS * step, MS * end);
            let lasting = (0..end).step_by(step as usize).map(|at| step.min(end - at));
            rates.iter().zip(lasting).map(|(rate, ms)| rate * f64::from(ms) / 8e3).collect()
        };
        assert_eq!(bytes(5, 10), [1_150.0, 10.0]);
        assert_eq!(bytes(2, 5), [1_100.0, 0.0, 50.0]);
        assert_eq!(bytes(10, 25), [1_260.0, 1_160.0, 1_050.0]);
        assert_eq!(capacity.mean_rates(MS * 10, MS * 10)[0], capacity.mean_rate().as_bps() as f64);
    }

    #[test]
    fn a_link_that_carries_nothing_has_no_rate() {
        let nothing = Opportunities::with_bytes([], MS * 10).expect("a period");
        assert_eq!(Capacity::Opportunities(nothing).mean_rates(MS * 5, MS * 15), [0.0; 3]);
        assert_eq!(Capacity::constant(Rate::ZERO).mean_rates(MS * 5, MS * 15), [0.0; 3]);
    }
}
