//! Two endpoints and their links in virtual time, to test this crate on the pinned library.
//!
//! ```text
//! client Endpoint -- uplink i --> link i (rate, queue, loss, delay, jitter) --> server Endpoint
//!                                 address translation: each link has one address towards the server
//! ```
//!
//! All randomness comes from a seed. [`Books`] record each datagram's path, link and fate.

mod acknowledgements;
mod ecn;
mod handshakes;
mod hostile;
mod lifecycle;
mod rates;
mod signs_of_life;
mod steering;
mod wire;

use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use roadweave_identity::{Identity, PeerPolicy, PublicKey, Refusal};
use roadweave_proto::{Instant, PathId, PathSnapshot, PathStatus, SplitMix64, UplinkId};

use self::wire::{Arrival, Marks, Wire};
use crate::*;

const CLIENT: usize = 0;
const SERVER: usize = 1;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[derive(Default)]
struct Books {
    sent: BTreeMap<u64, (PathId, Instant)>,
    acknowledged: BTreeMap<u64, (PathId, Instant)>,
    lost: BTreeMap<u64, (PathId, Instant)>,
    received: Vec<(u64, PathId, usize, Instant)>,
    feedback_received: u64,
    messages: Vec<Bytes>,
    usable: Vec<PathId>,
    closed_paths: Vec<(PathId, PathCloseReason)>,
    connected: Vec<(PublicKey, Instant)>,
    closed: Option<(CloseReason, Instant)>,
}

struct Side {
    endpoint: Endpoint,
    connection: Option<ConnectionId>,
    books: Books,
    endpoint_events: Vec<EndpointEvent>,
    feedback: bool,
    late: Duration,
    stamped: bool,
}

struct Anyone(Result<(), Refusal>);

impl PeerPolicy for Anyone {
    fn check(&self, _: &PublicKey) -> Result<(), Refusal> {
        self.0
    }
}

struct World {
    now: Instant,
    epoch: Epoch,
    server_key: PublicKey,
    sides: [Side; 2],
    links: Vec<Wire>,
    network: BinaryHeap<Arrival>,
    random: SplitMix64,
    packets: u64,
    next_token: u64,
    arriving: usize,
}

#[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
fn epoch() -> Epoch {
    Epoch::new(std::time::Instant::now())
}

fn server_address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 4433))
}

fn server_identity() -> Arc<Identity> {
    Arc::new(Identity::from_seed([2; 32]))
}

fn client_identity() -> Arc<Identity> {
    Arc::new(Identity::from_seed([1; 32]))
}

fn config(seed: u8) -> TransportConfig {
    TransportConfig::new([seed; 32])
}

fn side(endpoint: Endpoint) -> Side {
    Side {
        endpoint,
        connection: None,
        books: Books::default(),
        endpoint_events: Vec::new(),
        feedback: true,
        late: Duration::ZERO,
        stamped: true,
    }
}

impl World {
    fn new(links: Vec<Wire>, config: &TransportConfig) -> Self {
        Self::with_policy(links, config, Ok(()))
    }

    fn with_policy(
        links: Vec<Wire>,
        config: &TransportConfig,
        policy: Result<(), Refusal>,
    ) -> Self {
        let epoch = epoch();
        let client = Endpoint::client(epoch, config, client_identity()).unwrap();
        let server =
            Endpoint::server(epoch, config, server_identity(), Arc::new(Anyone(policy))).unwrap();
        Self {
            now: Instant::from_millis(1000),
            epoch,
            server_key: server_identity().public_key(),
            sides: [side(client), side(server)],
            links,
            network: BinaryHeap::new(),
            random: SplitMix64::new(config.rng_seed[0].into()),
            packets: 0,
            next_token: 0,
            arriving: 0,
        }
    }

    fn connected(links: Vec<Wire>) -> Self {
        Self::connected_with(links, &config(7))
    }

    fn connected_with(links: Vec<Wire>, config: &TransportConfig) -> Self {
        let mut world = Self::new(links, config);
        world.connect(0);
        world.run(ms(1000));
        let count = world.links.len();
        (1..count).for_each(|link| world.open(link as u32).unwrap());
        world.settle();
        world.run(ms(2000));
        for side in &world.sides {
            assert_eq!(side.books.usable.len(), count, "all paths are usable");
        }
        world
    }

    fn connect(&mut self, link: usize) {
        let endpoint = &mut self.sides[CLIENT].endpoint;
        let uplink = UplinkId(link as u32);
        let id = endpoint.connect(self.now, uplink, server_address(), self.server_key).unwrap();
        self.sides[CLIENT].connection = Some(id);
        self.settle();
    }

    fn open(&mut self, link: u32) -> Result<(), PathError> {
        let now = self.now;
        self.client().open_path(now, UplinkId(link), server_address())
    }

    fn close_path(&mut self, path: u32) -> Result<(), PathError> {
        let now = self.now;
        self.client().close_path(now, PathId(path))
    }

    fn set_dead(&mut self, dead: bool) {
        self.links.iter_mut().for_each(|link| link.set_dead(dead));
    }

    fn side(&mut self, side: usize) -> &mut Connection {
        let side = &mut self.sides[side];
        let id = side.connection.expect("the side has a connection");
        side.endpoint.connection_mut(id).expect("the connection is there")
    }

    fn client(&mut self) -> &mut Connection {
        self.side(CLIENT)
    }

    fn server(&mut self) -> &mut Connection {
        self.side(SERVER)
    }

    fn path(&mut self, side: usize, path: PathId) -> PathSnapshot {
        let now = self.now;
        let connection = self.side(side);
        connection.refresh(now);
        connection.paths().iter().find(|p| p.id == path).expect("there is such a path").clone()
    }

    fn status(&mut self, side: usize, path: PathId) -> PathStatus {
        self.path(side, path).status
    }

    fn stats(&mut self, side: usize, path: u32) -> PathStats {
        self.side(side).path_stats(PathId(path)).expect("there is such a path")
    }

    fn server_stats(&self) -> EndpointStats {
        self.sides[SERVER].endpoint.stats()
    }

    fn server_connections(&self) -> usize {
        self.sides[SERVER].endpoint.connection_ids().len()
    }

    fn closed(&self, side: usize) -> Option<CloseReason> {
        self.sides[side].books.closed.as_ref().map(|(reason, _)| reason.clone())
    }

    fn is_acknowledged(&self, side: usize, token: u64) -> bool {
        self.sides[side].books.acknowledged.contains_key(&token)
    }

    fn send(&mut self, side: usize, path: PathId, len: usize) -> Result<u64, SendError> {
        let token = self.next_token;
        let mut datagram = BytesMut::new();
        datagram.put_u8(1);
        datagram.put_u64(token);
        datagram.resize(len.max(9), 0);
        let now = self.now;
        self.side(side).send_on(now, path, datagram.freeze(), token)?;
        self.next_token += 1;
        self.sides[side].books.sent.insert(token, (path, now));
        self.carry(side);
        Ok(token)
    }

    fn send_each(&mut self, side: usize, paths: &[u32], interval: Duration, span: Duration) {
        self.every(interval, span, |world, turn| {
            _ = world.send(side, PathId(paths[turn % paths.len()]), 1000);
        });
    }

    fn every(&mut self, interval: Duration, span: Duration, mut act: impl FnMut(&mut Self, usize)) {
        let (mut next, mut turn) = (self.now, 0);
        self.run_with(span, |world| {
            while next <= world.now {
                act(world, turn);
                turn += 1;
                next += interval;
            }
            Some(next)
        });
    }

    fn carry(&mut self, side: usize) {
        let mut packets = Vec::new();
        let mut take = |outbox: &mut Outbox| {
            packets.extend(outbox.packets().map(|(route, packet)| (route, packet.to_vec())));
            outbox.clear();
        };
        let endpoint = &mut self.sides[side].endpoint;
        take(endpoint.outbox());
        for id in endpoint.connection_ids() {
            take(endpoint.connection_mut(id).expect("it was just listed").outbox());
        }
        for (route, packet) in packets {
            self.transmit(side, &route, packet);
        }
    }

    fn transmit(&mut self, side: usize, route: &Route, packet: Vec<u8>) {
        let link = match route.uplink {
            Some(uplink) => uplink.0 as usize,
            None => match self.links.iter().position(|link| link.address == route.destination) {
                Some(link) => link,
                None => return,
            },
        };
        self.packets += 1;
        let marks = self.links[link].direction(side).marks;
        if marks == Marks::Dropped && route.ecn.is_some() {
            return;
        }
        let ecn = route.ecn.filter(|_| marks == Marks::Carried);
        let random = &mut self.random;
        if let Some(at) = self.links[link].direction(side).carry(self.now, packet.len(), random) {
            let source = self.links[link].address;
            let (number, to) = (self.packets, 1 - side);
            let at = at + self.sides[to].late;
            let arrival = Arrival { at, number, to, link, source, ecn, packet };
            self.network.push(arrival);
        }
    }

    fn settle(&mut self) {
        for side in [CLIENT, SERVER] {
            self.poll(side);
            self.carry(side);
        }
    }

    fn poll(&mut self, side: usize) {
        let now = self.now;
        while let Some(event) = self.sides[side].endpoint.poll_event() {
            if let EndpointEvent::Incoming(id) = event {
                self.sides[side].connection = Some(id);
            }
            self.sides[side].endpoint_events.push(event);
        }
        let Some(id) = self.sides[side].connection else { return };
        let Side { endpoint, books, feedback, .. } = &mut self.sides[side];
        let Some(connection) = endpoint.connection_mut(id) else { return };
        while let Some(event) = connection.poll_event() {
            assert!(books.closed.is_none(), "nothing follows the end, not even {event:?}");
            books.note(now, self.arriving, event);
        }
        if *feedback && let Some(path) = connection.feedback_due(now) {
            connection.send_feedback_on(now, path, Bytes::from_static(b"quality")).unwrap();
        }
        connection.flush(now);
    }

    fn run(&mut self, span: Duration) {
        self.run_with(span, |_| None);
    }

    /// As `run`; `user` is called at each step and may say when it is to be called at the latest.
    fn run_with(&mut self, span: Duration, mut user: impl FnMut(&mut Self) -> Option<Instant>) {
        let end = self.now + span;
        let (mut last, mut repeats) = (self.now, 0);
        loop {
            let wish = user(self);
            self.settle();
            let next = self.next_event().into_iter().chain(wish).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            repeats = if self.now == last { repeats + 1 } else { 0 };
            last = self.now;
            assert!(repeats < 10_000, "time stands still at {}", self.now);
            self.step();
        }
        self.now = end;
        self.settle();
    }

    fn next_event(&self) -> Option<Instant> {
        let timers = self.sides.iter().filter_map(|side| side.endpoint.poll_timeout());
        timers.chain(self.network.peek().map(|arrival| arrival.at)).min()
    }

    fn step(&mut self) {
        for side in [CLIENT, SERVER] {
            let _ = self.sides[side].endpoint.handle_timeout(self.now);
        }
        while self.network.peek().is_some_and(|arrival| arrival.at <= self.now) {
            let arrival = self.network.pop().expect("it was just looked at");
            self.deliver(arrival);
        }
    }

    fn deliver(&mut self, arrival: Arrival) {
        let Side { late, stamped, .. } = self.sides[arrival.to];
        let received = stamped.then(|| arrival.at - late);
        let (remote, local) = match arrival.to {
            CLIENT => (server_address(), Local::Uplink(UplinkId(arrival.link as u32))),
            _ => (arrival.source, Local::Address(Some(server_address().ip()))),
        };
        let source = Source { remote, local, ecn: arrival.ecn, received };
        self.arriving = arrival.link;
        let packet = BytesMut::from(&arrival.packet[..]);
        let _ = self.sides[arrival.to].endpoint.handle_packet(self.now, source, packet);
        self.poll(arrival.to);
    }

    /// Checks the path of each datagram and the truth of each fate; returns how many have none yet.
    fn check_books(&self, sender: usize) -> usize {
        let books = &self.sides[sender].books;
        let received = &self.sides[1 - sender].books.received;
        let arrived: BTreeMap<u64, (PathId, usize)> =
            received.iter().map(|&(token, path, link, _)| (token, (path, link))).collect();
        for (token, &(path, link)) in &arrived {
            assert_eq!(books.sent[token].0, path, "datagram {token} came on another path");
            if self.links.len() > 1 {
                assert_eq!(path.0 as usize, link, "datagram {token} came over another link");
            }
        }
        for token in books.acknowledged.keys() {
            assert!(arrived.contains_key(token), "datagram {token} did not arrive");
            assert!(!books.lost.contains_key(token), "datagram {token} has two fates");
        }
        let known =
            |token| books.acknowledged.contains_key(token) || books.lost.contains_key(token);
        books.sent.keys().filter(|token| !known(token)).count()
    }
}

impl Books {
    fn note(&mut self, now: Instant, link: usize, event: Event) {
        match event {
            Event::Connected { peer } => self.connected.push((peer, now)),
            Event::PathUsable(path) => self.usable.push(path),
            Event::PathClosed(path, reason) => self.closed_paths.push((path, reason)),
            Event::Received { datagram, .. } if datagram.first() != Some(&1) => {
                self.feedback_received += 1;
            }
            Event::Received { path, datagram } => {
                let token = u64::from_be_bytes(datagram[1..9].try_into().unwrap());
                self.received.push((token, path, link, now));
            }
            Event::Acknowledged { path, token, sent, rtt, .. } => {
                assert!(sent + rtt <= now, "acknowledged before it came there");
                let twice = self.acknowledged.insert(token, (path, now));
                assert!(twice.is_none(), "datagram {token} was acknowledged twice");
            }
            Event::Lost { path, token } => {
                let twice = self.lost.insert(token, (path, now));
                assert!(twice.is_none(), "datagram {token} was lost twice");
            }
            Event::Message(message) => self.messages.push(message),
            Event::Closed(reason) => self.closed = Some((reason, now)),
        }
    }
}
