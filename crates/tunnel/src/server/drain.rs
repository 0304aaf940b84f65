//! A server that is about to stop, or is wanted to be empty, lets its clients go one by one.
//!
//! ```text
//! drain ─► whoever comes is refused, and told why; who stands by is let go at once
//!      └─► sessions are asked to move, spread over a while ─► none is left: done
//! undrain, once nobody wants it any more ─► who stayed stays, and others may come
//! ```
//!
//! A client joins another server first and leaves then, so nothing is lost; but if all did it in
//! the same moment the others would have all handshakes at once.

use std::collections::BTreeSet;
use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::{Control, Reason};
use roadweave_quic::ConnectionId;

use super::Server;

/// The longest time over which clients are asked to move.
pub const DRAIN_MAX: Duration = Duration::from_secs(60);

/// What clients are told.
pub(super) const DRAINS: &str = "this server drains";

/// How often a client that stays is asked again: it may have learned of another server meanwhile.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// Who wants a server to have no clients. Each says so for itself: what one takes back, another may
/// still want.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainReason {
    /// A person on its machine, until it starts anew.
    Command,
    /// The controller of its fleet.
    Controller,
}

/// What is left to do until no client is left.
#[derive(Debug)]
pub(super) struct Drain {
    /// Who wants the server to drain.
    reasons: BTreeSet<DrainReason>,
    /// Who is asked to move next, and when.
    asks: BTreeSet<(Instant, ConnectionId)>,
}

impl Server {
    /// Takes no new clients from now on, and asks those that have a session to go to another
    /// server, spread over `over`, at most a minute, and again as long as they stay. Call
    /// [`Server::is_drained`] to know when all are gone; clients that know no other server stay
    /// until they are told goodbye.
    pub fn drain(&mut self, now: Instant, reason: DrainReason, over: Duration) {
        if let Some(drain) = &mut self.drain {
            drain.reasons.insert(reason);
            return;
        }
        let over = over.min(DRAIN_MAX);
        let count = u32::try_from(self.sessions.len()).unwrap_or(u32::MAX).max(1);
        let at = |place: u32| now + over.mul_f64(f64::from(place) / f64::from(count));
        let asks = (0..).map(at).zip(self.sessions.keys().copied()).collect();
        self.drain = Some(Drain { reasons: [reason].into(), asks });
        for id in self.standbys.ids() {
            self.end(now, id, DRAINS);
        }
        for id in std::mem::take(&mut self.welcomed) {
            self.refuse(now, id, DRAINS, Reason::Drain);
        }
    }

    /// `reason` wants it no more: unless there is another one, clients may come again, and those
    /// that are left stay.
    pub fn undrain(&mut self, reason: DrainReason) {
        self.drain.take_if(|drain| {
            drain.reasons.remove(&reason);
            drain.reasons.is_empty()
        });
    }

    /// Whether it lets its clients go.
    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// Whether it was drained, and no session is left.
    pub fn is_drained(&self) -> bool {
        self.drain.is_some() && self.sessions.is_empty()
    }

    /// Asks those to move whose turn it is.
    pub(super) fn ask_to_move(&mut self, now: Instant) {
        while let Some(drain) = &mut self.drain
            && drain.asks.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, id)) = drain.asks.pop_first()
        {
            if self.sessions.contains_key(&id) {
                drain.asks.insert((now + ASK_AGAIN, id));
                self.send_move(id);
            }
        }
    }

    /// A session that began all the same is asked at once.
    pub(super) fn drain_newcomer(&mut self, now: Instant, id: ConnectionId) {
        if let Some(drain) = &mut self.drain {
            drain.asks.insert((now, id));
        }
    }

    /// When the next one is asked.
    pub(super) fn drain_timeout(&self) -> Option<Instant> {
        self.drain.as_ref().and_then(|drain| Some(drain.asks.first()?.0))
    }

    fn send_move(&mut self, id: ConnectionId) {
        let Some(joined) = self.sessions.get(&id) else { return };
        let peer = joined.peer.name.clone();
        let message = Control::Move { why: Reason::Drain, grace: None };
        if let Some(connection) = self.endpoint.connection_mut(id)
            && let Err(error) = connection.send_message(message.to_bytes())
        {
            tracing::warn!(%error, peer, "cannot ask a client to move");
        }
        self.touched.insert(id);
    }
}
