//! Configuration and identities of the nodes of a chain.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use roadweave_identity::{Identity, PublicKey};
use roadweave_proto::{Instant, UplinkId};
use roadweave_quic::{Epoch, TransportConfig};
use roadweave_tunnel::{
    Anchor, AnchorConfig, AnchorTenant, Candidate, Client, ClientConfig, LaneConfig, MEMORY_MAX,
    Peer, PeerTable, ProxyConfig, ProxyTenant, Server, ServerConfig, StreamsConfig,
};

use super::network::anchor_address;
use super::{ANY_PROXY, ChainConfig, proxy_address};
use crate::world::server_config;

/// The inner address of a box; boxes of different tenants share addresses.
pub fn inner_address(config: &ChainConfig, number: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a4d_0100 + (number / config.tenants) as u32)
}

/// The identity of a box.
pub fn box_identity(number: usize) -> Identity {
    identity(0, number)
}

/// The key of a proxy.
pub fn proxy_key(proxy: usize) -> PublicKey {
    identity(1, proxy).public_key()
}

/// The key of the anchor.
pub fn anchor_key() -> PublicKey {
    identity(2, 0).public_key()
}

fn identity(kind: u8, number: usize) -> Identity {
    let mut seed = [7; 32];
    seed[0] = kind;
    seed[8..16].copy_from_slice(&(number as u64).to_be_bytes());
    Identity::from_seed(seed)
}

fn tenant_name(tenant: usize) -> String {
    format!("tenant-{tenant}")
}

fn transport(config: &ChainConfig, life: u8) -> TransportConfig {
    let mut seed = [life; 32];
    seed[..8].copy_from_slice(&config.seed.to_be_bytes());
    TransportConfig::new(seed)
}

fn lanes(config: &ChainConfig) -> Vec<LaneConfig> {
    vec![LaneConfig::new("default", config.strategy.parse().expect("a known strategy"))]
}

fn device(config: &ChainConfig, number: usize) -> (PublicKey, Peer) {
    let tenant = tenant_name(number % config.tenants);
    let addresses = vec![IpAddr::from(inner_address(config, number)).into()];
    let peer = Peer { tenant, ..Peer::new(format!("box-{number}"), addresses) };
    (box_identity(number).public_key(), peer)
}

pub(super) fn devices(config: &ChainConfig) -> Vec<Arc<PeerTable>> {
    let of = |tenant| {
        let numbers = (0..config.boxes).filter(move |number| number % config.tenants == tenant);
        Arc::new(PeerTable::new(numbers.map(|number| device(config, number))))
    };
    (0..config.tenants).map(of).collect()
}

pub(super) fn anchor(
    epoch: Epoch,
    config: &ChainConfig,
    devices: &[Arc<PeerTable>],
    life: u8,
) -> Anchor {
    let tenant = |(tenant, devices): (usize, &Arc<PeerTable>)| AnchorTenant {
        name: tenant_name(tenant),
        devices: devices.clone(),
        clients_reach_clients: false,
        rate_limit: config.tenant_rates.get(&tenant).copied(),
    };
    let anchor = AnchorConfig {
        transport: transport(config, life),
        tenants: devices.iter().enumerate().map(tenant).collect(),
        leg_rate: config.leg_rate,
        streams: config.streams.anchor.map(|_| StreamsConfig::default()),
        memory_max: config.streams.anchor.unwrap_or_default(),
    };
    let proxies = (0..config.proxies).map(|proxy| {
        let peer = Peer::new(format!("proxy-{proxy}"), Vec::new());
        (proxy_key(proxy), peer)
    });
    let proxies = Arc::new(PeerTable::new(proxies));
    Anchor::new(epoch, anchor, Arc::new(identity(2, 0)), proxies).expect("usable settings")
}

pub(super) fn tenants(config: &ChainConfig) -> Vec<ProxyTenant> {
    let tenant = |tenant| ProxyTenant {
        name: tenant_name(tenant),
        anchor: anchor_key(),
        addresses: vec![anchor_address()],
        gateways: vec![IpAddr::from([10, 77, 0, 1])],
        rate_limit: None,
    };
    (0..config.tenants).map(tenant).collect()
}

pub(super) fn proxy(epoch: Epoch, config: &ChainConfig, proxy: usize, life: u8) -> Server {
    let server = ServerConfig {
        gateways: Vec::new(),
        streams: config.streams.proxies.contains(&proxy).then(StreamsConfig::default),
        memory_max: 16 * MEMORY_MAX,
        ..server_config(transport(config, life), &lanes(config))
    };
    let proxied = ProxyConfig { tenants: tenants(config), leg_rate: config.leg_rate };
    let peers = (0..config.boxes).map(|number| device(config, number));
    let peers = Arc::new(PeerTable::new(peers));
    let key = Arc::new(identity(1, proxy));
    Server::proxy(epoch, server, proxied, key, peers).expect("usable settings")
}

pub(super) fn client(
    epoch: Epoch,
    now: Instant,
    config: &ChainConfig,
    (number, proxy): (usize, usize),
    life: u8,
) -> Client {
    let candidate = |proxy| Candidate {
        name: format!("proxy-{proxy}"),
        site: format!("site-{proxy}"),
        ..Candidate::only(proxy_key(proxy), vec![proxy_address(proxy)])
    };
    let client = ClientConfig {
        name: format!("box-{number}"),
        candidates: match proxy {
            ANY_PROXY => (0..config.proxies).map(candidate).collect(),
            proxy => vec![candidate(proxy)],
        },
        transport: transport(config, life),
        lanes: lanes(config),
        streams: config.streams.boxes.then(StreamsConfig::default),
        memory_max: MEMORY_MAX,
    };
    let mut client =
        Client::new(epoch, client, Arc::new(box_identity(number))).expect("usable settings");
    client.add_uplink(now, UplinkId(0), "wwan0");
    client
}
