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
use roadweave_proto::wire::LegMessage;
use roadweave_proto::{DropReason, Instant, PathStatus, Rate};
use roadweave_quic::{Connection, ConnectionId, Endpoint, Event, TransportConfig};

use super::{LEG_SOCKET, LegEvent, Legs};
use crate::leg::LegEnd;

#[derive(Debug)]
pub(super) struct Leg {
    pub(super) anchor: PublicKey,
    addresses: Vec<SocketAddr>,
    /// Whether a tenant needs it; its address may not be known yet.
    is_wanted: bool,
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

    fn is(&self, connection: ConnectionId) -> bool {
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
}

impl Legs {
    pub(super) fn pump(&mut self, now: Instant, id: ConnectionId) {
        let at = self.legs.iter().position(|leg| leg.is(id));
        while let Some(event) = self.endpoint.connection_mut(id).and_then(Connection::poll_event) {
            let Some(at) = at else { continue };
            match event {
                Event::Connected { .. } => self.on_up(now, at, id),
                Event::Received { datagram, .. } => {
                    if let Some(whole) = self.legs[at].end.handle_datagram(now, datagram) {
                        self.on_datagram(now, at, whole);
                    }
                }
                Event::Acknowledged { token, .. } => self.legs[at].end.on_acknowledged(token),
                Event::Lost { token, .. } => self.legs[at].end.on_lost(token),
                Event::Message(message) => match LegMessage::parse(message) {
                    Ok(message) => self.on_leg_message(now, at, message),
                    Err(_) => self.legs[at].end.drops.count(DropReason::MalformedMessage),
                },
                Event::Closed(reason) => self.on_down(now, at, &reason.to_string()),
                _ => {}
            }
        }
    }

    fn on_up(&mut self, now: Instant, at: usize, id: ConnectionId) {
        let leg = &mut self.legs[at];
        if std::mem::take(&mut leg.is_reported) {
            let text = format!("the anchor {} is reachable again", leg.anchor);
            self.events.push_back(LegEvent::Text(text));
        }
        leg.state = LegState::Up { id, since: now };
        leg.away_for = leg.away_since.take().map_or(Duration::ZERO, |since| now.since(since));
        leg.silent_since = None;
        self.attach_all(now, at);
    }

    fn on_down(&mut self, now: Instant, at: usize, reason: &str) {
        let leg = &mut self.legs[at];
        let (was_up, is_proven) = (leg.up().is_some(), leg.is_proven(now));
        leg.turn = leg.turn.wrapping_add(1);
        leg.end.clear(&mut self.accounts);
        leg.handles.clear();
        leg.unsent.clear();
        // A silent leg is away since its silence began.
        let mut since = leg.silent_since.take().unwrap_or(now);
        if was_up && !is_proven {
            since = since - leg.away_for;
        }
        leg.away_since.get_or_insert(since);
        let rest = match is_proven {
            // An anchor that has restarted answers.
            true => Duration::ZERO,
            false => {
                let longer = (leg.backoff * 2).min(BACKOFF_MAX);
                std::mem::replace(&mut leg.backoff, longer)
            }
        };
        leg.state = LegState::Resting { until: now + rest };
        tracing::debug!(anchor = %leg.anchor, reason, "a leg is down");
        for attachment in self.attachments.values_mut().filter(|it| it.leg == at) {
            attachment.on_leg_down(&mut self.accounts);
        }
    }

    pub(super) fn retire(&mut self, now: Instant, at: usize) {
        if let LegState::Up { id, .. } | LegState::Connecting { id } = self.legs[at].state
            && let Some(connection) = self.endpoint.connection_mut(id)
        {
            connection.close(now, 0, "the proxy has no clients for this anchor");
        }
        self.on_down(now, at, "no tenant has this anchor");
        let leg = &mut self.legs[at];
        leg.addresses.clear();
        leg.is_wanted = false;
        (leg.away_since, leg.away_for, leg.is_reported) = (None, Duration::ZERO, false);
    }

    pub(super) fn keep_up(&mut self, now: Instant, at: usize) {
        let leg = &mut self.legs[at];
        if !leg.is_wanted {
            return;
        }
        if leg.up().is_none() {
            leg.away_since.get_or_insert(now);
        }
        match leg.state {
            LegState::Resting { until } if until <= now && !leg.addresses.is_empty() => {
                let address = leg.addresses[leg.turn % leg.addresses.len()];
                match self.endpoint.connect(now, LEG_SOCKET, address, leg.anchor) {
                    Ok(id) => leg.state = LegState::Connecting { id },
                    Err(error) => self.on_down(now, at, &error.to_string()),
                }
            }
            LegState::Up { id, .. } => self.watch(now, at, id),
            _ => {}
        }
        self.attach_unsent(now, at);
        self.report_away(now, at);
    }

    fn watch(&mut self, now: Instant, at: usize, id: ConnectionId) {
        let leg = &mut self.legs[at];
        let Some(connection) = self.endpoint.connection(id) else { return };
        let path = connection.paths().first();
        if path.is_none_or(|path| path.status == PathStatus::Usable) {
            if leg.silent_since.take().is_none() && leg.is_reported {
                leg.is_reported = false;
            }
            if leg.is_proven(now) {
                leg.backoff = BACKOFF_MIN;
            }
            return;
        }
        let since = *leg.silent_since.get_or_insert(now);
        // The anchor may have lost its state, or be at another address by now.
        if now.since(since) >= GIVE_UP_AFTER {
            if let Some(connection) = self.endpoint.connection_mut(id) {
                connection.close(now, 0, "the leg does not answer");
            }
            self.on_down(now, at, "it does not answer");
        }
    }

    /// Reports once to the sessions of a leg that it is away; later ones learn it when they begin.
    fn report_away(&mut self, now: Instant, at: usize) {
        let leg = &mut self.legs[at];
        if leg.is_reported || !leg.is_away(now) {
            return;
        }
        leg.is_reported = true;
        let text =
            format!("the anchor {} cannot be reached; its clients are moved away", leg.anchor);
        self.events.push_back(LegEvent::Text(text));
        let of_leg = self.attachments.iter().filter(|(_, attachment)| attachment.leg == at);
        self.events.extend(of_leg.map(|(session, _)| LegEvent::Away(*session)));
        self.events.push_back(LegEvent::StandbysAway);
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
