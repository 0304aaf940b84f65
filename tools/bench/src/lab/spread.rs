//! The spread of some values.

use roadweave_emulate::Quantiles;
use serde::Serialize;

#[derive(Debug, Default, Serialize)]
pub struct Spread {
    pub mean: f64,
    pub min: f64,
    pub p5: f64,
    pub p25: f64,
    pub p50: f64,
    pub p75: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl Spread {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let values = Quantiles::of(values.into_iter().collect());
        let [min, p5, p25, p50, p75, p95, p99, max] =
            [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0].map(|share| values.at(share));
        Self { mean: values.mean(), min, p5, p25, p50, p75, p95, p99, max }
    }
}
