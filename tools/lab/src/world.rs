//! A client, a server and the links between them, on one virtual clock with real TLS.
//!
//! ```text
//!                  ┌───────────────────────── World ─────────────────────────┐
//! handle_inner ───►│ Client ─► outbox ─► links up ──► Server ─► inner packet │───► poll_arrival
//! poll_arrival ◄───│ inner packet ◄─ Client ◄── links down ◄─ outbox ◄─ Server │◄─── handle_inner
//!                  └──────────────────────────────────────────────────────────┘
//!                     poll_timeout says when something is due, handle_timeout lets it happen
//! ```
//!
//! Client and server are the product's, byte for byte; the world is their device, network and
//! clock. It advances from event to event: it hands over all packets due at one moment, and turns
//! each affected side with [`roadweave_tunnel::turn`], as the product's event loop does. A
//! [`Machine`] may delay the turn.
//!
//! A packet occupies its UDP payload and [`UDP_IP_HEADERS`] in a link. Equal configurations and
//! calls give equal times and sizes; only TLS secrets differ.

mod changes;
mod config;
mod end;
mod ends;
mod machine;
mod strangers;
mod tamper;
mod trails;
mod wire;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_emulate::{Direction, LinkStats};
use roadweave_proto::{Instant, PathStatus, SplitMix64, UplinkId};
use roadweave_quic::Epoch;
use roadweave_stream::{Event, Streams};
use roadweave_tunnel::{
    Client, ClientEvent, EndsStreams as _, Notice, RecvMeta, Server, ServerEvent, SessionStatus,
    StreamsOwner, UplinkReport,
};

use config::LINKS_MAX;
pub use config::{Hostility, OtherServer, Stranger, Strangers, Trust, WorldConfig, WorldError};
use end::{Network, WorldEnd};
pub use machine::Machine;
use strangers::Neighbour;
pub use tamper::Tampering;
pub(crate) use trails::Trail;
use trails::Trails;
use wire::CrossStats;
use wire::Wire;

/// The server's address (RFC 5737).
pub const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4433);
/// Bytes of the outer IPv4 and UDP headers.
pub const UDP_IP_HEADERS: usize = 28;
/// MTU of the tunnel's devices, bytes: the product's default.
pub const MTU: u16 = 1360;
/// Separates the client's randomness on a machine from the generations of the server.
const CLIENT: u64 = 1 << 32;
const SERVER_GENERATIONS: u64 = CLIENT + 1;
/// More steps at one moment count as an endless loop.
const STEPS_AT_ONE_MOMENT: u32 = 10_000;

/// An inner packet that left the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it left the tunnel.
    pub at: Instant,
    pub direction: Direction,
    pub packet: Bytes,
    /// The outer packet that completed it; `None` if a timer released it.
    pub ride: Option<Transit>,
    /// Its history, after [`World::observe_packets`].
    pub trail: Option<Trail>,
}

/// Transit of an outer packet through a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transit {
    /// The link, by its index in [`WorldConfig::links`].
    pub link: usize,
    /// When it entered the link.
    pub boarded: Instant,
    /// The link's propagation delay at that time. The rest of its transit is queueing.
    pub propagation: Duration,
}

/// A client, a server and their links.
#[derive(Debug)]
pub struct World {
    now: Instant,
    epoch: Epoch,
    config: WorldConfig,
    client: WorldEnd<Client>,
    server: WorldEnd<Server>,
    server_generations: u8,
    network: Network,
    neighbours: BTreeMap<SocketAddr, Neighbour>,
    portals: BTreeMap<usize, Neighbour>,
    client_events: Vec<(Instant, ClientEvent)>,
    notices: Vec<(Instant, Notice)>,
    server_events: Vec<(Instant, ServerEvent)>,
    steps: u32,
}

const PATHS: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(100);

impl World {
    /// A world whose client uses all links, or has tried to for 5 s; fails like [`World::new`].
    pub fn joined(config: WorldConfig) -> Result<Self, WorldError> {
        let mut world = Self::new(config)?;
        while !world.all_paths_usable() && world.now() < Instant::ZERO + PATHS {
            world.run_until(world.now() + LOOK);
        }
        Ok(world)
    }

    /// A world at [`Instant::ZERO`] whose client has all uplinks and begins to connect. Fails with
    /// too few or too many links, or if a side cannot be created.
    #[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
    pub fn new(config: WorldConfig) -> Result<Self, WorldError> {
        if !(1..=LINKS_MAX).contains(&config.links.len()) {
            return Err(WorldError::Links(config.links.len()));
        }
        let epoch = Epoch::new(std::time::Instant::now());
        let wires = (0_u32..).zip(&config.links).map(|(index, link)| Wire::new(index, link));
        let mut world = Self {
            now: Instant::ZERO,
            epoch,
            client: client_end(epoch, &config)?,
            server: server_end(epoch, &config, 0)?,
            server_generations: 0,
            network: Network {
                wires: wires.collect(),
                arrivals: VecDeque::new(),
                undeliverable: 0,
                trails: None,
            },
            neighbours: BTreeMap::new(),
            portals: BTreeMap::new(),
            client_events: Vec::new(),
            notices: Vec::new(),
            server_events: Vec::new(),
            steps: 0,
            config,
        };
        for (address, kind) in world.config.strangers.servers.clone() {
            let neighbour = Neighbour::new(epoch, &world.config, kind)?;
            world.neighbours.insert(address, neighbour);
        }
        for (link, hostility) in world.config.strangers.links.clone() {
            world.set_hostility(link, Some(hostility))?;
        }
        (0..world.network.wires.len()).for_each(|link| world.add_uplink(link));
        Ok(world)
    }

    pub fn now(&self) -> Instant {
        self.now
    }

    /// Accepts an inner packet at the start of `direction`. Call [`World::flush`] after a batch.
    pub fn handle_inner(&mut self, direction: Direction, packet: &[u8]) {
        match direction {
            Direction::Up => self.client.handle_inner(self.now, packet),
            Direction::Down => self.server.handle_inner(self.now, packet),
        }
    }

    /// Queues a competing packet of `bytes` bytes with headers on a link. It is counted in
    /// [`World::cross_stats`] and discarded at the end.
    pub fn push_cross(&mut self, link: usize, direction: Direction, bytes: usize) {
        self.network.wires[link].push_cross(self.now, direction, bytes);
    }

    /// Lets both sides send.
    pub fn flush(&mut self) {
        let now = self.now;
        if self.client.touched {
            self.turn_client();
        }
        if self.server.touched {
            self.turn_server();
        }
        let wires = &mut self.network.wires;
        for neighbour in self.neighbours.values_mut() {
            neighbour.flush(now, |to, from, packet| {
                if let Some(wire) = wires.iter_mut().find(|wire| wire.leads_to(to)) {
                    wire.push_down(now, server_at(from), BytesMut::from(packet));
                }
            });
        }
        for (link, portal) in &mut self.portals {
            portal.flush(now, |_, from, packet| {
                wires[*link].push_down(now, server_at(from), BytesMut::from(packet));
            });
        }
    }

    /// Time of the next event; `None`: nothing happens without further calls.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let links = self.network.wires.iter().flat_map(Wire::poll_timeouts);
        let neighbours = self.neighbours.values().chain(self.portals.values());
        let neighbours = neighbours.map(Neighbour::poll_timeout);
        let ends = [self.client.poll_timeout(), self.server.poll_timeout()];
        links.chain(ends).chain(neighbours).flatten().min()
    }

    /// Advances the time to `now` and handles what is due. Call it at [`World::poll_timeout`] or
    /// earlier; `now` never decreases. Panics if a timer stays due for thousands of steps.
    pub fn handle_timeout(&mut self, now: Instant) {
        let due = self.poll_timeout().map_or(now, |due| due.max(self.now));
        debug_assert!(now <= due, "the event at {due} was skipped");
        self.steps = if now > self.now { 0 } else { self.steps + 1 };
        assert!(self.steps < STEPS_AT_ONE_MOMENT, "nothing moves at {now}");
        self.now = self.now.max(now);
        for link in 0..self.network.wires.len() {
            self.deliver(link);
        }
        self.client.wake(self.now, &mut self.network);
        self.server.wake(self.now, &mut self.network);
        self.flush();
    }

    /// Runs all events until `end`; panics like [`World::handle_timeout`].
    pub fn run_until(&mut self, end: Instant) {
        while let Some(due) = self.poll_timeout().filter(|due| *due <= end) {
            self.handle_timeout(due.max(self.now));
        }
        self.now = self.now.max(end);
    }

    /// Follows each packet from now on: arrivals have a `Trail`.
    pub fn observe_packets(&mut self) {
        self.network.trails = Some(Trails::default());
        self.client.end.observe_packets(true);
        self.server.end.observe_packets(true);
    }

    /// The next inner packet that left the tunnel, in order.
    pub fn poll_arrival(&mut self) -> Option<Arrival> {
        self.network.arrivals.pop_front()
    }

    pub fn is_joined(&self) -> bool {
        matches!(self.client_events.last(), Some((_, ClientEvent::Joined { .. })))
    }

    pub fn all_paths_usable(&self) -> bool {
        self.client.end.status().is_some_and(|status| {
            let usable = |name: &String| {
                status.paths.iter().any(|path| {
                    path.uplink.as_ref() == Some(name) && path.status == PathStatus::Usable
                })
            };
            self.network.wires.iter().all(|wire| usable(&wire.name))
        })
    }

    /// Status of the client's session, once it is up.
    pub fn client_status(&self) -> Option<SessionStatus> {
        self.client.end.status()
    }

    pub fn uplinks(&self) -> Vec<UplinkReport> {
        self.client.end.uplinks(self.now)
    }

    pub fn server_status(&self) -> Vec<SessionStatus> {
        self.server.end.status()
    }

    /// Session events of the client with their times.
    pub fn client_events(&self) -> &[(Instant, ClientEvent)] {
        &self.client_events
    }

    /// Notices of the client with their times.
    pub fn notices(&self) -> &[(Instant, Notice)] {
        &self.notices
    }

    /// Events of the server with their times.
    pub fn server_events(&self) -> &[(Instant, ServerEvent)] {
        &self.server_events
    }

    pub fn links(&self) -> usize {
        self.network.wires.len()
    }

    /// Statistics of one direction of a link, with cross traffic.
    pub fn link_stats(&self, link: usize, direction: Direction) -> &LinkStats {
        self.network.wires[link].link(direction).stats()
    }

    /// Cross traffic in [`World::link_stats`].
    pub fn cross_stats(&self, link: usize, direction: Direction) -> &CrossStats {
        self.network.wires[link].cross_stats(direction)
    }

    /// Queued bytes in one direction of a link.
    pub fn link_queue_bytes(&mut self, link: usize, direction: Direction) -> usize {
        self.network.wires[link].link_mut(direction).queue_bytes(self.now)
    }

    /// UDP payload that left one direction of a link in vain: corrupted (see [`World::tamper`]),
    /// blocked or misdirected (see [`World::set_hostility`]), or too late for QUIC's replay window.
    pub fn useless_bytes(&self, link: usize, direction: Direction) -> u64 {
        self.network.wires[link].useless_bytes(direction)
    }

    /// Packets without a link.
    pub fn undeliverable(&self) -> u64 {
        self.network.undeliverable
    }

    /// Calls `act` with the client's streams, if its server has any; [`World::flush`] sends data.
    pub fn use_client_streams<T>(
        &mut self,
        act: impl FnOnce(Instant, StreamsOwner, &mut Streams) -> T,
    ) -> Option<T> {
        self.client.touched = true;
        let (owner, streams) = self.client.end.streams(self.now)?;
        Some(act(self.now, owner, streams))
    }

    /// Calls `act` with the streams of the server's client, unless they are closed.
    pub fn use_server_streams<T>(
        &mut self,
        owner: StreamsOwner,
        act: impl FnOnce(Instant, &mut Streams) -> T,
    ) -> Option<T> {
        self.server.touched = true;
        self.server.end.streams(owner).map(|streams| act(self.now, streams))
    }

    /// The next stream event of the server.
    pub fn poll_server_stream(&mut self) -> Option<(StreamsOwner, Event)> {
        self.server.touched = true;
        self.server.end.hand_over_symbols(self.now);
        self.server.end.poll_stream_event(self.now)
    }

    /// The next owner whose streams at the server are all closed.
    pub fn poll_server_streams_over(&mut self) -> Option<StreamsOwner> {
        self.server.end.poll_streams_over()
    }

    fn deliver(&mut self, link: usize) {
        let now = self.now;
        while let Some((from, to, packet, ride)) = self.network.wires[link].poll(now, Direction::Up)
        {
            if let Some(hostile) = &mut self.network.wires[link].hostile {
                let passes = hostile.lets_pass(&packet);
                for forged in hostile.forged() {
                    let (meta, packet) = (meta(link, to, None), Bytes::from(forged));
                    self.client.handle_packet(now, &mut self.network, meta, packet, None);
                }
                if !passes {
                    self.network.wires[link].waste(Direction::Up, packet.len());
                    continue;
                }
            }
            let neighbour = self.portals.get_mut(&link).or_else(|| self.neighbours.get_mut(&to));
            if let Some(neighbour) = neighbour {
                let wire = &mut self.network.wires[link];
                wire.waste(Direction::Up, packet.len());
                if let Some(answer) = neighbour.handle_packet(now, from, to, &packet) {
                    wire.push_down(now, to, BytesMut::from(&answer[..]));
                }
                continue;
            }
            let (meta, ride) = (meta(link, from, Some(SERVER.ip())), Transit { link, ..ride });
            let network = &mut self.network;
            self.server.handle_packet(now, network, meta, packet.freeze(), Some(ride));
        }
        while let Some((from, _, packet, ride)) =
            self.network.wires[link].poll(now, Direction::Down)
        {
            let (meta, ride) = (meta(link, from, None), Transit { link, ..ride });
            let network = &mut self.network;
            self.client.handle_packet(now, network, meta, packet.freeze(), Some(ride));
        }
    }

    fn turn_client(&mut self) {
        self.client.turn(self.now, &mut self.network);
        self.note_client();
    }

    fn flush_client(&mut self) {
        self.client.flush(self.now, &mut self.network);
        self.note_client();
    }

    fn note_client(&mut self) {
        let now = self.now;
        while let Some(event) = self.client.end.poll_event() {
            if let ClientEvent::Notice(notice) = event {
                self.notices.push((now, notice));
                continue;
            }
            if let Some(trails) = &mut self.network.trails {
                trails.clear();
            }
            self.client_events.push((now, event));
        }
        while let Some(uplink) = self.client.end.take_stale_port() {
            self.network.wires[uplink.0 as usize].change_port();
        }
        self.client.rest();
    }

    fn turn_server(&mut self) {
        self.server.turn(self.now, &mut self.network);
        while let Some(event) = self.server.end.poll_event() {
            self.server_events.push((self.now, event));
        }
        self.server.rest();
    }
}

fn client_end(epoch: Epoch, config: &WorldConfig) -> Result<WorldEnd<Client>, WorldError> {
    let sleeper = config.machine.sleeper(SplitMix64::word(config.seed, CLIENT));
    let client = ends::client(epoch, config)?;
    Ok(WorldEnd::new(client, Direction::Up, sleeper, Client::poll_packet_event))
}

fn server_end(
    epoch: Epoch,
    config: &WorldConfig,
    generation: u8,
) -> Result<WorldEnd<Server>, WorldError> {
    let which = SERVER_GENERATIONS + u64::from(generation);
    let sleeper = config.machine.sleeper(SplitMix64::word(config.seed, which));
    let server = ends::server(epoch, config, generation)?;
    let poll_packet_event = |server: &mut Server| Some(server.poll_packet_event()?.1);
    Ok(WorldEnd::new(server, Direction::Down, sleeper, poll_packet_event))
}

fn meta(link: usize, remote: SocketAddr, local: Option<IpAddr>) -> RecvMeta {
    RecvMeta { socket: uplink(link), remote, local, ecn: None, received: None }
}

fn server_at(address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, SERVER.port())
}

pub fn uplink(link: usize) -> UplinkId {
    UplinkId(link as u32)
}

#[cfg(test)]
mod tests;
