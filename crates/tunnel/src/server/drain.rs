//! Empties a server that is about to stop, one client after the other.
//!
//! ```text
//! drain ─► new clients are refused with the reason; standbys are closed at once
//!      └─► sessions are asked to move, spread over a while ─► no session left: done
//! undrain, once no reason is left ─► remaining clients stay, and others may come
//! ```
//!
//! A client joins another server before it leaves, without loss. Requests are spread over time.

use std::collections::BTreeSet;
use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_quic::ConnectionId;

/// The longest time over which clients are asked to move.
pub const DRAIN_MAX: Duration = Duration::from_secs(60);

pub(super) const DRAINS: &str = "this server drains";

/// How often a client that stays is asked again: it may know another server by now.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// Why a server is to have no clients; a drain lasts while one of these reasons is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainReason {
    /// An operator on its machine, until it restarts.
    Command,
    /// The controller of its fleet.
    Controller,
}

#[derive(Debug, Default)]
pub(super) struct Drain {
    reasons: BTreeSet<DrainReason>,
    asks: BTreeSet<(Instant, ConnectionId)>,
}

impl Drain {
    pub(super) fn is_on(&self) -> bool {
        !self.reasons.is_empty()
    }

    /// Adds a reason. After the first one, `sessions` are asked to move, spread over `over`.
    /// Returns whether it was the first.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        reason: DrainReason,
        over: Duration,
        sessions: impl ExactSizeIterator<Item = ConnectionId>,
    ) -> bool {
        let is_first = !self.is_on();
        self.reasons.insert(reason);
        if is_first {
            let over = over.min(DRAIN_MAX);
            let count = u32::try_from(sessions.len()).unwrap_or(u32::MAX).max(1);
            let at = |place: u32| now + over.mul_f64(f64::from(place) / f64::from(count));
            self.asks = (0..).map(at).zip(sessions).collect();
        }
        is_first
    }

    pub(super) fn withdraw(&mut self, reason: DrainReason) {
        self.reasons.remove(&reason);
        if !self.is_on() {
            self.asks.clear();
        }
    }

    /// A session that began all the same is asked at once.
    pub(super) fn on_joined(&mut self, now: Instant, id: ConnectionId) {
        if self.is_on() {
            self.asks.insert((now, id));
        }
    }

    /// The next session to ask now; [`Drain::on_asked`] keeps it.
    pub(super) fn poll_ask(&mut self, now: Instant) -> Option<ConnectionId> {
        self.asks.first().filter(|(at, _)| *at <= now)?;
        self.asks.pop_first().map(|(_, id)| id)
    }

    pub(super) fn on_asked(&mut self, now: Instant, id: ConnectionId) {
        self.asks.insert((now + ASK_AGAIN, id));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.asks.first().map(|(at, _)| *at)
    }
}
