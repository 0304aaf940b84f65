//! What a packet costs on its way through a client and a server, with TLS, in virtual time.
//!
//! Four packets leave each millisecond over two paths of 10 ms. Both ends, ACKs and timers count.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ipnet::IpNet;
use roadweave_identity::Identity;
use roadweave_proto::{Instant, UplinkId};
use roadweave_quic::{Epoch, Route, TransportConfig};
use roadweave_tunnel::{
    Candidate, Client, ClientConfig, LaneConfig, MEMORY_MAX, MemoryIo, Node, Peer, PeerTable,
    RecvMeta, Server, ServerConfig, turn,
};

const DELAY: Duration = Duration::from_millis(10);
const STEP: Duration = Duration::from_millis(1);
const BATCH: u64 = 4;
const INNER: [u8; 4] = [10, 0, 0, 2];
const FIRST_PORT: u16 = 10_000;

fn server_address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 4433))
}

fn uplink_address(uplink: UplinkId) -> SocketAddr {
    SocketAddr::from(([100, 64, 0, 1], FIRST_PORT + uplink.0 as u16))
}

struct Surroundings {
    io: MemoryIo,
    is_client: bool,
    sent: VecDeque<(Instant, RecvMeta, Bytes)>,
    delivered: u64,
}

impl Surroundings {
    fn new(is_client: bool) -> Self {
        Self { io: MemoryIo::default(), is_client, sent: VecDeque::new(), delivered: 0 }
    }

    fn arrive(&mut self, now: Instant, node: &mut impl Node) {
        while let Some((at, ..)) = self.sent.front()
            && *at <= now
            && let Some((_, meta, packet)) = self.sent.pop_front()
        {
            node.handle_packet(now, &meta, &packet);
        }
    }

    fn turn(&mut self, node: &mut impl Node) {
        turn(node, &mut self.io);
        self.delivered += self.io.delivered.drain(..).len() as u64;
        let at = self.io.now + DELAY;
        for (route, packet) in self.io.transmitted.drain(..) {
            self.sent.push_back((at, arrival(&route, self.is_client), packet));
        }
    }
}

fn arrival(route: &Route, from_client: bool) -> RecvMeta {
    let (socket, remote) = match route.uplink.filter(|_| from_client) {
        Some(uplink) => (uplink, uplink_address(uplink)),
        None => {
            let uplink = UplinkId((route.destination.port() - FIRST_PORT).into());
            (uplink, server_address())
        }
    };
    RecvMeta { socket, remote, local: None, ecn: route.ecn, received: None }
}

struct Tunnel {
    client: Client,
    server: Server,
    near: Surroundings,
    far: Surroundings,
    packet: Vec<u8>,
}

impl Tunnel {
    #[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
    fn new(strategy: &str) -> Self {
        let epoch = Epoch::new(std::time::Instant::now());
        let [client_key, server_key] = [[1; 32], [2; 32]].map(Identity::from_seed);
        let lanes = vec![LaneConfig::new("default", strategy.parse().expect("it is known"))];
        let peer = Peer::new("bench", vec![IpNet::from(IpAddr::from(INNER))]);
        let peers = PeerTable::new([(client_key.public_key(), peer)]);
        let config = ClientConfig {
            name: "bench".into(),
            candidates: vec![Candidate::only(server_key.public_key(), vec![server_address()])],
            transport: TransportConfig::new([3; 32]),
            lanes: lanes.clone(),
            streams: None,
            memory_max: MEMORY_MAX,
        };
        let client = Client::new(epoch, config, Arc::new(client_key)).expect("usable lanes");
        let config = ServerConfig {
            transport: TransportConfig::new([4; 32]),
            lanes,
            gateways: vec![IpNet::from(IpAddr::from([10, 0, 0, 1]))],
            mtu: 1400,
            streams: None,
            speedtest: None,
            clients_reach_clients: false,
            memory_max: 8 * MEMORY_MAX,
            client_memory_max: MEMORY_MAX,
        };
        let server =
            Server::new(epoch, config, Arc::new(server_key), Arc::new(peers)).expect("usable");
        let (near, far) = (Surroundings::new(true), Surroundings::new(false));
        let mut tunnel = Self { client, server, near, far, packet: inner_packet() };
        for uplink in (0..2).map(UplinkId) {
            tunnel.client.add_uplink(Instant::ZERO, uplink, &format!("wwan{}", uplink.0));
        }
        (0..2_000).for_each(|_| tunnel.step(0));
        (0..500).for_each(|_| tunnel.step(BATCH));
        assert!(tunnel.far.delivered >= 480 * BATCH, "{} arrived", tunnel.far.delivered);
        tunnel
    }

    fn step(&mut self, packets: u64) {
        let now = self.near.io.now + STEP;
        (self.near.io.now, self.far.io.now) = (now, now);
        (0..packets).for_each(|_| self.client.handle_inner(now, &self.packet));
        self.far.arrive(now, &mut self.client);
        self.near.turn(&mut self.client);
        self.near.arrive(now, &mut self.server);
        self.far.turn(&mut self.server);
    }
}

fn inner_packet() -> Vec<u8> {
    let mut packet = vec![0; 1200];
    packet[..4].copy_from_slice(&[0x45, 0, 0x04, 0xb0]);
    packet[8..10].copy_from_slice(&[64, 17]);
    packet[12..16].copy_from_slice(&INNER);
    packet[16..20].copy_from_slice(&[198, 51, 100, 1]);
    packet[20..28].copy_from_slice(&[0x13, 0x88, 0x13, 0x89, 0x04, 0x9c, 0, 0]);
    packet
}

fn session(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("session");
    group.throughput(Throughput::Elements(BATCH));
    for strategy in ["minrtt", "xnc", "redundant"] {
        let mut tunnel = Tunnel::new(strategy);
        group.bench_function(BenchmarkId::new("packets", strategy), |bencher| {
            bencher.iter(|| tunnel.step(BATCH));
        });
        let (sent, delivered) = (tunnel.near.io.now, tunnel.far.delivered);
        assert!(delivered > 480 * BATCH, "{delivered} arrived by {sent}");
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = session
}
criterion_main!(benches);
