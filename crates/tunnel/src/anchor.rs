//! The anchor: holds the inner addresses of its tenants' clients, at whichever proxy they are.
//!
//! ```text
//! legs of proxies ─► attachment ─► tenant and device (source address checked) ─► TUN of the tenant
//! TUN of a tenant ─► destination address ─► device ─► its newest attachment ─► leg of that proxy
//! ```
//!
//! Its clients are proxies, which pass on their sessions' packets. A proxy is trusted with no more
//! than that: its leg carries packets only of devices that signed a binding for it, from and to
//! their own addresses (`bindings.rs`). When a device moves to another proxy, its address and the
//! flows through it stay here; so do its streams (`anchor/streams.rs`), whose far ends are here.
//!
//! Source: the local mobility anchor of Proxy Mobile IPv6 (RFC 5213).

mod legs;
mod streams;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use roadweave_identity::{Identity, PeerPolicy as _, PublicKey, Refusal};
use roadweave_proto::wire::{Binding, Detached, InnerPacket, LegRoom};
use roadweave_proto::{DropCounters, DropReason, Instant, Rate, TokenBucket};
use roadweave_quic::{
    ConfigError, ConnectionId, Endpoint, Epoch, Local, Transmit, TransportConfig,
};
use serde::{Deserialize, Serialize};

use self::legs::Leg;
use self::streams::{AnchorStreams, LegsView};
use crate::bindings::{At, Bindings, DeviceId};
use crate::leg::{LegStatus, TenantAccount, TenantId, TenantStats, tenant_stats};
use crate::node::{Node, RecvMeta};
use crate::peers::{PeerTable, Peers, PeersChange};
use crate::proxy::TENANTS_MAX;
use crate::rate::Direction;
use crate::server::Inbox;
use crate::server::refusals::{CROWDED_OUT, Refusals};
use crate::streams::StreamsConfig;

/// The settings of an anchor.
#[derive(Clone, Debug)]
pub struct AnchorConfig {
    /// The transport of its legs.
    pub transport: TransportConfig,
    /// Its tenants, at most [`TENANTS_MAX`].
    pub tenants: Vec<AnchorTenant>,
    /// What a leg may carry in each direction, if it is known to be narrow.
    pub leg_rate: Option<Rate>,
    /// Streams, if the anchor takes them; their lane is the proxies'.
    pub streams: Option<StreamsConfig>,
    /// The most bytes that the streams of all clients may hold together.
    pub memory_max: usize,
}

/// A tenant of an anchor.
#[derive(Clone, Debug)]
pub struct AnchorTenant {
    /// Its name, which clients sign.
    pub name: String,
    /// Its devices, with their inner addresses.
    pub devices: Arc<PeerTable>,
    /// Whether they may reach one another.
    pub clients_reach_clients: bool,
    /// What all of them together may send, and receive.
    pub rate_limit: Option<Rate>,
}

/// An event for the driver of an anchor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnchorEvent {
    /// A proxy's leg came up.
    LegUp {
        /// The proxy's name in the configuration.
        proxy: String,
        /// Its key.
        key: PublicKey,
    },
    /// A leg ended.
    LegDown {
        /// The proxy's name in the configuration.
        proxy: String,
        /// The reason, as text.
        reason: String,
    },
    /// A device is at this proxy now.
    Attached {
        /// The device's name in the configuration.
        device: String,
        /// Its key.
        key: PublicKey,
        /// The proxy's name.
        proxy: String,
    },
    /// A proxy was not let in.
    Refused {
        /// The proxy and the reason, as text.
        reason: String,
    },
}

/// One anchor: an endpoint, the legs of its proxies, and where its devices are.
#[derive(Debug)]
pub struct Anchor {
    endpoint: Endpoint,
    proxies: Arc<PeerTable>,
    leg_rate: Option<Rate>,
    tenants: Vec<AnchorTenant>,
    accounts: Vec<TenantAccount>,
    inboxes: Vec<Inbox>,
    by_name: BTreeMap<String, TenantId>,
    bindings: Bindings,
    legs: BTreeMap<ConnectionId, Leg>,
    checks: BTreeMap<PublicKey, TokenBucket>,
    streams: Option<Box<AnchorStreams>>,
    touched: BTreeSet<ConnectionId>,
    refusals: Refusals,
    crowded_out: u64,
    events: VecDeque<AnchorEvent>,
    drops: DropCounters,
}

impl Anchor {
    /// An anchor without legs; `proxies` may connect.
    ///
    /// # Errors
    /// When the transport settings cannot be used.
    pub fn new(
        epoch: Epoch,
        config: AnchorConfig,
        identity: Arc<Identity>,
        proxies: Arc<PeerTable>,
    ) -> Result<Self, ConfigError> {
        let key = identity.public_key();
        let transport = legs::transport(&config.transport);
        let endpoint = Endpoint::server(epoch, &transport, identity, proxies.clone())?;
        let streams = config.streams.map(|streams| {
            Box::new(AnchorStreams::new(streams, &transport.rng_seed, config.memory_max))
        });
        let tenants: Vec<_> = config.tenants.into_iter().take(TENANTS_MAX).collect();
        let by_name = tenants.iter().zip(0..).map(|(it, id)| (it.name.clone(), TenantId(id)));
        Ok(Self {
            endpoint,
            proxies,
            leg_rate: config.leg_rate,
            by_name: by_name.collect(),
            accounts: tenants.iter().map(|it| TenantAccount::new(it.rate_limit)).collect(),
            inboxes: tenants.iter().map(|_| Inbox::default()).collect(),
            tenants,
            bindings: Bindings::new(key),
            legs: BTreeMap::new(),
            checks: BTreeMap::new(),
            streams,
            touched: BTreeSet::new(),
            refusals: Refusals::default(),
            crowded_out: 0,
            events: VecDeque::new(),
            drops: DropCounters::default(),
        })
    }

    /// The ID of the tenant called `name`.
    pub fn tenant(&self, name: &str) -> Option<TenantId> {
        self.by_name.get(name).copied()
    }

    /// Takes an inner packet from a tenant's device, for one of its clients.
    pub fn handle_tenant_inner(&mut self, now: Instant, tenant: TenantId, packet: &[u8]) {
        match InnerPacket::parse(packet) {
            Ok(view) => self.pass_down(now, tenant, view.destination, packet),
            Err(_) => self.drops.count(DropReason::MalformedInner),
        }
    }

    /// The next inner packet from a client of a tenant, for the tenant's device.
    pub fn poll_tenant_inner(&mut self, tenant: TenantId) -> Option<Bytes> {
        self.inboxes.get_mut(usize::from(tenant.0))?.pop()
    }

    /// The next event for the driver.
    pub fn poll_event(&mut self) -> Option<AnchorEvent> {
        self.events.pop_front()
    }

    /// Closes all legs; [`flush`](crate::flush) it afterwards.
    pub fn close(&mut self, now: Instant) {
        self.endpoint.close(now, "the anchor stops");
    }

    /// How many devices are at a proxy.
    pub fn attached(&self) -> usize {
        self.bindings.attached().count()
    }

    /// The newest signed binding of each device, to be kept over a restart. Write it soon after
    /// each [`AnchorEvent::Attached`]: if a binding is lost, an older one counts again.
    pub fn bindings(&self) -> Vec<(PublicKey, Binding)> {
        self.bindings.newest().map(|(device, binding)| (*device, binding.clone())).collect()
    }

    /// Restores what [`Anchor::bindings`] returned earlier, except unsigned and unknown ones.
    pub fn restore(&mut self, bindings: impl IntoIterator<Item = (PublicKey, Binding)>) {
        for (device, binding) in bindings {
            let Some(tenant) = self.by_name.get(&binding.tenant).copied() else { continue };
            self.bindings.restore((tenant, device), binding);
            if self.tenants[usize::from(tenant.0)].devices.get(&device).is_none() {
                self.bindings.forget(&(tenant, device));
            }
        }
    }

    /// The status of legs and tenants.
    pub fn status(&self) -> AnchorStatus {
        let leg = |(id, leg): (&ConnectionId, &Leg)| {
            let attachments = self.bindings.count_of(*id);
            let status = LegStatus::of(self.endpoint.connection(*id), &leg.end, attachments);
            (leg.name.clone(), LegStatus { public_key: leg.proxy.to_string(), ..status })
        };
        let names = self.tenants.iter().map(|tenant| tenant.name.as_str());
        AnchorStatus {
            legs: self.legs.iter().map(leg).collect(),
            tenants: tenant_stats(names.zip(&self.accounts)),
            refusals: self.refusals.counts().into_iter().map(|(k, n)| (k.to_owned(), n)).collect(),
        }
    }

    /// What was dropped without a known tenant, by reason.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// Bytes held by the streams of all clients at a proxy, as of the last turn.
    pub fn stream_memory(&self) -> usize {
        self.streams.as_ref().map_or(0, |all| all.held)
    }

    fn pass_down(&mut self, now: Instant, tenant: TenantId, destination: IpAddr, packet: &[u8]) {
        let Some(table) = self.tenants.get(usize::from(tenant.0)) else { return };
        let device = table.devices.route(destination);
        let account = &mut self.accounts[usize::from(tenant.0)];
        let Some(device) = device else { return account.drop(DropReason::NoRoute) };
        let Some(at) = self.bindings.at(&(tenant, device)) else {
            return account.drop(DropReason::NoSession);
        };
        if account.allows(now, Direction::Down, packet.len())
            && let Some(leg) = self.legs.get_mut(&at.leg)
        {
            leg.end.push(now, tenant, at.handle, packet, &mut self.accounts);
            self.touched.insert(at.leg);
        }
    }

    fn leave_streams(&mut self, now: Instant, device: &DeviceId) {
        let stays = self.tenants.get(usize::from(device.0.0));
        let stays = stays.and_then(|tenant| tenant.devices.get(&device.1));
        if let Some(all) = &mut self.streams
            && self.bindings.at(device).is_none()
        {
            let before = all.table.peer(device);
            let stays = before.zip(stays).is_some_and(|(before, now)| before.is_where(&now));
            all.on_away(now, device, stays);
        }
    }

    fn on_room(&mut self, now: Instant, at: At, room: LegRoom) {
        if let Some((sender, all)) = self.bindings.sender(now, at).zip(self.streams.as_mut()) {
            all.on_room(sender, at, room);
        } else if let Some(leg) = self.legs.get_mut(&at.leg) {
            leg.end.drops.count(DropReason::Unbound);
        }
    }

    fn turn_streams(&mut self, now: Instant) {
        let Self { streams: Some(all), endpoint, legs, accounts, touched, .. } = self else {
            return;
        };
        let broken = all.turn(now, &mut LegsView { endpoint, legs, accounts, touched });
        for device in broken {
            if let Some(at) = self.bindings.at(&device) {
                self.bindings.detach(at);
                self.refusals.count_silently(BROKEN);
                self.send_detached(now, at, Detached::Other);
            }
        }
    }

    /// Replaces the devices of a tenant, and returns the former table, which may be dropped
    /// elsewhere. Devices that are gone are detached at once.
    pub fn replace_devices(
        &mut self,
        now: Instant,
        tenant: TenantId,
        change: PeersChange,
    ) -> Option<Arc<Peers>> {
        let PeersChange { peers, changed } = change;
        let table = self.tenants.get(usize::from(tenant.0))?.devices.clone();
        let former = table.replace(peers);
        for key in changed {
            if is_out(&table, &key) {
                self.forget_device(now, tenant, key);
            }
        }
        Some(former)
    }

    /// Replaces the proxies that may connect, and returns the former table. Other legs end at once.
    pub fn replace_proxies(&mut self, now: Instant, change: PeersChange) -> Arc<Peers> {
        let former = self.proxies.replace(change.peers);
        self.end_refused(now);
        former
    }

    /// Ends legs and attachments of expired keys. Call it after setting the tables' time of day.
    pub fn on_time_of_day(&mut self, now: Instant) {
        self.end_refused(now);
        let devices = self.bindings.attached();
        let expired = |it: &DeviceId| is_out(&self.tenants[usize::from(it.0.0)].devices, &it.1);
        let expired: Vec<DeviceId> = devices.filter(expired).collect();
        for (tenant, key) in expired {
            self.forget_device(now, tenant, key);
        }
    }

    fn forget_device(&mut self, now: Instant, tenant: TenantId, key: PublicKey) {
        let at = self.bindings.forget(&(tenant, key));
        self.leave_streams(now, &(tenant, key));
        if let Some(at) = at {
            self.send_detached(now, at, Detached::Unknown);
        }
    }

    fn end_refused(&mut self, now: Instant) {
        let refused = self.legs.iter().filter(|(_, leg)| is_out(&self.proxies, &leg.proxy));
        let refused: Vec<ConnectionId> = refused.map(|(id, _)| *id).collect();
        for id in refused {
            self.end_leg(now, id, "this proxy is not let in any more");
        }
    }
}

fn is_out(table: &PeerTable, key: &PublicKey) -> bool {
    // A key that is forbidden keeps its session.
    table.check(key).is_err_and(|why| why != Refusal::Forbidden)
}

const BROKEN: &str = "broken-streams";
const ONLY: TenantId = TenantId(0);

/// As a node an anchor has one device, that of its first tenant.
impl Node for Anchor {
    fn handle_inner(&mut self, now: Instant, packet: &[u8]) {
        self.handle_tenant_inner(now, ONLY, packet);
    }

    fn handle_packet(&mut self, now: Instant, meta: &RecvMeta, payload: &[u8]) {
        let source = meta.source(Local::Address(meta.local));
        if let Some(id) = self.endpoint.handle_packet(now, source, BytesMut::from(payload)) {
            self.pump(now, id);
        }
        self.pump_endpoint(now);
    }

    fn handle_timeout(&mut self, now: Instant) {
        for id in self.endpoint.handle_timeout(now) {
            self.pump(now, id);
        }
        self.pump_endpoint(now);
        let ignored = self.endpoint.stats().ignored;
        let before = std::mem::replace(&mut self.crowded_out, ignored);
        self.refusals.count_unnamed(CROWDED_OUT, ignored - before);
        while let Some(reason) = self.refusals.poll_summary(now) {
            self.events.push_back(AnchorEvent::Refused { reason });
        }
        self.turn_streams(now);
        let due = self.legs.iter().filter(|(_, leg)| leg.end.poll_timeout().is_some());
        self.touched.extend(due.map(|(id, _)| *id));
        for id in std::mem::take(&mut self.touched) {
            if let Some(leg) = self.legs.get_mut(&id)
                && let Some(connection) = self.endpoint.connection_mut(id)
            {
                leg.end.transmit(now, connection, &mut self.accounts);
                connection.flush(now);
            }
        }
        self.endpoint.settle(now);
    }

    fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        self.endpoint.poll_transmit()
    }

    fn poll_inner(&mut self) -> Option<Bytes> {
        self.poll_tenant_inner(ONLY)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let legs = self.legs.values().filter_map(|leg| leg.end.poll_timeout());
        let streams = self.streams.as_ref().and_then(|streams| streams.poll_timeout());
        let own = legs.chain(self.refusals.poll_timeout()).chain(streams);
        own.chain(self.endpoint.poll_timeout()).min()
    }
}

/// The status of an anchor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AnchorStatus {
    /// The legs, oldest first, with the names of their proxies.
    pub legs: Vec<(String, LegStatus)>,
    /// What passed, by the tenant's name.
    pub tenants: BTreeMap<String, TenantStats>,
    /// How often proxies, bindings and strangers were refused, by kind.
    pub refusals: BTreeMap<String, u64>,
}

impl AnchorStatus {
    /// What was dropped for all tenants and on all present legs, by reason.
    pub fn drops(&self) -> DropCounters {
        let mut drops = DropCounters::default();
        self.tenants.values().for_each(|tenant| drops.merge(&tenant.drops));
        self.legs.iter().for_each(|(_, leg)| drops.merge(&leg.drops));
        drops
    }
}
