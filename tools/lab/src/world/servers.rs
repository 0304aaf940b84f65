//! One vehicle and several servers; a server can crash, freeze, drain or lose its egress.
//!
//! ```text
//!                ┌═ link ═┐    ┌─ server 0 ─┐
//! client ════════╪═ link ═╪════┤            ├─── the shared egress: the host of the cloud
//!                └═ link ═┘    └─ server 1 ─┘        ▲ sends to the server of the newest session
//! ```
//!
//! Client and servers are the product's, links are `emulate`'s. All servers share one host behind
//! an anchor; packets to the vehicle enter at the server of its newest session.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_emulate::{Direction, DuplexLink, LinkStats};
use roadweave_identity::{Identity, PublicKey};
use roadweave_proto::Instant;
use roadweave_quic::{Epoch, Outbox, TransportConfig};
use roadweave_tunnel::{
    Candidate, Client, ClientConfig, ClientEvent, DrainReason, Io, LaneConfig, MEMORY_MAX,
    Node as _, Peer, PeerTable, Server, ServerEvent, flush, turn,
};

use super::wire::Wire;
use super::{WorldError, meta, server_config, uplink};
use crate::inner::VEHICLE;

/// Configuration of a vehicle and its servers.
#[derive(Clone, Debug)]
pub struct ServersConfig {
    /// Links, each with an uplink of the same name.
    pub links: Vec<DuplexLink>,
    /// Site of each server, in the client's order.
    pub sites: Vec<String>,
    /// Round trip from each server to the egress, for the client; empty if unknown.
    pub to_anchor: Vec<Duration>,
    /// Lanes from the vehicle.
    pub lanes_up: Vec<LaneConfig>,
    /// Lanes to the vehicle.
    pub lanes_down: Vec<LaneConfig>,
    /// Seed of client and servers.
    pub seed: u64,
}

/// A fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The server vanishes without a close.
    Crash,
    /// The server stops, and its input is lost.
    Freeze,
    /// A frozen server continues from its state.
    Thaw,
    /// The server asks its clients to move within this many milliseconds.
    Drain(u32),
    /// The server loses the egress, and drains after it notices.
    CutFromEgress,
}

/// An inner packet that left the tunnel; see [`super::Arrival`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServersArrival {
    /// When it left the tunnel.
    pub at: Instant,
    /// Its direction.
    pub direction: Direction,
    /// The server that it passed.
    pub server: Option<usize>,
    /// The inner packet.
    pub packet: Bytes,
}

/// A vehicle and its servers.
#[derive(Debug)]
pub struct Servers {
    now: Instant,
    client: Client,
    candidates: Vec<Candidate>,
    wires: Vec<Wire>,
    servers: Vec<Proxy>,
    arrivals: VecDeque<ServersArrival>,
    client_events: Vec<(Instant, ClientEvent)>,
    newest: Option<usize>,
}

#[derive(Debug)]
struct Proxy {
    address: SocketAddr,
    end: Option<Server>,
    is_frozen: bool,
    cut: Option<Instant>,
    events: Vec<(Instant, ServerEvent)>,
}

struct EndIo<'a> {
    now: Instant,
    server: Option<(usize, SocketAddr)>,
    reaches_egress: bool,
    wires: &'a mut [Wire],
    arrivals: &'a mut VecDeque<ServersArrival>,
}

impl Io for EndIo<'_> {
    fn now(&self) -> Instant {
        self.now
    }

    fn deliver(&mut self, packets: &mut dyn Iterator<Item = Bytes>) {
        let server = self.server.map(|(number, _)| number);
        let direction = if server.is_some() { Direction::Up } else { Direction::Down };
        let at = self.now;
        let arrivals = packets.map(|packet| ServersArrival { at, direction, server, packet });
        match self.reaches_egress {
            true => self.arrivals.extend(arrivals),
            false => arrivals.for_each(drop),
        }
    }

    fn transmit(&mut self, packets: &Outbox) {
        for (route, packet) in packets.packets() {
            let packet = BytesMut::from(packet);
            match self.server {
                None => {
                    let link = route.uplink.and_then(|it| self.wires.get_mut(it.0 as usize));
                    if let Some(wire) = link {
                        wire.push_up(self.now, route.destination, packet);
                    }
                }
                Some((_, from)) => {
                    let to = self.wires.iter_mut().find(|it| it.public == route.destination);
                    if let Some(wire) = to {
                        wire.push_down(self.now, from, packet);
                    }
                }
            }
        }
    }
}

impl Servers {
    /// A world at [`Instant::ZERO`] whose client has all uplinks and begins to connect; fails if a
    /// side cannot be created.
    #[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
    pub fn new(config: &ServersConfig) -> Result<Self, WorldError> {
        let epoch = Epoch::new(std::time::Instant::now());
        let numbers = 0..config.sites.len();
        let candidates: Vec<Candidate> = numbers
            .clone()
            .map(|number| Candidate {
                key: server_identity(number).public_key(),
                name: format!("proxy-{number}"),
                site: config.sites[number].clone(),
                addresses: vec![address(number)],
                to_anchor: config.to_anchor.get(number).copied().unwrap_or_default(),
                last_resort: false,
            })
            .collect();
        let client = ClientConfig {
            name: "vehicle".into(),
            candidates: candidates.clone(),
            transport: transport(config.seed, 0),
            lanes: config.lanes_up.clone(),
            streams: None,
            memory_max: MEMORY_MAX,
        };
        let mut client = Client::new(epoch, client, Arc::new(client_identity()))?;
        let servers = numbers
            .map(|number| {
                let end = Some(server(epoch, config, number)?);
                let address = address(number);
                let (is_frozen, cut, events) = (false, None, Vec::new());
                Ok(Proxy { address, end, is_frozen, cut, events })
            })
            .collect::<Result<Vec<_>, WorldError>>()?;
        for (link, settings) in config.links.iter().enumerate() {
            client.add_uplink(Instant::ZERO, uplink(link), &settings.name);
        }
        let wires = (0..).zip(&config.links).map(|(index, link)| Wire::new(index, link));
        let mut fleet = Self {
            now: Instant::ZERO,
            client,
            candidates,
            wires: wires.collect(),
            servers,
            arrivals: VecDeque::new(),
            client_events: Vec::new(),
            newest: None,
        };
        fleet.run_client(|client, io| flush(client, io));
        Ok(fleet)
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The client; call [`Servers::flush`] afterwards.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// All servers in the client's initial order.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// A server, unless it crashed; call [`Servers::flush`] afterwards.
    pub fn server(&mut self, number: usize) -> Option<&mut Server> {
        self.servers[number].end.as_mut()
    }

    /// Events of the client with their times.
    pub fn client_events(&self) -> &[(Instant, ClientEvent)] {
        &self.client_events
    }

    /// Events of a server with their times.
    pub fn server_events(&self, number: usize) -> &[(Instant, ServerEvent)] {
        &self.servers[number].events
    }

    /// How often the client changed its server.
    pub fn moves(&self) -> usize {
        let moves = self.client_events.iter();
        moves.filter(|(_, event)| matches!(event, ClientEvent::Moved { .. })).count()
    }

    /// The server that the client uses, or tries first.
    pub fn home(&self) -> usize {
        let key: PublicKey = self.client.server().key;
        let of_key = |number: &usize| server_identity(*number).public_key() == key;
        (0..self.servers.len()).find(of_key).expect("the client knows no others")
    }

    /// Statistics of one direction of a link.
    pub fn link_stats(&self, link: usize, direction: Direction) -> &LinkStats {
        self.wires[link].link(direction).stats()
    }

    /// Disables or enables both directions of a link.
    pub fn set_dead(&mut self, link: usize, dead: bool) {
        self.wires[link].set_dead(self.now, dead);
    }

    /// Applies a fault to a server.
    pub fn befall(&mut self, number: usize, fault: Fault) {
        let now = self.now;
        let proxy = &mut self.servers[number];
        match fault {
            Fault::Crash => proxy.end = None,
            Fault::Freeze => proxy.is_frozen = true,
            Fault::Thaw => proxy.is_frozen = false,
            Fault::CutFromEgress => proxy.cut = Some(now),
            Fault::Drain(ms) => {
                if let Some(server) = &mut proxy.end {
                    let over = Duration::from_millis(ms.into());
                    server.drain(now, DrainReason::Command, over);
                }
            }
        }
        self.flush();
    }

    /// Accepts an inner packet in either direction. Call [`Servers::flush`] after a batch.
    pub fn handle_inner(&mut self, direction: Direction, packet: &[u8]) {
        match direction {
            Direction::Up => self.client.handle_inner(self.now, packet),
            Direction::Down => {
                let at = self.newest.map(|number| &mut self.servers[number]);
                let at = at.filter(|proxy| proxy.acts() && proxy.cut.is_none());
                if let Some(Proxy { end: Some(server), .. }) = at {
                    server.handle_inner(self.now, packet);
                }
            }
        }
    }

    /// The next inner packet that left the tunnel, in order.
    pub fn poll_arrival(&mut self) -> Option<ServersArrival> {
        self.arrivals.pop_front()
    }

    /// Lets all sides send.
    pub fn flush(&mut self) {
        self.run_client(|client, io| turn(client, io));
        (0..self.servers.len()).for_each(|number| self.turn_server(number));
    }

    /// Time of the next event.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let links = self.wires.iter().flat_map(Wire::poll_timeouts).flatten();
        let servers = self.servers.iter().filter_map(Proxy::poll_timeout);
        links.chain(servers).chain(self.client.poll_timeout()).min()
    }

    /// Runs all events until `end`; panics if one moment takes thousands of steps.
    pub fn run_until(&mut self, end: Instant) {
        let mut at_one_moment = 0;
        while let Some(due) = self.poll_timeout().filter(|due| *due <= end) {
            at_one_moment = if due > self.now { 0 } else { at_one_moment + 1 };
            assert!(at_one_moment < 10_000, "nothing moves at {}", self.now);
            self.now = self.now.max(due);
            self.step();
        }
        self.now = self.now.max(end);
    }

    fn step(&mut self) {
        let now = self.now;
        let mut client_due = self.client.poll_timeout().is_some_and(|due| due <= now);
        let due = |proxy: &Proxy| proxy.poll_timeout().is_some_and(|due| due <= now);
        let mut due: Vec<bool> = self.servers.iter().map(due).collect();
        for link in 0..self.wires.len() {
            while let Some((from, to, packet, _)) = self.wires[link].poll(now, Direction::Up) {
                let Some(number) = self.servers.iter().position(|it| it.address == to) else {
                    continue;
                };
                let proxy = &mut self.servers[number];
                let acts = proxy.acts();
                if let Some(server) = proxy.end.as_mut().filter(|_| acts) {
                    let local = Some(to.ip());
                    let meta = meta(link, from, local);
                    server.handle_packet(now, &meta, &packet);
                    due[number] = true;
                }
            }
            while let Some((from, _, packet, _)) = self.wires[link].poll(now, Direction::Down) {
                let meta = meta(link, from, None);
                self.client.handle_packet(now, &meta, &packet);
                client_due = true;
            }
        }
        if client_due {
            self.run_client(|client, io| turn(client, io));
        }
        for (number, _) in due.into_iter().enumerate().filter(|(_, due)| *due) {
            self.turn_server(number);
        }
    }

    fn run_client(&mut self, run: impl FnOnce(&mut Client, &mut EndIo<'_>)) {
        let Self { now, client, wires, arrivals, .. } = self;
        let (server, reaches_egress) = (None, true);
        run(client, &mut EndIo { now: *now, server, reaches_egress, wires, arrivals });
        while let Some(event) = self.client.poll_event() {
            self.client_events.push((self.now, event));
        }
    }

    fn turn_server(&mut self, number: usize) {
        let Self { now, servers, wires, arrivals, newest, .. } = self;
        let (now, proxy) = (*now, &mut servers[number]);
        let acts = proxy.acts();
        let Some(server) = proxy.end.as_mut().filter(|_| acts) else { return };
        if proxy.cut.is_some_and(|cut| now >= cut + CUT_NOTICED) && !server.is_draining() {
            server.drain(now, DrainReason::Command, Duration::ZERO);
        }
        let (this, reaches_egress) = (Some((number, proxy.address)), proxy.cut.is_none());
        turn(server, &mut EndIo { now, server: this, reaches_egress, wires, arrivals });
        while let Some(event) = server.poll_event() {
            if matches!(event, ServerEvent::Joined { .. }) {
                *newest = Some(number);
            }
            proxy.events.push((now, event));
        }
    }
}

impl Proxy {
    fn acts(&self) -> bool {
        self.end.is_some() && !self.is_frozen
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let server = self.end.as_ref().filter(|_| self.acts())?;
        let notices = self.cut.map(|cut| cut + CUT_NOTICED).filter(|_| !server.is_draining());
        server.poll_timeout().into_iter().chain(notices).min()
    }
}

fn address(number: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1 + number as u8], 4433))
}

fn client_identity() -> Identity {
    Identity::from_seed([1; 32])
}

fn server_identity(number: usize) -> Identity {
    Identity::from_seed([100 + number as u8; 32])
}

fn server(epoch: Epoch, config: &ServersConfig, number: usize) -> Result<Server, WorldError> {
    let peer = Peer::new("vehicle", vec![IpAddr::from(VEHICLE).into()]);
    let peers = Arc::new(PeerTable::new([(client_identity().public_key(), peer)]));
    let settings = server_config(transport(config.seed, 1 + number as u8), &config.lanes_down);
    Ok(Server::new(epoch, settings, Arc::new(server_identity(number)), peers)?)
}

fn transport(seed: u64, end: u8) -> TransportConfig {
    let mut bytes = [end; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TransportConfig::new(bytes)
}

const CUT_NOTICED: Duration = Duration::from_millis(500);
