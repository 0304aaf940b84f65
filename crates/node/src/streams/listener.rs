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
mod encoder;
mod end;
mod forward;
mod handshake;
mod http;
mod listening_socket;
mod progress;
mod reply;
mod report;
mod transparent;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use roadweave_config::ClientStreams;
use roadweave_linux::{DeviceError, Event, Interest, Poller, Token};
use roadweave_proto::wire::{ResetCode, StreamId};
use roadweave_proto::{Instant, Marks};
use roadweave_stream::{Event as StreamEvent, Streams};

use self::asked::Dialect;
use self::caller::arrived_by;
pub use self::encoder::{EventStreams, Listening};
pub use self::end::ListenerEnd;
use self::handshake::Handshake;
use self::listening_socket::ListeningSocket;
use self::progress::Next;
use self::transparent::Taking;
use super::http_sniffer::{HttpFindings, HttpSniffer};
use super::player::PlayerReport;
use super::splice::{self, Splice, break_off, stream_of};
use super::table::{Number, Table};
use super::{Ends, SCRATCH, TURN};

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
    settings: ListenerSettings,
    listeners: Vec<ListeningSocket>,
    next_try: Option<Instant>,
    token: Token,
    taking: Taking,
    inside: Vec<u32>,
    connections: Table<AcceptedConnection>,
    pub(super) streams: BTreeMap<StreamId, Number>,
    pub(super) callers: BTreeMap<IpAddr, usize>,
    paused_until: Option<Instant>,
    accepted: u64,
    pub(super) findings: HttpFindings,
    pub(super) listening: Vec<Listening>,
    ends: Ends<ListenerEnd>,
    scratch: Box<[u8]>,
}

#[derive(Debug)]
struct AcceptedConnection {
    caller: IpAddr,
    state: Option<AcceptedState>,
}

#[derive(Debug)]
enum AcceptedState {
    /// The request is incomplete.
    Asking { socket: TcpStream, handshake: Handshake, closing: bool },
    /// `dialect`: how to answer the application, if it expects an answer.
    Opening { splice: Splice, dialect: Option<Dialect> },
    /// Connected.
    Joined(Splice),
    /// Answered, and not closed yet: an RST for unread bytes would discard the answer.
    Parting { socket: TcpStream, end: ListenerEnd, left: usize },
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
            settings,
            listeners,
            next_try,
            token,
            taking: Taking::default(),
            inside: Vec::new(),
            connections: Table::new(Token(token.0 + LISTENERS_MAX)),
            streams: BTreeMap::new(),
            callers: BTreeMap::new(),
            paused_until: None,
            accepted: 0,
            findings: HttpFindings::default(),
            listening: Vec::new(),
            ends: Ends::default(),
            scratch: vec![0; SCRATCH].into(),
        }
    }

    fn listen_again(&mut self, now: Instant, poller: &Poller) {
        let is_due = self.next_try.is_some_and(|at| at <= now);
        let Some(address) = self.settings.fields.listen.filter(|_| is_due) else { return };
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
        self.findings.take_reports()
    }

    /// The requests for event streams since the last call, removed from `poller`.
    pub fn take_listening(&mut self, poller: &Poller) -> Vec<Listening> {
        let listening = std::mem::take(&mut self.listening);
        listening.iter().for_each(|it| drop(poller.remove(&it.socket)));
        listening
    }

    /// Whether the token belongs to this listener.
    pub fn owns(&self, token: Token) -> bool {
        self.listener_of(token).is_some() || self.connections.number_of(token).is_some()
    }

    /// Takes an event of a token that it owns.
    pub fn on_ready(&mut self, event: &Event) {
        if let Some(position) = self.listener_of(event.token) {
            self.listeners[position].is_called = true;
            return;
        }
        let Some(number) = self.connections.number_of(event.token) else { return };
        let Some(connection) = self.connections.get_mut(number) else { return };
        match &mut connection.state {
            Some(AcceptedState::Asking { closing, .. }) => *closing |= event.closing,
            Some(AcceptedState::Opening { splice, .. } | AcceptedState::Joined(splice)) => {
                splice.on_ready(event)
            }
            Some(AcceptedState::Parting { .. }) | None => {}
        }
        self.connections.wake(number);
    }

    /// Takes the events of the streams. Streams that the other end opened are reset.
    pub fn handle_events(&mut self, now: Instant, streams: &mut Streams) {
        while let Some(event) = streams.poll_event(now) {
            self.handle_event(now, event, streams);
        }
    }

    fn handle_event(&mut self, now: Instant, event: StreamEvent, streams: &mut Streams) {
        let id = stream_of(&event);
        if let StreamEvent::Opened { .. } = event {
            let _ = streams.reset(now, id, ResetCode::Forbidden);
            return;
        }
        let Some(&number) = self.streams.get(&id) else { return };
        let Some(connection) = self.connections.get_mut(number) else { return };
        let Some(AcceptedState::Opening { splice, .. } | AcceptedState::Joined(splice)) =
            &mut connection.state
        else {
            return;
        };
        match event {
            StreamEvent::Connected(_) => return self.on_connected(now, number, streams),
            StreamEvent::Reset { code, .. } => return self.on_reset(now, number, code),
            event => splice.on_stream(&event),
        }
        self.connections.wake(number);
    }

    /// Ends all connections that have a stream; later calls lend the streams of another session.
    pub fn on_streams_over(&mut self, now: Instant) {
        for number in std::mem::take(&mut self.streams).into_values() {
            self.on_reset(now, number, ResetCode::Aborted);
        }
    }

    /// When [`StreamListener::turn`] has work.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let is_called = self.listeners.iter().any(|listener| listener.is_called);
        let called = (is_called && self.paused_until.is_none()).then_some(Instant::ZERO);
        let others = [
            called,
            self.paused_until,
            self.taking.rests_until,
            self.next_try,
            self.connections.poll_timeout(),
        ];
        others.into_iter().flatten().min()
    }

    /// Does the pending work, within the limits of a turn.
    pub fn turn(&mut self, now: Instant, poller: &Poller, streams: &mut Streams) {
        self.listen_again(now, poller);
        // Connected streams come first: bytes of the host must not come before the answer.
        self.handle_events(now, streams);
        while let Some(number) = self.connections.take_overdue(now) {
            self.on_overdue(now, number, streams);
        }
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
        }
        if self.paused_until.is_none() {
            self.accept(now, poller, streams);
        }
        self.tend_taking(now, streams);
        for _ in 0..TURN / splice::SHARE {
            let Some(number) = self.connections.take_ready() else { break };
            self.advance(now, number, streams);
        }
        self.handle_events(now, streams);
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Connections ever accepted, open or ended.
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Ended connections by how they ended.
    pub fn ends(&self) -> &Ends<ListenerEnd> {
        &self.ends
    }

    /// Counters of inspected HTTP, by name.
    pub fn findings(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.findings.counts.iter().map(|(what, times)| (*what, *times))
    }

    pub(super) fn http_sniffer(&mut self, number: Number, port: u16) -> Option<HttpSniffer> {
        let caller = self.connections.get_mut(number)?.caller;
        let is_http = self.settings.fields.http_ports.contains(&port);
        is_http.then(|| HttpSniffer::of_application(caller))
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
                    let caller = address.ip().to_canonical();
                    self.welcome(now, poller, streams, socket, caller, is_transparent);
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

    fn welcome(
        &mut self,
        now: Instant,
        poller: &Poller,
        streams: &mut Streams,
        socket: TcpStream,
        caller: IpAddr,
        is_transparent: bool,
    ) {
        self.accepted += 1;
        let destination = is_transparent.then(|| self.meant_for(&socket));
        let others = self.callers.get(&caller).copied().unwrap_or_default();
        let is_ours = match destination {
            Some(_) => self.is_from_inside(&socket),
            None => self.is_neighbour(caller, &socket),
        };
        if !is_ours || destination == Some(None) {
            break_off(&socket);
            return self.ends.count(ListenerEnd::Stranger);
        }
        if self.connections.len() >= self.settings.connections_max
            || others >= self.settings.connections_of_one_max
        {
            self.refuse_socket(&socket, is_transparent);
            return self.ends.count(ListenerEnd::TooMany);
        }
        let token = self.connections.token(self.connections.next());
        let ready = splice::prepare(&socket).map_err(|error| error.to_string()).and_then(|()| {
            poller.add(&socket, token, Interest::Edges).map_err(|error| error.to_string())
        });
        if let Err(error) = ready {
            tracing::debug!(error, "a connection of an application was rejected");
            self.refuse_socket(&socket, is_transparent);
            return self.ends.count(ListenerEnd::Left);
        }
        *self.callers.entry(caller).or_default() += 1;
        let number = self.connections.insert(AcceptedConnection { caller, state: None });
        let next = match destination.flatten() {
            Some(destination) => self.take(now, number, streams, socket, destination),
            None => {
                self.connections.set_deadline(number, Some(now + self.settings.handshake_max));
                let handshake = Handshake::default();
                Next::Again(AcceptedState::Asking { socket, handshake, closing: false })
            }
        };
        self.settle(number, next);
    }

    fn is_neighbour(&self, caller: IpAddr, socket: &TcpStream) -> bool {
        self.settings.fields.from.iter().any(|network| network.contains(&caller))
            && arrived_by(socket).is_some_and(|interface| self.inside.contains(&interface))
    }

    fn end(&mut self, number: Number, end: ListenerEnd) {
        let Some(connection) = self.connections.remove(number) else { return };
        self.ends.count(end);
        if let Some(count) = self.callers.get_mut(&connection.caller) {
            *count -= 1;
            if *count == 0 {
                self.callers.remove(&connection.caller);
            }
        }
    }
}

pub(crate) const LOOPBACK: u32 = 1;
const LISTENERS_MAX: u64 = 3;
const RETRY: Duration = Duration::from_secs(2);
const ACCEPTED_MAX: usize = 64;
const PAUSE: Duration = Duration::from_millis(100);
