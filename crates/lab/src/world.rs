//! A client, a server and the links between them, on one virtual clock and with real TLS.
//!
//! ```text
//!                  ┌───────────────────────── World ─────────────────────────┐
//! handle_inner ───►│ Client ─► outbox ─► links up ──► Server ─► inner packet │───► poll_arrival
//! poll_arrival ◄───│ inner packet ◄─ Client ◄── links down ◄─ outbox ◄─ Server │◄─── handle_inner
//!                  └──────────────────────────────────────────────────────────┘
//!                     poll_timeout says when something is due, handle_timeout lets it happen
//! ```
//!
//! The client and the server are those of the product, byte for byte; the world is their device,
//! their network and their clock. It moves from event to event: the arrival of a packet at the end
//! of a link, a timer of either side. It hands over all packets that are due at one moment, and then
//! turns each side that they touched by the function by which the product's event loop does,
//! [`roadweave_tunnel::turn`].
//!
//! A packet takes the place of its UDP payload and [`UDP_IP_HEADERS`] in a link. Equal
//! configurations and equal calls give equal worlds: only the bytes of TLS secrets differ, none of
//! the times or sizes.

mod ends;
mod strangers;
mod tamper;
mod trails;
mod turns;
mod wire;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_emulate::{Direction, DuplexLink, LinkStats};
use roadweave_quic::{CongestionControl, Epoch};
use roadweave_tunnel::{
    Client, ClientError, ClientEvent, LaneConfig, Node, Notice, RecvMeta, Server, ServerEvent,
    SessionStatus, SetError, Strategy, UplinkPolicy, UplinkReport,
};
use roadweave_types::{Instant, PathStatus, UplinkId};

use strangers::{Hostile, Neighbour};
pub use strangers::{Hostility, OtherServer, Stranger, Strangers};
pub use tamper::Tampering;
pub use trails::Trail;
use trails::Trails;
pub use wire::CrossStats;
use wire::Wire;

/// Where the server listens (RFC 5737).
pub const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4433);
/// Bytes of the outer IPv4 and UDP headers of each packet in a link.
pub const UDP_IP_HEADERS: usize = 28;
/// The MTU of the tunnel's devices, bytes: the product's default.
pub const MTU: u16 = 1360;
/// The world takes so many steps at one moment for a loop without end.
const STEPS_AT_ONE_MOMENT: u32 = 10_000;

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// The links, each with an uplink of the same name at the vehicle; at most 64.
    pub links: Vec<DuplexLink>,
    /// The lanes from the vehicle.
    pub lanes_up: Vec<LaneConfig>,
    /// The lanes to the vehicle; they may not name uplinks, which the server does not know.
    pub lanes_down: Vec<LaneConfig>,
    /// The congestion control of every path, on both sides.
    pub congestion: CongestionControl,
    /// Decides all that is random in client and server; links have seeds of their own.
    pub seed: u64,
    /// Who trusts whom.
    pub trust: Trust,
    /// What the strategies at both ends have learned before, as JSON by the lane's name.
    pub learned: BTreeMap<String, String>,
    /// How links may be used that are not as any other, by their names.
    pub policies: BTreeMap<String, UplinkPolicy>,
    /// Who else there is.
    pub strangers: Strangers,
}

/// Whether the two ends know each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trust {
    /// Whether the server knows the client's key.
    pub client_is_known: bool,
    /// Whether the server has the key that the client expects.
    pub server_is_right: bool,
    /// When the client's key expires, seconds since 1970; the world's time of day is
    /// [`Trust::UNIX_TIME`].
    pub expires_unix: Option<u64>,
}

impl Trust {
    /// The time of day in every world, seconds since 1970.
    pub const UNIX_TIME: u64 = 1_800_000_000;
}

impl Default for Trust {
    fn default() -> Self {
        Self { client_is_known: true, server_is_right: true, expires_unix: None }
    }
}

/// Why no world can be made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// No link, or too many.
    #[error("a world has 1 to {LINKS_MAX} links, not {0}")]
    Links(usize),
    /// The client or its lanes cannot be made.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The server cannot be made.
    #[error(transparent)]
    Server(#[from] roadweave_quic::ConfigError),
}

/// The most links of a world.
pub const LINKS_MAX: usize = 64;

/// An inner packet that came out of the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: Instant,
    /// The way it went.
    pub direction: Direction,
    /// The inner IP packet.
    pub packet: Bytes,
    /// The outer packet that brought it, or the last part that was missing of it; `None` if it had
    /// to wait for a timer.
    pub ride: Option<Ride>,
    /// What happened to it before, if [`World::observe_packets`] asked for it.
    pub trail: Option<Trail>,
}

/// The way of an outer packet through a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ride {
    /// The link, from 0 in the order of [`WorldConfig::links`].
    pub link: usize,
    /// When it was put in.
    pub boarded: Instant,
    /// The link's propagation delay then. The rest of its time it waited for capacity.
    pub propagation: Duration,
}

/// Client, server and links.
#[derive(Debug)]
pub struct World {
    now: Instant,
    epoch: Epoch,
    config: WorldConfig,
    client: Side<Client>,
    server: Side<Server>,
    /// How often the server was restarted.
    server_lives: u8,
    wires: Vec<Wire>,
    /// Servers beside the right one, by their addresses.
    neighbours: BTreeMap<SocketAddr, Neighbour>,
    /// What answers on a link instead of any server.
    portals: BTreeMap<usize, Neighbour>,
    arrivals: VecDeque<Arrival>,
    client_events: Vec<(Instant, ClientEvent)>,
    notices: Vec<(Instant, Notice)>,
    server_events: Vec<(Instant, ServerEvent)>,
    stray: u64,
    steps: u32,
    /// The packets under way, if they are followed.
    trails: Option<Trails>,
}

/// One end, when it is due, and whether it has been touched since it was serviced.
#[derive(Debug)]
struct Side<T> {
    end: T,
    due: Option<Instant>,
    touched: bool,
}

impl World {
    /// A world at [`Instant::ZERO`] in which the client has all uplinks and begins to connect.
    ///
    /// # Errors
    /// [`WorldError`] when the links are too few or too many, or an end cannot be made.
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
            client: Side::new(ends::client(epoch, &config)?),
            server: Side::new(ends::server(epoch, &config, 0)?),
            server_lives: 0,
            wires: wires.collect(),
            neighbours: BTreeMap::new(),
            portals: BTreeMap::new(),
            arrivals: VecDeque::new(),
            client_events: Vec::new(),
            notices: Vec::new(),
            server_events: Vec::new(),
            stray: 0,
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

    /// Takes an inner packet at the end where `direction` begins. Call [`World::flush`] after a
    /// batch.
    pub fn handle_inner(&mut self, direction: Direction, packet: &[u8]) {
        match direction {
            Direction::Up => {
                self.client.end.handle_inner(self.now, packet);
                self.client.touched = true;
            }
            Direction::Down => {
                self.server.end.handle_inner(self.now, packet);
                self.server.touched = true;
            }
        }
    }

    /// Puts a competing packet of `bytes` bytes, headers included, into a link's queue. It is
    /// counted in [`World::cross_stats`] and goes nowhere.
    pub fn push_cross(&mut self, link: usize, direction: Direction, bytes: usize) {
        self.wires[link].push_cross(self.now, direction, bytes);
    }

    /// Lets both ends send what may leave now.
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
                if let Some(wire) = wires.iter_mut().find(|wire| wire.public == to) {
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

    /// When something happens next; `None` when nothing will unless something is done.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let links = self.wires.iter().flat_map(Wire::poll_timeouts);
        let neighbours = self.neighbours.values().chain(self.portals.values());
        let neighbours = neighbours.map(Neighbour::poll_timeout);
        links.chain([self.client.due, self.server.due]).chain(neighbours).flatten().min()
    }

    /// Moves the time to `now` and lets happen what is due then. Call it at
    /// [`World::poll_timeout`], or earlier to do something in between; `now` never goes back.
    ///
    /// # Panics
    /// When one moment takes thousands of steps: a timer is due again and again without effect.
    pub fn handle_timeout(&mut self, now: Instant) {
        let due = self.poll_timeout().map_or(now, |due| due.max(self.now));
        debug_assert!(now <= due, "the event at {due} was jumped over");
        self.steps = if now > self.now { 0 } else { self.steps + 1 };
        assert!(self.steps < STEPS_AT_ONE_MOMENT, "nothing moves at {now}");
        self.now = self.now.max(now);
        for link in 0..self.wires.len() {
            self.deliver(link);
        }
        self.client.touched |= self.client.due.is_some_and(|due| due <= now);
        self.server.touched |= self.server.due.is_some_and(|due| due <= now);
        self.flush();
    }

    /// Lets everything happen until `end`, and moves the time there.
    ///
    /// # Panics
    /// As [`World::handle_timeout`].
    pub fn run_until(&mut self, end: Instant) {
        while let Some(due) = self.poll_timeout().filter(|due| *due <= end) {
            self.handle_timeout(due.max(self.now));
        }
        self.now = self.now.max(end);
    }

    /// Follows each packet from now on: arrivals tell their [`Trail`].
    pub fn observe_packets(&mut self) {
        self.trails = Some(Trails::default());
        self.client.end.observe_packets(true);
        self.server.end.observe_packets(true);
    }

    /// An inner packet that came out of the tunnel, in the order of their coming.
    pub fn poll_arrival(&mut self) -> Option<Arrival> {
        self.arrivals.pop_front()
    }

    /// Hands over what has arrived at the end of a link.
    fn deliver(&mut self, link: usize) {
        let now = self.now;
        while let Some((from, to, packet, ride)) = self.wires[link].poll(now, Direction::Up) {
            if let Some(hostile) = &mut self.wires[link].hostile {
                let passes = hostile.lets_pass(&packet);
                for forged in hostile.forged() {
                    self.client.end.handle_packet(now, &meta(link, to, None), &forged);
                    self.client.touched = true;
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
            self.server.end.handle_packet(now, &meta, &packet);
            self.server.touched = true;
            self.deliver_of_server(Ride { link, ..ride });
        }
        while let Some((from, _, packet, ride)) = self.wires[link].poll(now, Direction::Down) {
            self.client.end.handle_packet(now, &meta(link, from, None), &packet);
            self.client.touched = true;
            self.deliver_of_client(Ride { link, ..ride });
        }
    }
}

/// What happens to links and ends.
impl World {
    /// Kills both directions of a link, or brings them back; see
    /// [`Link::set_dead`](roadweave_emulate::Link::set_dead).
    pub fn set_dead(&mut self, link: usize, dead: bool) {
        self.wires[link].set_dead(self.now, dead);
    }

    /// Kills one direction of a link, or brings it back.
    pub fn set_dead_way(&mut self, link: usize, direction: Direction, dead: bool) {
        self.wires[link].link_mut(direction).set_dead(self.now, dead);
    }

    /// Both directions of a link lose packets of more than `payload` bytes of UDP from now on.
    pub fn set_mtu(&mut self, link: usize, payload: usize) {
        for direction in [Direction::Up, Direction::Down] {
            self.wires[link].link_mut(direction).set_mtu(payload + UDP_IP_HEADERS);
        }
    }

    /// The network's translator shows the server another address of the vehicle from now on;
    /// packets to the old one go nowhere.
    pub fn rebind(&mut self, link: usize) {
        self.wires[link].rebind();
    }

    /// The translator's address of a link is `public` from now on.
    pub fn set_public(&mut self, link: usize, public: SocketAddr) {
        self.wires[link].public = public;
    }

    /// Both directions of a link do this to what comes out of them from now on; `seed` decides
    /// when.
    pub fn tamper(&mut self, link: usize, tampering: Tampering, seed: u64) {
        self.wires[link].tamper(tampering, seed);
    }

    /// From now on this is the matter with a link, or nothing.
    ///
    /// # Errors
    /// None that [`World::new`] had not.
    pub fn set_hostility(
        &mut self,
        link: usize,
        hostility: Option<Hostility>,
    ) -> Result<(), WorldError> {
        self.portals.remove(&link);
        if hostility == Some(Hostility::Portal) {
            let portal = Neighbour::new(&self.recipe(), OtherServer::WrongKey)?;
            self.portals.insert(link, portal);
        }
        self.wires[link].hostile = hostility.map(Hostile::new);
        Ok(())
    }

    fn recipe(&self) -> ends::Recipe<'_> {
        ends::Recipe { epoch: self.epoch, world: &self.config }
    }

    /// The vehicle's interface to a link is there, or has got another address.
    pub fn add_uplink(&mut self, link: usize) {
        let name = &self.config.links[link].name;
        self.client.end.add_uplink(self.now, uplink(link), name);
        self.flush_client();
    }

    /// The vehicle's interface to a link is gone.
    pub fn remove_uplink(&mut self, link: usize) {
        self.client.end.remove_uplink(self.now, uplink(link));
        self.flush_client();
    }

    /// The server is killed and started again, with the same key and nothing else
    /// of its former life.
    ///
    /// # Errors
    /// None that [`World::new`] had not.
    pub fn restart_server(&mut self) -> Result<(), WorldError> {
        self.server_lives = self.server_lives.wrapping_add(1);
        self.server = Side::new(ends::server(self.epoch, &self.config, self.server_lives)?);
        if self.trails.is_some() {
            self.observe_packets();
        }
        Ok(())
    }

    /// Starts all links, and all that is random in them, from their beginning now, with the traces
    /// of `links`, which are as many. Packets under way arrive as if nothing had happened; those
    /// that wait depart as the traces say.
    pub fn restart_links(&mut self, links: Vec<DuplexLink>) {
        for (wire, link) in self.wires.iter_mut().zip(links) {
            wire.restart(self.now, link.up.trace, link.down.trace);
        }
    }

    /// Lets a lane of one direction follow another strategy from now on.
    ///
    /// # Errors
    /// When there is no such lane, or the strategy cannot be used there.
    pub fn set_strategy(
        &mut self,
        direction: Direction,
        lane: &str,
        strategy: Strategy,
    ) -> Result<(), SetError> {
        let now = self.now;
        let (client, server) = self.ends_mut();
        match direction {
            Direction::Up => client.set_strategy(now, lane, strategy),
            Direction::Down => server.set_strategy(lane, strategy),
        }?;
        self.flush();
        Ok(())
    }

    /// Both ends and what they may be told beyond; follow it with [`World::flush`].
    pub fn ends_mut(&mut self) -> (&mut Client, &mut Server) {
        (self.client.touched, self.server.touched) = (true, true);
        (&mut self.client.end, &mut self.server.end)
    }
}

/// What can be seen.
impl World {
    /// Whether the client's session is up.
    pub fn is_joined(&self) -> bool {
        matches!(self.client_events.last(), Some((_, ClientEvent::Joined { .. })))
    }

    /// Whether the client has a usable path over every link.
    pub fn all_paths_usable(&self) -> bool {
        self.client.end.status().is_some_and(|status| {
            let usable = |name: &String| {
                status.paths.iter().any(|path| {
                    path.uplink.as_ref() == Some(name) && path.status == PathStatus::Usable
                })
            };
            self.wires.iter().all(|wire| usable(&wire.name))
        })
    }

    /// What the client tells of its session, once it is up.
    pub fn client_status(&self) -> Option<SessionStatus> {
        self.client.end.status()
    }

    /// What the client tells of the ways to its server.
    pub fn uplinks(&self) -> Vec<UplinkReport> {
        self.client.end.uplinks(self.now)
    }

    /// What the server tells of its sessions.
    pub fn server_status(&self) -> Vec<SessionStatus> {
        self.server.end.status()
    }

    /// What the client had to tell of its sessions, and when.
    pub fn client_events(&self) -> &[(Instant, ClientEvent)] {
        &self.client_events
    }

    /// What else a person should know from the client, and when.
    pub fn notices(&self) -> &[(Instant, Notice)] {
        &self.notices
    }

    /// What the server had to tell, and when.
    pub fn server_events(&self) -> &[(Instant, ServerEvent)] {
        &self.server_events
    }

    /// How many links there are.
    pub fn links(&self) -> usize {
        self.wires.len()
    }

    /// What has passed through one direction of a link, cross traffic included.
    pub fn link_stats(&self, link: usize, direction: Direction) -> &LinkStats {
        self.wires[link].link(direction).stats()
    }

    /// The part of [`World::link_stats`] that is cross traffic.
    pub fn cross_stats(&self, link: usize, direction: Direction) -> &CrossStats {
        self.wires[link].cross_stats(direction)
    }

    /// Bytes that wait for capacity in one direction of a link.
    pub fn link_queue_bytes(&mut self, link: usize, direction: Direction) -> usize {
        self.wires[link].link_mut(direction).queue_bytes(self.now)
    }

    /// Bytes of UDP payload that came out of one direction of a link to no use: corrupted (see
    /// [`World::tamper`]), kept back or led elsewhere (see [`World::set_hostility`]), or overtaken
    /// by more packets than QUIC remembers.
    pub fn useless_bytes(&self, link: usize, direction: Direction) -> u64 {
        self.wires[link].useless_bytes(direction)
    }

    /// Packets for which there was no link any more.
    pub fn stray(&self) -> u64 {
        self.stray
    }
}

impl<T> Side<T> {
    fn new(end: T) -> Self {
        Self { end, due: None, touched: true }
    }
}

/// How a packet comes out of a link: from `remote`, for the address `local` of a server.
fn meta(link: usize, remote: SocketAddr, local: Option<IpAddr>) -> RecvMeta {
    RecvMeta { socket: uplink(link), remote, local, ecn: None }
}

/// All servers listen at the same port.
fn server_at(address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, SERVER.port())
}

/// The uplink of link number `link`.
pub fn uplink(link: usize) -> UplinkId {
    UplinkId(link as u32)
}

#[cfg(test)]
mod tests;
