//! Boxes, proxies and an anchor, on one virtual clock and with real TLS.
//!
//! ```text
//! box 0 ─┐                      ┌─► proxy 0 ─┐
//! box 1 ─┼── access: delay,     │            ├── backhauls: delay, loss, cut ──► anchor ─► tenants
//! box 2 ─┘   loss               └─► proxy 1 ─┘
//! ```
//!
//! A box may have a client at each proxy at the same time, with the same key, as during a move, or
//! one client that chooses among all proxies. Boxes belong to tenants in turn; boxes of different
//! tenants share inner addresses. Equal configurations and calls give equal chains.

mod network;
mod nodes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use roadweave_identity::PublicKey;
use roadweave_proto::{Instant, Rate};
use roadweave_quic::{Epoch, Outbox};
use roadweave_tunnel::{
    Anchor, AnchorEvent, Client, ClientEvent, Io, Node, Peer, PeerTable, Peers, ProxyTenant,
    Server, ServerEvent, TenantId, turn,
};

use self::network::{Network, Packet};
pub use self::nodes::{anchor_key, box_identity, inner_address, proxy_key};

/// The configuration of a chain.
#[derive(Clone, Debug)]
pub struct ChainConfig {
    /// Number of boxes.
    pub boxes: usize,
    /// Number of tenants. Boxes belong to them in turn.
    pub tenants: usize,
    /// Number of proxies.
    pub proxies: usize,
    /// One-way delay between boxes and proxies.
    pub access_delay: Duration,
    /// Share of packets lost between boxes and proxies.
    pub access_loss: f64,
    /// One-way delay of the backhauls.
    pub leg_delay: Duration,
    /// Share of packets lost on the backhauls.
    pub leg_loss: f64,
    /// Largest UDP payload on the backhauls, bytes.
    pub leg_mtu: usize,
    /// Configured rate of the backhauls.
    pub leg_rate: Option<Rate>,
    /// Rate limits of tenants, by number.
    pub tenant_rates: BTreeMap<usize, Rate>,
    /// The strategy of all lanes.
    pub strategy: &'static str,
    /// Which nodes support streams.
    pub streams: StreamsAt,
    /// Seed of all randomness.
    pub seed: u64,
}

impl ChainConfig {
    /// Boxes of one tenant and two proxies, 20 ms away; backhauls take 5 ms.
    pub fn new(boxes: usize) -> Self {
        Self {
            boxes,
            tenants: 1,
            proxies: 2,
            access_delay: Duration::from_millis(20),
            access_loss: 0.0,
            leg_delay: Duration::from_millis(5),
            leg_loss: 0.0,
            leg_mtu: 1_472,
            leg_rate: None,
            tenant_rates: BTreeMap::new(),
            strategy: "xnc",
            streams: StreamsAt::default(),
            seed: 1,
        }
    }
}

/// Which nodes of a chain support streams; none by default.
#[derive(Clone, Debug, Default)]
pub struct StreamsAt {
    /// Boxes may open streams.
    pub boxes: bool,
    /// Proxies that relay streams.
    pub proxies: BTreeSet<usize>,
    /// Memory for the streams of all clients at the anchor, bytes; `None` without streams.
    pub anchor: Option<usize>,
}

impl StreamsAt {
    /// All boxes, the first 8 proxies and the anchor.
    pub fn all() -> Self {
        Self { boxes: true, proxies: (0..8).collect(), anchor: Some(1 << 30) }
    }
}

/// A node of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeId {
    /// A box, by the proxy of its client.
    Box {
        /// The box.
        number: usize,
        /// The proxy.
        proxy: usize,
    },
    /// A proxy.
    Proxy(usize),
    /// The anchor.
    Anchor,
}

/// An inner packet that left the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainArrival {
    /// When the packet left the tunnel.
    pub at: Instant,
    /// Where it left: a box or the anchor.
    pub node: NodeId,
    /// The tenant whose device received it.
    pub tenant: usize,
    /// The inner packet.
    pub packet: Bytes,
}

/// Boxes, proxies and an anchor.
#[derive(Debug)]
pub struct Chain {
    now: Instant,
    epoch: Epoch,
    config: ChainConfig,
    clients: BTreeMap<(usize, usize), Client>,
    proxies: BTreeMap<usize, Server>,
    anchor: Option<Anchor>,
    devices: Vec<Arc<PeerTable>>,
    lives: u8,
    network: Network,
    arrivals: VecDeque<ChainArrival>,
    anchor_events: Vec<(Instant, AnchorEvent)>,
    proxy_events: Vec<(Instant, usize, ServerEvent)>,
    client_events: Vec<(Instant, usize, usize, ClientEvent)>,
}

impl Chain {
    /// A chain at [`Instant::ZERO`] with running proxies and anchor, and no box started. Panics if
    /// the configuration is unusable.
    #[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
    pub fn new(config: ChainConfig) -> Self {
        let mut chain = Self {
            now: Instant::ZERO,
            epoch: Epoch::new(std::time::Instant::now()),
            clients: BTreeMap::new(),
            proxies: BTreeMap::new(),
            anchor: None,
            devices: nodes::devices(&config),
            lives: 0,
            network: Network::new(&config),
            arrivals: VecDeque::new(),
            anchor_events: Vec::new(),
            proxy_events: Vec::new(),
            client_events: Vec::new(),
            config,
        };
        chain.start_anchor();
        (0..chain.config.proxies).for_each(|proxy| chain.start_proxy(proxy));
        chain
    }

    /// The tenants that proxies start with.
    pub fn tenants(&self) -> Vec<ProxyTenant> {
        nodes::tenants(&self.config)
    }

    /// The current time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Starts the anchor without state. Panics as [`Chain::new`].
    pub fn start_anchor(&mut self) {
        self.lives += 1;
        let anchor = nodes::anchor(self.epoch, &self.config, &self.devices, self.lives);
        self.anchor = Some(anchor);
    }

    /// Kills the anchor.
    pub fn kill_anchor(&mut self) {
        self.anchor = None;
    }

    /// Starts a proxy without state. Panics as [`Chain::new`].
    pub fn start_proxy(&mut self, proxy: usize) {
        self.lives += 1;
        let server = nodes::proxy(self.epoch, &self.config, proxy, self.lives);
        self.proxies.insert(proxy, server);
    }

    /// Kills a proxy.
    pub fn kill_proxy(&mut self, proxy: usize) {
        self.proxies.remove(&proxy);
    }

    /// Starts the client of a box for a proxy, without state. Panics as [`Chain::new`].
    pub fn start(&mut self, number: usize, proxy: usize) {
        self.lives += 1;
        let client = nodes::client(self.epoch, self.now, &self.config, (number, proxy), self.lives);
        self.clients.insert((number, proxy), client);
        self.turn(NodeId::Box { number, proxy });
    }

    /// Starts a client of a box that chooses among all proxies, without state. Its proxy is
    /// [`ANY_PROXY`]. Panics as [`Chain::new`].
    pub fn start_roaming(&mut self, number: usize) {
        self.start(number, ANY_PROXY);
    }

    /// Kills the client of a box for a proxy.
    pub fn kill(&mut self, number: usize, proxy: usize) {
        self.clients.remove(&(number, proxy));
    }

    /// Cuts or restores the backhaul of a proxy.
    pub fn cut_leg(&mut self, proxy: usize, is_cut: bool) {
        self.network.cut_leg(proxy, is_cut);
    }

    /// Closes all backhauls at the anchor. Panics if the anchor does not run.
    pub fn close_legs(&mut self) {
        let anchor = self.anchor.as_mut().expect("it runs");
        let none = Peers::default();
        let all = anchor.replace_proxies(self.now, Peers::after(&none, []));
        let all = all.iter().map(|(key, peer)| (*key, Peer::clone(peer)));
        anchor.replace_proxies(self.now, Peers::after(&none, all));
        self.turn(NodeId::Anchor);
    }

    /// A proxy, if it runs; follow it with [`Chain::flush`].
    pub fn proxy(&mut self, proxy: usize) -> Option<&mut Server> {
        self.proxies.get_mut(&proxy)
    }

    /// The anchor, if it runs; follow it with [`Chain::flush`].
    pub fn anchor(&mut self) -> Option<&mut Anchor> {
        self.anchor.as_mut()
    }

    /// The client of a box for a proxy, if it runs; follow it with [`Chain::flush`].
    pub fn client(&mut self, number: usize, proxy: usize) -> Option<&mut Client> {
        self.clients.get_mut(&(number, proxy))
    }

    /// Sends an inner packet from the device of a box.
    pub fn send_up(&mut self, number: usize, proxy: usize, packet: &[u8]) {
        if let Some(client) = self.clients.get_mut(&(number, proxy)) {
            client.handle_inner(self.now, packet);
            self.turn(NodeId::Box { number, proxy });
        }
    }

    /// Sends an inner packet from the device of a tenant.
    pub fn send_down(&mut self, tenant: usize, packet: &[u8]) {
        if let Some(anchor) = &mut self.anchor {
            anchor.handle_tenant_inner(self.now, TenantId(tenant as u16), packet);
            self.turn(NodeId::Anchor);
        }
    }

    /// Sends all packets that may leave now.
    pub fn flush(&mut self) {
        let nodes: Vec<NodeId> = self.nodes().collect();
        nodes.into_iter().for_each(|node| self.turn(node));
    }

    /// Runs until `end`. Panics if one moment takes thousands of steps.
    pub fn run_until(&mut self, end: Instant) {
        let mut at_one_moment = 0;
        loop {
            let timeouts = self.nodes().filter_map(|node| self.timeout_of(node));
            let next = timeouts.chain(self.network.poll_timeout()).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            at_one_moment = if next > self.now { 0 } else { at_one_moment + 1 };
            assert!(at_one_moment < 100_000, "nothing moves at {}", self.now);
            self.now = self.now.max(next);
            self.step();
        }
        self.now = end;
    }

    /// The next inner packet that left the tunnel.
    pub fn poll_arrival(&mut self) -> Option<ChainArrival> {
        self.arrivals.pop_front()
    }

    /// Events of the anchor with their times.
    pub fn anchor_events(&self) -> &[(Instant, AnchorEvent)] {
        &self.anchor_events
    }

    /// Events of proxies: time, proxy, event.
    pub fn proxy_events(&self) -> &[(Instant, usize, ServerEvent)] {
        &self.proxy_events
    }

    /// Events of clients: time, box, proxy, event.
    pub fn client_events(&self) -> &[(Instant, usize, usize, ClientEvent)] {
        &self.client_events
    }

    /// The key of a box.
    pub fn key(number: usize) -> PublicKey {
        box_identity(number).public_key()
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> + use<'_> {
        let boxes = self.clients.keys().map(|(number, proxy)| (*number, *proxy));
        let boxes = boxes.map(|(number, proxy)| NodeId::Box { number, proxy });
        let proxies = self.proxies.keys().map(|proxy| NodeId::Proxy(*proxy));
        boxes.chain(proxies).chain(self.anchor.as_ref().map(|_| NodeId::Anchor))
    }

    fn timeout_of(&self, node: NodeId) -> Option<Instant> {
        match node {
            NodeId::Box { number, proxy } => self.clients.get(&(number, proxy))?.poll_timeout(),
            NodeId::Proxy(proxy) => self.proxies.get(&proxy)?.poll_timeout(),
            NodeId::Anchor => self.anchor.as_ref()?.poll_timeout(),
        }
    }

    fn step(&mut self) {
        let now = self.now;
        let due = |node: &NodeId| self.timeout_of(*node).is_some_and(|at| at <= now);
        let mut touched: BTreeSet<NodeId> = self.nodes().filter(due).collect();
        while let Some(packet) = self.network.poll(now) {
            touched.extend(self.hand_over(&packet));
        }
        touched.into_iter().for_each(|node| self.turn(node));
    }

    fn hand_over(&mut self, packet: &Packet) -> Option<NodeId> {
        let (node, meta) = packet.meta()?;
        match node {
            NodeId::Box { number, proxy } => {
                self.clients.get_mut(&(number, proxy))?.handle_packet(
                    self.now,
                    &meta,
                    &packet.data,
                );
            }
            NodeId::Proxy(proxy) => {
                self.proxies.get_mut(&proxy)?.handle_packet(self.now, &meta, &packet.data);
            }
            NodeId::Anchor => self.anchor.as_mut()?.handle_packet(self.now, &meta, &packet.data),
        }
        Some(node)
    }

    fn turn(&mut self, node: NodeId) {
        let (now, tenants) = (self.now, self.config.tenants);
        let mut io =
            NodeIo { now, node, tenants, network: &mut self.network, arrivals: &mut self.arrivals };
        match node {
            NodeId::Box { number, proxy } => {
                let Some(client) = self.clients.get_mut(&(number, proxy)) else { return };
                turn(client, &mut io);
                while let Some(event) = client.poll_event() {
                    self.client_events.push((now, number, proxy, event));
                }
            }
            NodeId::Proxy(proxy) => {
                let Some(server) = self.proxies.get_mut(&proxy) else { return };
                turn(server, &mut io);
                while let Some(event) = server.poll_event() {
                    self.proxy_events.push((now, proxy, event));
                }
            }
            NodeId::Anchor => {
                let Some(anchor) = &mut self.anchor else { return };
                turn(anchor, &mut io);
                for tenant in 0..tenants {
                    while let Some(packet) = anchor.poll_tenant_inner(TenantId(tenant as u16)) {
                        self.arrivals.push_back(ChainArrival { at: now, node, tenant, packet });
                    }
                }
                while let Some(event) = anchor.poll_event() {
                    self.anchor_events.push((now, event));
                }
            }
        }
    }
}

struct NodeIo<'a> {
    now: Instant,
    node: NodeId,
    tenants: usize,
    network: &'a mut Network,
    arrivals: &'a mut VecDeque<ChainArrival>,
}

impl Io for NodeIo<'_> {
    fn now(&self) -> Instant {
        self.now
    }

    fn deliver(&mut self, packets: &mut dyn Iterator<Item = Bytes>) {
        let (at, node) = (self.now, self.node);
        let tenant = match node {
            NodeId::Box { number, .. } => number % self.tenants,
            // A proxy has no device; a packet for one would be noticed by this number.
            NodeId::Proxy(_) => usize::MAX,
            // To the device of its first tenant.
            NodeId::Anchor => 0,
        };
        self.arrivals.extend(packets.map(|packet| ChainArrival { at, node, tenant, packet }));
    }

    fn transmit(&mut self, packets: &Outbox) {
        for (route, packet) in packets.packets() {
            self.network.push(self.now, self.node, &route, packet);
        }
    }
}

/// Number of the proxy of a client that chooses among all.
pub const ANY_PROXY: usize = 1_000;

/// The address of a proxy.
pub fn proxy_address(proxy: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(0xc000_0200 + proxy as u32), 4_433))
}
