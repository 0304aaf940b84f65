//! One round of probes: three to each candidate over each uplink, and their outcomes.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::{Instant, UplinkId};

#[derive(Debug)]
pub(super) struct Round {
    began: Instant,
    candidates: usize,
    weights: BTreeMap<UplinkId, u64>,
    sent: usize,
    least: BTreeMap<(usize, UplinkId), Duration>,
    open: usize,
}

impl Round {
    pub(super) fn new(now: Instant, candidates: usize, weights: BTreeMap<UplinkId, u64>) -> Self {
        Self { began: now, candidates, weights, sent: 0, least: BTreeMap::new(), open: 0 }
    }

    pub(super) fn probe_due(&self) -> Option<Instant> {
        let turn = self.sent / self.probes_at_once();
        (turn < PROBES).then(|| self.began + PROBE_INTERVAL * turn as u32)
    }

    pub(super) fn ends(&self) -> Instant {
        self.began + PROBE_INTERVAL * PROBES as u32 + PROBE_TIMEOUT
    }

    pub(super) fn poll_probe(&mut self, now: Instant) -> Option<(usize, UplinkId)> {
        self.probe_due().filter(|due| *due <= now)?;
        let at = self.sent % self.probes_at_once();
        let uplink = self.weights.keys().nth(at / self.candidates).copied()?;
        self.sent += 1;
        self.open += 1;
        Some((at % self.candidates, uplink))
    }

    pub(super) fn on_outcome(&mut self, candidate: usize, uplink: UplinkId, rtt: Option<Duration>) {
        self.open = self.open.saturating_sub(1);
        if let Some(rtt) = rtt {
            let least = self.least.entry((candidate, uplink)).or_insert(rtt);
            *least = rtt.min(*least);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.sent >= PROBES * self.probes_at_once() && self.open == 0
    }

    /// The median of a candidate's least round trips, weighted by capacity. An uplink on which only
    /// others answer counts as infinitely far. A tie is decided against a `challenger`.
    pub(super) fn median(&self, candidate: usize, challenger: bool) -> Option<Duration> {
        let is_alive = |uplink: &UplinkId| self.least.keys().any(|(_, alive)| alive == uplink);
        let mut values: Vec<(Duration, u64)> = Vec::new();
        for (uplink, weight) in self.weights.iter().filter(|(uplink, _)| is_alive(uplink)) {
            let least = self.least.get(&(candidate, *uplink)).copied();
            values.push((least.unwrap_or(Duration::MAX), (*weight).max(1)));
        }
        values.sort_unstable();
        let all = values.iter().map(|(_, weight)| u128::from(*weight)).sum::<u128>();
        let half = if challenger { all / 2 + 1 } else { all.div_ceil(2) };
        let mut sum = 0;
        let median = values.iter().find(|(_, weight)| {
            sum += u128::from(*weight);
            sum >= half
        });
        median.map(|(value, _)| *value).filter(|value| *value < Duration::MAX)
    }

    fn probes_at_once(&self) -> usize {
        self.candidates * self.weights.len()
    }
}

const PROBES: usize = 3;
/// The time between them: a server answers an address once in 100 ms.
const PROBE_INTERVAL: Duration = Duration::from_millis(150);
const PROBE_TIMEOUT: Duration = Duration::from_millis(2_100);
