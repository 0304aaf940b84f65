//! Networks: their logs of round trips, and what was learned from them.

use std::time::Duration;

use roadweave_proto::Instant;

use super::Raven;
use super::log::Log;
use super::tables::{self, Tables};

#[derive(Debug, Default)]
pub(super) struct Network {
    /// The uplink's name, once known; a network without one is not stored.
    pub(super) name: Option<String>,
    pub(super) log: Log,
    pub(super) tables: Option<Tables>,
    pub(super) learned_at: Option<Instant>,
    pub(super) new_samples: usize,
}

impl Raven {
    /// Learns from recorded round trips of the network `name`, ascending by time.
    pub fn learn(&mut self, name: &str, samples: impl IntoIterator<Item = (Instant, Duration)>) {
        let Some(network) = self.network(Some(name)) else { return };
        self.networks[network].log.end_run();
        let mut now = Instant::ZERO;
        for (at, rtt) in samples {
            self.networks[network].log.add(at.as_secs_f64(), rtt.as_secs_f64());
            now = at;
        }
        self.networks[network].log.end_run();
        self.relearn(now, network);
        self.learn_pooled(now);
    }

    pub(super) fn network(&mut self, name: Option<&str>) -> Option<usize> {
        let known = |network: &Network| name.is_some() && network.name.as_deref() == name;
        if let Some(known) = self.networks.iter().position(known) {
            return Some(known);
        }
        if name.is_some_and(|name| name.len() > NAME_MAX) {
            return self.network(None);
        }
        if self.networks.len() < NETWORKS_MAX {
            let name = name.map(str::to_owned);
            self.networks.push(Network { name, ..Network::default() });
            return Some(self.networks.len() - 1);
        }
        // Replaces one that no path uses, nameless ones first.
        let free = |at: &usize| !self.paths.iter().any(|path| path.network == *at);
        let free = (0..self.networks.len()).filter(free);
        let place = free.min_by_key(|at| self.networks[*at].name.is_some())?;
        self.networks[place] = Network { name: name.map(str::to_owned), ..Network::default() };
        Some(place)
    }

    pub(super) fn sample(&mut self, now: Instant, state: usize, at: Instant, rtt: Duration) {
        let (at, rtt) = (at.as_secs_f64(), rtt.as_secs_f64());
        if rtt < RTT_MIN {
            return;
        }
        let place = self.paths[state].network;
        let lambda = self.tables(place).lambda;
        self.paths[state].forecast.add(at, rtt, lambda);
        if !self.networks[place].log.add(at, rtt) {
            return;
        }
        let network = &mut self.networks[place];
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
        let network = &mut self.networks[place];
        network.new_samples = 0;
        network.learned_at = Some(now);
        if let Some(tables) = Tables::learn(&[&network.log]) {
            network.tables = Some(tables);
        }
    }

    fn learn_pooled(&mut self, now: Instant) {
        let logs: Vec<&Log> = self.networks.iter().map(|network| &network.log).collect();
        self.pooled = Tables::learn(&logs).or(self.pooled.take());
        self.pooled_at = Some(now);
    }

    /// The tables of a network, or else of all of them, or else the assumed ones.
    pub(super) fn tables(&self, place: usize) -> &Tables {
        self.networks[place].tables.as_ref().or(self.pooled.as_ref()).unwrap_or(&self.assumed)
    }
}

pub(super) const NETWORKS_MAX: usize = 32;

const FIRST_LEARNING: usize = tables::SAMPLES_MIN + 1;

/// Shorter round trips are no samples, seconds: a prediction divides by them.
pub(super) const RTT_MIN: f64 = 1e-6;

const POOLING_INTERVAL: Duration = Duration::from_secs(600);

pub(super) const NAME_MAX: usize = 64;
