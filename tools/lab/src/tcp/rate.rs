//! Samples of the delivery rate, one per acknowledgement
//! (draft-cheng-iccrg-delivery-rate-estimation-02).

use std::time::Duration;

use roadweave_proto::Instant;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    delivered: u64,
    delivered_at: Instant,
    first_sent: Instant,
    is_app_limited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RateSample {
    pub(super) rate: f64,
    /// Segments delivered when the newest acknowledged segment was sent.
    pub(super) prior_delivered: u64,
    /// Whether the application limited the sender; the rate then underestimates the path.
    pub(super) is_app_limited: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct RateEstimator {
    pub(super) delivered: u64,
    delivered_at: Instant,
    first_sent: Instant,
    /// Samples count as limited by the application until this many segments are delivered.
    app_limited: Option<u64>,
    /// The newest segment of the present acknowledgement, and when it was sent.
    newest: Option<(Mark, Instant)>,
}

impl RateEstimator {
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

    pub(super) fn on_app_limited(&mut self, in_flight: u32) {
        self.app_limited = Some((self.delivered + u64::from(in_flight)).max(1));
    }

    /// `None` if the sample is invalid.
    pub(super) fn sample(&mut self, least_round_trip: Option<Duration>) -> Option<RateSample> {
        self.app_limited = self.app_limited.filter(|until| self.delivered <= *until);
        let (mark, sent) = self.newest.take()?;
        let interval = sent.since(mark.first_sent).max(self.delivered_at.since(mark.delivered_at));
        // Deliveries faster than a round trip were batched.
        let is_sound = least_round_trip.is_none_or(|least| interval >= least);
        (is_sound && !interval.is_zero()).then(|| RateSample {
            rate: (self.delivered - mark.delivered) as f64 / interval.as_secs_f64(),
            prior_delivered: mark.delivered,
            is_app_limited: mark.is_app_limited,
        })
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
        let mut samples = Vec::new();
        for (number, mark) in (0..).zip(marks) {
            rate.on_delivered(at(50 + 5 * number), mark, at(0));
            samples.extend(rate.sample(Some(Duration::from_millis(50))));
        }
        let last = samples[9];
        assert!((last.rate - 10.0 / 0.095).abs() < 1e-9, "{last:?}");
        // The next flight, clocked by the deliveries, shows the true rate.
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
