//! Simulated clients: each is the product's [`Client`] with a key, addresses and timers of its own,
//! and all of them share one thread.
//!
//! ```text
//! Poller ─► socket of path p ─► whose address? ─► that client  ┐
//!        ─► timers           ─► clients that are due           ├─► turn each ─► sockets
//!        ─► streams          ─► clients that have to send      ┘
//!        ─► sink: what came out behind the server
//! ```
//!
//! A socket for each path serves all clients: their namespace has all of their addresses, the
//! kernel tells to which of them a packet went, and takes the one to send from. So a process with
//! thousands of clients has few sockets, and the server sees thousands of hosts.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use roadweave_device::{
    Clock, Ecn, Interest, Outgoing, Poller, Token, UdpOptions, UplinkSocket, random_bytes,
};
use roadweave_quic::{Ecn as QuicEcn, Epoch, Outbox, TransportConfig};
use roadweave_tunnel::{
    Candidate, Client, ClientConfig, ClientEvent, Io, Node as _, RecvMeta, turn,
};
use roadweave_types::{Instant, PathStatus, UplinkId};

use super::site::{Keys, SERVER, Site, client_at, outer_address};
use super::stream::{Arrived, PORT, Sink, Streams};

/// The port of the clients' sockets, of their first path.
const FIRST_PORT: u16 = 5_000;
/// Room for what streams bring while the thread does other things, bytes: they fill it in a second.
const SINK_BUFFER: usize = 64 << 20;
/// Clients that begin at one time: more of them would wait for one another in this one thread, and
/// not for the server.
const BEGINNING_MAX: usize = 16;
/// Packets of streams between two looks at the sockets.
const STREAM_PACKETS_MAX: usize = 32;
/// How often it is asked whether clients have all their paths.
const ASK: Duration = Duration::from_millis(100);

/// All clients, and what they are turned with.
pub struct Crowd {
    clock: Clock,
    poller: Poller,
    /// By path.
    sockets: Vec<UplinkSocket>,
    members: Vec<Member>,
    timers: BTreeSet<(Instant, usize)>,
    /// Clients to turn, because something was handled.
    touched: BTreeSet<usize>,
    streams: Option<Streams>,
    /// Where streams end.
    sink: Sink,
    /// How many clients have begun.
    begun: usize,
    /// Since when joins are counted, and who has joined since.
    since: Instant,
    joins: Vec<Duration>,
}

struct Member {
    client: Client,
    timer: Option<Instant>,
    joined: Option<Instant>,
}

impl Crowd {
    /// A client for each of `keys`, with `paths` paths each; none has begun. The first `streams` of
    /// them will stream.
    ///
    /// # Errors
    /// When a socket or a client cannot be made.
    pub fn new(site: &Site, keys: Keys, paths: u8, streams: usize) -> anyhow::Result<Self> {
        let clock = Clock::start();
        let poller = Poller::new()?;
        let mut sockets = Vec::new();
        for path in 0..paths {
            let socket = site.clients.enter(|| open(FIRST_PORT + u16::from(path), None))??;
            poller.add(&socket, Token(path.into()), Interest::Read)?;
            sockets.push(socket);
        }
        let sink = Sink::new(clock, site.server.enter(|| open(PORT, Some(SINK_BUFFER)))??, streams);
        poller.add(sink.socket(), SINK, Interest::Read)?;
        let epoch = Epoch::new(clock.epoch());
        let member = |(number, identity)| -> anyhow::Result<Member> {
            let server = Candidate::only(keys.server, vec![SERVER]);
            let transport = TransportConfig::new(random_bytes()?);
            let config = ClientConfig::new(format!("client-{number}"), transport, server);
            let client = Client::new(epoch, config, Arc::new(identity))?;
            Ok(Member { client, timer: None, joined: None })
        };
        let members = keys.clients.into_iter().enumerate().map(member);
        Ok(Self {
            members: members.collect::<anyhow::Result<_>>()?,
            clock,
            poller,
            sockets,
            timers: BTreeSet::new(),
            touched: BTreeSet::new(),
            streams: None,
            sink,
            begun: 0,
            since: Instant::ZERO,
            joins: Vec::new(),
        })
    }

    /// The time, by the clock of all that is measured here.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Lets clients begin from now on, [`BEGINNING_MAX`] at a time; returns when that is.
    pub fn begin(&mut self) -> Instant {
        let begin = self.count_joins();
        self.begin_some();
        begin
    }

    /// Lets as many clients begin as may.
    fn begin_some(&mut self) {
        let most = self.members.len().min(self.joins.len() + BEGINNING_MAX);
        while self.begun < most {
            let (now, number) = (self.clock.now(), self.begun);
            for path in 0..self.sockets.len() {
                let client = &mut self.members[number].client;
                client.add_uplink(now, UplinkId(path as u32), &format!("path-{path}"));
            }
            self.begun += 1;
            self.turn_member(number);
        }
    }

    /// Counts from now on who joins; returns when that is.
    pub fn count_joins(&mut self) -> Instant {
        self.since = self.clock.now();
        self.joins.clear();
        self.since
    }

    /// How long it took each client to join that has joined since, ascending.
    pub fn joins(&self) -> &[Duration] {
        &self.joins
    }

    /// Whether all have joined since.
    pub fn all_joined(&self) -> bool {
        self.joins.len() >= self.members.len()
    }

    /// Lets clients stream at `rate` bits per second from now on, as many as the sink expects, or
    /// none.
    pub fn stream(&mut self, rate: Option<f64>) {
        let count = self.sink.streams();
        self.streams = rate.and_then(|rate| Streams::new(self.clock.now(), count, rate));
    }

    /// Counts from now on what streams send and what comes.
    pub fn count_packets(&mut self) {
        self.sink.begin(self.clock.now());
        self.streams.iter_mut().for_each(Streams::count);
    }

    /// How many packets the streams have sent since.
    pub fn packets_sent(&self) -> u64 {
        self.streams.as_ref().map_or(0, Streams::sent)
    }

    /// What has come of them.
    pub fn arrived(&mut self) -> Arrived {
        self.sink.arrived(self.clock.now())
    }

    /// Runs all clients for `time`.
    ///
    /// # Errors
    /// When the system refuses something.
    pub fn run_for(&mut self, time: Duration) -> anyhow::Result<()> {
        self.run_until(time, |_| false).map(drop)
    }

    /// Runs all clients until `is_done`, which is asked in each turn, or for `most`; returns
    /// whether it was done.
    ///
    /// # Errors
    /// When the system refuses something.
    pub fn run_until(
        &mut self,
        most: Duration,
        is_done: impl Fn(&Self) -> bool,
    ) -> anyhow::Result<bool> {
        let end = self.clock.now() + most;
        loop {
            if is_done(self) {
                return Ok(true);
            }
            if self.clock.now() >= end {
                return Ok(false);
            }
            self.turn(end)?;
        }
    }

    /// Runs all clients until each has all its paths, or for `most`; returns how many have not.
    ///
    /// # Errors
    /// When the system refuses something.
    pub fn run_until_complete(&mut self, most: Duration) -> anyhow::Result<usize> {
        let end = self.clock.now() + most;
        let mut without: Vec<usize> = (0..self.members.len()).collect();
        loop {
            without.retain(|number| !self.members[*number].has_paths(self.sockets.len()));
            if without.is_empty() || self.clock.now() >= end {
                return Ok(without.len());
            }
            self.run_for(ASK)?;
        }
    }

    /// Waits for something to do, until `end` at most, and does it.
    fn turn(&mut self, end: Instant) -> anyhow::Result<()> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let stream = self.streams.as_ref().map(Streams::due);
        let next = [timer, stream].into_iter().flatten().fold(end, Instant::min);
        let timeout = next.since(self.clock.now());
        let ready = self.poller.wait(Some(timeout)).context("cannot wait")?;
        let ready: Vec<Token> = ready.iter().map(|event| event.token).collect();
        for token in ready {
            match token {
                SINK => self.sink.read().context("the sink failed")?,
                Token(path) => self.read(path as usize)?,
            }
        }
        self.send_streams();
        let now = self.clock.now();
        while let Some((at, number)) = self.timers.first().copied()
            && at <= now
        {
            self.set_timer(number, None);
            self.touched.insert(number);
        }
        for number in std::mem::take(&mut self.touched) {
            self.turn_member(number);
        }
        self.begin_some();
        Ok(())
    }

    /// Hands each packet that came by a path to the client that it is for.
    fn read(&mut self, path: usize) -> anyhow::Result<()> {
        let Self { sockets, members, touched, clock, .. } = self;
        let now = clock.now();
        let received = sockets[path].recv(|incoming| {
            let number = incoming.local.and_then(client_at);
            let Some((number, member)) = number.and_then(|it| Some((it, members.get_mut(it)?)))
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
            touched.insert(number);
        });
        received.map(drop).context("cannot receive")
    }

    /// Sends what streams have to send. Each packet leaves before the next one is looked at: no
    /// client waits for another.
    fn send_streams(&mut self) {
        for _ in 0..STREAM_PACKETS_MAX {
            let now = self.clock.now();
            let next = self.streams.as_mut().and_then(|streams| streams.poll(now));
            let Some((number, packet)) = next else { return };
            self.members[number].client.handle_inner(now, &packet);
            self.turn_member(number);
        }
    }

    /// Lets a client do what is due, and takes note of what happened to it.
    fn turn_member(&mut self, number: usize) {
        let member = &mut self.members[number];
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
        self.set_timer(number, timer);
    }

    fn set_timer(&mut self, number: usize, at: Option<Instant>) {
        let before = std::mem::replace(&mut self.members[number].timer, at);
        if before == at {
            return;
        }
        before.map(|before| self.timers.remove(&(before, number)));
        at.map(|at| self.timers.insert((at, number)));
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

/// A socket for all addresses of this namespace, with as much room as the product's or as told.
///
/// # Errors
/// When the system refuses.
fn open(port: u16, room: Option<usize>) -> anyhow::Result<UplinkSocket> {
    let mut options = UdpOptions::server(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
    options.buffer_size = room.unwrap_or(options.buffer_size);
    Ok(UplinkSocket::open(&options)?)
}

/// Paths' sockets have their number.
const SINK: Token = Token(1 << 32);
