//! The events of a run that are still to come, its clock and its randomness.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_fleet::{Down, Up};
use roadweave_proto::{Instant, SplitMix64};

use super::plan::PlannedEvent;

/// `Connect` counts for the latest planned attempt, `Silent` if the replica still does not answer.
#[derive(Debug)]
pub(super) enum FleetEvent {
    Turn,
    Outbox(usize),
    Connect { who: usize, attempt: u64 },
    Up { who: usize, stream: u64, frames: Vec<Up> },
    Down { who: usize, stream: u64, frames: Vec<Down> },
    Expire { replica: usize, who: usize, stream: u64 },
    Silent { replica: usize, who: usize },
    Timeout { who: usize },
    Choose { who: usize, round: u64 },
    Planned(PlannedEvent),
}

pub(super) struct Agenda {
    pub now: Instant,
    pub random: SplitMix64,
    queue: BTreeMap<(Instant, u64), FleetEvent>,
    sequence: u64,
}

impl Agenda {
    pub fn new(seed: u64) -> Self {
        let random = SplitMix64::new(seed);
        Self { now: Instant::ZERO, random, queue: BTreeMap::new(), sequence: 0 }
    }

    /// The next event up to `end`, to whose time the clock advances.
    pub fn poll(&mut self, end: Instant) -> Option<FleetEvent> {
        let ((at, _), event) = self.queue.pop_first().filter(|((at, _), _)| *at <= end)?;
        self.now = at;
        Some(event)
    }

    pub fn at(&mut self, at: Instant, event: FleetEvent) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), event);
    }

    pub fn after(&mut self, span: Duration, event: FleetEvent) {
        self.at(self.now + span, event);
    }

    /// A random time of `least` to `most` milliseconds.
    pub fn between(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.random.next_u64() % (most - least + 1))
    }
}
