//! Capacity, delay and loss of a link over time.

use std::sync::Arc;
use std::time::Duration;

use roadweave_proto::Rate;

use crate::capacity::{Capacity, Opportunities};
use crate::timeline::{Timeline, nanos};

/// Capacity, delay and loss of a link in one direction. Cheap to clone: links share a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    capacity: Arc<Capacity>,
    delay: Arc<Timeline<Duration>>,
    loss: Arc<Timeline<f64>>,
}

impl Trace {
    /// A link that never changes: `rate`, one-way propagation `delay`, no loss.
    pub fn constant(rate: Rate, delay: Duration) -> Self {
        Self::new(Capacity::constant(rate), Timeline::constant(delay), Timeline::constant(0.0))
    }

    /// A link of this `capacity`, one-way propagation `delay` and `loss` (share of packets, 0..=1).
    pub fn new(
        capacity: impl Into<Capacity>,
        delay: Timeline<Duration>,
        loss: Timeline<f64>,
    ) -> Self {
        Self { capacity: Arc::new(capacity.into()), delay: Arc::new(delay), loss: Arc::new(loss) }
    }

    #[must_use]
    pub fn with_capacity(&self, capacity: impl Into<Capacity>) -> Self {
        Self { capacity: Arc::new(capacity.into()), ..self.clone() }
    }

    #[must_use]
    pub fn with_delay(&self, delay: Timeline<Duration>) -> Self {
        Self { delay: Arc::new(delay), ..self.clone() }
    }

    /// A copy with another loss, share of packets, 0..=1.
    #[must_use]
    pub fn with_loss(&self, loss: Timeline<f64>) -> Self {
        Self { loss: Arc::new(loss), ..self.clone() }
    }

    pub fn capacity(&self) -> &Arc<Capacity> {
        &self.capacity
    }

    pub fn delay(&self) -> &Timeline<Duration> {
        &self.delay
    }

    /// The share of packets lost, 0..=1.
    pub fn loss(&self) -> &Timeline<f64> {
        &self.loss
    }

    /// How long one pass takes; `None` if all values are constant.
    pub fn length(&self) -> Option<Duration> {
        self.capacity.length().max(self.delay.length()).max(self.loss.length())
    }

    /// The recording from `from` on, `lasting` long, above 0.
    #[must_use]
    pub fn part(&self, from: Duration, lasting: Duration) -> Self {
        let (from, lasting) = (nanos(from), nanos(lasting.max(Duration::from_nanos(1))));
        let capacity = match &**self.capacity() {
            Capacity::Rates(rates) => Capacity::Rates(part_of(rates, from, lasting)),
            Capacity::Opportunities(opportunities) => {
                let end = Duration::from_nanos(from.saturating_add(lasting));
                let slots = opportunities
                    .until(end)
                    .map(|(at, bytes)| (nanos(at), bytes))
                    // An opportunity at the very beginning serves packets of the preceding part.
                    .filter(|&(at, _)| at > from || from == 0)
                    .map(|(at, bytes)| (Duration::from_nanos(at - from), bytes));
                let part = Opportunities::with_bytes(slots, Duration::from_nanos(lasting));
                Capacity::Opportunities(part.expect("none comes after the end of the part"))
            }
        };
        Self::new(
            capacity,
            part_of(self.delay(), from, lasting),
            part_of(self.loss(), from, lasting),
        )
    }

    /// One pass whose capacity is the mean rate of each `step` (above 0).
    #[must_use]
    pub fn with_rates(&self, step: Duration) -> Self {
        let length = self.one_pass();
        let rates = self.capacity().mean_rates(step, length).into_iter();
        let rates = rates.map(|bps| Rate::from_bps(bps.round() as u64));
        self.with_capacity(Capacity::Rates(stepped(rates, step, length)))
    }

    /// One pass with a delivery opportunity at the end of each `step` (above 0), of the whole bytes
    /// that the link could carry in that step.
    #[must_use]
    pub fn with_opportunities(&self, step: Duration) -> Self {
        let length = self.one_pass();
        let (mut sum, mut given, mut begin) = (0.0, 0.0, Duration::ZERO);
        let slots = self.capacity().mean_rates(step, length).into_iter().map(|bps| {
            let end = begin.saturating_add(step).min(length);
            sum += bps / 8.0 * (end - begin).as_secs_f64();
            // Rounding alone may make a sum of rates fall short of a whole byte.
            let bytes = (sum - given + 1e-6).floor().max(0.0);
            given += bytes;
            begin = end;
            (end, bytes as u64)
        });
        let opportunities = Opportunities::with_bytes(slots, length).expect("all within the pass");
        self.with_capacity(Capacity::Opportunities(opportunities))
    }

    /// One pass with the mean delay and loss of each `step` (above 0).
    #[must_use]
    pub fn smoothed(&self, step: Duration) -> Self {
        let length = self.one_pass();
        let (step_nanos, end) = (nanos(step), nanos(length));
        let delays = self.delay().means(step_nanos, end, |delay| nanos(delay) as f64);
        let delays = delays.into_iter().map(|mean| Duration::from_nanos(mean.round() as u64));
        let losses = self.loss().means(step_nanos, end, |loss| loss).into_iter();
        self.with_delay(stepped(delays, step, length)).with_loss(stepped(
            losses.map(|loss| loss.clamp(0.0, 1.0)),
            step,
            length,
        ))
    }

    pub(crate) fn one_pass(&self) -> Duration {
        self.length().unwrap_or(CONSTANT).max(Duration::from_nanos(1))
    }

    /// A queue of 500 ms at the mean rate, at least [`Trace::QUEUE_BYTES_MIN`].
    ///
    /// Cellular modems and base stations buffer some hundreds of milliseconds up to a second, which
    /// hides scheduling gaps and increases delay before packets are lost.
    pub fn default_queue_bytes(&self) -> usize {
        let bytes = self.capacity.mean_rate().bytes_in(Duration::from_millis(500));
        usize::try_from(bytes).unwrap_or(usize::MAX).max(Self::QUEUE_BYTES_MIN)
    }

    /// The smallest default queue, bytes: 64 full packets.
    pub const QUEUE_BYTES_MIN: usize = 96_000;
}

fn part_of<V: Copy + PartialEq>(timeline: &Timeline<V>, from: u64, lasting: u64) -> Timeline<V> {
    let mut steps: Vec<(Duration, V)> = Vec::new();
    let mut at = 0;
    while at < lasting {
        let span = timeline.span(from.saturating_add(at));
        steps.push((Duration::from_nanos(at), span.value));
        at = span.end.map_or(lasting, |end| end.saturating_sub(from)).max(at + 1);
    }
    repeating(steps, Duration::from_nanos(lasting))
}

pub(crate) fn stepped<V: Copy + PartialEq>(
    values: impl Iterator<Item = V>,
    step: Duration,
    length: Duration,
) -> Timeline<V> {
    let begins = std::iter::successors(Some(Duration::ZERO), |at| Some(at.saturating_add(step)));
    repeating(begins.zip(values), length)
}

fn repeating<V: Copy + PartialEq>(
    steps: impl IntoIterator<Item = (Duration, V)>,
    length: Duration,
) -> Timeline<V> {
    Timeline::of_changes(steps, length).expect("steps ascend from zero, all before the end")
}

const CONSTANT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn timeline<V: Copy + PartialEq>(steps: &[(u32, V)], length: u32) -> Timeline<V> {
        repeating(steps.iter().map(|&(at, value)| (MS * at, value)), MS * length)
    }

    /// 8 Mbit/s, 1,000 bytes per ms, then half of it.
    fn trace() -> Trace {
        let rates = [(0, Rate::from_kbps(8_000)), (30, Rate::from_kbps(4_000))];
        Trace::new(
            Capacity::Rates(timeline(&rates, 50)),
            timeline(&[(0, MS * 10), (20, MS * 20)], 50),
            timeline(&[(0, 0.0), (45, 1.0)], 50),
        )
    }

    #[test]
    fn a_part_is_what_the_whole_is_in_that_time() {
        let whole = trace();
        let part = whole.part(MS * 40, MS * 25);
        assert_eq!(part.length(), Some(MS * 25));
        let Capacity::Rates(rates) = &**part.capacity() else { panic!("rates stay rates") };
        for at in 0..25 {
            let (here, there) = (MS * at, MS * (40 + at));
            assert_eq!(part.delay().at(here), whole.delay().at(there), "{at} ms");
            assert_eq!(part.loss().at(here), whole.loss().at(there), "{at} ms");
            let kbps = if (10..).contains(&at) { 8_000 } else { 4_000 };
            assert_eq!(rates.at(here), Rate::from_kbps(kbps), "{at} ms");
        }
        let constant = Trace::constant(Rate::from_kbps(8), MS).part(MS * 7, MS * 3);
        assert_eq!((constant.length(), constant.delay().at(MS)), (Some(MS * 3), MS));
    }

    #[test]
    fn opportunities_of_a_part_are_each_in_one_part_only() {
        let slots = [(0, 1), (10, 20), (15, 300), (30, 4_000)].map(|(at, n)| (MS * at, n));
        let opportunities = Opportunities::with_bytes(slots, MS * 30).unwrap();
        let whole = trace().with_capacity(Capacity::Opportunities(opportunities));
        let slots = |from: u32, lasting: u32| -> Vec<(Duration, u64)> {
            let part = whole.part(MS * from, MS * lasting);
            assert_eq!(part.length(), Some(MS * lasting));
            let Capacity::Opportunities(part) = &**part.capacity() else { panic!("as they were") };
            part.iter().collect()
        };
        assert_eq!(slots(0, 10), [(Duration::ZERO, 1), (MS * 10, 20)]);
        assert_eq!(slots(10, 10), [(MS * 5, 300)]);
        assert_eq!(slots(20, 21), [(MS * 10, 1), (MS * 10, 4_000), (MS * 20, 20)]);
    }

    #[test]
    fn capacity_of_another_kind_carries_the_same_bytes() {
        let of_opportunities = trace().with_opportunities(MS * 7);
        let Capacity::Opportunities(slots) = &**of_opportunities.capacity() else {
            panic!("asked")
        };
        let slots: Vec<(u128, u64)> = slots.iter().map(|(at, n)| (at.as_millis(), n)).collect();
        let expected =
            [(7, 7_000), (14, 7_000), (21, 7_000), (28, 7_000), (35, 4_500), (42, 3_500)];
        assert_eq!(slots[..6], expected);
        assert_eq!(slots[6..], [(49, 3_500), (50, 500)]);
        let back = of_opportunities.with_rates(MS * 10);
        assert_eq!(back.capacity().mean_rate(), trace().capacity().mean_rate());
        assert_eq!(back.length(), Some(MS * 50));
    }

    #[test]
    fn fractions_of_bytes_are_carried_over() {
        // 1 kbit/s: an eighth of a byte per ms.
        let slow = Trace::constant(Rate::from_kbps(1), MS).with_opportunities(MS);
        let Capacity::Opportunities(slots) = &**slow.capacity() else { panic!("asked for") };
        assert_eq!(slots.bytes(), 125);
        assert!(slots.iter().all(|(at, bytes)| bytes == 1 && at.as_millis() % 8 == 0));
    }

    #[test]
    fn delay_and_loss_become_means() {
        let smooth = trace().smoothed(MS * 30);
        let at = |ms: u32| (smooth.delay().at(MS * ms), smooth.loss().at(MS * ms));
        assert_eq!(at(29), (Duration::from_nanos(13_333_333), 0.0));
        assert_eq!(at(30), (MS * 20, 0.25));
        assert_eq!(smooth.capacity(), trace().capacity());
    }
}
