//! The legs of a proxy: they carry its sessions' packets to the anchors of their tenants, and back.
//!
//! A proxy uses no TUN, routes or filters of its machine. Its sessions are those of a
//! [`Server`](crate::Server), which exchanges packets with the legs. A client's packets pass once
//! it has signed a binding for this proxy, and so do stream frames (`relay.rs`).
//!
//! Source: Proxy Mobile IPv6 (RFC 5213): the inner address stays where the anchor is.

mod attachments;
mod held;
mod leg;
mod relay;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ipnet::IpNet;
use roadweave_identity::{Identity, PublicKey};
use roadweave_proto::wire::{Binding, Detached, LegMessage, StreamsOffer, TenantAnchor};
use roadweave_proto::{DropCounters, DropReason, Instant, Rate, UplinkId};
use roadweave_quic::{ConfigError, Connection, ConnectionId, Endpoint, Epoch, Event, Local};
use serde::{Deserialize, Serialize};

use self::attachments::Attachment;
pub(crate) use self::leg::IDLE_MAX as LEG_IDLE_MAX;
use self::leg::Leg;
use self::relay::RelayTurn;
use crate::lane::LaneConfig;
use crate::leg::{LegStatus, TenantAccount, TenantId, TenantStats, tenant_stats};
use crate::node::RecvMeta;
use crate::rate::Direction;

/// The socket of a proxy that its legs use.
pub const LEG_SOCKET: UplinkId = UplinkId(1);

/// The settings of a proxy, beside those of any server.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// The tenants served, at most [`TENANTS_MAX`].
    pub tenants: Vec<ProxyTenant>,
    /// What a leg may carry in each direction, if it is known to be narrow.
    pub leg_rate: Option<Rate>,
}

/// A tenant of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyTenant {
    /// Its name, which clients sign.
    pub name: String,
    /// The key of its anchor.
    pub anchor: PublicKey,
    /// The addresses of its anchor, tried in turn.
    pub addresses: Vec<SocketAddr>,
    /// The anchor's own inner addresses, with the length of the clients' network if it is known.
    pub gateways: Vec<IpNet>,
    /// What all its clients together may send at this proxy, and receive.
    pub rate_limit: Option<Rate>,
}

/// The most tenants of a proxy, and of an anchor.
pub const TENANTS_MAX: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LegEvent {
    Down(ConnectionId, Bytes),
    /// The client must sign beyond this one.
    Newest(ConnectionId, Binding),
    Refused(ConnectionId, Detached),
    /// The anchor's offer of streams to the client, if it takes any.
    Streams(ConnectionId, Option<StreamsOffer>),
    /// The anchor has other streams than those announced to the client.
    StreamsOver(ConnectionId),
    Frames(ConnectionId),
    Away(ConnectionId),
    /// An anchor no longer answers: standbys for its tenants are useless.
    StandbysAway,
    Text(String),
}

#[derive(Debug)]
struct Tenant {
    name: String,
    leg: usize,
    gateways: Vec<IpNet>,
}

#[derive(Debug)]
pub(crate) struct Legs {
    pub(crate) endpoint: Endpoint,
    key: PublicKey,
    tenants: Vec<Tenant>,
    accounts: Vec<TenantAccount>,
    by_name: BTreeMap<String, TenantId>,
    legs: Vec<Leg>,
    leg_rate: Option<Rate>,
    pub(crate) frames: Option<LaneConfig>,
    attachments: BTreeMap<ConnectionId, Attachment>,
    due: BTreeSet<(Instant, ConnectionId)>,
    held_bytes: usize,
    served: u64,
    pub(crate) events: VecDeque<LegEvent>,
    pub(crate) refusals: BTreeMap<&'static str, u64>,
}

impl Legs {
    pub(crate) fn new(
        epoch: Epoch,
        transport: &roadweave_quic::TransportConfig,
        identity: Arc<Identity>,
        config: ProxyConfig,
        frames: Option<LaneConfig>,
    ) -> Result<Self, ConfigError> {
        let key = identity.public_key();
        let transport = leg::transport(transport);
        let endpoint = Endpoint::client(epoch, &transport, identity)?;
        let mut legs = Self {
            endpoint,
            key,
            by_name: BTreeMap::new(),
            tenants: Vec::new(),
            accounts: Vec::new(),
            legs: Vec::new(),
            leg_rate: config.leg_rate,
            frames,
            attachments: BTreeMap::new(),
            due: BTreeSet::new(),
            held_bytes: 0,
            served: 0,
            events: VecDeque::new(),
            refusals: BTreeMap::new(),
        };
        legs.set_tenants(Instant::ZERO, config.tenants);
        Ok(legs)
    }

    /// The anchor and its inner addresses, or why none is available.
    pub(crate) fn anchor_of(
        &self,
        now: Instant,
        tenant: &str,
    ) -> Result<(TenantAnchor, &[IpNet]), &'static str> {
        let id = self.by_name.get(tenant).ok_or("this proxy does not serve the client's tenant")?;
        let tenant = &self.tenants[usize::from(id.0)];
        let leg = &self.legs[tenant.leg];
        if leg.is_away(now) {
            return Err("the tenant's anchor cannot be reached from this proxy");
        }
        let anchor = TenantAnchor { tenant: tenant.name.clone(), key: *leg.anchor.as_bytes() };
        Ok((anchor, &tenant.gateways))
    }

    pub(crate) fn handle_packet(&mut self, now: Instant, meta: &RecvMeta, payload: &[u8]) {
        let source = meta.source(Local::Uplink(LEG_SOCKET));
        if let Some(id) = self.endpoint.handle_packet(now, source, BytesMut::from(payload)) {
            self.pump(now, id);
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        for id in self.endpoint.handle_timeout(now) {
            self.pump(now, id);
        }
        for at in 0..self.legs.len() {
            self.keep_up(now, at);
        }
        self.tend_attachments(now);
    }

    fn pump(&mut self, now: Instant, id: ConnectionId) {
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
                    Err(error) => self.legs[at].end.drops.count(error.into()),
                },
                Event::Closed(reason) => self.on_down(now, at, &reason.to_string()),
                _ => {}
            }
        }
    }

    fn on_up(&mut self, now: Instant, at: usize, id: ConnectionId) {
        let leg = &mut self.legs[at];
        if leg.on_up(now, id) {
            let text = format!("the anchor {} is reachable again", leg.anchor);
            self.events.push_back(LegEvent::Text(text));
        }
        self.attach_all(now, at);
    }

    fn on_down(&mut self, now: Instant, at: usize, reason: &str) {
        self.legs[at].on_down(now, reason, &mut self.accounts);
        self.on_leg_down(at);
    }

    /// Reports once to the sessions of a leg that it is away; later ones learn it when they begin.
    fn keep_up(&mut self, now: Instant, at: usize) {
        let leg = &mut self.legs[at];
        if !leg.is_wanted {
            return;
        }
        if let Err(reason) = leg.keep_up(now, &mut self.endpoint) {
            self.on_down(now, at, &reason);
        }
        self.attach_unsent(now, at);
        let leg = &mut self.legs[at];
        if leg.poll_away(now) {
            let text =
                format!("the anchor {} cannot be reached; its clients are moved away", leg.anchor);
            self.events.push_back(LegEvent::Text(text));
            let of_leg = self.attachments.iter().filter(|(_, attachment)| attachment.leg == at);
            self.events.extend(of_leg.map(|(session, _)| LegEvent::Away(*session)));
            self.events.push_back(LegEvent::StandbysAway);
        }
    }

    pub(crate) fn transmit(&mut self, now: Instant) {
        for leg in &mut self.legs {
            if let Some(id) = leg.up()
                && let Some(connection) = self.endpoint.connection_mut(id)
            {
                leg.end.transmit(now, connection, &mut self.accounts);
                connection.flush(now);
            }
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let legs = self.legs.iter().filter_map(|leg| leg.poll_timeout(&self.endpoint));
        let due = self.due.first().map(|(at, _)| *at);
        legs.chain(self.endpoint.poll_timeout()).chain(due).min()
    }

    pub(crate) fn close(&mut self, now: Instant) {
        self.endpoint.close(now, "the proxy stops");
    }

    pub(crate) fn waiting(&self) -> usize {
        self.legs.iter().map(|leg| leg.end.waiting()).sum::<usize>() + self.held_bytes
    }

    pub(crate) fn round_trips(&self) -> Vec<(String, Duration)> {
        let of = |(name, id): (&String, &TenantId)| {
            let leg = &self.legs[self.tenants[usize::from(id.0)].leg];
            let connection = self.endpoint.connection(leg.up()?)?;
            let path = connection.paths().first()?;
            let is_measured = connection.is_open() && path.is_usable();
            is_measured.then(|| (name.clone(), path.smoothed_rtt))
        };
        self.by_name.iter().filter_map(of).collect()
    }

    pub(crate) fn status(&self) -> ProxyStatus {
        let leg = |(at, leg): (usize, &Leg)| {
            let connection = leg.up().and_then(|id| self.endpoint.connection(id));
            let attached = self.attachments.values().filter(|it| it.leg == at && it.is_attached());
            let status = LegStatus::of(connection, &leg.end, attached.count());
            LegStatus { public_key: leg.anchor.to_string(), ..status }
        };
        let names = self.tenants.iter().map(|tenant| tenant.name.as_str());
        ProxyStatus {
            legs: self.legs.iter().enumerate().map(leg).collect(),
            tenants: tenant_stats(names.zip(&self.accounts)),
        }
    }

    /// The present tenants that have another anchor in `wanted`, or are not in it.
    pub(crate) fn moved(&self, wanted: &[ProxyTenant]) -> BTreeSet<String> {
        let after: BTreeMap<&str, PublicKey> =
            wanted.iter().rev().map(|tenant| (tenant.name.as_str(), tenant.anchor)).collect();
        let is_moved = |(name, id): &(&String, &TenantId)| {
            let leg = self.tenants[usize::from(id.0)].leg;
            after.get(name.as_str()) != Some(&self.legs[leg].anchor)
        };
        self.by_name.iter().filter(is_moved).map(|(name, _)| name.clone()).collect()
    }

    /// Sessions of [`Legs::moved`] tenants must have ended. The first of two with one name counts.
    pub(crate) fn set_tenants(&mut self, now: Instant, wanted: Vec<ProxyTenant>) {
        let in_use: BTreeSet<PublicKey> = wanted.iter().map(|tenant| tenant.anchor).collect();
        for at in 0..self.legs.len() {
            if !in_use.contains(&self.legs[at].anchor) {
                self.legs[at].close(now, &mut self.endpoint, &mut self.accounts);
                self.on_leg_down(at);
            }
        }
        let known: BTreeMap<String, TenantId> =
            self.tenants.iter().zip(0..).map(|(it, id)| (it.name.clone(), TenantId(id))).collect();
        self.by_name.clear();
        let mut addresses: BTreeMap<usize, Vec<SocketAddr>> = BTreeMap::new();
        for tenant in wanted.into_iter().take(TENANTS_MAX) {
            if self.by_name.contains_key(&tenant.name) {
                continue;
            }
            let leg = self.leg_to(tenant.anchor, &in_use);
            let Some(id) = known.get(&tenant.name).copied().or_else(|| self.add(&tenant)) else {
                let text = format!("too many tenants: {} is not served", tenant.name);
                self.events.push_back(LegEvent::Text(text));
                continue;
            };
            addresses.entry(leg).or_default().extend(tenant.addresses);
            let place = &mut self.tenants[usize::from(id.0)];
            (place.leg, place.gateways) = (leg, tenant.gateways);
            self.accounts[usize::from(id.0)].set_rate_limit(tenant.rate_limit);
            self.by_name.insert(tenant.name, id);
        }
        for (leg, addresses) in addresses {
            self.legs[leg].set_addresses(addresses);
        }
    }

    pub(crate) fn set_addresses(&mut self, anchor: PublicKey, addresses: Vec<SocketAddr>) {
        if let Some(leg) = self.legs.iter_mut().find(|leg| leg.anchor == anchor) {
            leg.set_addresses(addresses);
        }
    }

    pub(crate) fn is_up(&self, anchor: PublicKey) -> bool {
        self.legs.iter().any(|leg| leg.anchor == anchor && leg.up().is_some())
    }

    pub(crate) fn relay(&mut self, session: ConnectionId) -> Option<RelayTurn<'_>> {
        let attachment = self.attachments.get_mut(&session)?;
        attachment.relay.client?;
        let leg = &mut self.legs[attachment.leg];
        let path = leg.up().and_then(|id| self.endpoint.connection(id)?.paths().first());
        Some(RelayTurn {
            round_trip: path.map_or(Duration::ZERO, |path| path.smoothed_rtt),
            handle: attachment.handle.filter(|_| attachment.is_answered()),
            tenant: attachment.tenant,
            relay: &mut attachment.relay,
            leg: &mut leg.end,
            accounts: &mut self.accounts,
            serial: &mut self.served,
        })
    }

    /// The longest unserved first: the room in a tenant's rate or a leg goes around.
    pub(crate) fn sort(&self, sessions: &mut [ConnectionId], direction: Direction) {
        let served = |session: &ConnectionId| {
            let attachment = self.attachments.get(session);
            attachment.map_or(0, |attachment| attachment.relay.served[direction as usize])
        };
        sessions.sort_by_key(served);
    }

    /// The client's offer of streams to the anchor. Only the first one counts.
    pub(crate) fn name_streams(&mut self, session: ConnectionId, client: StreamsOffer) {
        if let Some(attachment) = self.attachments.get_mut(&session) {
            attachment.relay.client.get_or_insert(client);
        }
    }

    pub(crate) fn relayed(&self, session: ConnectionId) -> usize {
        self.attachments.get(&session).map_or(0, |attachment| attachment.relay.held)
    }

    pub(crate) fn shed_relayed(&mut self, session: ConnectionId, bytes: usize) {
        if let Some(attachment) = self.attachments.get_mut(&session) {
            let account = &mut self.accounts[usize::from(attachment.tenant.0)];
            let shed = attachment.relay.shed(bytes);
            (0..shed).for_each(|_| account.drop(DropReason::ReceiveMemory));
        }
    }

    /// A place for a new tenant. Earlier ones keep theirs, since waiting packets are counted by it.
    fn add(&mut self, tenant: &ProxyTenant) -> Option<TenantId> {
        let id = u16::try_from(self.tenants.len()).ok().filter(|id| usize::from(*id) < PLACES)?;
        self.accounts.push(TenantAccount::new(tenant.rate_limit));
        self.tenants.push(Tenant { name: tenant.name.clone(), leg: 0, gateways: Vec::new() });
        Some(TenantId(id))
    }

    fn leg_to(&mut self, anchor: PublicKey, in_use: &BTreeSet<PublicKey>) -> usize {
        if let Some(at) = self.legs.iter().position(|leg| leg.anchor == anchor) {
            return at;
        }
        let leg = Leg::new(anchor, self.leg_rate);
        match self.legs.iter().position(|leg| !in_use.contains(&leg.anchor)) {
            Some(free) => {
                self.legs[free] = leg;
                free
            }
            None => {
                self.legs.push(leg);
                self.legs.len() - 1
            }
        }
    }
}

const PLACES: usize = 4 * TENANTS_MAX;

/// The status of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProxyStatus {
    /// The legs, in the order of the configuration.
    pub legs: Vec<LegStatus>,
    /// What passed, by the tenant's name.
    pub tenants: BTreeMap<String, TenantStats>,
}

impl ProxyStatus {
    /// What was dropped for all tenants and on all legs, by reason.
    pub fn drops(&self) -> DropCounters {
        let mut drops = DropCounters::default();
        self.tenants.values().for_each(|tenant| drops.merge(&tenant.drops));
        self.legs.iter().for_each(|leg| drops.merge(&leg.drops));
        drops
    }
}
