//! One round of probes: three to each candidate over each uplink, and what they found.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::{Instant, UplinkId};

/// One round of probes.
#[derive(Debug)]
pub(super) struct Round {
    began: Instant,
    candidates: usize,
    /// The capacity of each uplink that takes part.
    weights: BTreeMap<UplinkId, u64>,
    /// How many probes have left.
    sent: usize,
    /// The least round trip by candidate and uplink.
    least: BTreeMap<(usize, UplinkId), Duration>,
    /// Probes of which nobody has heard.
    open: usize,
}

impl Round {
    /// A round that begins `now`, to so many candidates, over uplinks with these capacities.
    pub(super) fn new(now: Instant, candidates: usize, weights: BTreeMap<UplinkId, u64>) -> Self {
        Self { began: now, candidates, weights, sent: 0, least: BTreeMap::new(), open: 0 }
    }

    /// When the next probe leaves, if there is another.
    pub(super) fn probe_due(&self) -> Option<Instant> {
        let turn = self.sent / self.probes_at_once();
        (turn < PROBES).then(|| self.began + PROBE_INTERVAL * turn as u32)
    }

    /// When it ends, whatever is heard.
    pub(super) fn ends(&self) -> Instant {
        self.began + PROBE_INTERVAL * PROBES as u32 + PROBE_PATIENCE
    }

    /// The next probe that is due: the candidate and the uplink.
    pub(super) fn poll_probe(&mut self, now: Instant) -> Option<(usize, UplinkId)> {
        self.probe_due().filter(|due| *due <= now)?;
        let at = self.sent % self.probes_at_once();
        let uplink = self.weights.keys().nth(at / self.candidates).copied()?;
        self.sent += 1;
        self.open += 1;
        Some((at % self.candidates, uplink))
    }

    /// What came of a probe; `None` if nothing came, or it could not leave.
    pub(super) fn on_outcome(&mut self, candidate: usize, uplink: UplinkId, rtt: Option<Duration>) {
        self.open = self.open.saturating_sub(1);
        if let Some(rtt) = rtt {
            let least = self.least.entry((candidate, uplink)).or_insert(rtt);
            *least = rtt.min(*least);
        }
    }

    /// Whether all probes have left, and somebody has heard of each.
    pub(super) fn is_over(&self) -> bool {
        self.sent >= PROBES * self.probes_at_once() && self.open == 0
    }

    /// The median over the uplinks, each as weighty as its capacity, of a candidate's least round
    /// trips. Over an uplink on which others answer and it does not it is further than any. Where
    /// two halves are equal it is the lesser one, and the greater one of a `challenger`: half of
    /// the capacity is not enough to move for.
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

/// Probes to each candidate over each uplink in a round.
const PROBES: usize = 3;
/// The time between two of them: a server answers an address once in 100 ms.
const PROBE_INTERVAL: Duration = Duration::from_millis(150);
/// How long the last of them is waited for.
const PROBE_PATIENCE: Duration = Duration::from_millis(2_100);
