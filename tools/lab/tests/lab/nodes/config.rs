//! Configuration and identities of nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use roadweave_emulate::DuplexLink;
use roadweave_identity::{Identity, PublicKey};
use roadweave_proto::{Instant, Rate, UplinkId};
use roadweave_quic::{Epoch, TransportConfig};
use roadweave_tunnel::{
    Anchor, AnchorConfig, AnchorTenant, Candidate, Client, ClientConfig, LaneConfig, MEMORY_MAX,
    Peer, PeerTable, ProxyConfig, ProxyTenant, Server, ServerConfig, StreamsConfig,
};

use super::network::{anchor_address, server_address};
use super::{ANY, ClientId, NodeId};

#[derive(Clone, Debug)]
pub struct Config {
    pub boxes: usize,
    /// Boxes belong to tenants in turn; boxes of different tenants share inner addresses.
    pub tenants: usize,
    pub sites: Vec<String>,
    /// By server: the round trip to the anchor that clients are given.
    pub to_anchor: Vec<Duration>,
    pub has_anchor: bool,
    pub uplinks: u32,
    /// One-way delay of the first uplink; each further uplink has 10 ms more.
    pub delay: Duration,
    /// Share of packets lost on uplinks.
    pub loss: f64,
    /// The uplinks of the only box, instead of those above.
    pub links: Vec<DuplexLink>,
    /// Share of packets lost on legs, which take [`LEG_DELAY`].
    pub leg_loss: f64,
    /// Largest UDP payload on legs, bytes.
    pub leg_mtu: usize,
    pub leg_rate: Option<Rate>,
    pub tenant_rates: BTreeMap<usize, Rate>,
    pub rate_limits: BTreeMap<usize, Rate>,
    pub lanes: Vec<LaneConfig>,
    pub streams: StreamsAt,
    /// Memory limits of a server and of one of its sessions, bytes.
    pub memory_max: usize,
    pub client_memory_max: usize,
    /// CPU time for each packet, at the servers and on the CPU that all boxes share.
    pub packet_time: Duration,
    pub seed: u64,
}

impl Config {
    /// Boxes with two uplinks of 20 ms, and one server.
    pub fn direct(boxes: usize, strategy: &str) -> Self {
        Self {
            boxes,
            tenants: 1,
            sites: vec!["site".to_owned()],
            to_anchor: Vec::new(),
            has_anchor: false,
            uplinks: 2,
            delay: Duration::from_millis(20),
            loss: 0.0,
            links: Vec::new(),
            leg_loss: 0.0,
            leg_mtu: 1_472,
            leg_rate: None,
            tenant_rates: BTreeMap::new(),
            rate_limits: BTreeMap::new(),
            lanes: vec![LaneConfig::new("default", strategy.parse().expect("a known strategy"))],
            streams: StreamsAt::default(),
            memory_max: 16 * MEMORY_MAX,
            client_memory_max: MEMORY_MAX,
            packet_time: Duration::ZERO,
            seed: 1,
        }
    }

    /// Boxes of one tenant with one uplink each, and two proxies of an anchor.
    pub fn proxied(boxes: usize) -> Self {
        let sites = vec!["site-0".to_owned(), "site-1".to_owned()];
        Self { sites, has_anchor: true, uplinks: 1, ..Self::direct(boxes, "xnc") }
    }

    pub fn proxy_tenants(&self) -> Vec<ProxyTenant> {
        let tenant = |tenant| ProxyTenant {
            name: tenant_name(tenant),
            anchor: key(NodeId::Anchor),
            addresses: vec![anchor_address()],
            gateways: vec![IpAddr::from(GATEWAY).into()],
            rate_limit: None,
        };
        (0..self.tenants).map(tenant).collect()
    }

    pub fn inner_address(&self, number: usize) -> Ipv4Addr {
        inner_address(number / self.tenants)
    }

    pub fn peer(&self, number: usize) -> (PublicKey, Peer) {
        let addresses = vec![IpAddr::from(self.inner_address(number)).into()];
        let tenant =
            if self.has_anchor { tenant_name(number % self.tenants) } else { String::new() };
        let rate_limit = self.rate_limits.get(&number).copied();
        let peer = Peer { tenant, rate_limit, ..Peer::new(format!("box-{number}"), addresses) };
        (key(ClientId::from(number).into()), peer)
    }

    pub fn peers(&self) -> impl Iterator<Item = (PublicKey, Peer)> + '_ {
        (0..self.boxes).map(|number| self.peer(number))
    }

    pub(super) fn devices(&self) -> Vec<Arc<PeerTable>> {
        let of = |tenant| {
            let numbers = (0..self.boxes).filter(move |number| number % self.tenants == tenant);
            Arc::new(PeerTable::new(numbers.map(|number| self.peer(number))))
        };
        (0..self.tenants).map(of).collect()
    }

    pub(super) fn anchor(
        &self,
        epoch: Epoch,
        devices: &[Arc<PeerTable>],
        generation: u8,
    ) -> Anchor {
        let tenant = |(tenant, devices): (usize, &Arc<PeerTable>)| AnchorTenant {
            name: tenant_name(tenant),
            devices: devices.clone(),
            clients_reach_clients: false,
            rate_limit: self.tenant_rates.get(&tenant).copied(),
        };
        let anchor = AnchorConfig {
            transport: self.transport(NodeId::Anchor, generation),
            tenants: devices.iter().enumerate().map(tenant).collect(),
            leg_rate: self.leg_rate,
            streams: self.streams.anchor.map(|_| StreamsConfig::default()),
            memory_max: self.streams.anchor.unwrap_or_default(),
        };
        let proxies = (0..self.sites.len()).map(|proxy| {
            let peer = Peer::new(format!("proxy-{proxy}"), Vec::new());
            (key(NodeId::Server(proxy)), peer)
        });
        let proxies = Arc::new(PeerTable::new(proxies));
        let own = Arc::new(identity(NodeId::Anchor));
        Anchor::new(epoch, anchor, own, proxies).expect("usable settings")
    }

    pub(super) fn server(
        &self,
        epoch: Epoch,
        number: usize,
        generation: u8,
    ) -> (Server, Arc<PeerTable>) {
        let node = NodeId::Server(number);
        let gateways =
            if self.has_anchor { Vec::new() } else { vec![IpAddr::from(GATEWAY).into()] };
        let server = ServerConfig {
            lanes: self.lanes.clone(),
            streams: self.streams.proxies.contains(&number).then(StreamsConfig::default),
            memory_max: self.memory_max,
            client_memory_max: self.client_memory_max,
            ..ServerConfig::new(self.transport(node, generation), gateways)
        };
        let peers = Arc::new(PeerTable::new(self.peers()));
        let (own, known) = (Arc::new(identity(node)), peers.clone());
        let server = if self.has_anchor {
            let proxied = ProxyConfig { tenants: self.proxy_tenants(), leg_rate: self.leg_rate };
            Server::proxy(epoch, server, proxied, own, known)
        } else {
            Server::new(epoch, server, own, known)
        };
        (server.expect("usable settings"), peers)
    }

    pub(super) fn client(
        &self,
        (epoch, now): (Epoch, Instant),
        id: ClientId,
        generation: u8,
    ) -> Client {
        let config = ClientConfig {
            name: format!("box-{}", id.number),
            candidates: match id.server {
                ANY => (0..self.sites.len()).map(|server| self.candidate(server)).collect(),
                server => vec![self.candidate(server)],
            },
            transport: self.transport(id.into(), generation),
            lanes: self.lanes.clone(),
            streams: self.streams.boxes.then(StreamsConfig::default),
            memory_max: MEMORY_MAX,
        };
        let own = Arc::new(identity(id.into()));
        let mut client = Client::new(epoch, config, own).expect("usable settings");
        let uplinks = if self.links.is_empty() { self.uplinks } else { self.links.len() as u32 };
        for uplink in 0..uplinks {
            client.add_uplink(now, UplinkId(uplink), &format!("wwan{uplink}"));
        }
        client
    }

    pub fn candidate(&self, server: usize) -> Candidate {
        Candidate {
            name: format!("proxy-{server}"),
            site: self.sites[server].clone(),
            to_anchor: self.to_anchor.get(server).copied().unwrap_or_default(),
            ..Candidate::only(key(NodeId::Server(server)), vec![server_address(server)])
        }
    }

    pub(super) fn transport(&self, node: NodeId, generation: u8) -> TransportConfig {
        let mut bytes = [generation; 32];
        // The first eight bytes seed the tunnel's randomness.
        let end = match node {
            NodeId::Server(number) => (number as u64) << 48,
            NodeId::Client(ClientId { number, server: ANY }) => number as u64 + 1,
            NodeId::Client(id) => ((id.server as u64 + 1) << 32) + id.number as u64,
            NodeId::Anchor => u64::MAX,
        };
        let own = self.seed.wrapping_add(end.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        bytes[..8].copy_from_slice(&own.to_le_bytes());
        bytes[8..16].copy_from_slice(&end.to_le_bytes());
        TransportConfig::new(bytes)
    }
}

/// Which nodes support streams; none by default.
#[derive(Clone, Debug, Default)]
pub struct StreamsAt {
    pub boxes: bool,
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

/// The inner address of a box, where there is one tenant.
pub fn inner_address(number: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a4d_0002 + number as u32)
}

/// All clients of a box have the same.
pub(super) fn identity(node: NodeId) -> Identity {
    let (kind, number) = match node {
        NodeId::Client(id) => (0, id.number),
        NodeId::Server(number) => (1, number),
        NodeId::Anchor => (2, 0),
    };
    let mut seed = [7; 32];
    seed[0] = kind;
    seed[8..16].copy_from_slice(&(number as u64).to_be_bytes());
    Identity::from_seed(seed)
}

pub fn key(node: NodeId) -> PublicKey {
    identity(node).public_key()
}

fn tenant_name(tenant: usize) -> String {
    format!("tenant-{tenant}")
}

pub const LEG_DELAY: Duration = Duration::from_millis(5);
const GATEWAY: [u8; 4] = [10, 77, 0, 1];
