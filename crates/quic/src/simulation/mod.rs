//! Two endpoints and the links between them in virtual time: the ground on which the properties of
//! the pinned library are tested, one row of facts after the other.
//!
//! ```text
//! client Endpoint -- uplink i --> link i (rate, queue, loss, delay, jitter) --> server Endpoint
//!                                 address translation: each link has one address towards the server
//! ```
//!
//! All randomness grows out of a seed. [`World::send`] and the events keep books: which datagram
//! was sent on which path, on which link it came out, and what the sender was told of it.

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

/// What one side has seen.
#[derive(Default)]
struct Books {
    /// Token to the path it was sent on and when.
    sent: BTreeMap<u64, (PathId, Instant)>,
    acknowledged: BTreeMap<u64, (PathId, Instant)>,
    lost: BTreeMap<u64, (PathId, Instant)>,
    /// Tokens received, with the path that was reported, the link it came out of, and when.
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
    /// Whether the user sends feedback whenever it is due.
    feedback: bool,
    /// How long after it was received each packet is handed over.
    late: Duration,
    /// Whether packets are handed over with the time at which they were received.
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
    /// The key that the client expects of the server.
    server_key: PublicKey,
    sides: [Side; 2],
    links: Vec<Wire>,
    network: BinaryHeap<Arrival>,
    random: SplitMix64,
    packets: u64,
    next_token: u64,
    /// The link out of which the packet came that is being handled.
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
    /// A world in which nobody has connected yet.
    fn new(links: Vec<Wire>, config: &TransportConfig) -> Self {
        Self::with_policy(links, config, Ok(()), server_identity().public_key())
    }

    fn with_policy(
        links: Vec<Wire>,
        config: &TransportConfig,
        policy: Result<(), Refusal>,
        server_key: PublicKey,
    ) -> Self {
        let epoch = epoch();
        let client = Endpoint::client(epoch, config, client_identity()).unwrap();
        let server =
            Endpoint::server(epoch, config, server_identity(), Arc::new(Anyone(policy))).unwrap();
        Self {
            now: Instant::from_millis(1000),
            epoch,
            server_key,
            sides: [side(client), side(server)],
            links,
            network: BinaryHeap::new(),
            random: SplitMix64::new(config.rng_seed[0].into()),
            packets: 0,
            next_token: 0,
            arriving: 0,
        }
    }

    /// A world in which a client has connected over link 0 and opened a path over each other link.
    fn connected(links: Vec<Wire>) -> Self {
        Self::connected_with(links, &config(7))
    }

    fn connected_with(links: Vec<Wire>, config: &TransportConfig) -> Self {
        let mut world = Self::new(links, config);
        world.connect(0);
        world.run(ms(1000));
        let count = world.links.len();
        for link in 1..count {
            let now = world.now;
            world.client().open_path(now, UplinkId(link as u32), server_address()).unwrap();
        }
        world.settle();
        world.run(ms(2000));
        assert_eq!(world.sides[CLIENT].books.usable.len(), count, "all paths are usable");
        assert_eq!(world.sides[SERVER].books.usable.len(), count, "all paths are usable");
        world
    }

    fn connect(&mut self, link: usize) -> ConnectionId {
        let endpoint = &mut self.sides[CLIENT].endpoint;
        let uplink = UplinkId(link as u32);
        let id = endpoint.connect(self.now, uplink, server_address(), self.server_key).unwrap();
        self.sides[CLIENT].connection = Some(id);
        self.settle();
        id
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

    /// Sends a datagram of `len` bytes that starts with its token.
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

    /// Moves all packets out of the outboxes of a side onto the links.
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
            // What goes to an address that a link no longer has is lost.
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

    /// Polls everything that can be polled until nothing is left to do at this moment.
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

    /// Runs until `span` has passed.
    fn run(&mut self, span: Duration) {
        self.run_with(span, |_| None);
    }

    /// Runs until `span` has passed; `user` is called at each step and may say when it wants to be
    /// called at the latest.
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
        let source = match arrival.to {
            CLIENT => Source {
                remote: server_address(),
                local: Local::Uplink(UplinkId(arrival.link as u32)),
                ecn: arrival.ecn,
                received,
            },
            _ => Source {
                remote: arrival.source,
                local: Local::Address(Some(server_address().ip())),
                ecn: arrival.ecn,
                received,
            },
        };
        self.arriving = arrival.link;
        let packet = BytesMut::from(&arrival.packet[..]);
        let _ = self.sides[arrival.to].endpoint.handle_packet(self.now, source, packet);
        self.poll(arrival.to);
    }

    /// Checks that each datagram came in on the path that it was sent on, and that what the sender
    /// was told is true. Returns how many have no fate yet.
    fn check_books(&self, sender: usize) -> usize {
        let books = &self.sides[sender].books;
        let arrived: BTreeMap<u64, (PathId, usize)> = self.sides[1 - sender]
            .books
            .received
            .iter()
            .map(|&(token, path, link, _)| (token, (path, link)))
            .collect();
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
        let told = |token| books.acknowledged.contains_key(token) || books.lost.contains_key(token);
        books.sent.keys().filter(|token| !told(token)).count()
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
