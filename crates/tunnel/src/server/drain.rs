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
use roadweave_proto::wire::{Control, Reason};
use roadweave_quic::ConnectionId;

use super::Server;

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

#[derive(Debug)]
pub(super) struct Drain {
    reasons: BTreeSet<DrainReason>,
    asks: BTreeSet<(Instant, ConnectionId)>,
}

impl Server {
    /// Takes no new clients, and asks those with a session to go to another server: spread over
    /// `over`, at most a minute, and again as long as they stay. [`Server::is_drained`] shows when
    /// all are gone. Clients that know no other server stay until the server closes.
    pub fn drain(&mut self, now: Instant, reason: DrainReason, over: Duration) {
        if let Some(drain) = &mut self.drain {
            drain.reasons.insert(reason);
            return;
        }
        let over = over.min(DRAIN_MAX);
        let count = u32::try_from(self.sessions.all.len()).unwrap_or(u32::MAX).max(1);
        let at = |place: u32| now + over.mul_f64(f64::from(place) / f64::from(count));
        let asks = (0..).map(at).zip(self.sessions.all.keys().copied()).collect();
        self.drain = Some(Drain { reasons: [reason].into(), asks });
        for id in self.standbys.ids() {
            self.end(now, id, DRAINS);
        }
        for id in std::mem::take(&mut self.welcomed) {
            self.refuse(now, id, DRAINS, Reason::Drain);
        }
    }

    /// Withdraws `reason`. After the last one, clients may come again, and the remaining ones stay.
    pub fn undrain(&mut self, reason: DrainReason) {
        self.drain.take_if(|drain| {
            drain.reasons.remove(&reason);
            drain.reasons.is_empty()
        });
    }

    /// Whether it asks its clients to leave.
    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// Whether it is draining, and no session is left.
    pub fn is_drained(&self) -> bool {
        self.drain.is_some() && self.sessions.all.is_empty()
    }

    pub(super) fn ask_to_move(&mut self, now: Instant) {
        while let Some(drain) = &mut self.drain
            && drain.asks.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, id)) = drain.asks.pop_first()
        {
            let Some(joined) = self.sessions.all.get(&id) else { continue };
            drain.asks.insert((now + ASK_AGAIN, id));
            self.sessions.touched.insert(id);
            let message = Control::Move { why: Reason::Drain, grace: None };
            if let Some(connection) = self.endpoint.connection_mut(id)
                && let Err(error) = connection.send_message(message.to_bytes())
            {
                tracing::warn!(%error, peer = joined.peer.name, "cannot ask a client to move");
            }
        }
    }

    /// A session that began all the same is asked at once.
    pub(super) fn drain_newcomer(&mut self, now: Instant, id: ConnectionId) {
        if let Some(drain) = &mut self.drain {
            drain.asks.insert((now, id));
        }
    }

    pub(super) fn drain_timeout(&self) -> Option<Instant> {
        self.drain.as_ref().and_then(|drain| Some(drain.asks.first()?.0))
    }
}
