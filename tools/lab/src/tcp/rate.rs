//! How fast segments are delivered, sampled with every acknowledgement.
//!
//! Source: draft-cheng-iccrg-delivery-rate-estimation-02.

use std::time::Duration;

use roadweave_proto::Instant;

/// What is noted with each segment as it leaves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    /// Segments delivered until then, and when the last of them was.
    delivered: u64,
    delivered_at: Instant,
    /// When the first segment left of the flight that this one belongs to.
    first_sent: Instant,
    is_app_limited: bool,
}

/// A sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RateSample {
    /// Segments per second.
    pub(super) rate: f64,
    /// Segments delivered when the newest segment left that this acknowledgement tells of.
    pub(super) prior_delivered: u64,
    /// Whether the application had nothing to send then, so that the rate says little of the path.
    pub(super) is_app_limited: bool,
}

/// Counts deliveries.
#[derive(Clone, Debug, Default)]
pub(super) struct RateEstimator {
    delivered: u64,
    delivered_at: Instant,
    first_sent: Instant,
    /// The application had nothing to send until so many are delivered.
    app_limited: Option<u64>,
    /// Of the segments that the present acknowledgement tells of: the newest, and when it left.
    newest: Option<(Mark, Instant)>,
}

impl RateEstimator {
    /// A segment leaves.
    pub(super) fn on_sent(&mut self, now: Instant, is_idle: bool) -> Mark {
        if is_idle {
            (self.first_sent, self.delivered_at) = (now, now);
        }
        Mark {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
            is_app_limited: self.app_limited.is_some(),
        }
    }

    /// A segment that left at `sent` is there.
    pub(super) fn on_delivered(&mut self, now: Instant, mark: Mark, sent: Instant) {
        self.delivered += 1;
        self.delivered_at = now;
        let is_newer =
            |(newest, at): (Mark, Instant)| (mark.delivered, sent) > (newest.delivered, at);
        if self.newest.is_none_or(is_newer) {
            self.newest = Some((mark, sent));
            self.first_sent = sent;
        }
    }

    /// Nothing more is there to be sent, with so many segments under way.
    pub(super) fn on_app_limited(&mut self, in_flight: u32) {
        self.app_limited = Some((self.delivered + u64::from(in_flight)).max(1));
    }

    /// The sample of the acknowledgement whose segments have been told, unless it says nothing.
    pub(super) fn sample(&mut self, least_round_trip: Option<Duration>) -> Option<RateSample> {
        self.app_limited = self.app_limited.filter(|until| self.delivered <= *until);
        let (mark, sent) = self.newest.take()?;
        let interval = sent.since(mark.first_sent).max(self.delivered_at.since(mark.delivered_at));
        // Deliveries that seem faster than the path is long were batched.
        let is_sound = least_round_trip.is_none_or(|least| interval >= least);
        (is_sound && !interval.is_zero()).then(|| RateSample {
            rate: (self.delivered - mark.delivered) as f64 / interval.as_secs_f64(),
            prior_delivered: mark.delivered,
            is_app_limited: mark.is_app_limited,
        })
    }

    /// Segments delivered so far.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_measured_by_the_pace_of_its_deliveries() {
        let mut rate = RateEstimator::default();
        let at = Instant::from_millis;
        let marks: Vec<Mark> = (0..10).map(|number| rate.on_sent(at(0), number == 0)).collect();
        // One each 5 ms after a round trip of 50 ms: 200 segments per second by the last.
        let mut samples = Vec::new();
        for (number, mark) in (0..).zip(marks) {
            rate.on_delivered(at(50 + 5 * number), mark, at(0));
            samples.extend(rate.sample(Some(Duration::from_millis(50))));
        }
        let last = samples[9];
        assert!((last.rate - 10.0 / 0.095).abs() < 1e-9, "{last:?}");
        // The next flight, clocked by the deliveries, shows the true pace.
        let marks: Vec<Mark> = (0..10).map(|_| rate.on_sent(at(95), false)).collect();
        rate.on_app_limited(10);
        for (number, mark) in (0..).zip(marks) {
            rate.on_delivered(at(145 + 5 * number), mark, at(95));
        }
        let sample = rate.sample(Some(Duration::from_millis(50))).unwrap();
        assert!((sample.rate - 10.0 / 0.095).abs() < 1e-9 && !sample.is_app_limited);
        assert!(rate.on_sent(at(200), false).is_app_limited);
    }

    #[test]
    fn deliveries_faster_than_a_round_trip_are_no_sample() {
        let mut rate = RateEstimator::default();
        let mark = rate.on_sent(Instant::ZERO, true);
        rate.on_delivered(Instant::from_millis(10), mark, Instant::ZERO);
        assert_eq!(rate.sample(Some(Duration::from_millis(50))), None);
    }
}
