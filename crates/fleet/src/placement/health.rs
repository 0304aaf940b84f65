//! Whether proxies live, as far as a controller can tell.
//!
//! ```text
//!            heard ◄────────────────────────── stream, samples
//!   Alive ──silent──► Unheard ──for long──► Lost         boxes on it say that it lives
//!     ▲                  └──no box says that it lives──► Dead
//!     └──heard────────────────────────────────────────────┘
//! ```
//!
//! A controller that hears nothing of a proxy may be cut off itself. So the boxes are asked too: a
//! proxy that boxes use is never dead. And a controller that heard nobody at all, or stood still,
//! judges nobody by that time.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;
use serde::{Deserialize, Serialize};

/// How a proxy is, as far as the controller can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthState {
    /// The proxy is heard.
    Alive,
    /// The proxy is not heard, and not for long: it is offered as before.
    Unheard,
    /// The proxy is not heard for so long that it gets no new boxes, which its table does not have;
    /// boxes use it all the same.
    Lost,
    /// Neither the proxy nor any box says that it lives.
    Dead,
}

/// What a controller has heard of one proxy.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    /// Since when it is watched.
    since: Instant,
    /// When its own last message came.
    heard: Option<Instant>,
    /// The last time that a box said to be on it.
    witnessed: Option<Instant>,
    vital: HealthState,
}

impl Health {
    /// How long a proxy may be silent: three samples.
    pub const SILENCE: Duration = Duration::from_secs(30);
    /// How long the word of a box counts: two of its own reports and some time to travel.
    pub const WITNESS: Duration = Duration::from_secs(75);
    /// How long a proxy that is not heard is offered, if it is not dead.
    pub const UNHEARD: Duration = Duration::from_secs(600);

    /// How the proxy is.
    pub fn vital(&self) -> HealthState {
        self.vital
    }

    /// Whether something came within `span` until `now`.
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

/// All proxies of a controller. Turn it by [`Watch::poll`] once a second.
#[derive(Clone, Debug)]
pub struct Watch {
    proxies: BTreeMap<PublicKey, Health>,
    /// The last word of anybody.
    heard: Instant,
    polled: Instant,
    /// Silence before this moment may have been the controller's own.
    fair_since: Instant,
}

impl Watch {
    /// The longest time between two turns after which the controller counts as having stood still.
    pub const STALL: Duration = Duration::from_secs(10);

    /// A watch that begins now, over nobody.
    pub fn new(now: Instant) -> Self {
        Self { proxies: BTreeMap::new(), heard: now, polled: now, fair_since: now }
    }

    /// A proxy belongs to the fleet. Nothing is known of it yet.
    pub fn add(&mut self, proxy: PublicKey, now: Instant) {
        let health =
            Health { since: now, heard: None, witnessed: None, vital: HealthState::Unheard };
        self.proxies.entry(proxy).or_insert(health);
    }

    /// A proxy belongs to the fleet no more.
    pub fn remove(&mut self, proxy: &PublicKey) {
        self.proxies.remove(proxy);
    }

    /// Something came from a proxy itself: its stream came up, or samples.
    pub fn on_proxy(&mut self, proxy: &PublicKey, now: Instant) {
        self.heard = now;
        if let Some(health) = self.proxies.get_mut(proxy) {
            health.heard = Some(now);
        }
    }

    /// Something came from a box, which says to be on `proxy`.
    pub fn on_box(&mut self, proxy: Option<&PublicKey>, now: Instant) {
        self.heard = now;
        if let Some(health) = proxy.and_then(|proxy| self.proxies.get_mut(proxy)) {
            health.witnessed = Some(now);
        }
    }

    /// The proxies that are not as they were at the last turn, and how they are now.
    pub fn poll(&mut self, now: Instant) -> Vec<(PublicKey, HealthState)> {
        let stood_still = now.since(self.polled) > Self::STALL;
        let heard_nobody = now.since(self.heard) >= Health::SILENCE;
        if stood_still || heard_nobody {
            self.fair_since = now;
        }
        self.polled = now;
        let mut changed = Vec::new();
        for (key, health) in &mut self.proxies {
            let vital = health.judge(now, self.fair_since);
            // Only its own word, or a box's, brings back who was dead: not a gap.
            let is_back = vital == HealthState::Alive
                || Health::is_recent(health.witnessed, now, Health::WITNESS);
            if vital != health.vital && (health.vital != HealthState::Dead || is_back) {
                health.vital = vital;
                changed.push((*key, vital));
            }
        }
        changed
    }

    /// How a proxy is.
    pub fn vital(&self, proxy: &PublicKey) -> Option<HealthState> {
        self.proxies.get(proxy).map(Health::vital)
    }
}

#[cfg(test)]
mod tests;
