//! A client, a server and the links between them, in virtual time and with real TLS.
//!
//! ```text
//! send_up ─► Client ─► links up ─► Server ─► arrived up
//! arrived down ◄─ Client ◄─ links down ◄─ Server ◄─ send_down
//! ```

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_emulate::{Link, LinkSettings, Trace};
use roadweave_quic::{CongestionControl, Epoch, Identity, Local, Source, TransportConfig};
use roadweave_tunnel::{
    Client, ClientConfig, ClientEvent, LaneConfig, Peer, PeerTable, Server, ServerConfig,
    ServerEvent, SessionStatus, Strategy,
};
use roadweave_types::{Instant, Rate, UplinkId};

pub const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4433);
const UDP_IP_HEADERS: usize = 28;

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// A packet on its way: where it seems to come from, and its bytes.
type OnTheWay = (SocketAddr, Bytes);

/// One link between the vehicle and the server.
pub struct Wire {
    pub up: Link<OnTheWay>,
    pub down: Link<OnTheWay>,
    /// The address that the network's translator shows to the server.
    pub public: SocketAddr,
}

/// How the world is made.
#[derive(Clone)]
pub struct Plan {
    pub strategy: &'static str,
    pub links: Vec<LinkPlan>,
    pub seed: u64,
    pub expires_unix: Option<u64>,
    pub wrong_client: bool,
    pub wrong_server: bool,
    pub congestion: CongestionControl,
}

#[derive(Clone)]
pub struct LinkPlan {
    pub trace: Trace,
    pub settings: fn(LinkSettings) -> LinkSettings,
}

pub fn link(rate_mbps: u64, one_way_ms: u64) -> LinkPlan {
    LinkPlan {
        trace: Trace::constant(Rate::from_kbps(rate_mbps * 1000), ms(one_way_ms)),
        settings: |settings| settings,
    }
}

impl Plan {
    pub fn new(strategy: &'static str, links: Vec<LinkPlan>) -> Self {
        Self {
            strategy,
            links,
            seed: 1,
            expires_unix: None,
            wrong_client: false,
            wrong_server: false,
            congestion: CongestionControl::Bbr,
        }
    }

    pub fn build(self) -> World {
        World::new(self)
    }
}

/// What arrived at one end, in order.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub at: Instant,
    pub packet: Bytes,
}

pub struct World {
    pub now: Instant,
    pub client: Client,
    pub server: Server,
    pub wires: Vec<Wire>,
    pub up: Vec<Arrival>,
    pub down: Vec<Arrival>,
    pub client_events: Vec<(Instant, ClientEvent)>,
    pub server_events: Vec<(Instant, ServerEvent)>,
    /// Packets of the server that went to an address that no link has any more.
    pub stray: u64,
    epoch: Epoch,
    plan: Plan,
}

impl World {
    #[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
    fn new(plan: Plan) -> Self {
        let epoch = Epoch::new(std::time::Instant::now());
        let client = make_client(epoch, &plan);
        let server = make_server(epoch, &plan);
        let wire = |(index, link): (usize, &LinkPlan)| {
            let make = |direction: u64| {
                let seed = plan.seed.wrapping_mul(1000) + index as u64 * 2 + direction;
                let settings = LinkSettings::new(link.trace.clone(), seed);
                Link::new((link.settings)(settings))
            };
            let public = SocketAddr::from(([100, 64, 0, index as u8 + 1], 20_000));
            Wire { up: make(0), down: make(1), public }
        };
        let wires = plan.links.iter().enumerate().map(wire).collect::<Vec<_>>();
        let mut world = Self {
            now: Instant::ZERO,
            client,
            server,
            wires,
            up: Vec::new(),
            down: Vec::new(),
            client_events: Vec::new(),
            server_events: Vec::new(),
            stray: 0,
            epoch,
            plan,
        };
        for index in 0..world.wires.len() {
            world.client.add_uplink(world.now, uplink(index), &name(index));
        }
        world.settle();
        world
    }

    /// Runs until the session is up; panics when it does not come.
    pub fn join(mut self) -> Self {
        let end = self.now + Duration::from_secs(10);
        while self.now < end && !self.joined() {
            self.run(ms(10));
        }
        assert!(self.joined(), "no session: {:?}", self.client_events);
        self.run(ms(1500)); // all paths are opened
        self
    }

    pub fn joined(&self) -> bool {
        self.client_events
            .last()
            .is_some_and(|(_, event)| matches!(event, ClientEvent::Joined { .. }))
    }

    /// The server process is killed and started again.
    pub fn restart_server(&mut self) {
        self.server = make_server(self.epoch, &self.plan);
    }

    pub fn set_dead(&mut self, index: usize, dead: bool) {
        let now = self.now;
        self.wires[index].up.set_dead(now, dead);
        self.wires[index].down.set_dead(now, dead);
    }

    pub fn send_up(&mut self, packet: &[u8]) {
        self.client.handle_inner(self.now, packet);
        self.client.service(self.now);
        self.settle();
    }

    pub fn send_down(&mut self, packet: &[u8]) {
        self.server.handle_inner(self.now, packet);
        self.server.service(self.now);
        self.settle();
    }

    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut spins = 0;
        while let Some(next) = self.next_event().filter(|next| *next <= end) {
            spins = if next > self.now { 0 } else { spins + 1 };
            assert!(spins < 10_000, "nothing moves at {}", self.now);
            self.now = next.max(self.now);
            self.client.service(self.now);
            self.server.service(self.now);
            self.deliver();
            self.settle();
        }
        self.now = end;
    }

    pub fn client_status(&self) -> SessionStatus {
        self.client.status().expect("the session is up")
    }

    fn next_event(&self) -> Option<Instant> {
        let links =
            self.wires.iter().flat_map(|wire| [wire.up.poll_timeout(), wire.down.poll_timeout()]);
        links.chain([self.client.poll_timeout(), self.server.poll_timeout()]).flatten().min()
    }

    fn deliver(&mut self) {
        let now = self.now;
        for (index, wire) in self.wires.iter_mut().enumerate() {
            while let Some((remote, packet)) = wire.up.poll(now) {
                let local = Local::Address(Some(SERVER.ip()));
                let source = Source { remote, local, ecn: None };
                self.server.handle_packet(now, source, BytesMut::from(&packet[..]));
            }
            while let Some((remote, packet)) = wire.down.poll(now) {
                let packet = BytesMut::from(&packet[..]);
                self.client.handle_packet(now, uplink(index), remote, None, packet);
            }
        }
        self.client.service(now);
        self.server.service(now);
    }

    /// Moves everything that waits in outboxes and inboxes.
    fn settle(&mut self) {
        let (now, wires) = (self.now, &mut self.wires);
        self.client.drain(|outbox| {
            for (route, packet) in outbox.packets() {
                let index = route.uplink.expect("a client's packet has an uplink").0 as usize;
                let wire = &mut wires[index];
                let on_the_way = (wire.public, Bytes::copy_from_slice(packet));
                let _ = wire.up.push(now, packet.len() + UDP_IP_HEADERS, on_the_way);
            }
        });
        let stray = &mut self.stray;
        self.server.drain(|outbox| {
            for (route, packet) in outbox.packets() {
                match wires.iter_mut().find(|wire| wire.public == route.destination) {
                    Some(wire) => {
                        let on_the_way = (SERVER, Bytes::copy_from_slice(packet));
                        let _ = wire.down.push(now, packet.len() + UDP_IP_HEADERS, on_the_way);
                    }
                    None => *stray += 1,
                }
            }
        });
        while let Some(packet) = self.server.poll_inner() {
            self.up.push(Arrival { at: now, packet });
        }
        while let Some(packet) = self.client.poll_inner() {
            self.down.push(Arrival { at: now, packet });
        }
        while let Some(event) = self.client.poll_event() {
            self.client_events.push((now, event));
        }
        while let Some(event) = self.server.poll_event() {
            self.server_events.push((now, event));
        }
    }
}

pub fn uplink(index: usize) -> UplinkId {
    UplinkId(index as u32)
}

pub fn name(index: usize) -> String {
    format!("wwan{index}")
}

fn transport(plan: &Plan, side: u8) -> TransportConfig {
    let mut seed = [side; 32];
    seed[..8].copy_from_slice(&plan.seed.to_le_bytes());
    TransportConfig { congestion: plan.congestion, ..TransportConfig::new(seed) }
}

fn lanes(strategy: &str) -> Vec<LaneConfig> {
    vec![LaneConfig::new("default", strategy.parse::<Strategy>().expect("a strategy"))]
}

fn make_client(epoch: Epoch, plan: &Plan) -> Client {
    let server = if plan.wrong_server { 9 } else { 2 };
    let config = ClientConfig {
        name: "bus".into(),
        servers: vec![SERVER],
        server_key: Identity::from_seed([server; 32]).public_key(),
        transport: transport(plan, 1),
        lanes: lanes(plan.strategy),
    };
    Client::new(epoch, config, Arc::new(Identity::from_seed([1; 32]))).expect("a client")
}

fn make_server(epoch: Epoch, plan: &Plan) -> Server {
    let known = if plan.wrong_client { 8 } else { 1 };
    let peer = Peer {
        name: "bus".into(),
        addresses: vec![
            "10.77.0.2/32".parse().expect("a network"),
            "fd77::2/128".parse().expect("a network"),
        ],
        expires_unix: plan.expires_unix,
    };
    let peers = Arc::new(PeerTable::new([(Identity::from_seed([known; 32]).public_key(), peer)]));
    peers.set_unix_time(1_800_000_000);
    let config = ServerConfig {
        transport: transport(plan, 2),
        lanes: lanes("xnc"),
        gateways: vec!["10.77.0.1".parse().expect("an address")],
        mtu: 1360,
        clients_reach_clients: false,
    };
    Server::new(epoch, config, Arc::new(Identity::from_seed([2; 32])), peers).expect("a server")
}

/// A UDP packet of the client, numbered in its payload, `length` bytes in all.
pub fn packet_up(number: u64, length: usize) -> Vec<u8> {
    udp_v4([10, 77, 0, 2], [198, 51, 100, 1], number, length)
}

/// A UDP packet to the client.
pub fn packet_down(number: u64, length: usize) -> Vec<u8> {
    udp_v4([198, 51, 100, 1], [10, 77, 0, 2], number, length)
}

pub fn udp_v4(source: [u8; 4], destination: [u8; 4], number: u64, length: usize) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((length as u16).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(source);
    packet.extend(destination);
    packet.extend([0x13, 0x88, 0x13, 0x89, 0, 0, 0, 0]);
    fill(&mut packet, number, length);
    packet
}

pub fn udp_v6(source: Ipv6Addr, destination: Ipv6Addr, number: u64, length: usize) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(((length - 40) as u16).to_be_bytes());
    packet.extend([17, 64]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend([0x13, 0x88, 0x13, 0x89, 0, 0, 0, 0]);
    fill(&mut packet, number, length);
    packet
}

/// The number at the start of the payload where there is room, then a pattern that depends on it.
fn fill(packet: &mut Vec<u8>, number: u64, length: usize) {
    assert!(packet.len() <= length, "a packet has room for its headers");
    packet.extend(number.to_be_bytes());
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while packet.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        packet.push(state as u8);
    }
    packet.truncate(length);
}

pub fn number(packet: &[u8]) -> u64 {
    u64::from_be_bytes(packet[28..36].try_into().expect("a numbered packet"))
}

/// When each numbered packet first arrived; panics on a second delivery.
pub fn arrivals(arrived: &[Arrival]) -> BTreeMap<u64, Instant> {
    let mut first = BTreeMap::new();
    for arrival in arrived {
        let before = first.insert(number(&arrival.packet), arrival.at);
        assert_eq!(before, None, "packet {} was delivered twice", number(&arrival.packet));
    }
    first
}

/// Sends video-like traffic for `frames` frames at 30 fps and `mbps`; returns when each was sent.
pub fn stream(world: &mut World, frames: u64, mbps: u64) -> BTreeMap<u64, Instant> {
    stream_with(world, frames, mbps, |_, _| {})
}

/// The same, with something to do before each frame.
pub fn stream_with(
    world: &mut World,
    frames: u64,
    mbps: u64,
    mut before_frame: impl FnMut(&mut World, u64),
) -> BTreeMap<u64, Instant> {
    let per_frame = mbps * 1_000_000 / 8 / 30 / 1240;
    let mut sent = BTreeMap::new();
    let start = world.up.len() as u64 + 1_000_000 * (world.now.as_nanos() / 1_000_000_000 + 1);
    for frame in 0..frames {
        before_frame(world, frame);
        for packet in 0..per_frame {
            let number = start + frame * per_frame + packet;
            sent.insert(number, world.now);
            world.client.handle_inner(world.now, &packet_up(number, 1240));
        }
        world.client.service(world.now);
        world.settle();
        world.run(Duration::from_nanos(33_333_333));
    }
    world.run(ms(1500));
    sent
}

/// Delays of the packets that arrived, ascending, in milliseconds.
pub fn delays(sent: &BTreeMap<u64, Instant>, arrived: &BTreeMap<u64, Instant>) -> Vec<f64> {
    let mut delays: Vec<f64> = sent
        .iter()
        .filter_map(|(number, at)| Some(arrived.get(number)?.since(*at).as_secs_f64() * 1e3))
        .collect();
    delays.sort_by(f64::total_cmp);
    delays
}

pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}
