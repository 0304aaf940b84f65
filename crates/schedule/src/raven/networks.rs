//! Networks: their logs of round trips, and what was learned from them.

use std::time::Duration;

use roadweave_proto::Instant;

use super::log::Log;
use super::tables::{self, Tables};
use super::{PathState, RavenConfig};

#[derive(Debug, Default)]
pub(super) struct Network {
    /// The uplink's name, once known; a network without one is not stored.
    pub(super) name: Option<String>,
    pub(super) log: Log,
    pub(super) tables: Option<Tables>,
    pub(super) learned_at: Option<Instant>,
    pub(super) new_samples: usize,
}

#[derive(Debug)]
pub(super) struct Networks {
    config: RavenConfig,
    pub(super) all: Vec<Network>,
    assumed: Tables,
    pub(super) pooled: Option<Tables>,
    pooled_at: Option<Instant>,
}

impl Networks {
    pub(super) fn new(config: RavenConfig) -> Self {
        let assumed = Tables::assumed();
        Self { config, all: Vec::new(), assumed, pooled: None, pooled_at: None }
    }

    /// The place of the network `name`; `None` if `paths` use all places for others.
    pub(super) fn place(&mut self, name: Option<&str>, paths: &[PathState]) -> Option<usize> {
        let known = |network: &Network| name.is_some() && network.name.as_deref() == name;
        if let Some(known) = self.all.iter().position(known) {
            return Some(known);
        }
        let name = name.filter(|name| name.len() <= NAME_MAX);
        let network = Network { name: name.map(str::to_owned), ..Network::default() };
        if self.all.len() < NETWORKS_MAX {
            self.all.push(network);
            return Some(self.all.len() - 1);
        }
        // Replaces one that no path uses, nameless ones first.
        let free = |at: &usize| !paths.iter().any(|path| path.network == *at);
        let free = (0..self.all.len()).filter(free);
        let place = free.min_by_key(|at| self.all[*at].name.is_some())?;
        self.all[place] = network;
        Some(place)
    }

    pub(super) fn learn(&mut self, place: usize, rtts: impl Iterator<Item = (Instant, Duration)>) {
        self.all[place].log.end_run();
        let mut now = Instant::ZERO;
        for (at, rtt) in rtts {
            self.all[place].log.add(at.as_secs_f64(), rtt.as_secs_f64());
            now = at;
        }
        self.all[place].log.end_run();
        self.relearn(now, place);
        self.learn_pooled(now);
    }

    /// Logs a round trip, both in seconds, and learns once enough are new.
    pub(super) fn sample(&mut self, now: Instant, place: usize, at: f64, rtt: f64) {
        let network = &mut self.all[place];
        if !network.log.add(at, rtt) {
            return;
        }
        network.new_samples += 1;
        let is_due = match network.learned_at {
            None => network.new_samples >= FIRST_LEARNING,
            Some(learned_at) => {
                network.new_samples >= self.config.relearn_samples
                    || now.since(learned_at) >= self.config.relearn_after
            }
        };
        if is_due {
            self.relearn(now, place);
            if self.pooled_at.is_none_or(|at| now.since(at) >= POOLING_INTERVAL) {
                self.learn_pooled(now);
            }
        }
    }

    fn relearn(&mut self, now: Instant, place: usize) {
        let network = &mut self.all[place];
        network.new_samples = 0;
        network.learned_at = Some(now);
        if let Some(tables) = Tables::learn(&[&network.log]) {
            network.tables = Some(tables);
        }
    }

    fn learn_pooled(&mut self, now: Instant) {
        let logs: Vec<&Log> = self.all.iter().map(|network| &network.log).collect();
        self.pooled = Tables::learn(&logs).or(self.pooled.take());
        self.pooled_at = Some(now);
    }

    /// The tables of a network, or else of all of them, or else the assumed ones.
    pub(super) fn tables(&self, place: usize) -> &Tables {
        self.all[place].tables.as_ref().or(self.pooled.as_ref()).unwrap_or(&self.assumed)
    }
}

pub(super) const NETWORKS_MAX: usize = 32;

const FIRST_LEARNING: usize = tables::SAMPLES_MIN + 1;

/// Shorter round trips are no samples, seconds: a prediction divides by them.
pub(super) const RTT_MIN: f64 = 1e-6;

const POOLING_INTERVAL: Duration = Duration::from_secs(600);

pub(super) const NAME_MAX: usize = 64;
