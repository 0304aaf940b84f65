//! Several servers as the shards of one: packets at the wrong one are handed over.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use roadweave_identity::PublicKey;
use roadweave_proto::{DropReason, Instant, UplinkId};
use roadweave_quic::{Epoch, Shard, ShardMap, TransportConfig};
use roadweave_tunnel::{
    Candidate, Client, ClientConfig, LaneConfig, MEMORY_MAX, MemoryIo, MisroutedPacket, Node, Peer,
    PeerTable, RecvMeta, Server, ServerConfig, ServerEvent, SharedState, flush,
};

use crate::common::{epoch, identity, server_address};

const SHARDS: u16 = 3;
const CLIENTS: u8 = 6;

fn lanes() -> Vec<LaneConfig> {
    vec![LaneConfig::new("default", "xnc".parse().unwrap())]
}

fn inner(client: u8) -> IpAddr {
    IpAddr::from([10, 77, 0, 2 + client])
}

fn inner_packet(from: IpAddr, to: IpAddr) -> Bytes {
    let mut packet = vec![0x45, 0, 0, 200, 0, 0, 0, 0, 64, 17, 0, 0];
    for address in [from, to] {
        let IpAddr::V4(address) = address else { panic!("IPv4 alone") };
        packet.extend(address.octets());
    }
    packet.extend([0, 9, 0, 9, 0, 180, 0, 0]);
    packet.resize(200, 7);
    packet.into()
}

struct World {
    epoch: Epoch,
    now: Instant,
    map: ShardMap,
    state: SharedState,
    peers: Arc<PeerTable>,
    shards: Vec<Server>,
    clients: Vec<Client>,
    port: u16,
    turn: usize,
    knows_shards: bool,
    owners: BTreeMap<PublicKey, usize>,
    misrouted: u64,
    delivered: Vec<Bytes>,
}

impl World {
    fn new(clients: u8, knows_shards: bool) -> Self {
        let epoch = epoch();
        let peer = |it: u8| Peer::new(format!("box-{it}"), vec![inner(it).into()]);
        let known = (0..clients).map(|number| (identity(10 + number).public_key(), peer(number)));
        let mut world = Self {
            epoch,
            now: Instant::ZERO,
            map: ShardMap::new(SHARDS, &[1; 32]),
            state: SharedState::default(),
            peers: Arc::new(PeerTable::new(known)),
            shards: Vec::new(),
            clients: Vec::new(),
            port: 10_000,
            turn: 0,
            knows_shards,
            owners: BTreeMap::new(),
            misrouted: 0,
            delivered: Vec::new(),
        };
        world.shards = (0..SHARDS).map(|number| world.shard(number, 0)).collect();
        world.clients = (0..clients).map(|number| world.client(number, 0)).collect();
        world
    }

    fn shard(&self, number: u16, generation: u8) -> Server {
        let mut transport = TransportConfig::new([generation; 32]);
        transport.rng_seed[0] = number as u8;
        let (lanes, memory_max) = (lanes(), 8 * MEMORY_MAX);
        let config = ServerConfig { lanes, memory_max, ..ServerConfig::new(transport, Vec::new()) };
        let mut config = config.of_shard(SHARDS);
        config.transport.shard = Some(Shard { map: self.map, number });
        let mut server =
            Server::new(self.epoch, config, Arc::new(identity(2)), self.peers.clone()).unwrap();
        server.share_state(self.state.clone());
        server
    }

    fn client(&self, number: u8, generation: u8) -> Client {
        let mut transport = TransportConfig::new([100 + generation; 32]);
        transport.rng_seed[0] = number;
        let candidate = Candidate::only(identity(2).public_key(), vec![server_address()]);
        let config = ClientConfig::new("box", transport, candidate);
        let config = ClientConfig { lanes: lanes(), ..config };
        let mut client = Client::new(self.epoch, config, Arc::new(identity(10 + number))).unwrap();
        for (uplink, name) in [(0, "wwan0"), (1, "wwan1")] {
            client.add_uplink(self.now, UplinkId(uplink), name);
        }
        client
    }

    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now += Duration::from_millis(1);
            for number in 0..self.clients.len() {
                self.clients[number].handle_timeout(self.now);
                let mut sent = Vec::new();
                while let Some(packets) = self.clients[number].poll_transmit() {
                    sent.extend(packets.packets().map(|(route, it)| (route.uplink, it.to_vec())));
                }
                for (uplink, packet) in sent {
                    let port = self.port + 2 * number as u16 + uplink.unwrap().0 as u16;
                    self.receive(SocketAddr::from(([100, 64, 0, 1], port)), &packet);
                }
            }
            (0..self.shards.len()).for_each(|shard| self.turn_shard(shard));
        }
    }

    fn receive(&mut self, remote: SocketAddr, packet: &[u8]) {
        let local = Some(server_address().ip());
        let meta = RecvMeta { local, ..RecvMeta::new(UplinkId(0), remote) };
        self.turn = (self.turn + 1) % self.shards.len();
        let shard = match self.knows_shards {
            true => usize::from(self.map.shard_of(packet)),
            false => self.turn,
        };
        self.shards[shard].handle_packet(self.now, &meta, packet);
        self.hand_over(shard);
    }

    fn turn_shard(&mut self, number: usize) {
        let now = self.now;
        self.shards[number].handle_timeout(now);
        while let Some(event) = self.shards[number].poll_event() {
            match event {
                ServerEvent::Joined { key, .. } => {
                    if let Some(other) = self.owners.insert(key, number)
                        && other != number
                    {
                        self.shards[other].on_replaced(now, &key);
                    }
                }
                ServerEvent::Left { key, .. } if self.owners.get(&key) == Some(&number) => {
                    self.owners.remove(&key);
                }
                _ => {}
            }
        }
        let mut io = MemoryIo::new(now);
        flush(&mut self.shards[number], &mut io);
        for (route, packet) in io.transmitted {
            // A packet to a port that its address translator has forgotten is lost.
            let place = route.destination.port().checked_sub(self.port).map(usize::from);
            let Some(place) = place.filter(|place| place / 2 < self.clients.len()) else {
                continue;
            };
            let client = &mut self.clients[place / 2];
            let meta = RecvMeta::new(UplinkId(place as u32 % 2), server_address());
            client.handle_packet(now, &meta, &packet);
        }
        self.delivered.append(&mut io.delivered);
    }

    fn hand_over(&mut self, from: usize) {
        while let Some(packet) = self.shards[from].poll_misrouted() {
            self.misrouted += 1;
            let to = match &packet {
                MisroutedPacket::Packet { shard, .. } => Some(usize::from(*shard)),
                MisroutedPacket::Inner { key, .. } => self.owners.get(key).copied(),
            };
            let Some(to) = to else { continue };
            self.shards[to].handle_misrouted(self.now, packet);
            assert_eq!(self.shards[to].poll_misrouted(), None, "handed over twice");
        }
    }

    fn owner(&self, client: u8) -> Option<usize> {
        self.owners.get(&identity(10 + client).public_key()).copied()
    }

    fn sessions(&self) -> Vec<usize> {
        self.shards.iter().map(Server::sessions).collect()
    }

    fn passes(&mut self, client: u8) -> bool {
        let server = IpAddr::from([10, 77, 0, 1]);
        let (up, down) = (inner_packet(inner(client), server), inner_packet(server, inner(client)));
        self.delivered.clear();
        let index = usize::from(client);
        self.clients[index].handle_inner(self.now, &up);
        for shard in 0..self.shards.len() {
            self.shards[shard].handle_inner(self.now, &down);
            self.hand_over(shard);
        }
        self.run(50);
        let came = std::iter::from_fn(|| self.clients[index].poll_inner()).count();
        came == self.shards.len() && self.delivered == [up]
    }
}

#[test]
fn clients_find_their_shard_by_all_paths_though_every_packet_comes_to_the_wrong_one() {
    for knows_shards in [true, false] {
        let mut world = World::new(CLIENTS, knows_shards);
        world.run(1_000);
        assert_eq!(world.sessions().iter().sum::<usize>(), usize::from(CLIENTS));
        assert!(world.sessions().iter().filter(|count| **count > 0).count() >= 2, "spread");
        // Address translators forget all uplinks at once, and twice.
        for port in [10_000, 20_000, 30_000] {
            world.port = port;
            let owners: Vec<_> = (0..CLIENTS).map(|client| world.owner(client)).collect();
            world.run(2_000);
            for client in 0..CLIENTS {
                assert!(world.passes(client), "{knows_shards}: {client} at port {port}");
                let paths = world.shards[owners[usize::from(client)].unwrap()].status();
                let name = format!("box-{client}");
                let session = paths.iter().find(|session| session.peer == name).unwrap();
                assert_eq!(session.paths.len(), 2, "{name}");
            }
            let after: Vec<_> = (0..CLIENTS).map(|client| world.owner(client)).collect();
            assert_eq!(owners, after, "nobody has begun anew");
        }
        assert_eq!(world.misrouted > 150, !knows_shards, "{}", world.misrouted);
    }
}

#[test]
fn a_client_that_comes_again_to_another_shard_leaves_the_one_before() {
    let mut world = World::new(1, true);
    world.run(500);
    let mut seen = [false; SHARDS as usize];
    for generation in 1..=30 {
        let before = world.owner(0).expect("a session");
        world.clients[0] = world.client(0, generation);
        // Slow enough for the server's limit.
        world.run(6_000);
        let after = world.owner(0).expect("a session");
        assert_eq!(world.sessions().iter().sum::<usize>(), 1, "at {before} and {after}");
        assert!(world.passes(0));
        seen[after] = true;
    }
    assert_eq!(seen, [true; SHARDS as usize], "else the test proves little");
}

#[test]
fn a_restarted_shard_takes_only_its_clients_who_reconnect_at_once() {
    let mut world = World::new(CLIENTS, true);
    world.run(1_000);
    let failed = world.owner(0).unwrap();
    let of_failed: Vec<u8> =
        (0..CLIENTS).filter(|client| world.owner(*client) == Some(failed)).collect();
    let others: Vec<u8> = (0..CLIENTS).filter(|client| !of_failed.contains(client)).collect();
    assert!(!others.is_empty(), "else the test proves little");
    world.shards[failed] = world.shard(failed as u16, 1);
    world.owners.retain(|_, owner| *owner != failed);
    let owners: Vec<_> = others.iter().map(|client| world.owner(*client)).collect();
    let mut left: Vec<u8> = of_failed.clone();
    for _ in 0..20 {
        world.run(100);
        left.retain(|client| world.owner(*client).is_none());
    }
    assert_eq!(left, [] as [u8; 0], "not back within 2 s");
    assert!((0..CLIENTS).all(|client| world.passes(client)));
    let after: Vec<_> = others.iter().map(|client| world.owner(*client)).collect();
    assert_eq!(owners, after, "nobody else has begun anew");
}

#[test]
fn a_packet_for_a_client_that_is_nowhere_is_counted_once() {
    let mut world = World::new(1, true);
    let down = inner_packet(IpAddr::from([10, 77, 0, 1]), inner(0));
    world.shards[1].handle_inner(Instant::ZERO, &down);
    let packet = world.shards[1].poll_misrouted().expect("the driver asks who has it");
    assert!(matches!(packet, MisroutedPacket::Inner { .. }), "{packet:?}");
    world.shards[2].handle_misrouted(Instant::ZERO, packet);
    assert_eq!((world.shards[1].poll_misrouted(), world.shards[2].poll_misrouted()), (None, None));
    assert_eq!(world.shards[2].drops().get(DropReason::NoSession), 1);
    (0..100_000).for_each(|_| world.shards[1].handle_inner(Instant::ZERO, &down));
    let waiting = std::iter::from_fn(|| world.shards[1].poll_misrouted()).count();
    assert!(waiting * down.len() <= 4 << 20);
    assert!(world.shards[1].drops().get(DropReason::ShardFull) > 50_000);
}
