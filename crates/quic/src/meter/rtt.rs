//! The round-trip time of a path.
//!
//! ```text
//! acknowledgements > Samples of a batch > RoundTrip: smoothed, deviation, recent minimum > PTO
//! ```

use std::time::Duration;

use roadweave_proto::{Instant, RttEstimator};

/// The round-trip time of a path (RFC 9002 section 5), with the peer's delay of at most 2 ms.
///
/// RFC 9002 expects a few samples per round trip. Here acknowledgements come each millisecond, and
/// the mean deviation from the smoothed value is close to nothing even while the delay doubles. So
/// the deviation is at least half of the rise within a round trip, kept as a maximum that fades by
/// a quarter per round trip (as Linux keeps `mdev_max`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundTrip {
    estimate: RttEstimator,
    rise: RecentRise,
    /// Over seconds.
    recent: RecentMin,
    /// Over a frame or two of a video.
    fresh: RecentMin,
    /// Derived from the fields above, as they are read far more often than they change.
    deviation: Duration,
    pto: Duration,
}

/// The minimum of the last one or two times `half`: a vehicle's network changes.
#[derive(Clone, Copy, Debug, Default)]
struct RecentMin {
    began: Option<Instant>,
    now: Option<Duration>,
    before: Option<Duration>,
    min: Duration,
}

impl RecentMin {
    fn update(&mut self, now: Instant, sample: Duration, half: Duration) {
        if self.began.is_none_or(|began| now >= began + half) {
            self.before = self.now.take();
            self.began = Some(now);
        }
        let now = self.now.map_or(sample, |least| least.min(sample));
        self.now = Some(now);
        self.min = self.before.map_or(now, |before| before.min(now));
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct RecentRise {
    round_ends: Option<Instant>,
    reference: Duration,
    rise: Duration,
    faded: Duration,
}

impl RecentRise {
    fn update(&mut self, now: Instant, sample: Duration, smoothed: Duration) {
        if self.round_ends.is_none_or(|end| now >= end) {
            self.faded = self.rise.max(self.faded * 3 / 4);
            self.reference = smoothed;
            self.rise = Duration::ZERO;
            self.round_ends = Some(now + smoothed);
        }
        self.rise = self.rise.max(sample.saturating_sub(self.reference));
    }

    fn get(&self) -> Duration {
        self.rise.max(self.faded)
    }
}

impl RoundTrip {
    pub(super) fn new(initial: Duration) -> Self {
        let mut rtt = Self {
            estimate: RttEstimator::new(initial),
            rise: RecentRise::default(),
            recent: RecentMin::default(),
            fresh: RecentMin::default(),
            deviation: Duration::ZERO,
            pto: Duration::ZERO,
        };
        rtt.conclude();
        rtt
    }

    pub(super) fn update(&mut self, now: Instant, batch: &Samples) {
        let Some(sample) = batch.mean() else { return };
        self.recent.update(now, batch.least, RECENT);
        self.fresh.update(now, batch.least, FRESH);
        if self.estimate.is_sampled() {
            self.rise.update(now, batch.most, self.estimate.smoothed());
        }
        self.estimate.update(sample);
        self.conclude();
    }

    fn conclude(&mut self) {
        self.deviation = self.estimate.variation().max(self.rise.get() / 2);
        self.pto = self.smoothed() + (self.deviation * 4).max(GRANULARITY) + ACK_DELAY_MAX;
    }

    pub(crate) fn latest(&self) -> Duration {
        self.estimate.latest()
    }

    pub(crate) fn smoothed(&self) -> Duration {
        self.estimate.smoothed()
    }

    pub(crate) fn deviation(&self) -> Duration {
        self.deviation
    }

    pub(super) fn is_sampled(&self) -> bool {
        self.estimate.is_sampled()
    }

    /// Minimum of the last 5 to 10 s; zero before the first sample.
    pub(super) fn recent_min(&self) -> Duration {
        self.recent.min
    }

    /// Minimum of the last 60 to 120 ms; zero before the first sample.
    pub(super) fn fresh_min(&self) -> Duration {
        self.fresh.min
    }

    /// Minimum of the last 5 to 10 s; the initial round-trip time before the first sample.
    pub(crate) fn least(&self) -> Duration {
        if self.is_sampled() { self.recent.min } else { self.smoothed() }
    }

    /// The probe timeout without its backoff (RFC 9002 section 6.2.1).
    pub(crate) fn pto(&self) -> Duration {
        self.pto
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Samples {
    count: u32,
    sum: Duration,
    pub(super) least: Duration,
    pub(super) most: Duration,
}

impl Samples {
    #[cfg(test)]
    pub(super) fn of(rtt: Duration) -> Self {
        let mut batch = Self::default();
        batch.add(rtt);
        batch
    }

    pub(super) fn add(&mut self, rtt: Duration) {
        self.least = if self.count == 0 { rtt } else { self.least.min(rtt) };
        self.most = self.most.max(rtt);
        self.count += 1;
        self.sum += rtt;
    }

    pub(super) fn mean(&self) -> Option<Duration> {
        (self.count > 0).then(|| self.sum / self.count)
    }
}

const RECENT: Duration = Duration::from_secs(5);
const FRESH: Duration = Duration::from_millis(60);
/// RFC 9002 section 6.1.2.
pub(super) const GRANULARITY: Duration = Duration::from_millis(1);
pub(super) const ACK_DELAY_MAX: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn round_trips_are_averaged_as_rfc_9002_says() {
        let start = Instant::from_millis(1_000);
        let mut rtt = RoundTrip::new(MS * 100);
        rtt.update(start, &Samples::of(MS * 40));
        assert_eq!((rtt.smoothed(), rtt.deviation(), rtt.least()), (MS * 40, MS * 20, MS * 40));
        rtt.update(start, &Samples::of(MS * 80));
        assert_eq!((rtt.smoothed(), rtt.deviation(), rtt.least()), (MS * 45, MS * 25, MS * 40));
        assert_eq!(rtt.pto(), MS * (45 + 100 + 2));
    }

    #[test]
    fn the_least_round_trip_is_that_of_the_last_seconds() {
        let start = Instant::from_millis(1_000);
        let mut rtt = RoundTrip::new(MS * 100);
        assert_eq!(rtt.least(), MS * 100);
        let mut update = |at: u32, sample: u32| {
            rtt.update(start + MS * at, &Samples::of(MS * sample));
            rtt.least()
        };
        assert_eq!(update(0, 40), MS * 40);
        // The route changes to one of 140 ms.
        assert_eq!(update(4000, 140), MS * 40);
        assert_eq!(update(6000, 141), MS * 40);
        assert_eq!(update(11_000, 142), MS * 141);
    }

    #[test]
    fn dense_samples_of_a_rising_delay_still_show_a_deviation() {
        let start = Instant::from_millis(1_000);
        let mut rtt = RoundTrip::new(MS * 60);
        let sample = |rtt: &mut RoundTrip, ms: u32, sample: Duration| {
            rtt.update(start + MS * ms, &Samples::of(sample));
        };
        (0..600).for_each(|ms| sample(&mut rtt, ms, MS * 60));
        assert!(rtt.deviation() < MS, "steady: {:?}", rtt.deviation());
        // A queue fills by 1 ms each 2 ms, as on a link at two thirds of the sender's rate.
        (0..200).for_each(|ms| sample(&mut rtt, 600 + ms, MS * 60 + MS * ms / 2));
        assert!(rtt.deviation() >= MS * 15, "rising: {:?}", rtt.deviation());
        assert!(rtt.pto() >= rtt.smoothed() + MS * 60);
        (0..2000).for_each(|ms| sample(&mut rtt, 800 + ms, MS * 60));
        assert!(rtt.deviation() < MS * 3, "steady again: {:?}", rtt.deviation());
    }
}
