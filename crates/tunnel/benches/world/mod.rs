//! A client and a server in virtual time, with nothing between them but queues.

#![allow(dead_code, reason = "no bench uses all of it")]

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ipnet::IpNet;
use roadweave_identity::Identity;
use roadweave_quic::{Epoch, Route, TransportConfig};
use roadweave_tunnel::{
    Candidate, Client, ClientConfig, LaneConfig, LaneRule, MEMORY_MAX, MemoryIo, Node, Peer,
    PeerTable, RecvMeta, Server, ServerConfig, SessionStatus, turn,
};
use roadweave_types::{Instant, SplitMix64, UplinkId};

const DELAY: Duration = Duration::from_millis(10);
const STEP: Duration = Duration::from_millis(1);
/// Packets of 1,200 bytes that leave in a step: 38 Mbit/s.
pub const BATCH: u64 = 4;
pub const INNER: [u8; 4] = [10, 0, 0, 2];
/// That of uplink 0, as the server sees it; that of uplink 1 is the next, and so on.
const FIRST_PORT: u16 = 10_000;

/// What a tunnel is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    pub strategy: &'static str,
    pub paths: u32,
    /// Each has its share of the packets.
    pub lanes: u8,
    /// The share of datagrams that are lost, each way, once all has joined.
    pub loss: f64,
}

fn server_address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 4433))
}

/// The address that the server sees a packet of `uplink` come from.
fn uplink_address(uplink: UplinkId) -> SocketAddr {
    SocketAddr::from(([100, 64, 0, 1], FIRST_PORT + uplink.0 as u16))
}

/// What is around one of the nodes.
pub struct Surroundings {
    pub io: MemoryIo,
    is_client: bool,
    /// On its way to the other node.
    sent: VecDeque<(Instant, RecvMeta, Bytes)>,
    loss: f64,
    random: SplitMix64,
    pub delivered: u64,
    transmitted: u64,
    /// What has come out of the tunnel, if it is to be kept.
    pub kept: Option<Vec<Bytes>>,
}

impl Surroundings {
    pub fn new(is_client: bool) -> Self {
        Self {
            io: MemoryIo::default(),
            is_client,
            sent: VecDeque::new(),
            loss: 0.0,
            random: SplitMix64::new(u64::from(is_client)),
            delivered: 0,
            transmitted: 0,
            kept: None,
        }
    }

    /// Hands what has arrived by now to the other `node`.
    fn arrive(&mut self, now: Instant, node: &mut impl Node) {
        while let Some((at, ..)) = self.sent.front()
            && *at <= now
            && let Some((_, meta, packet)) = self.sent.pop_front()
        {
            node.handle_packet(now, &meta, &packet);
        }
    }

    /// Turns `node` and sends on its way what it has for the other.
    fn turn(&mut self, node: &mut impl Node) {
        turn(node, &mut self.io);
        let packets = self.io.delivered.drain(..);
        self.delivered += packets.len() as u64;
        match &mut self.kept {
            Some(kept) => kept.extend(packets),
            None => drop(packets),
        }
        self.transmitted += self.io.transmitted.len() as u64;
        let at = self.io.now + DELAY;
        for (route, packet) in self.io.transmitted.drain(..) {
            if self.random.unit() >= self.loss {
                self.sent.push_back((at, arrival(&route, self.is_client), packet));
            }
        }
    }
}

/// How a packet arrives that the client, or the server, has sent by `route`.
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

pub struct Tunnel {
    client: Client,
    server: Server,
    /// Around the client, and around the server.
    pub near: Surroundings,
    pub far: Surroundings,
    /// One for each lane, sent in turn.
    packets: Vec<Vec<u8>>,
    next: usize,
    turns: [u64; 2],
    busy: [Duration; 2],
    /// What [`Tunnel::pace`] reads before and after each turn.
    pub clock: fn() -> Duration,
}

/// What has happened: at the client, and at the server.
#[derive(Clone, Copy)]
pub struct Counts {
    /// How often [`Tunnel::pace`] has turned each.
    pub turns: [u64; 2],
    /// How long that took by its clock.
    pub busy: [Duration; 2],
    /// What each has sent.
    pub datagrams: [u64; 2],
    /// Inner packets that came out at the server.
    pub delivered: u64,
}

impl Tunnel {
    /// Two paths and one lane, without loss.
    pub fn new(strategy: &'static str) -> Self {
        Self::of(Plan { strategy, paths: 2, lanes: 1, loss: 0.0 })
    }

    #[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
    pub fn of(plan: Plan) -> Self {
        let epoch = Epoch::new(std::time::Instant::now());
        let [client_key, server_key] = [[1; 32], [2; 32]].map(Identity::from_seed);
        let lanes: Vec<LaneConfig> = (0..plan.lanes).map(|lane| lane_config(plan, lane)).collect();
        let peer = Peer {
            name: "bench".into(),
            tenant: String::new(),
            addresses: vec![IpNet::from(IpAddr::from(INNER))],
            expires_unix: None,
            rate_limit: None,
            offline_max: None,
        };
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
        let mut tunnel = Self {
            client,
            server,
            near,
            far,
            packets: (0..plan.lanes).map(inner_packet).collect(),
            next: 0,
            turns: [0; 2],
            busy: [Duration::ZERO; 2],
            clock: || Duration::ZERO,
        };
        for uplink in (0..plan.paths).map(UplinkId) {
            tunnel.client.add_uplink(Instant::ZERO, uplink, &format!("wwan{}", uplink.0));
        }
        (0..2_000).for_each(|_| tunnel.step(0));
        (0..500).for_each(|_| tunnel.step(BATCH));
        assert!(tunnel.far.delivered >= 480 * BATCH, "{} arrived", tunnel.far.delivered);
        (tunnel.near.loss, tunnel.far.loss) = (plan.loss, plan.loss);
        tunnel
    }

    /// What the client tells of the session.
    pub fn status(&self) -> SessionStatus {
        self.client.status().expect("there is a session")
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        let datagrams = [self.near.transmitted, self.far.transmitted];
        let (turns, busy) = (self.turns, self.busy);
        Counts { turns, busy, datagrams, delivered: self.far.delivered }
    }

    /// Sends a packet each `gap` for `span`, each node turned when something has come or is due, as
    /// an event loop turns it.
    pub fn pace(&mut self, gap: Duration, span: Duration) {
        let mut now = self.near.io.now;
        let (end, mut next) = (now + span, now + gap);
        // As an event loop, which asks a node once after each of its turns.
        let mut due = [self.client.poll_timeout(), self.server.poll_timeout()];
        while now < end {
            let arrivals =
                [&self.near, &self.far].map(|side| side.sent.front().map(|(at, ..)| *at));
            now = arrivals.into_iter().chain(due).flatten().fold(next, Instant::min).max(now);
            (self.near.io.now, self.far.io.now) = (now, now);
            let comes = |at: Option<Instant>| at.is_some_and(|at| at <= now);
            if next <= now || comes(arrivals[1]) || comes(due[0]) {
                let mut packets = 0;
                while next <= now {
                    packets += 1;
                    next += gap;
                }
                let begin = (self.clock)();
                self.client_turn(now, packets);
                due[0] = self.client.poll_timeout();
                self.busy[0] += (self.clock)() - begin;
                self.turns[0] += 1;
            }
            if comes(arrivals[0]) || comes(due[1]) {
                let begin = (self.clock)();
                self.server_turn(now);
                due[1] = self.server.poll_timeout();
                self.busy[1] += (self.clock)() - begin;
                self.turns[1] += 1;
            }
        }
    }

    /// What the client does at `now`, `packets` of its device among it; under a name of its own for
    /// what counts instructions, as that of the server.
    #[inline(never)]
    fn client_turn(&mut self, now: Instant, packets: u64) {
        for _ in 0..packets {
            self.client.handle_inner(now, &self.packets[self.next]);
            self.next = (self.next + 1) % self.packets.len();
        }
        self.far.arrive(now, &mut self.client);
        self.near.turn(&mut self.client);
    }

    #[inline(never)]
    fn server_turn(&mut self, now: Instant) {
        self.near.arrive(now, &mut self.server);
        self.far.turn(&mut self.server);
    }

    /// Sends `packets` packets and lets a millisecond pass.
    pub fn step(&mut self, packets: u64) {
        let now = self.near.io.now + STEP;
        (self.near.io.now, self.far.io.now) = (now, now);
        self.client_turn(now, packets);
        self.server_turn(now);
    }
}

/// The lane for packets to its host outside; the last one takes what is left.
fn lane_config(plan: Plan, lane: u8) -> LaneConfig {
    let strategy = plan.strategy.parse().expect("it is known");
    let mut config = LaneConfig::new(format!("lane-{lane}"), strategy);
    if lane + 1 < plan.lanes {
        let destination = Some(vec![IpNet::from(IpAddr::from(outside(lane)))]);
        config.rule = LaneRule { destination, ..LaneRule::default() };
    }
    config
}

/// The host that packets of `lane` go to.
fn outside(lane: u8) -> [u8; 4] {
    [198, 51, 100, 1 + lane]
}

/// A packet of `lane` of 1,200 bytes, from the client to somewhere behind the server.
fn inner_packet(lane: u8) -> Vec<u8> {
    let mut packet = vec![0; 1200];
    packet[..4].copy_from_slice(&[0x45, 0, 0x04, 0xb0]);
    packet[8..10].copy_from_slice(&[64, 17]);
    packet[12..16].copy_from_slice(&INNER);
    packet[16..20].copy_from_slice(&outside(lane));
    packet[20..28].copy_from_slice(&[0x13, 0x88, 0x13, 0x89, 0x04, 0x9c, 0, 0]);
    packet
}
