//! Predicts the next round trip.
//!
//! ```text
//! prediction = sum(w_i * rtt_i) / sum(w_i),   w_i = exp(-(now - t_i) / lambda)
//! ```
//!
//! All weights fade alike, so `now` cancels out: two sums replace the samples.
//!
//! Source: RAVEN section 4.2, equations 1 and 2.

/// All times in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Forecast {
    weighted: f64,
    weights: f64,
    newest: Option<f64>,
}

impl Forecast {
    pub(super) fn add(&mut self, at: f64, rtt: f64, lambda: f64) {
        let faded = |newest: f64| (-(at - newest).max(0.0) / lambda).exp();
        let fading = self.newest.map_or(0.0, faded);
        self.weighted = self.weighted * fading + rtt;
        self.weights = self.weights * fading + 1.0;
        self.newest = Some(at);
    }

    pub(super) fn rtt(&self) -> Option<f64> {
        (self.weights > 0.0).then(|| self.weighted / self.weights)
    }

    pub(super) fn newest(&self) -> Option<f64> {
        self.newest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_kept_sums_are_the_weighted_average(
            steps in prop::collection::vec((0.0..20.0_f64, 0.001..5.0_f64), 1..60),
            lambda in 0.1..100.0_f64,
            later in 0.0..10.0_f64,
        ) {
            let (mut forecast, mut samples, mut at) = (Forecast::default(), Vec::new(), 0.0);
            prop_assert_eq!(forecast.rtt(), None);
            for (step, rtt) in steps {
                at += step;
                forecast.add(at, rtt, lambda);
                samples.push((at, rtt));
            }
            let weight = |taken: f64| (-(at + later - taken) / lambda).exp();
            let weights: f64 = samples.iter().map(|(taken, _)| weight(*taken)).sum();
            let weighted: f64 = samples.iter().map(|(taken, rtt)| weight(*taken) * rtt).sum();
            prop_assume!(weights > 1e-200);
            let prediction = forecast.rtt().expect("there are samples");
            prop_assert!((prediction - weighted / weights).abs() < 1e-6, "{prediction}");
        }
    }
}
