//! Many clients and one server, on one virtual clock and with real TLS.
//!
//! ```text
//! vehicle 0: client, uplinks 0 .. ─┐  a delay for each uplink, and loss
//! vehicle 1: client, uplinks 0 .. ─┼───────────────────────────────────► server
//! vehicle 2: an endpoint without a client: a hostile client with a valid key
//! ```
//!
//! [`World`](crate::world::World) is one client with links that have rates, queues and traces. A
//! crowd shows how many clients affect one another at the server. Equal configurations and calls
//! give equal crowds.

mod hostile;
mod network;
mod processor;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_identity::{Identity, PublicKey};
use roadweave_proto::{Instant, Rate, UplinkId};
use roadweave_quic::{ConfigError, Endpoint, Epoch, Local, Outbox, Source, TransportConfig};
use roadweave_tunnel::{
    Candidate, Client, ClientConfig, ClientEvent, Io, LaneConfig, MEMORY_MAX, Node, Peer,
    PeerTable, RecvMeta, Server, ServerConfig, ServerEvent, flush, turn,
};

pub use self::hostile::Hostile;
pub use self::network::Counts;
use self::network::{Flying, Network};
use self::processor::Processor;
use crate::world::{SERVER, server_config};

/// The configuration of a crowd.
#[derive(Clone, Debug)]
pub struct CrowdConfig {
    /// Number of vehicles that the server knows, at most 10,000.
    pub vehicles: usize,
    /// The uplinks of each client.
    pub uplinks: u32,
    /// One-way delay of the first uplink; each further uplink has 10 ms more.
    pub delay: Duration,
    /// Share of packets lost.
    pub loss: f64,
    /// The lanes from the vehicles.
    pub lanes_up: Vec<LaneConfig>,
    /// The lanes to the vehicles.
    pub lanes_down: Vec<LaneConfig>,
    /// Memory limit of all sessions of the server, bytes.
    pub memory_max: usize,
    /// Memory limit of one session, bytes.
    pub client_memory_max: usize,
    /// CPU time of the server for each packet in or out.
    pub server_time: Duration,
    /// CPU time for each packet, on the CPU that all vehicles share.
    pub vehicles_time: Duration,
    /// Rate limits of vehicles, by number.
    pub rate_limits: BTreeMap<usize, Rate>,
    /// Seed of all randomness.
    pub seed: u64,
}

impl CrowdConfig {
    /// `vehicles` with two uplinks each and one lane of `strategy` in each direction. Panics if the
    /// strategy is unknown.
    pub fn new(vehicles: usize, strategy: &str) -> Self {
        let lanes = vec![LaneConfig::new("default", strategy.parse().expect("a known strategy"))];
        Self {
            vehicles,
            uplinks: 2,
            delay: Duration::from_millis(20),
            loss: 0.0,
            lanes_up: lanes.clone(),
            lanes_down: lanes,
            memory_max: 16 * MEMORY_MAX,
            client_memory_max: MEMORY_MAX,
            server_time: Duration::ZERO,
            vehicles_time: Duration::ZERO,
            rate_limits: BTreeMap::new(),
            seed: 1,
        }
    }
}

/// An inner packet that left the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrowdArrival {
    /// When the packet left the tunnel.
    pub at: Instant,
    /// The vehicle that received it; `None` for the server.
    pub vehicle: Option<usize>,
    /// The inner packet.
    pub packet: Bytes,
}

#[derive(Debug)]
enum End {
    Client(Box<Client>),
    Bare(Box<Endpoint>),
}

/// Vehicles and their server.
#[derive(Debug)]
pub struct Crowd {
    now: Instant,
    epoch: Epoch,
    config: CrowdConfig,
    server: Server,
    peers: Arc<PeerTable>,
    server_lives: u8,
    ends: BTreeMap<usize, End>,
    network: Network,
    server_processor: Processor,
    vehicles_processor: Processor,
    arrivals: VecDeque<CrowdArrival>,
    server_events: Vec<(Instant, ServerEvent)>,
    client_events: BTreeMap<usize, Vec<(Instant, ClientEvent)>>,
}

impl Crowd {
    /// A crowd at [`Instant::ZERO`] without a started vehicle; fails if the server cannot be
    /// created.
    #[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
    pub fn new(config: CrowdConfig) -> Result<Self, ConfigError> {
        let epoch = Epoch::new(std::time::Instant::now());
        let (server, peers) = server(epoch, &config, 0)?;
        Ok(Self {
            now: Instant::ZERO,
            epoch,
            server,
            peers,
            server_lives: 0,
            ends: BTreeMap::new(),
            network: Network::new(&config),
            server_processor: Processor::new(config.server_time),
            vehicles_processor: Processor::new(config.vehicles_time),
            arrivals: VecDeque::new(),
            server_events: Vec::new(),
            client_events: BTreeMap::new(),
            config,
        })
    }

    /// The current time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Starts the client of a vehicle, without state. Panics if its lanes cannot be used.
    pub fn start(&mut self, vehicle: usize, life: u8) {
        let config = ClientConfig {
            name: name(vehicle),
            candidates: vec![Candidate::only(server_key(), vec![SERVER])],
            transport: self.transport(vehicle, life),
            lanes: self.config.lanes_up.clone(),
            streams: None,
            memory_max: MEMORY_MAX,
        };
        let identity = Arc::new(identity(vehicle));
        let mut client = Client::new(self.epoch, config, identity).expect("usable lanes");
        for uplink in 0..self.config.uplinks {
            client.add_uplink(self.now, UplinkId(uplink), &format!("wwan{uplink}"));
        }
        self.ends.insert(vehicle, End::Client(Box::new(client)));
        self.flush_vehicle(vehicle);
    }

    /// Starts a bare endpoint with the key of a vehicle, for a hostile client. Panics if the
    /// transport settings are invalid.
    pub fn start_bare(&mut self, vehicle: usize) {
        let transport = self.transport(vehicle, 0);
        let own = Arc::new(identity(vehicle));
        let endpoint = Endpoint::client(self.epoch, &transport, own).expect("usable");
        self.ends.insert(vehicle, End::Bare(Box::new(endpoint)));
    }

    /// Kills a vehicle.
    pub fn kill(&mut self, vehicle: usize) {
        self.ends.remove(&vehicle);
    }

    /// Kills and starts the server, with the same key and without state. Fails as [`Crowd::new`].
    pub fn restart_server(&mut self) -> Result<(), ConfigError> {
        self.server_lives = self.server_lives.wrapping_add(1);
        (self.server, self.peers) = server(self.epoch, &self.config, self.server_lives)?;
        Ok(())
    }

    /// Stops the server for `time`; packets wait in its socket.
    pub fn pause_server(&mut self, time: Duration) {
        self.server_processor.pause(self.now + time);
    }

    /// Stops the vehicles for `time`; packets wait in their sockets.
    pub fn pause_vehicles(&mut self, time: Duration) {
        self.vehicles_processor.pause(self.now + time);
    }

    /// Counts of packets sent and dropped.
    pub fn counts(&self) -> Counts {
        let no_room = self.server_processor.no_room + self.vehicles_processor.no_room;
        Counts { no_room, ..self.network.counts }
    }

    /// Sets the server's time of day, seconds since 1970.
    pub fn set_unix_time(&mut self, seconds: u64) {
        self.peers.set_unix_time(seconds);
        self.server.on_time_of_day();
        self.flush();
    }

    /// Kills or revives an uplink of a vehicle.
    pub fn set_dead(&mut self, vehicle: usize, uplink: u32, dead: bool) {
        self.network.set_dead(vehicle, uplink, dead);
    }

    /// The server; follow it with [`Crowd::flush`].
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    /// The client of a vehicle, if it has one; follow it with [`Crowd::flush`].
    pub fn client(&mut self, vehicle: usize) -> Option<&mut Client> {
        match self.ends.get_mut(&vehicle)? {
            End::Client(client) => Some(client),
            End::Bare(_) => None,
        }
    }

    /// The endpoint from [`Crowd::start_bare`] of a vehicle; follow it with [`Crowd::flush`].
    pub fn bare(&mut self, vehicle: usize) -> Option<&mut Endpoint> {
        match self.ends.get_mut(&vehicle)? {
            End::Bare(endpoint) => Some(endpoint),
            End::Client(_) => None,
        }
    }

    /// Sends all packets that may leave now.
    pub fn flush(&mut self) {
        for vehicle in self.ends.keys().copied().collect::<Vec<_>>() {
            self.turn_vehicle(vehicle);
        }
        self.turn_server();
    }

    /// Runs until `end`. Panics if one moment takes thousands of steps.
    pub fn run_until(&mut self, end: Instant) {
        let mut at_one_moment = 0;
        loop {
            let next = self.next_event();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            at_one_moment = if next > self.now { 0 } else { at_one_moment + 1 };
            assert!(at_one_moment < 100_000, "nothing moves at {}", self.now);
            self.now = self.now.max(next);
            self.step();
        }
        self.now = end;
    }

    /// The next inner packet that left the tunnel.
    pub fn poll_arrival(&mut self) -> Option<CrowdArrival> {
        self.arrivals.pop_front()
    }

    /// Events of the server with their times.
    pub fn server_events(&self) -> &[(Instant, ServerEvent)] {
        &self.server_events
    }

    /// Events of the client of a vehicle with their times.
    pub fn client_events(&self, vehicle: usize) -> &[(Instant, ClientEvent)] {
        self.client_events.get(&vehicle).map_or(&[], Vec::as_slice)
    }

    /// Number of clients with a session.
    pub fn joined(&self) -> usize {
        let has = |end: &&End| matches!(end, End::Client(client) if client.status().is_some());
        self.ends.values().filter(has).count()
    }

    fn transport(&self, vehicle: usize, life: u8) -> TransportConfig {
        transport(self.config.seed, vehicle as u64 + 1, life)
    }

    fn next_event(&self) -> Option<Instant> {
        let vehicles = self.ends.values().filter_map(End::poll_timeout).min();
        let vehicles = self.vehicles_processor.next_turn(vehicles);
        let server = self.server_processor.next_turn(self.server.poll_timeout());
        [vehicles, server, self.network.poll_timeout()].into_iter().flatten().min()
    }

    fn step(&mut self) {
        let now = self.now;
        while let Some(packet) = self.network.poll(now) {
            match packet.up {
                true => self.server_processor.receive(now, packet),
                false => self.vehicles_processor.receive(now, packet),
            }
        }
        let before = self.network.counts.up;
        if self.vehicles_processor.is_free(now) {
            let handled = self.step_vehicles();
            let sent = self.network.counts.up - before;
            self.vehicles_processor.work(now, handled + sent as usize);
        }
        let server = self.server_processor.next_turn(self.server.poll_timeout());
        if server.is_some_and(|at| at <= now) {
            let before = self.network.counts.down;
            let handled = self.step_server();
            let sent = self.network.counts.down - before;
            self.server_processor.work(now, handled + sent as usize);
        }
    }

    fn step_vehicles(&mut self) -> usize {
        let now = self.now;
        let mut touched = BTreeSet::new();
        let mut handled = 0;
        for (at, Flying { vehicle, uplink, packet, .. }) in self.vehicles_processor.take() {
            handled += 1;
            touched.insert(vehicle);
            let (socket, remote) = (UplinkId(uplink), SERVER);
            match self.ends.get_mut(&vehicle) {
                Some(End::Client(client)) => {
                    let received = Some(at);
                    let meta = RecvMeta { socket, remote, local: None, ecn: None, received };
                    client.handle_packet(now, &meta, &packet);
                }
                Some(End::Bare(endpoint)) => {
                    let local = Local::Uplink(socket);
                    let source = Source { remote, local, ecn: None, received: Some(at) };
                    let _ = endpoint.handle_packet(now, source, BytesMut::from(&packet[..]));
                }
                None => {}
            }
        }
        let due =
            self.ends.iter().filter(|(_, end)| end.poll_timeout().is_some_and(|at| at <= now));
        touched.extend(due.map(|(vehicle, _)| *vehicle));
        touched.into_iter().for_each(|vehicle| self.turn_vehicle(vehicle));
        handled
    }

    fn step_server(&mut self) -> usize {
        let mut handled = 0;
        for (at, Flying { vehicle, uplink, packet, .. }) in self.server_processor.take() {
            handled += 1;
            let (remote, local) = (address(vehicle, uplink), Some(SERVER.ip()));
            let (socket, received) = (UplinkId(uplink), Some(at));
            let meta = RecvMeta { socket, remote, local, ecn: None, received };
            self.server.handle_packet(self.now, &meta, &packet);
        }
        self.turn_server();
        handled
    }

    fn turn_vehicle(&mut self, vehicle: usize) {
        let (now, arrivals) = (self.now, &mut self.arrivals);
        let mut io = EndIo { now, vehicle: Some(vehicle), network: &mut self.network, arrivals };
        match self.ends.get_mut(&vehicle) {
            Some(End::Client(client)) => turn(client.as_mut(), &mut io),
            Some(End::Bare(endpoint)) => {
                let _ = endpoint.handle_timeout(now);
                while let Some(packets) = endpoint.poll_transmit() {
                    io.transmit(&packets);
                }
            }
            None => {}
        }
        self.take_events(vehicle);
    }

    fn flush_vehicle(&mut self, vehicle: usize) {
        let (now, arrivals) = (self.now, &mut self.arrivals);
        let mut io = EndIo { now, vehicle: Some(vehicle), network: &mut self.network, arrivals };
        if let Some(End::Client(client)) = self.ends.get_mut(&vehicle) {
            flush(client.as_mut(), &mut io);
        }
        self.take_events(vehicle);
    }

    fn take_events(&mut self, vehicle: usize) {
        let Some(End::Client(client)) = self.ends.get_mut(&vehicle) else { return };
        while let Some(event) = client.poll_event() {
            self.client_events.entry(vehicle).or_default().push((self.now, event));
        }
    }

    fn turn_server(&mut self) {
        let (now, arrivals) = (self.now, &mut self.arrivals);
        let mut io = EndIo { now, vehicle: None, network: &mut self.network, arrivals };
        turn(&mut self.server, &mut io);
        while let Some(event) = self.server.poll_event() {
            self.server_events.push((now, event));
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

struct EndIo<'a> {
    now: Instant,
    vehicle: Option<usize>,
    network: &'a mut Network,
    arrivals: &'a mut VecDeque<CrowdArrival>,
}

impl Io for EndIo<'_> {
    fn now(&self) -> Instant {
        self.now
    }

    fn deliver(&mut self, packets: &mut dyn Iterator<Item = Bytes>) {
        let (at, vehicle) = (self.now, self.vehicle);
        self.arrivals.extend(packets.map(|packet| CrowdArrival { at, vehicle, packet }));
    }

    fn transmit(&mut self, packets: &Outbox) {
        for (route, packet) in packets.packets() {
            let way = match self.vehicle {
                Some(vehicle) => route.uplink.map(|uplink| (vehicle, uplink.0)),
                None => whose(route.destination),
            };
            if let Some((vehicle, uplink)) = way {
                self.network.push(self.now, vehicle, uplink, self.vehicle.is_some(), packet);
            }
        }
    }
}

/// The inner address of a vehicle.
pub fn inner_address(vehicle: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a4d_0100 + vehicle as u32)
}

/// The key of a vehicle.
pub fn vehicle_key(vehicle: usize) -> PublicKey {
    identity(vehicle).public_key()
}

/// The key of the server.
pub fn server_key() -> PublicKey {
    server_identity().public_key()
}

/// The server's peer entry of a vehicle.
pub fn peer(config: &CrowdConfig, vehicle: usize) -> (PublicKey, Peer) {
    let rate_limit = config.rate_limits.get(&vehicle).copied();
    let addresses = vec![IpAddr::from(inner_address(vehicle)).into()];
    (vehicle_key(vehicle), Peer { rate_limit, ..Peer::new(name(vehicle), addresses) })
}

fn name(vehicle: usize) -> String {
    format!("vehicle-{vehicle}")
}

fn identity(vehicle: usize) -> Identity {
    let mut seed = [3; 32];
    seed[..8].copy_from_slice(&(vehicle as u64).to_be_bytes());
    Identity::from_seed(seed)
}

fn server_identity() -> Identity {
    Identity::from_seed([2; 32])
}

fn address(vehicle: usize, uplink: u32) -> SocketAddr {
    let ip = Ipv4Addr::from(0x6440_0000 + (vehicle as u32) * 16 + uplink);
    SocketAddr::from((ip, 5_000))
}

fn whose(address: SocketAddr) -> Option<(usize, u32)> {
    let IpAddr::V4(ip) = address.ip() else { return None };
    let number = ip.to_bits().checked_sub(0x6440_0000)?;
    Some((number as usize / 16, number % 16))
}

fn server(
    epoch: Epoch,
    config: &CrowdConfig,
    life: u8,
) -> Result<(Server, Arc<PeerTable>), ConfigError> {
    let peers = (0..config.vehicles).map(|vehicle| peer(config, vehicle));
    let peers = Arc::new(PeerTable::new(peers));
    let server = ServerConfig {
        memory_max: config.memory_max,
        client_memory_max: config.client_memory_max,
        ..server_config(transport(config.seed, 0, life), &config.lanes_down)
    };
    let server = Server::new(epoch, server, Arc::new(server_identity()), peers.clone())?;
    Ok((server, peers))
}

fn transport(seed: u64, end: u64, life: u8) -> TransportConfig {
    let mut bytes = [life; 32];
    // The first eight bytes seed the tunnel's randomness.
    let own = seed.wrapping_add(end.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bytes[..8].copy_from_slice(&own.to_le_bytes());
    bytes[8..16].copy_from_slice(&end.to_le_bytes());
    TransportConfig::new(bytes)
}
