//! Statistics of cellular operators.

/// Statistics of one operator's links, as seen from a moving vehicle.
#[derive(Clone, Debug, PartialEq)]
pub struct Operator {
    pub name: &'static str,
    /// Quantiles of the uplink's capacity: the normal score of the share of time below, and Mbit/s;
    /// at least two, ascending.
    pub capacity: &'static [(f64, f64)],
    /// Round-trip times of an idle link.
    pub rtt: RttQuantiles,
    /// The share of time with total loss, 0..1.
    pub loss: f64,
    /// Mean length of a total loss, in probes of 200 ms, at least 1.
    pub loss_burst_probes: f64,
    /// Handovers per minute, each a pause of 60 ms at the median.
    pub handovers_per_minute: f64,
    /// Pauses whose bytes arrive within the following second.
    pub gaps: Gaps,
    /// Pauses whose capacity is lost.
    pub outages: Gaps,
}

/// Quantiles of the round-trip time, ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RttQuantiles {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
}

/// Frequency and length of a link's pauses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gaps {
    pub per_minute: f64,
    /// The share of pauses of at least this many ms: (ms, share), ms ascending from the shortest
    /// with share 1 to the longest with share 0.
    pub at_least: &'static [(f64, f64)],
}

/// Spikes that produce the quantiles of a round-trip time.
pub(super) struct Spikes {
    /// Exponent of the heights' Pareto distribution.
    pub exponent: f64,
    /// Chance of a start, per probe.
    pub chance: f64,
}

impl Operator {
    /// AT&T, 4G and 5G.
    pub const ATT: Self = Self {
        name: "att",
        capacity: &[(-1.645, 0.55), (-1.419, 1.0), (0.0, 11.3), (1.645, 55.9)],
        rtt: RttQuantiles { p50_ms: 60.0, p99_ms: 244.0, p999_ms: 875.0 },
        loss: 0.0027,
        loss_burst_probes: 2.6,
        handovers_per_minute: 2.5,
        gaps: Gaps::OCCASIONAL,
        outages: Gaps::NONE,
    };
    /// Verizon, 4G and 5G.
    pub const VERIZON: Self = Self {
        name: "verizon",
        capacity: &[(-1.645, 0.34), (-1.305, 1.0), (0.0, 13.1), (1.645, 56.8)],
        rtt: RttQuantiles { p50_ms: 51.0, p99_ms: 594.0, p999_ms: 6_162.0 },
        loss: 0.0165,
        loss_burst_probes: 7.8,
        handovers_per_minute: 2.9,
        gaps: Gaps::OCCASIONAL,
        outages: Gaps::NONE,
    };
    /// T-Mobile, mostly 5G standalone.
    pub const TMOBILE: Self = Self {
        name: "tmobile",
        capacity: &[(-1.645, 1.1), (-0.674, 16.2), (0.0, 47.2), (1.645, 121.0)],
        rtt: RttQuantiles { p50_ms: 55.0, p99_ms: 271.0, p999_ms: 1_208.0 },
        loss: 0.0105,
        loss_burst_probes: 4.9,
        handovers_per_minute: 2.7,
        gaps: Gaps::OCCASIONAL,
        outages: Gaps::NONE,
    };
    /// An LTE link with the delivery gaps of its uplink grants.
    pub const LTE: Self = Self {
        name: "lte",
        capacity: &[(-1.645, 0.89), (-0.674, 7.0), (0.0, 17.2), (1.645, 62.3)],
        rtt: RttQuantiles { p50_ms: 62.0, p99_ms: 486.0, p999_ms: 5_721.0 },
        loss: 0.0105,
        loss_burst_probes: 4.9,
        handovers_per_minute: 2.7,
        gaps: Gaps::LTE,
        outages: Gaps::NONE,
    };
    /// All operators, in the order of use in a drive.
    pub const ALL: [Self; 4] = [Self::ATT, Self::VERIZON, Self::TMOBILE, Self::LTE];

    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operator| operator.name == name)
    }

    /// The capacity in Mbit/s at a normal score: log-linear between and beyond the quantiles.
    pub(super) fn capacity_at(&self, score: f64) -> f64 {
        let last = self.capacity.len() - 2;
        let above = self.capacity.partition_point(|&(known, _)| known <= score);
        let left = above.saturating_sub(1).min(last);
        let ((x0, y0), (x1, y1)) = (self.capacity[left], self.capacity[left + 1]);
        let slope = (y1 / y0).ln() / (x1 - x0);
        (y0 * (slope * (score - x0)).exp()).min(CAPACITY_MBPS_MAX)
    }
}

impl RttQuantiles {
    /// Excess above the median that counts as a spike, ms.
    pub(super) const SPIKE_MS: f64 = 100.0;
    /// The share of a spike that remains at the next probe.
    pub(super) const DECAY: f64 = 0.5;

    pub(super) fn moved_to(self, p50_ms: f64) -> Self {
        let by = p50_ms - self.p50_ms;
        Self { p50_ms, p99_ms: self.p99_ms + by, p999_ms: self.p999_ms + by }
    }

    /// Spikes with a Pareto tail through both upper quantiles.
    ///
    /// A spike of Pareto exponent a that shrinks by the factor d from probe to probe stays above
    /// the threshold for 1 / (1 - d^a) probes on average.
    pub(super) fn spikes(&self) -> Spikes {
        let (high, highest) = (self.p99_ms - self.p50_ms, self.p999_ms - self.p50_ms);
        let exponent = 10_f64.ln() / (highest / high).ln();
        let share = 0.01 * (high / Self::SPIKE_MS).powf(exponent);
        Spikes { exponent, chance: share * (1.0 - Self::DECAY.powf(exponent)) }
    }
}

impl Spikes {
    /// The share of spikes of a `height` (ms) that remain when spikes fall by at most `fall` (ms)
    /// per probe, so that the share of time above each height is preserved.
    ///
    /// A spike of height h is above x for (h - x) / fall probes instead of 1 / (1 - d^a) on
    /// average; if the share k / h of them remains, the mean is k / fall / (a + 1).
    pub(super) fn kept(&self, height: f64, fall: f64) -> f64 {
        let falling = 1.0 - RttQuantiles::DECAY.powf(self.exponent);
        fall * (self.exponent + 1.0) / falling / height
    }
}

impl Gaps {
    pub const NONE: Self = Self { per_minute: 0.0, at_least: &[(0.0, 1.0), (1.0, 0.0)] };
    /// Two per minute of 200 to 600 ms.
    pub const OCCASIONAL: Self = Self { per_minute: 2.0, at_least: &[(200.0, 1.0), (600.0, 0.0)] };
    /// Per minute 132 above 50 ms, 15.6 above 100 ms, 7.3 above 200 ms, 0.9 above 1 s.
    pub const LTE: Self = Self {
        per_minute: 132.0,
        at_least: &[
            (50.0, 1.0),
            (100.0, 0.118),
            (200.0, 0.0553),
            (1_000.0, 0.0068),
            (3_000.0, 0.0),
        ],
    };

    pub(super) fn mean_ms(&self) -> f64 {
        let shortest = self.at_least.first().map_or(0.0, |&(ms, _)| ms);
        let between = |pair: &[(f64, f64)]| (pair[1].0 - pair[0].0) * (pair[0].1 + pair[1].1) / 2.0;
        shortest + self.at_least.windows(2).map(between).sum::<f64>()
    }

    /// The length in ms that the share `share` (0..1) of pauses exceeds, interpolated linearly.
    pub(super) fn exceeded_by(&self, share: f64) -> f64 {
        let known = self.at_least.partition_point(|&(_, at_least)| at_least > share);
        let right = known.clamp(1, self.at_least.len() - 1);
        let ((x0, y0), (x1, y1)) = (self.at_least[right - 1], self.at_least[right]);
        x0 + (x1 - x0) * ((y0 - share) / (y0 - y1)).clamp(0.0, 1.0)
    }
}

/// Bound of the log-linear tail.
const CAPACITY_MBPS_MAX: f64 = 250.0;
