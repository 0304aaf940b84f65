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
mod ends;
mod machine;
mod strangers;
mod streams;
mod tamper;
mod trails;
mod turns;
mod view;
mod wire;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_emulate::Direction;
use roadweave_proto::{Instant, SplitMix64, UplinkId};
use roadweave_quic::Epoch;
use roadweave_tunnel::{Client, ClientEvent, Node, Notice, RecvMeta, Server, ServerEvent};

use config::LINKS_MAX;
pub use config::{Hostility, OtherServer, Stranger, Strangers, Trust, WorldConfig, WorldError};
pub use machine::Machine;
use machine::{HeldInput, Sleeper};
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
    /// Its direction.
    pub direction: Direction,
    /// The inner IP packet.
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
    wires: Vec<Wire>,
    neighbours: BTreeMap<SocketAddr, Neighbour>,
    portals: BTreeMap<usize, Neighbour>,
    arrivals: VecDeque<Arrival>,
    client_events: Vec<(Instant, ClientEvent)>,
    notices: Vec<(Instant, Notice)>,
    server_events: Vec<(Instant, ServerEvent)>,
    undeliverable: u64,
    steps: u32,
    trails: Option<Trails>,
}

#[derive(Debug)]
struct WorldEnd<T> {
    end: T,
    due: Option<Instant>,
    touched: bool,
    sleeper: Option<Sleeper>,
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
            client: WorldEnd::new(ends::client(epoch, &config)?).on(&config, CLIENT),
            server: WorldEnd::new(ends::server(epoch, &config, 0)?).on(&config, SERVER_GENERATIONS),
            server_generations: 0,
            wires: wires.collect(),
            neighbours: BTreeMap::new(),
            portals: BTreeMap::new(),
            arrivals: VecDeque::new(),
            client_events: Vec::new(),
            notices: Vec::new(),
            server_events: Vec::new(),
            undeliverable: 0,
            steps: 0,
            trails: None,
            config,
        };
        for (address, kind) in world.config.strangers.servers.clone() {
            let neighbour = Neighbour::new(&world.recipe(), kind)?;
            world.neighbours.insert(address, neighbour);
        }
        for (link, hostility) in world.config.strangers.links.clone() {
            world.set_hostility(link, Some(hostility))?;
        }
        (0..world.wires.len()).for_each(|link| world.add_uplink(link));
        Ok(world)
    }

    /// The time in this world.
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
        self.wires[link].push_cross(self.now, direction, bytes);
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
        let wires = &mut self.wires;
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
        let links = self.wires.iter().flat_map(Wire::poll_timeouts);
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
        for link in 0..self.wires.len() {
            self.deliver(link);
        }
        self.wake_ends();
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
        self.trails = Some(Trails::default());
        self.client.end.observe_packets(true);
        self.server.end.observe_packets(true);
    }

    /// The next inner packet that left the tunnel, in order.
    pub fn poll_arrival(&mut self) -> Option<Arrival> {
        self.arrivals.pop_front()
    }

    fn deliver(&mut self, link: usize) {
        let now = self.now;
        while let Some((from, to, packet, ride)) = self.wires[link].poll(now, Direction::Up) {
            if let Some(hostile) = &mut self.wires[link].hostile {
                let passes = hostile.lets_pass(&packet);
                for forged in hostile.forged() {
                    self.take_at_client(meta(link, to, None), Bytes::from(forged), None);
                }
                if !passes {
                    self.wires[link].waste(Direction::Up, packet.len());
                    continue;
                }
            }
            let neighbour = self.portals.get_mut(&link).or_else(|| self.neighbours.get_mut(&to));
            if let Some(neighbour) = neighbour {
                self.wires[link].waste(Direction::Up, packet.len());
                if let Some(answer) = neighbour.handle_packet(now, from, to, &packet) {
                    self.wires[link].push_down(now, to, BytesMut::from(&answer[..]));
                }
                continue;
            }
            let meta = meta(link, from, Some(SERVER.ip()));
            self.take_at_server(meta, packet.freeze(), Some(Transit { link, ..ride }));
        }
        while let Some((from, _, packet, ride)) = self.wires[link].poll(now, Direction::Down) {
            let meta = meta(link, from, None);
            self.take_at_client(meta, packet.freeze(), Some(Transit { link, ..ride }));
        }
    }
}

impl<T> WorldEnd<T> {
    fn new(end: T) -> Self {
        Self { end, due: None, touched: true, sleeper: None }
    }
}

impl<T: Node> WorldEnd<T> {
    /// `which`: number of the side, unique within the world.
    fn on(self, config: &WorldConfig, which: u64) -> Self {
        let seed = SplitMix64::word(config.seed, which);
        Self { sleeper: config.machine.sleeper(seed), ..self }
    }

    fn handle_inner(&mut self, now: Instant, packet: &[u8]) {
        if let Some(sleeper) = &mut self.sleeper {
            return sleeper.hold(now, HeldInput::Inner(Bytes::copy_from_slice(packet)));
        }
        self.end.handle_inner(now, packet);
        self.touched = true;
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.sleeper.as_ref().and_then(|sleeper| sleeper.wakes).or(self.due)
    }

    /// If it runs now, returns the waiting input and marks the side as touched.
    fn wake(&mut self, now: Instant) -> VecDeque<HeldInput> {
        let due = self.due.filter(|due| *due <= now);
        let Some(sleeper) = &mut self.sleeper else {
            self.touched |= due.is_some();
            return VecDeque::new();
        };
        if let Some(due) = due {
            sleeper.on_due(now, due);
        }
        let woken = sleeper.wake(now);
        self.touched |= woken.is_some();
        woken.unwrap_or_default()
    }
}

fn meta(link: usize, remote: SocketAddr, local: Option<IpAddr>) -> RecvMeta {
    RecvMeta { socket: uplink(link), remote, local, ecn: None, received: None }
}

fn server_at(address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, SERVER.port())
}

/// The uplink of a link.
pub fn uplink(link: usize) -> UplinkId {
    UplinkId(link as u32)
}

#[cfg(test)]
mod tests;
