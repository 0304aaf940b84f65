//! The listener for applications: a SOCKS5 proxy (RFC 1928) and an HTTP proxy (RFC 9110 section
//! 9.3.6) at one address of the LAN, and connections of the LAN that are taken transparently.
//!
//! ```text
//! accept ─► is it ours? ─► ask: by the first byte ─► open a stream ─► connected: answer ─► splice
//!              │ no             │ bad, slow         ▲    │ reset
//!              ▼                ▼                   │    ▼
//!            close            answer ───────────────┼────────► part: FIN, then what still comes
//!                                                   │
//! accept, transparent ─► is it ours? ───────────────┴ reset ─► RST
//! ```
//!
//! Names are resolved at the far end. Bytes before its answer go along. Only the LAN is served: a
//! caller comes from its networks by an interface there, which the kernel does not check.

mod asked;
mod caller;
mod connections;
mod encoder;
mod end;
mod forward;
mod handshake;
mod http;
mod listening_socket;
mod reply;
mod report;
mod transparent;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use roadweave_config::ClientStreams;
use roadweave_linux::{DeviceError, Event, Interest, Poller, Token};
use roadweave_proto::wire::Destination;
use roadweave_proto::{Instant, Marks, earliest};
use roadweave_stream::Streams;

use self::caller::arrived_by;
use self::connections::{Accepted, Connections};
pub use self::encoder::{EventStreams, Listening};
pub use self::end::ListenerEnd;
use self::listening_socket::ListeningSocket;
use super::Ends;
use super::player::PlayerReport;
use super::splice::break_off;

/// Configuration of a listener.
#[derive(Clone, Debug)]
pub struct ListenerSettings {
    /// The configuration.
    pub fields: ClientStreams,
    /// The packet marks; one of them marks the packets that reset a connection whose host fails.
    pub marks: Marks,
    /// The maximum number of connections.
    pub connections_max: usize,
    /// The maximum number of connections of one source address.
    pub connections_of_one_max: usize,
    /// The time limit for a caller's request.
    pub handshake_max: Duration,
    /// The time limit for the far end to connect.
    pub connect_max: Duration,
}

impl ListenerSettings {
    /// The usual limits.
    pub fn new(fields: ClientStreams, marks: Marks) -> Self {
        Self {
            fields,
            marks,
            connections_max: super::sockets_max().min(4096),
            connections_of_one_max: 512,
            handshake_max: Duration::from_secs(10),
            connect_max: Duration::from_secs(60),
        }
    }
}

/// The proxies of a box, and its transparent connections; see the [module](super).
#[derive(Debug)]
pub struct StreamListener {
    listeners: Vec<ListeningSocket>,
    next_try: Option<Instant>,
    token: Token,
    inside: Vec<u32>,
    paused_until: Option<Instant>,
    accepted: u64,
    pub(super) connections: Connections,
}

impl StreamListener {
    /// Listens, with tokens from `token` on (see [`StreamListener::owns`]). While the proxies'
    /// address is in use or not present, [`StreamListener::turn`] retries.
    pub fn open(settings: ListenerSettings, token: Token) -> Self {
        let asking = settings.fields.listen.map(|address| {
            ListeningSocket::for_asking(address).inspect_err(|error| {
                tracing::warn!(
                    "cannot listen for applications at {address}: {error}; trying again"
                );
            })
        });
        let next_try = matches!(asking, Some(Err(_))).then_some(Instant::ZERO);
        let mut listeners: Vec<ListeningSocket> = asking.into_iter().flatten().collect();
        if settings.fields.splits() {
            listeners.extend(transparent::listeners());
        }
        Self {
            listeners,
            next_try,
            token,
            inside: Vec::new(),
            paused_until: None,
            accepted: 0,
            connections: Connections::new(settings, Token(token.0 + LISTENERS_MAX)),
        }
    }

    fn listen_again(&mut self, now: Instant, poller: &Poller) {
        let is_due = self.next_try.is_some_and(|at| at <= now);
        let listen = self.connections.settings.fields.listen;
        let Some(address) = listen.filter(|_| is_due) else { return };
        self.next_try = Some(now + RETRY);
        let Ok(listener) = ListeningSocket::for_asking(address) else { return };
        let number = self.listeners.len() as u64;
        if poller.add(&listener.socket, Token(self.token.0 + number), Interest::Edges).is_ok() {
            self.listeners.push(listener);
            self.next_try = None;
        }
    }

    /// The proxies' address, if they listen.
    pub fn local_address(&self) -> Option<SocketAddr> {
        let proxy = self.listeners.iter().find(|listener| !listener.is_transparent);
        proxy.map(|listener| listener.address)
    }

    /// Sets the LAN's interfaces (by index). Callers on others are refused; initially all.
    pub fn set_inside(&mut self, inside: Vec<u32>) {
        self.inside = inside;
    }

    /// Registers its listeners.
    pub fn register(&self, poller: &Poller) -> Result<(), DeviceError> {
        for (number, listener) in (0..).zip(&self.listeners) {
            poller.add(&listener.socket, Token(self.token.0 + number), Interest::Edges)?;
        }
        Ok(())
    }

    /// The reports of players since the last call, oldest first.
    pub fn take_reports(&mut self) -> Vec<PlayerReport> {
        self.connections.findings.take_reports()
    }

    /// The requests for event streams since the last call, removed from `poller`.
    pub fn take_listening(&mut self, poller: &Poller) -> Vec<Listening> {
        let listening = std::mem::take(&mut self.connections.listening);
        listening.iter().for_each(|it| drop(poller.remove(&it.socket)));
        listening
    }

    /// Whether the token belongs to this listener.
    pub fn owns(&self, token: Token) -> bool {
        self.listener_of(token).is_some() || self.connections.table.number_of(token).is_some()
    }

    /// Takes an event of a token that it owns.
    pub fn on_ready(&mut self, event: &Event) {
        match self.listener_of(event.token) {
            Some(position) => self.listeners[position].is_called = true,
            None => self.connections.on_ready(event),
        }
    }

    /// Takes the events of the streams. Streams that the other end opened are reset.
    pub fn handle_events(&mut self, now: Instant, streams: &mut Streams) {
        self.connections.handle_events(now, streams);
    }

    /// Ends all connections that have a stream; later calls lend the streams of another session.
    pub fn on_streams_over(&mut self, now: Instant) {
        self.connections.on_streams_over(now);
    }

    /// When [`StreamListener::turn`] has work.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let is_called = self.listeners.iter().any(|listener| listener.is_called);
        let called = (is_called && self.paused_until.is_none()).then_some(Instant::ZERO);
        earliest([called, self.paused_until, self.next_try, self.connections.poll_timeout()])
    }

    /// Does the pending work, within the limits of a turn.
    pub fn turn(&mut self, now: Instant, poller: &Poller, streams: &mut Streams) {
        self.listen_again(now, poller);
        // Connected streams come first: bytes of the host must not come before the answer.
        self.connections.handle_events(now, streams);
        self.connections.handle_timeout(now, streams);
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
        }
        if self.paused_until.is_none() {
            self.accept(now, poller, streams);
        }
        let is_crowded = self.connections.is_crowded(streams);
        self.connections.taking.turn(now, is_crowded, &self.listeners);
        self.connections.turn(now, streams);
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        self.connections.table.len()
    }

    /// Connections ever accepted, open or ended.
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Ended connections by how they ended.
    pub fn ends(&self) -> &Ends<ListenerEnd> {
        &self.connections.ends
    }

    /// Counters of inspected HTTP, by name.
    pub fn findings(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.connections.findings.counts.iter().map(|(what, times)| (*what, *times))
    }

    /// The addresses to redirect connections to, at most one of each family.
    pub fn transparent_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let transparent = self.listeners.iter().filter(|listener| listener.is_transparent);
        transparent.map(|listener| listener.address)
    }

    /// Sets whether transparent connections are taken from the next turn on (initially not).
    pub fn set_taking(&mut self, is_wanted: bool) {
        self.connections.taking.is_wanted = is_wanted;
    }

    /// Why no connections are taken although the owner wants it, if so.
    pub fn obstacle(&self) -> Option<&'static str> {
        self.connections.taking.obstacle()
    }

    /// The number of transparent connections taken.
    pub fn taken(&self) -> u64 {
        self.connections.taking.taken
    }

    fn listener_of(&self, token: Token) -> Option<usize> {
        let position = usize::try_from(token.0.checked_sub(self.token.0)?).ok()?;
        (position < self.listeners.len()).then_some(position)
    }

    fn accept(&mut self, now: Instant, poller: &Poller, streams: &mut Streams) {
        for _ in 0..ACCEPTED_MAX {
            let mut listeners = self.listeners.iter_mut();
            let Some(listener) = listeners.find(|listener| listener.is_called) else { return };
            match listener.socket.accept() {
                Ok((socket, address)) => {
                    let is_transparent = listener.is_transparent;
                    self.accepted += 1;
                    match self.admit(socket, address.ip().to_canonical(), is_transparent) {
                        Some(accepted) => self.connections.welcome(now, poller, streams, accepted),
                        None => self.connections.ends.count(ListenerEnd::Stranger),
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => listener.is_called = false,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        tracing::debug!(%error, "no room for a connection of an application");
                        self.paused_until = Some(now + PAUSE);
                        return;
                    }
                },
            }
        }
    }

    /// `None` for a stranger, whose connection is broken off.
    fn admit(&self, socket: TcpStream, caller: IpAddr, is_transparent: bool) -> Option<Accepted> {
        let destination = is_transparent.then(|| self.meant_for(&socket));
        let is_ours = match destination {
            Some(_) => self.is_from_inside(&socket),
            None => self.is_neighbour(caller, &socket),
        };
        if !is_ours || destination == Some(None) {
            break_off(&socket);
            return None;
        }
        Some(Accepted { socket, caller, destination: destination.flatten() })
    }

    fn is_from_inside(&self, socket: &TcpStream) -> bool {
        arrived_by(socket).is_some_and(|it| it != LOOPBACK && self.inside.contains(&it))
    }

    fn meant_for(&self, socket: &TcpStream) -> Option<Destination> {
        let local = socket.local_addr().ok()?;
        let address = local.ip().to_canonical();
        let is_own = address.is_loopback() || self.transparent_addresses().any(|it| it == local);
        Destination::of_address(address, local.port()).filter(|_| !is_own)
    }

    fn is_neighbour(&self, caller: IpAddr, socket: &TcpStream) -> bool {
        self.connections.settings.fields.from.iter().any(|network| network.contains(&caller))
            && arrived_by(socket).is_some_and(|interface| self.inside.contains(&interface))
    }
}

pub(crate) const LOOPBACK: u32 = 1;
const LISTENERS_MAX: u64 = 3;
const RETRY: Duration = Duration::from_secs(2);
const ACCEPTED_MAX: usize = 64;
const PAUSE: Duration = Duration::from_millis(100);
