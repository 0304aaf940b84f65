//! How connections become sessions, and how sessions end.
//!
//! ```text
//! handshake ─► waiting ─► hello ─► welcomed ─► used ─► session ─► forgotten
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ipnet::IpNet;
use roadweave_identity::{PeerPolicy as _, PublicKey, Refusal};
use roadweave_proto::wire::{
    Binding, Control, Hello, Load, Reason, Role, Speedtest, TenantAnchor, WELCOME_NETWORKS_MAX,
    Welcome,
};
use roadweave_proto::{DropReason, Instant, PathId};
use roadweave_quic::{Connection, ConnectionId, EndpointEvent, Event};
use roadweave_schedule::AcknowledgedDatagram;

use super::drain::DRAINS;
use super::sessions::Joined;
use super::speedtest::{self, TestRules};
use super::standbys::Full;
use super::{Server, ServerEvent, refusals};
use crate::learned::keep_learned;
use crate::peers::Peer;
use crate::rate::Direction;
use crate::session::{Session, SessionConfig};

/// A session without packets for this long may be over for its client.
const LIVES: Duration = Duration::from_secs(3);
const NAMED_PATHS_MAX: usize = 64;

impl Server {
    pub(super) fn pump_endpoint(&mut self, now: Instant) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                EndpointEvent::Incoming(id) => {
                    // Its hello may have come in the same packet.
                    let waits = self.standbys.contains(id) || self.waiting.contains(id);
                    if !waits && !self.sessions.all.contains_key(&id) {
                        self.wait_for_use(now, id);
                    }
                    self.pump(now, id);
                }
                EndpointEvent::Refused { remote, key, why } => {
                    let what = format!(" with the key {key}: {why}");
                    self.log_refusal(now, refusals::kind_of_refusal(why), what, remote);
                }
                EndpointEvent::HandshakeFailed { remote, reason } => {
                    let kind = refusals::kind_of_failure(&reason);
                    self.log_refusal(now, kind, format!(": {reason}"), remote);
                }
            }
        }
    }

    pub(super) fn wait_for_use(&mut self, now: Instant, id: ConnectionId) {
        let Some(key) = self.endpoint.connection(id).and_then(Connection::peer) else { return };
        if let Some(oldest) = self.waiting.add(now, id, key) {
            self.shared.refuse(|all| all.count_silently(refusals::UNUSED));
            self.end(now, oldest, "too many connections without a session");
        }
    }

    fn log_refusal(&mut self, now: Instant, kind: &'static str, what: String, remote: SocketAddr) {
        if let Some(reason) = self.shared.refuse(|all| all.count(now, kind, what, remote)) {
            self.events.push_back(ServerEvent::Refused { reason });
        }
    }

    pub(super) fn pump(&mut self, now: Instant, id: ConnectionId) {
        while let Some(event) = self.endpoint.connection_mut(id).and_then(Connection::poll_event) {
            match event {
                Event::Message(message) => self.on_message(now, id, message),
                Event::Closed(reason) => self.forget(now, id, &reason.to_string()),
                other => self.on_session_event(now, id, other),
            }
        }
        if self.sessions.all.contains_key(&id) {
            self.sessions.touched.insert(id);
            self.take_inner(now, id);
        }
    }

    fn on_session_event(&mut self, now: Instant, id: ConnectionId, event: Event) {
        if matches!(event, Event::Received { .. }) {
            self.join_if_welcomed(now, id);
        }
        let Some(joined) = self.sessions.all.get_mut(&id) else { return };
        match event {
            Event::Received { datagram, .. } => {
                let is_load = Load::is_load(&datagram);
                // Load counts towards the client's rate.
                if !is_load || joined.allows(now, Direction::Up, datagram.len()) {
                    joined.session.handle_datagram(now, datagram);
                }
            }
            Event::Acknowledged { path, token, sent, bytes, rtt } => {
                let acknowledged = AcknowledgedDatagram { path, sent, bytes, rtt };
                joined.session.on_acknowledged(now, token, &acknowledged);
            }
            Event::Lost { path, token } => joined.session.on_lost(now, path, token),
            Event::PathClosed(path, _) => {
                joined.path_names.remove(&path);
                joined.session.forget_path(path);
            }
            _ => {}
        }
    }

    fn on_message(&mut self, now: Instant, id: ConnectionId, message: Bytes) {
        let message = Control::parse(message);
        if !matches!(message, Ok(Control::Hello(_))) {
            self.join_if_welcomed(now, id);
        }
        match message {
            Ok(Control::Hello(hello)) => self.on_hello(now, id, &hello),
            Ok(Control::PathName { path, uplink }) => {
                if let Some(joined) = self.sessions.all.get_mut(&id)
                    && joined.path_names.len() < NAMED_PATHS_MAX
                {
                    joined.session.name_path(path, &uplink);
                    joined.path_names.insert(path, uplink);
                }
            }
            Ok(Control::PathPolicy { path, policy }) => {
                if self.sessions.all.contains_key(&id)
                    && let Some(connection) = self.endpoint.connection_mut(id)
                {
                    connection.set_policy(path, policy);
                }
            }
            Ok(Control::LanePromise { lane, promise }) => {
                if let Some(joined) = self.sessions.all.get_mut(&id) {
                    joined.session.on_lane_promise(now, lane, promise);
                }
            }
            Ok(Control::Player(report)) => {
                if let Some(joined) = self.sessions.all.get_mut(&id)
                    && !joined.session.on_player(now, &report)
                {
                    self.drops.count(DropReason::UnknownMessage);
                }
            }
            Ok(Control::Speedtest(said)) => self.on_speedtest(now, id, said),
            Ok(Control::Binding(binding)) => self.on_binding(now, id, binding),
            Ok(Control::Streams(Some(epoch))) if self.relaying.contains(&id) => {
                self.legs.iter_mut().for_each(|legs| legs.name_streams(id, epoch));
            }
            Ok(_) => self.drops.count(DropReason::UnknownMessage),
            Err(error) => self.drops.count(error.into()),
        }
    }

    fn on_hello(&mut self, now: Instant, id: ConnectionId, hello: &Hello) {
        if self.sessions.all.contains_key(&id) || self.welcomed.contains(&id) {
            return;
        }
        let stands_by = self.standbys.contains(id);
        if self.drain.is_on() {
            return self.refuse(now, id, DRAINS, Reason::Drain);
        }
        match hello.role {
            // The client has heard the welcome, and goes on here.
            Role::Join if stands_by => {
                self.standbys.remove(id);
                self.join(now, id);
            }
            Role::Join => {
                if self.welcome(now, id, hello) {
                    self.welcomed.insert(id);
                    self.wait_for_use(now, id);
                }
            }
            Role::Standby if stands_by => {}
            Role::Standby => self.stand_by(now, id, hello),
            Role::Proxy => self.refuse(now, id, "this server takes no proxies", Reason::Other),
        }
    }

    pub(super) fn refuse(&mut self, now: Instant, id: ConnectionId, reason: &str, why: Reason) {
        let refuse = Control::Refuse { reason: reason.to_owned(), why };
        if let Some(connection) = self.endpoint.connection_mut(id) {
            let _ = connection.send_message(refuse.to_bytes());
        }
        self.welcomed.remove(&id);
        self.standbys.remove(id);
        // It is closed with those that never say hello. Repeated hellos do not extend that.
        if !self.waiting.contains(id) {
            self.wait_for_use(now, id);
        }
    }

    /// The session begins when the client uses the connection.
    fn welcome(&mut self, now: Instant, id: ConnectionId, hello: &Hello) -> bool {
        let key = self.endpoint.connection(id).and_then(Connection::peer);
        let Some(key) = key else { return false };
        // The table may have changed since the handshake.
        let Ok(peer) = self.let_in(&key) else {
            self.end(now, id, "this client is not let in any more");
            return false;
        };
        let (anchor, gateways) = match self.anchor_of(now, &peer) {
            Ok(found) => found,
            Err(reason) => {
                self.refuse(now, id, reason, Reason::Other);
                return false;
            }
        };
        let networks = self.networks_of(&peer, gateways);
        let gateways = gateways.iter().map(IpNet::addr).collect();
        let streams = hello.streams.zip(self.streams.as_mut());
        let streams = streams.map(|(client, all)| all.agree(id, &key, client));
        let legs = self.legs.as_ref().filter(|_| hello.streams.is_some());
        let relays = legs.is_some_and(|legs| legs.frames.is_some());
        if relays {
            self.relaying.insert(id);
        }
        let (addresses, mtu) = (peer.addresses.clone(), self.config.mtu);
        let welcome = Welcome { addresses, gateways, networks, mtu, anchor, streams, relays };
        let welcome = Control::Welcome(welcome);
        if let Some(connection) = self.endpoint.connection_mut(id)
            && let Err(error) = connection.send_message(welcome.to_bytes())
        {
            tracing::warn!(%error, peer = peer.name, "cannot welcome");
        }
        true
    }

    fn networks_of(&self, peer: &Peer, gateways: &[IpNet]) -> Vec<IpNet> {
        let is_network = |net: &&IpNet| net.prefix_len() < net.max_prefix_len();
        let own = gateways.iter().filter(is_network).map(IpNet::trunc);
        let peers = self.peers.peers();
        let others = peers.behind().filter(|(tenant, network)| {
            *tenant == peer.tenant && !peer.addresses.iter().any(|own| own.trunc() == *network)
        });
        let others = others.filter(|_| self.config.clients_reach_clients);
        own.chain(others.map(|(_, network)| network)).take(WELCOME_NETWORKS_MAX).collect()
    }

    /// A standby says hello first, but data on a faster path may overtake that.
    fn join_if_welcomed(&mut self, now: Instant, id: ConnectionId) {
        let stands_by = self.standbys.contains(id);
        if self.welcomed.remove(&id) || stands_by {
            self.standbys.remove(id);
            self.join(now, id);
        }
    }

    fn join(&mut self, now: Instant, id: ConnectionId) {
        self.waiting.remove(id);
        let Some(connection) = self.endpoint.connection(id) else { return };
        let (key, remote) = (connection.peer(), connection.remote_address(PathId(0)));
        let Some(key) = key else { return };
        // The table may have changed since the welcome.
        let Ok(peer) = self.let_in(&key) else {
            return self.end(now, id, "this client is not let in any more");
        };
        if !self.shared.lock().accounts.may_join(now, key) {
            if let Some(remote) = remote {
                let what = format!(" with the key {key}: it begins too many sessions");
                self.log_refusal(now, refusals::TOO_MANY_SESSIONS, what, remote);
            }
            return self.end(now, id, "this client begins too many sessions");
        }
        let seed = self.config.transport.rng_seed.first_chunk();
        let streams = match self.relaying.contains(&id) {
            true => self.legs.as_ref().and_then(|legs| legs.frames.clone()),
            false => self.streams.as_ref().and_then(|all| all.lane(id)),
        };
        let seed = seed.map_or(0, |seed| u64::from_le_bytes(*seed)) ^ id.0;
        let (lanes, peer_sources) = (self.config.lanes.clone(), Some(peer.addresses.clone()));
        let memory_max = self.config.client_memory_max;
        let config = SessionConfig { lanes, peer_sources, streams, memory_max, seed };
        let mut session = match Session::new(config, false) {
            Ok(session) => session,
            Err(error) => return self.refuse(now, id, &error.to_string(), Reason::Other),
        };
        session.observe_packets(self.observes);
        if let Some(learned) = self.shared.lock().learned.get(&key.to_string()) {
            session.restore(learned);
        }
        if let Some(old) = self.sessions.by_key.insert(key, id) {
            self.replace(now, old, key, &peer.name);
        }
        self.sessions.by_key.insert(key, id);
        if let Some(all) = &mut self.streams
            && all.table.begin(now, key, all.terms.get(&id).copied(), &peer).is_err()
        {
            self.sessions.by_key.remove(&key);
            return self.end(now, id, "the client's streams are over");
        }
        self.legs.iter_mut().for_each(|legs| legs.begin(now, id, &peer.tenant, key));
        self.events.push_back(ServerEvent::Joined { peer: peer.name.clone(), key });
        let limits = |rate| self.shared.lock().accounts.take_limits(&key, rate);
        let limits = peer.rate_limit.map(limits);
        let (path_names, is_testing) = (BTreeMap::new(), false);
        self.sessions.insert(id, Joined { key, peer, session, path_names, limits, is_testing });
        self.drain.on_joined(now, id);
    }

    fn stand_by(&mut self, now: Instant, id: ConnectionId, hello: &Hello) {
        let Some(key) = self.endpoint.connection(id).and_then(Connection::peer) else { return };
        match self.standbys.add(id, key) {
            Ok(before) => {
                if let Some(before) = before {
                    self.end(now, before, "a newer standby of the same client replaces it");
                }
                if self.welcome(now, id, hello) {
                    self.waiting.remove(id);
                }
            }
            Err(Full) => self.refuse(now, id, "too many clients stand by here", Reason::Other),
        }
    }

    /// For a proxy the anchor to sign for; the gateways to announce; or why there is no service.
    pub(super) fn anchor_of(
        &self,
        now: Instant,
        peer: &Peer,
    ) -> Result<(Option<TenantAnchor>, &[IpNet]), &'static str> {
        let Some(legs) = &self.legs else { return Ok((None, &self.config.gateways)) };
        legs.anchor_of(now, &peer.tenant).map(|(anchor, gateways)| (Some(anchor), gateways))
    }

    fn on_binding(&mut self, now: Instant, id: ConnectionId, binding: Binding) {
        let Some(legs) = &mut self.legs else {
            return self.drops.count(DropReason::UnknownMessage);
        };
        if let Err(kind) = legs.bind(now, id, binding) {
            self.shared.refuse(|all| all.count_silently(kind));
        }
    }

    pub(super) fn let_in(&self, key: &PublicKey) -> Result<Arc<Peer>, Refusal> {
        self.peers.check(key)?;
        self.peers.get(key).ok_or(Refusal::Unknown)
    }

    fn on_speedtest(&mut self, now: Instant, id: ConnectionId, said: Speedtest) {
        let joined = self.sessions.all.get_mut(&id);
        let Some((joined, connection)) = joined.zip(self.endpoint.connection_mut(id)) else {
            return self.drops.count(DropReason::UnknownMessage);
        };
        let rules = TestRules { limits: self.config.speedtest, shared: &self.shared };
        if let Err(reason) = speedtest::on_word(now, joined, connection, said, &rules) {
            self.drops.count(reason);
        }
        self.sessions.touched.insert(id);
    }

    pub(super) fn replace(&mut self, now: Instant, id: ConnectionId, key: PublicKey, name: &str) {
        let connection = self.endpoint.connection(id);
        let lives = connection.is_some_and(|it| now.since(it.last_heard()) < LIVES);
        if lives && self.shared.lock().accounts.on_replaced(now, key) {
            tracing::warn!(
                peer = name,
                event = "key-shared",
                "two machines use the key of this client, and each ends the session of the other; \
                 give each a key of its own"
            );
        }
        self.end(now, id, "a newer session of the same client replaces it");
    }

    pub(super) fn end(&mut self, now: Instant, id: ConnectionId, reason: &str) {
        self.end_with(now, id, 0, reason);
    }

    pub(super) fn end_with(&mut self, now: Instant, id: ConnectionId, code: u32, reason: &str) {
        if let Some(connection) = self.endpoint.connection_mut(id) {
            connection.close(now, code, reason);
        }
        self.forget(now, id, reason);
    }

    pub(super) fn forget(&mut self, now: Instant, id: ConnectionId, reason: &str) {
        self.waiting.remove(id);
        self.welcomed.remove(&id);
        self.standbys.remove(id);
        self.budget.remove(id);
        let joined = self.sessions.remove(id);
        self.relaying.remove(&id);
        self.leave_streams(now, id, joined.as_ref());
        let Some(joined) = joined else { return };
        if joined.is_testing {
            self.shared.lock().tests.end(&joined.key);
        }
        self.legs.iter_mut().for_each(|legs| legs.end(now, id));
        if self.peers.get(&joined.key).is_some() {
            let mut memories = self.shared.lock();
            keep_learned(&mut memories.learned, &joined.key, &joined.session);
            memories.accounts.keep_limits(joined.key, joined.limits);
        }
        let (peer, reason) = (joined.peer.name.clone(), reason.to_owned());
        self.events.push_back(ServerEvent::Left { peer, key: joined.key, reason });
    }

    fn leave_streams(&mut self, now: Instant, id: ConnectionId, ended: Option<&Joined>) {
        let Some(all) = &mut self.streams else { return };
        all.terms.remove(&id);
        if let Some(Joined { key, peer, .. }) = ended
            && !self.sessions.by_key.contains_key(key)
        {
            let stays = self.peers.get(key).is_some_and(|now| now.is_where(peer));
            all.table.on_away(now, key, stays);
        }
    }

    pub(super) fn end_streams_of(&mut self, key: &PublicKey) {
        self.streams.iter_mut().for_each(|all| all.table.end(key));
    }
}
