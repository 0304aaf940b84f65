//! The connection of a leg: it comes up by itself, and reports when it is down.
//!
//! ```text
//! resting ─► connecting ─► up ─── does not answer for 3 s, closed ───┐
//!    ▲            │ failed: another address, and a longer rest         │
//!    └────────────┴── at once, if it had been up for 5 s ◄─────────────┘
//! ```
//!
//! A leg that comes up and closes at once counts as one that never came up.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::{Instant, PathStatus, Rate};
use roadweave_quic::{Connection, ConnectionId, Endpoint, TransportConfig};

use super::LEG_SOCKET;
use crate::leg::{Accounts, LegEnd};

#[derive(Debug)]
pub(super) struct Leg {
    pub(super) anchor: PublicKey,
    addresses: Vec<SocketAddr>,
    /// Whether a tenant needs it; its address may not be known yet.
    pub(super) is_wanted: bool,
    turn: usize,
    state: LegState,
    /// Since when it carries nothing; `None` while it does.
    away_since: Option<Instant>,
    away_for: Duration,
    silent_since: Option<Instant>,
    is_reported: bool,
    backoff: Duration,
    pub(super) end: LegEnd,
    pub(super) next_handle: u32,
    pub(super) handles: BTreeMap<u32, ConnectionId>,
    pub(super) unsent: VecDeque<ConnectionId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LegState {
    Resting { until: Instant },
    Connecting { id: ConnectionId },
    Up { id: ConnectionId, since: Instant },
}

impl Leg {
    pub(super) fn new(anchor: PublicKey, rate: Option<Rate>) -> Self {
        Self {
            anchor,
            addresses: Vec::new(),
            is_wanted: false,
            turn: 0,
            state: LegState::Resting { until: Instant::ZERO },
            away_since: None,
            away_for: Duration::ZERO,
            silent_since: None,
            is_reported: false,
            backoff: BACKOFF_MIN,
            end: LegEnd::new(rate),
            next_handle: 0,
            handles: BTreeMap::new(),
            unsent: VecDeque::new(),
        }
    }

    pub(super) fn set_addresses(&mut self, addresses: Vec<SocketAddr>) {
        self.is_wanted = true;
        self.addresses.clear();
        for address in addresses {
            if !self.addresses.contains(&address) {
                self.addresses.push(address);
            }
        }
    }

    pub(super) fn up(&self) -> Option<ConnectionId> {
        match self.state {
            LegState::Up { id, .. } => Some(id),
            _ => None,
        }
    }

    pub(super) fn is(&self, connection: ConnectionId) -> bool {
        matches!(self.state, LegState::Up { id, .. } | LegState::Connecting { id } if id == connection)
    }

    fn is_proven(&self, now: Instant) -> bool {
        matches!(self.state, LegState::Up { since, .. } if now.since(since) >= PROVEN_AFTER)
    }

    /// False at the start, while the first connection is under way.
    pub(super) fn is_away(&self, now: Instant) -> bool {
        let silent = self.silent_since.or(self.away_since);
        silent.is_some_and(|since| now.since(since) >= AWAY_AFTER)
    }

    pub(super) fn poll_timeout(&self, endpoint: &Endpoint) -> Option<Instant> {
        let unreported = self.silent_since.or(self.away_since).filter(|_| !self.is_reported);
        let own = match self.state {
            LegState::Resting { until } if !self.addresses.is_empty() => Some(until),
            LegState::Resting { .. } | LegState::Connecting { .. } => None,
            LegState::Up { id, .. } => {
                let carries = endpoint.connection(id).is_some_and(Connection::is_open);
                self.end.poll_timeout().filter(|_| carries)
            }
        };
        [own, unreported.map(|since| since + AWAY_AFTER)].into_iter().flatten().min()
    }

    /// Returns whether it was reported to be away.
    pub(super) fn on_up(&mut self, now: Instant, id: ConnectionId) -> bool {
        self.state = LegState::Up { id, since: now };
        self.away_for = self.away_since.take().map_or(Duration::ZERO, |since| now.since(since));
        self.silent_since = None;
        std::mem::take(&mut self.is_reported)
    }

    pub(super) fn on_down(&mut self, now: Instant, reason: &str, accounts: &mut Accounts) {
        let (was_up, is_proven) = (self.up().is_some(), self.is_proven(now));
        self.turn = self.turn.wrapping_add(1);
        self.end.clear(accounts);
        self.handles.clear();
        self.unsent.clear();
        // A silent leg is away since its silence began.
        let mut since = self.silent_since.take().unwrap_or(now);
        if was_up && !is_proven {
            since = since - self.away_for;
        }
        self.away_since.get_or_insert(since);
        let rest = match is_proven {
            // An anchor that has restarted answers.
            true => Duration::ZERO,
            false => {
                let longer = (self.backoff * 2).min(BACKOFF_MAX);
                std::mem::replace(&mut self.backoff, longer)
            }
        };
        self.state = LegState::Resting { until: now + rest };
        tracing::debug!(anchor = %self.anchor, reason, "a leg is down");
    }

    /// Closes its connection, and stays down until a tenant needs it.
    pub(super) fn close(&mut self, now: Instant, endpoint: &mut Endpoint, accounts: &mut Accounts) {
        if let LegState::Up { id, .. } | LegState::Connecting { id } = self.state
            && let Some(connection) = endpoint.connection_mut(id)
        {
            connection.close(now, 0, "the proxy has no clients for this anchor");
        }
        self.on_down(now, "no tenant has this anchor", accounts);
        self.addresses.clear();
        self.is_wanted = false;
        (self.away_since, self.away_for, self.is_reported) = (None, Duration::ZERO, false);
    }

    /// Connects when it is due, and watches the connection. Fails when it goes down.
    pub(super) fn keep_up(&mut self, now: Instant, endpoint: &mut Endpoint) -> Result<(), String> {
        if self.up().is_none() {
            self.away_since.get_or_insert(now);
        }
        match self.state {
            LegState::Resting { until } if until <= now && !self.addresses.is_empty() => {
                let address = self.addresses[self.turn % self.addresses.len()];
                let connection = endpoint.connect(now, LEG_SOCKET, address, self.anchor);
                let id = connection.map_err(|error| error.to_string())?;
                self.state = LegState::Connecting { id };
                Ok(())
            }
            LegState::Up { id, .. } => {
                endpoint.connection_mut(id).map_or(Ok(()), |connection| self.watch(now, connection))
            }
            _ => Ok(()),
        }
    }

    fn watch(&mut self, now: Instant, connection: &mut Connection) -> Result<(), String> {
        let path = connection.paths().first();
        if path.is_none_or(|path| path.status == PathStatus::Usable) {
            self.is_reported &= self.silent_since.take().is_some();
            if self.is_proven(now) {
                self.backoff = BACKOFF_MIN;
            }
            return Ok(());
        }
        let since = *self.silent_since.get_or_insert(now);
        if now.since(since) < GIVE_UP_AFTER {
            return Ok(());
        }
        // The anchor may have lost its state, or be at another address by now.
        connection.close(now, 0, "the leg does not answer");
        Err("it does not answer".to_owned())
    }

    /// Whether to report now that it is away: once.
    pub(super) fn poll_away(&mut self, now: Instant) -> bool {
        let is_news = !self.is_reported && self.is_away(now);
        self.is_reported |= is_news;
        is_news
    }
}

pub(super) fn transport(of_sessions: &TransportConfig) -> TransportConfig {
    let mut transport = of_sessions.clone();
    transport.max_paths = 1;
    transport.handshake_timeout = HANDSHAKE_MAX;
    transport.idle_timeout = IDLE_MAX;
    // Another seed, so that connection IDs of the two endpoints are independent.
    transport.rng_seed.iter_mut().for_each(|byte| *byte ^= 0x5a);
    transport
}

/// After this long without carrying anything a leg is away: clients lose packets until they know.
const AWAY_AFTER: Duration = Duration::from_secs(1);
const GIVE_UP_AFTER: Duration = Duration::from_secs(3);
const PROVEN_AFTER: Duration = Duration::from_secs(5);
/// After this long without an answer a handshake is tried at another address.
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);
/// After this long without a packet either end forgets a leg.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(30);
const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
