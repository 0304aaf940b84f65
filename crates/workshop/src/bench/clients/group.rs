//! Some hundreds of simulated clients in a thread: each is the product's [`Client`] with a key,
//! addresses and timers of its own.
//!
//! ```text
//! orders ─► Poller ─► socket of path p ─► whose address? ─► that client  ┐
//!                  ─► timers           ─► clients that are due           ├─► turn each ─► sockets
//!                  ─► streams          ─► clients that have to send      ┘
//! ```
//!
//! A socket for each path serves all clients of a group: their namespace has all of their
//! addresses, the kernel tells to which of them a packet went, and takes the one to send from. So
//! thousands of clients have few sockets, and the server sees thousands of hosts. What one group is
//! late with fills its own sockets and nobody else's.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use roadweave_device::{
    Clock, Ecn, Interest, Outgoing, Poller, Token, UplinkSocket, Waker, random_bytes,
};
use roadweave_identity::{Identity, PublicKey};
use roadweave_quic::{Ecn as QuicEcn, Epoch, Outbox, TransportConfig};
use roadweave_tunnel::{
    Candidate, Client, ClientConfig, ClientEvent, Io, Node as _, RecvMeta, turn,
};
use roadweave_types::{Instant, PathStatus, UplinkId};

use super::site::{PATHS_MAX, SERVER, client_at, open_socket, outer_address};
use super::stream::Streams;

/// The port of the clients' sockets, of the first path of the first group.
const FIRST_PORT: u16 = 5_100;
/// Packets of streams between two looks at the sockets.
const STREAM_PACKETS_MAX: usize = 32;

/// What a group is made of.
#[derive(Debug)]
pub struct GroupConfig {
    /// Its number, from 0 on, of so many.
    pub place: (usize, usize),
    /// The server's public key.
    pub server: PublicKey,
    /// The keys of its clients: those whose numbers leave the group's, divided by the count of
    /// groups.
    pub keys: Vec<Identity>,
    /// The paths of each.
    pub paths: u8,
    /// How many of its clients may be about to join for the first time at a moment.
    pub beginning_max: usize,
}

/// What a group is asked to do.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// Let clients begin, some at a time.
    Begin,
    /// Count from now on who joins, from that moment.
    CountJoins(Instant),
    /// Let so many clients stream from that moment on at so many bits per second each, or none.
    Stream(Option<(Instant, usize, f64)>),
    /// Count what streams send from that moment on.
    CountPackets(Instant),
    /// Tell how things are.
    Tell,
}

/// How things are with a group.
#[derive(Clone, Debug)]
pub struct Told {
    /// How long it took each client to join that has joined, since that was to be counted.
    pub joins: Vec<Duration>,
    /// How many clients have too few paths: all of them until all have joined.
    pub without_paths: usize,
    /// How many packets its streams have sent since that was to be counted.
    pub sent: u64,
}

/// How a group is spoken with.
#[derive(Debug)]
pub struct Line {
    /// What it is to do.
    pub orders: Receiver<Order>,
    /// Wakes it for that.
    pub waker: Waker,
    /// Where it tells what it was asked.
    pub told: Sender<Told>,
}

/// A group, and what its clients are turned with.
struct Group {
    clock: Clock,
    place: (usize, usize),
    poller: Poller,
    line: Line,
    /// By path.
    sockets: Vec<UplinkSocket>,
    members: Vec<Member>,
    timers: BTreeSet<(Instant, usize)>,
    /// Clients to turn, because something was handled.
    touched: BTreeSet<usize>,
    streams: Option<Streams>,
    /// From when on packets of streams are counted, and how many there were.
    sent_from: Instant,
    sent: u64,
    beginning_max: usize,
    /// Whether clients may begin, and how many have.
    begins: bool,
    begun: usize,
    /// Since when joins are counted, and who has joined since.
    since: Instant,
    joins: Vec<Duration>,
    /// Who has not been seen with all paths since.
    without_paths: Vec<usize>,
}

struct Member {
    client: Client,
    timer: Option<Instant>,
    joined: Option<Instant>,
}

/// Runs a group in this thread, which has to be in the clients' namespace, until nobody gives
/// orders any more.
///
/// # Errors
/// When a socket or a client cannot be made, or the system refuses something later.
pub fn run(clock: Clock, config: GroupConfig, line: Line) -> anyhow::Result<()> {
    let mut group = Group::new(clock, config, line)?;
    while group.obey() {
        group.turn()?;
    }
    Ok(())
}

impl Group {
    fn new(clock: Clock, config: GroupConfig, line: Line) -> anyhow::Result<Self> {
        let poller = Poller::new()?;
        poller.add(&line.waker, ORDERS, Interest::Read)?;
        let (number, count) = config.place;
        let first_port = FIRST_PORT + number as u16 * u16::from(PATHS_MAX);
        let mut sockets = Vec::new();
        for path in 0..config.paths {
            let socket = open_socket(first_port + u16::from(path), None)?;
            poller.add(&socket, Token(path.into()), Interest::Read)?;
            sockets.push(socket);
        }
        let epoch = Epoch::new(clock.epoch());
        let member = |(index, identity)| -> anyhow::Result<Member> {
            let server = Candidate::only(config.server, vec![SERVER]);
            let transport = TransportConfig::new(random_bytes()?);
            let name = format!("client-{}", number + index * count);
            let config = ClientConfig::new(name, transport, server);
            let client = Client::new(epoch, config, Arc::new(identity))?;
            Ok(Member { client, timer: None, joined: None })
        };
        let members = config.keys.into_iter().enumerate().map(member);
        let members = members.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self {
            clock,
            place: config.place,
            poller,
            line,
            sockets,
            without_paths: (0..members.len()).collect(),
            members,
            timers: BTreeSet::new(),
            touched: BTreeSet::new(),
            streams: None,
            sent_from: Instant::ZERO,
            sent: 0,
            beginning_max: config.beginning_max,
            begins: false,
            begun: 0,
            since: Instant::ZERO,
            joins: Vec::new(),
        })
    }

    /// Does what it was told to; returns whether somebody may tell it more.
    fn obey(&mut self) -> bool {
        if !self.line.waker.clear() {
            return true;
        }
        loop {
            match self.line.orders.try_recv() {
                Ok(Order::Begin) => {
                    self.begins = true;
                    self.begin_some();
                }
                Ok(Order::CountJoins(since)) => {
                    self.since = since;
                    self.joins.clear();
                    self.without_paths = (0..self.members.len()).collect();
                }
                Ok(Order::Stream(streams)) => {
                    let of = |(from, count, rate)| Streams::new(from, self.place, count, rate);
                    self.streams = streams.and_then(of);
                }
                Ok(Order::CountPackets(from)) => (self.sent_from, self.sent) = (from, 0),
                Ok(Order::Tell) => {
                    let told = self.tell();
                    // Who asked and does not wait for the answer is about to leave.
                    let _ = self.line.told.send(told);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn tell(&mut self) -> Told {
        let Self { members, sockets, without_paths, joins, sent, .. } = self;
        if joins.len() >= members.len() {
            without_paths.retain(|index| !members[*index].has_paths(sockets.len()));
        }
        Told { joins: joins.clone(), without_paths: without_paths.len(), sent: *sent }
    }

    /// Lets as many clients begin as may.
    fn begin_some(&mut self) {
        let most = match self.begins {
            true => self.members.len().min(self.joins.len() + self.beginning_max),
            false => 0,
        };
        while self.begun < most {
            let (now, index) = (self.clock.now(), self.begun);
            for path in 0..self.sockets.len() {
                let client = &mut self.members[index].client;
                client.add_uplink(now, UplinkId(path as u32), &format!("path-{path}"));
            }
            self.begun += 1;
            self.turn_member(index);
        }
    }

    /// Waits for something to do, and does it.
    fn turn(&mut self) -> anyhow::Result<()> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let stream = self.streams.as_ref().map(Streams::due);
        let next = [timer, stream].into_iter().flatten().min();
        let timeout = next.map(|next| next.since(self.clock.now()));
        let ready = self.poller.wait(timeout).context("cannot wait")?;
        let ready: Vec<Token> = ready.iter().map(|event| event.token).collect();
        for Token(path) in ready.into_iter().filter(|token| *token != ORDERS) {
            self.read(path as usize)?;
        }
        self.send_streams();
        let now = self.clock.now();
        while let Some((at, index)) = self.timers.first().copied()
            && at <= now
        {
            self.set_timer(index, None);
            self.touched.insert(index);
        }
        for index in std::mem::take(&mut self.touched) {
            self.turn_member(index);
        }
        self.begin_some();
        Ok(())
    }

    /// Hands each packet that came by a path to the client that it is for.
    fn read(&mut self, path: usize) -> anyhow::Result<()> {
        let Self { sockets, members, touched, clock, place: (number, count), .. } = self;
        let now = clock.now();
        let received = sockets[path].recv(|incoming| {
            let client = incoming.local.and_then(client_at).filter(|it| it % *count == *number);
            let index = client.map(|it| it / *count);
            let Some((index, member)) = index.and_then(|it| Some((it, members.get_mut(it)?)))
            else {
                return;
            };
            let meta = RecvMeta {
                socket: UplinkId(path as u32),
                remote: incoming.remote,
                local: incoming.local,
                ecn: QuicEcn::from_bits(incoming.ecn.bits()),
                received: incoming.received.map(|at| clock.at(at)),
            };
            member.client.handle_packet(now, &meta, incoming.payload);
            touched.insert(index);
        });
        received.map(drop).context("cannot receive")
    }

    /// Sends what streams have to send. Each packet leaves before the next one is looked at: no
    /// client waits for another.
    fn send_streams(&mut self) {
        for _ in 0..STREAM_PACKETS_MAX {
            let now = self.clock.now();
            let next = self.streams.as_mut().and_then(|streams| streams.poll(now));
            let Some((index, packet)) = next else { return };
            self.sent += u64::from(now >= self.sent_from);
            self.members[index].client.handle_inner(now, &packet);
            self.turn_member(index);
        }
    }

    /// Lets a client do what is due, and takes note of what happened to it.
    fn turn_member(&mut self, index: usize) {
        let (first, step) = self.place;
        let member = &mut self.members[index];
        let number = first + index * step;
        let mut edge = Edge { clock: self.clock, sockets: &mut self.sockets, number };
        turn(&mut member.client, &mut edge);
        let now = edge.clock.now();
        while let Some(event) = member.client.poll_event() {
            if !matches!(event, ClientEvent::Joined { .. }) {
                continue;
            }
            if member.joined.is_none_or(|joined| joined < self.since) {
                self.joins.push(now.since(self.since));
            }
            member.joined = Some(now);
        }
        let timer = member.client.poll_timeout();
        self.set_timer(index, timer);
    }

    fn set_timer(&mut self, index: usize, at: Option<Instant>) {
        let before = std::mem::replace(&mut self.members[index].timer, at);
        if before == at {
            return;
        }
        before.map(|before| self.timers.remove(&(before, index)));
        at.map(|at| self.timers.insert((at, index)));
    }
}

impl Member {
    fn has_paths(&self, paths: usize) -> bool {
        let status = self.client.status();
        let usable = |status: roadweave_tunnel::SessionStatus| {
            status.paths.iter().filter(|path| path.status == PathStatus::Usable).count()
        };
        status.map_or(0, usable) >= paths
    }
}

/// A client's edge to the machine.
struct Edge<'a> {
    clock: Clock,
    sockets: &'a mut [UplinkSocket],
    /// The client's.
    number: usize,
}

impl Io for Edge<'_> {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Nobody sends anything to the clients.
    fn deliver(&mut self, packets: &mut dyn Iterator<Item = Bytes>) {
        packets.for_each(drop);
    }

    fn transmit(&mut self, packets: &Outbox) {
        for run in packets.runs() {
            let path = run.route.uplink.and_then(|uplink| u8::try_from(uplink.0).ok());
            let Some(path) = path else { continue };
            let Some(socket) = self.sockets.get_mut(usize::from(path)) else { continue };
            // What is not taken is lost, as on a network.
            let _ = socket.send(&Outgoing {
                destination: run.route.destination,
                source: Some(outer_address(path, self.number)),
                ecn: Ecn::from_bits(run.route.ecn.map_or(0, QuicEcn::bits)),
                contents: run.data,
                segment_size: run.segment_size,
            });
        }
    }
}

/// Paths' sockets have their number.
const ORDERS: Token = Token(1 << 32);
