//! Boxes with clients, servers or proxies, and an anchor, on one virtual clock and with real TLS.
//!
//! ```text
//! box 0 ─┐  uplinks: delay and loss,   ┌─► server or proxy 0 ─┐
//! box 1 ─┼── or rates and queues ──────┤                      ├── legs: delay, loss ──► anchor
//! box 2 ─┘                             └─► server or proxy 1 ─┘
//! ```
//!
//! A box has one client that chooses among all servers, or a client for each of some servers, with
//! the same key; or an endpoint without a client, which a hostile client with a valid key uses.
//! Equal configurations and calls give equal nodes.

mod config;
mod hostile;
mod network;
mod processor;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_emulate::{Direction, LinkStats};
use roadweave_proto::Instant;
use roadweave_quic::{Endpoint, Epoch, Local, Outbox, Source};
use roadweave_tunnel::{
    Anchor, AnchorEvent, Client, ClientEvent, DrainReason, Io, Node, Peer, PeerTable, Peers,
    RecvMeta, Server, ServerEvent, TenantId, turn,
};

pub use self::config::{Config, LEG_DELAY, StreamsAt, inner_address, key};
pub use self::hostile::Hostile;
use self::network::{Counts, Network};
use self::processor::Processor;

/// The server of a client that chooses among all.
pub const ANY: usize = 1_000;

/// A client, by its box and its only server or [`ANY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId {
    pub number: usize,
    pub server: usize,
}

impl From<usize> for ClientId {
    fn from(number: usize) -> Self {
        Self { number, server: ANY }
    }
}

impl From<(usize, usize)> for ClientId {
    fn from((number, server): (usize, usize)) -> Self {
        Self { number, server }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeId {
    Client(ClientId),
    Server(usize),
    Anchor,
}

impl From<ClientId> for NodeId {
    fn from(id: ClientId) -> Self {
        Self::Client(id)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub at: Instant,
    pub node: NodeId,
    /// The tenant whose device received it.
    pub tenant: usize,
    pub packet: Bytes,
}

#[derive(Debug)]
enum End {
    Client(Box<Client>),
    Bare(Box<Endpoint>),
}

#[derive(Debug)]
pub struct Nodes {
    now: Instant,
    epoch: Epoch,
    config: Config,
    clients: BTreeMap<ClientId, End>,
    servers: BTreeMap<usize, Server>,
    anchor: Option<Anchor>,
    /// Clients that are known to the server that started last.
    peers: Arc<PeerTable>,
    devices: Vec<Arc<PeerTable>>,
    generations: BTreeMap<NodeId, u8>,
    frozen: BTreeSet<usize>,
    network: Network,
    boxes_processor: Processor,
    servers_processor: Processor,
    arrivals: VecDeque<Arrival>,
    client_events: BTreeMap<ClientId, Vec<(Instant, ClientEvent)>>,
    server_events: BTreeMap<usize, Vec<(Instant, ServerEvent)>>,
    anchor_events: Vec<(Instant, AnchorEvent)>,
}

impl Nodes {
    /// Servers and anchor run, and no box does.
    #[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
    pub fn new(config: Config) -> Self {
        let mut nodes = Self {
            now: Instant::ZERO,
            epoch: Epoch::new(std::time::Instant::now()),
            clients: BTreeMap::new(),
            servers: BTreeMap::new(),
            anchor: None,
            peers: Arc::new(PeerTable::new([])),
            devices: config.devices(),
            generations: BTreeMap::new(),
            frozen: BTreeSet::new(),
            network: Network::new(&config),
            boxes_processor: Processor::new(config.packet_time),
            servers_processor: Processor::new(config.packet_time),
            arrivals: VecDeque::new(),
            client_events: BTreeMap::new(),
            server_events: BTreeMap::new(),
            anchor_events: Vec::new(),
            config,
        };
        if nodes.config.has_anchor {
            nodes.start_anchor();
        }
        (0..nodes.config.sites.len()).for_each(|server| nodes.start_server(server));
        nodes
    }

    pub fn now(&self) -> Instant {
        self.now
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    fn next_generation(&mut self, node: NodeId) -> u8 {
        let generations = self.generations.entry(node).or_default();
        *generations += 1;
        *generations - 1
    }

    pub fn start_anchor(&mut self) {
        let generation = self.next_generation(NodeId::Anchor);
        self.anchor = Some(self.config.anchor(self.epoch, &self.devices, generation));
    }

    pub fn kill_anchor(&mut self) {
        self.anchor = None;
    }

    pub fn start_server(&mut self, number: usize) {
        let generation = self.next_generation(NodeId::Server(number));
        let (server, peers) = self.config.server(self.epoch, number, generation);
        self.servers.insert(number, server);
        self.peers = peers;
    }

    pub fn kill_server(&mut self, number: usize) {
        self.servers.remove(&number);
    }

    pub fn drain(&mut self, server: usize) {
        let now = self.now;
        self.server(server).drain(now, DrainReason::Command, Duration::ZERO);
        self.flush();
    }

    /// A frozen server loses what it receives, and continues from its state.
    pub fn freeze(&mut self, server: usize, is_frozen: bool) {
        match is_frozen {
            true => self.frozen.insert(server),
            false => self.frozen.remove(&server),
        };
    }

    pub fn start(&mut self, id: impl Into<ClientId>) {
        let id: ClientId = id.into();
        let generation = self.next_generation(id.into());
        let client = self.config.client((self.epoch, self.now), id, generation);
        self.clients.insert(id, End::Client(Box::new(client)));
        self.turn(id.into());
    }

    /// Starts a bare endpoint with the key of a box, for a hostile client.
    pub fn start_bare(&mut self, number: usize) {
        let id = ClientId::from(number);
        let generation = self.next_generation(id.into());
        let transport = self.config.transport(id.into(), generation);
        let own = Arc::new(config::identity(id.into()));
        let endpoint = Endpoint::client(self.epoch, &transport, own).expect("usable");
        self.clients.insert(id, End::Bare(Box::new(endpoint)));
    }

    pub fn kill(&mut self, id: impl Into<ClientId>) {
        let id: ClientId = id.into();
        self.clients.remove(&id);
    }

    pub fn set_dead(&mut self, number: usize, uplink: u32, dead: bool) {
        self.network.set_dead(self.now, (number, uplink), dead);
    }

    pub fn cut_leg(&mut self, proxy: usize, is_cut: bool) {
        self.network.cut_leg(proxy, is_cut);
    }

    pub fn close_legs(&mut self) {
        let anchor = self.anchor.as_mut().expect("it runs");
        let none = Peers::default();
        let all = anchor.replace_proxies(self.now, Peers::after(&none, []));
        let all = all.iter().map(|(key, peer)| (*key, Peer::clone(peer)));
        anchor.replace_proxies(self.now, Peers::after(&none, all));
        self.turn(NodeId::Anchor);
    }

    /// Stops the servers for `time`; packets wait in their sockets.
    pub fn pause_servers(&mut self, time: Duration) {
        self.servers_processor.pause(self.now + time);
    }

    /// Stops the boxes for `time`; packets wait in their sockets.
    pub fn pause_boxes(&mut self, time: Duration) {
        self.boxes_processor.pause(self.now + time);
    }

    /// Sets the time of day of the only server, seconds since 1970.
    pub fn set_unix_time(&mut self, seconds: u64) {
        self.peers.set_unix_time(seconds);
        self.server(0).on_time_of_day();
        self.flush();
    }

    pub fn counts(&self) -> Counts {
        self.network.counts
    }

    pub fn link_stats(&self, link: usize, direction: Direction) -> &LinkStats {
        self.network.link_stats(link, direction)
    }

    /// A server that runs. Follow a change of any machine with [`Nodes::flush`].
    pub fn server(&mut self, number: usize) -> &mut Server {
        self.servers.get_mut(&number).expect("it runs")
    }

    pub fn anchor(&mut self) -> Option<&mut Anchor> {
        self.anchor.as_mut()
    }

    pub fn client(&mut self, id: impl Into<ClientId>) -> Option<&mut Client> {
        let id: ClientId = id.into();
        match self.clients.get_mut(&id)? {
            End::Client(client) => Some(client),
            End::Bare(_) => None,
        }
    }

    pub fn bare(&mut self, number: usize) -> Option<&mut Endpoint> {
        match self.clients.get_mut(&ClientId::from(number))? {
            End::Bare(endpoint) => Some(endpoint),
            End::Client(_) => None,
        }
    }

    pub fn joined(&self) -> usize {
        let has = |end: &&End| matches!(end, End::Client(client) if client.status().is_some());
        self.clients.values().filter(has).count()
    }

    pub fn send_up(&mut self, id: impl Into<ClientId>, packet: &[u8]) {
        let (id, now): (ClientId, _) = (id.into(), self.now);
        if let Some(client) = self.client(id) {
            client.handle_inner(now, packet);
            self.turn(id.into());
        }
    }

    pub fn send_down(&mut self, tenant: usize, packet: &[u8]) {
        if let Some(anchor) = &mut self.anchor {
            anchor.handle_tenant_inner(self.now, TenantId(tenant as u16), packet);
            self.turn(NodeId::Anchor);
        }
    }

    pub fn flush(&mut self) {
        let boxes: Vec<ClientId> = self.clients.keys().copied().collect();
        boxes.into_iter().for_each(|id| self.turn(id.into()));
        let others: Vec<NodeId> = self.others().collect();
        others.into_iter().for_each(|node| self.turn(node));
    }

    /// Runs until `end`. Panics if one moment takes thousands of steps.
    pub fn run_until(&mut self, end: Instant) {
        let mut at_one_moment = 0;
        while let Some(next) = self.poll_timeout().filter(|next| *next <= end) {
            at_one_moment = if next > self.now { 0 } else { at_one_moment + 1 };
            assert!(at_one_moment < 100_000, "nothing moves at {}", self.now);
            self.now = self.now.max(next);
            self.step();
        }
        self.now = self.now.max(end);
    }

    pub fn run(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    pub fn poll_arrival(&mut self) -> Option<Arrival> {
        self.arrivals.pop_front()
    }

    pub fn arrivals(&mut self) -> Vec<Arrival> {
        self.arrivals.drain(..).collect()
    }

    pub fn client_events(&self, id: impl Into<ClientId>) -> &[(Instant, ClientEvent)] {
        let id: ClientId = id.into();
        self.client_events.get(&id).map_or(&[], Vec::as_slice)
    }

    pub fn server_events(&self, number: usize) -> &[(Instant, ServerEvent)] {
        self.server_events.get(&number).map_or(&[], Vec::as_slice)
    }

    pub fn anchor_events(&self) -> &[(Instant, AnchorEvent)] {
        &self.anchor_events
    }

    pub fn proxy_of_last(&self) -> usize {
        let at = |event: &AnchorEvent| match event {
            AnchorEvent::Attached { proxy, .. } => proxy.strip_prefix("proxy-")?.parse().ok(),
            _ => None,
        };
        self.anchor_events.iter().rev().find_map(|(_, event)| at(event)).expect("a box attached")
    }

    /// Servers that act, and the anchor.
    fn others(&self) -> impl Iterator<Item = NodeId> + '_ {
        let acting = self.servers.keys().filter(|number| !self.frozen.contains(*number));
        let servers = acting.map(|number| NodeId::Server(*number));
        servers.chain(self.anchor.iter().map(|_| NodeId::Anchor))
    }

    fn timeout_of(&self, node: NodeId) -> Option<Instant> {
        match node {
            NodeId::Client(id) => self.clients.get(&id)?.poll_timeout(),
            NodeId::Server(number) => self.servers.get(&number)?.poll_timeout(),
            NodeId::Anchor => self.anchor.as_ref()?.poll_timeout(),
        }
    }

    fn servers_turn(&self) -> Option<Instant> {
        let due = self.others().filter_map(|node| self.timeout_of(node)).min();
        self.servers_processor.next_turn(due)
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        let boxes = self.clients.values().filter_map(End::poll_timeout).min();
        let boxes = self.boxes_processor.next_turn(boxes);
        [boxes, self.servers_turn(), self.network.poll_timeout()].into_iter().flatten().min()
    }

    fn step(&mut self) {
        let now = self.now;
        while let Some(packet) = self.network.poll(now) {
            match packet.meta(now) {
                Some((NodeId::Client(_), _)) => self.boxes_processor.receive(now, packet),
                Some(_) => self.servers_processor.receive(now, packet),
                None => {}
            }
        }
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if self.boxes_processor.is_free(now) {
            let before = self.network.counts.up;
            let taken = self.boxes_processor.take();
            let due = self.clients.iter().filter(|(_, end)| is_due(end.poll_timeout()));
            let due = due.map(|(id, _)| NodeId::Client(*id)).collect();
            let handled = self.work(taken, due);
            let sent = self.network.counts.up - before;
            self.boxes_processor.work(now, handled + sent as usize);
        }
        if is_due(self.servers_turn()) {
            let before = self.network.counts.down;
            let taken = self.servers_processor.take();
            let due = self.others().filter(|node| is_due(self.timeout_of(*node))).collect();
            let handled = self.work(taken, due);
            let sent = self.network.counts.down - before;
            self.servers_processor.work(now, handled + sent as usize);
        }
    }

    /// Hands packets over, and turns their nodes and `touched`; returns the number of packets.
    fn work(
        &mut self,
        packets: Vec<(Instant, network::Packet)>,
        mut touched: BTreeSet<NodeId>,
    ) -> usize {
        let handled = packets.len();
        for (at, packet) in packets {
            let Some((node, meta)) = packet.meta(at) else { continue };
            touched.extend(self.hand_over(node, &meta, &packet.data).map(|()| node));
        }
        touched.into_iter().for_each(|node| self.turn(node));
        handled
    }

    fn hand_over(&mut self, node: NodeId, meta: &RecvMeta, data: &[u8]) -> Option<()> {
        let now = self.now;
        match node {
            NodeId::Client(id) => match self.clients.get_mut(&id)? {
                End::Client(client) => client.handle_packet(now, meta, data),
                End::Bare(endpoint) => {
                    let local = Local::Uplink(meta.socket);
                    let RecvMeta { remote, ecn, received, .. } = *meta;
                    let source = Source { remote, local, ecn, received };
                    let _ = endpoint.handle_packet(now, source, BytesMut::from(data));
                }
            },
            NodeId::Server(number) if self.frozen.contains(&number) => return None,
            NodeId::Server(number) => self.servers.get_mut(&number)?.handle_packet(now, meta, data),
            NodeId::Anchor => self.anchor.as_mut()?.handle_packet(now, meta, data),
        }
        Some(())
    }

    fn turn(&mut self, node: NodeId) {
        let (now, tenants) = (self.now, self.config.tenants);
        let tenant = match node {
            NodeId::Client(id) => id.number % tenants,
            NodeId::Server(_) | NodeId::Anchor => 0,
        };
        let arrivals = &mut self.arrivals;
        let mut io = NodeIo { now, node, tenant, network: &mut self.network, arrivals };
        match node {
            NodeId::Client(id) => match self.clients.get_mut(&id) {
                Some(End::Client(client)) => {
                    turn(client.as_mut(), &mut io);
                    let events = std::iter::from_fn(|| client.poll_event());
                    let known = self.client_events.entry(id).or_default();
                    known.extend(events.map(|event| (now, event)));
                }
                Some(End::Bare(endpoint)) => {
                    let _ = endpoint.handle_timeout(now);
                    while let Some(packets) = endpoint.poll_transmit() {
                        io.transmit(&packets);
                    }
                }
                None => {}
            },
            NodeId::Server(number) => {
                let Some(server) = self.servers.get_mut(&number) else { return };
                turn(server, &mut io);
                let events = std::iter::from_fn(|| server.poll_event());
                let known = self.server_events.entry(number).or_default();
                known.extend(events.map(|event| (now, event)));
            }
            NodeId::Anchor => {
                let Some(anchor) = &mut self.anchor else { return };
                turn(anchor, &mut io);
                for tenant in 0..tenants {
                    io.tenant = tenant;
                    let id = TenantId(tenant as u16);
                    io.deliver(&mut std::iter::from_fn(|| anchor.poll_tenant_inner(id)));
                }
                let events = std::iter::from_fn(|| anchor.poll_event());
                self.anchor_events.extend(events.map(|event| (now, event)));
            }
        }
    }
}

impl End {
    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Client(client) => client.poll_timeout(),
            Self::Bare(endpoint) => endpoint.poll_timeout(),
        }
    }
}

struct NodeIo<'a> {
    now: Instant,
    node: NodeId,
    tenant: usize,
    network: &'a mut Network,
    arrivals: &'a mut VecDeque<Arrival>,
}

impl Io for NodeIo<'_> {
    fn now(&self) -> Instant {
        self.now
    }

    fn deliver(&mut self, packets: &mut dyn Iterator<Item = Bytes>) {
        let (at, node, tenant) = (self.now, self.node, self.tenant);
        self.arrivals.extend(packets.map(|packet| Arrival { at, node, tenant, packet }));
    }

    fn transmit(&mut self, packets: &Outbox) {
        for (route, packet) in packets.packets() {
            self.network.push(self.now, self.node, &route, packet);
        }
    }
}
