//! Whether proxies live, as far as a controller can know.
//!
//! ```text
//!            heard ◄────────────────────────── stream, samples
//!   Alive ──silent──► Unheard ──for long──► Lost         boxes on it say that it lives
//!     ▲                  └──no box says that it lives──► Dead
//!     └──heard────────────────────────────────────────────┘
//! ```
//!
//! A controller that does not hear a proxy may be cut off itself. So a proxy that boxes use is
//! never dead, and time in which the controller heard no peer, or stood still, does not count.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;
use serde::{Deserialize, Serialize};

/// The health of a proxy, as far as the controller knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthState {
    /// It is heard.
    Alive,
    /// It has been silent for a short time: it is offered as before.
    Unheard,
    /// It has been silent for so long that it gets no new boxes; boxes use it.
    Lost,
    /// Neither it nor a box says that it lives.
    Dead,
}

/// A controller's record of one proxy's signs of life.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    since: Instant,
    heard: Option<Instant>,
    witnessed: Option<Instant>,
    vital: HealthState,
}

impl Health {
    /// How long a proxy may be silent: three samples.
    pub const SILENCE: Duration = Duration::from_secs(30);
    /// How long a box's report counts: two intervals and some delay.
    pub const WITNESS: Duration = Duration::from_secs(75);
    /// How long a silent proxy is offered, if it is not dead.
    pub const UNHEARD: Duration = Duration::from_secs(600);

    fn is_recent(last: Option<Instant>, now: Instant, span: Duration) -> bool {
        last.is_some_and(|last| now.since(last) < span)
    }

    fn judge(&self, now: Instant, fair_since: Instant) -> HealthState {
        if Self::is_recent(self.heard, now, Self::SILENCE) {
            return HealthState::Alive;
        }
        let silent = |last: Option<Instant>| now.since(last.unwrap_or(self.since).max(fair_since));
        let by_itself = silent(self.heard);
        if by_itself >= Self::SILENCE && silent(self.witnessed) >= Self::WITNESS {
            return HealthState::Dead;
        }
        match by_itself >= Self::UNHEARD {
            true => HealthState::Lost,
            false => HealthState::Unheard,
        }
    }
}

/// All proxies of a controller. Call [`Watch::poll`] once a second.
#[derive(Clone, Debug)]
pub struct Watch {
    proxies: BTreeMap<PublicKey, Health>,
    heard: Instant,
    polled: Instant,
    /// Silence before this may have been the controller's own.
    fair_since: Instant,
}

impl Watch {
    /// A longer time between two polls means that the controller stood still.
    pub const STALL: Duration = Duration::from_secs(10);

    pub fn new(now: Instant) -> Self {
        Self { proxies: BTreeMap::new(), heard: now, polled: now, fair_since: now }
    }

    pub fn add(&mut self, proxy: PublicKey, now: Instant) {
        let health =
            Health { since: now, heard: None, witnessed: None, vital: HealthState::Unheard };
        self.proxies.entry(proxy).or_insert(health);
    }

    /// A proxy's stream came up, or it sent samples.
    pub fn on_proxy(&mut self, proxy: &PublicKey, now: Instant) {
        self.heard = now;
        if let Some(health) = self.proxies.get_mut(proxy) {
            health.heard = Some(now);
        }
    }

    /// A message came from a box, which reports to be on `proxy`.
    pub fn on_box(&mut self, proxy: Option<&PublicKey>, now: Instant) {
        self.heard = now;
        if let Some(health) = proxy.and_then(|proxy| self.proxies.get_mut(proxy)) {
            health.witnessed = Some(now);
        }
    }

    pub fn poll(&mut self, now: Instant) -> Vec<(PublicKey, HealthState)> {
        let stood_still = now.since(self.polled) > Self::STALL;
        let is_silent = now.since(self.heard) >= Health::SILENCE;
        if stood_still || is_silent {
            self.fair_since = now;
        }
        self.polled = now;
        let mut changed = Vec::new();
        for (key, health) in &mut self.proxies {
            let vital = health.judge(now, self.fair_since);
            // A dead proxy comes back by a report, not by a gap.
            let is_back = vital == HealthState::Alive
                || Health::is_recent(health.witnessed, now, Health::WITNESS);
            if vital != health.vital && (health.vital != HealthState::Dead || is_back) {
                health.vital = vital;
                changed.push((*key, vital));
            }
        }
        changed
    }

    /// The health of a proxy.
    pub fn vital(&self, proxy: &PublicKey) -> Option<HealthState> {
        self.proxies.get(proxy).map(|health| health.vital)
    }
}

#[cfg(test)]
mod tests;
