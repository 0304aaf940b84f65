//! Where applications come in: a SOCKS5 proxy (RFC 1928) and an HTTP proxy (RFC 9110 section 9.3.6)
//! at one address of the LAN.
//!
//! ```text
//! accept ─► is it ours? ─► ask: by the first byte ─► open a stream ─► connected: answer ─► splice
//!              │ no             │ bad, slow              │ reset
//!              ▼                ▼                        ▼
//!            close            answer ───────────────────────► part: FIN, then what still comes
//! ```
//!
//! Names are not looked up here but go as they are: the far end knows its network. The application
//! is told of success when the far end says so, and of failure by what failed there. What it sends
//! before that goes along with the stream.
//!
//! It serves the LAN alone: a caller must come from one of its networks, and by an interface that
//! leads there, which a kernel does not see to by itself (it takes packets for any of its addresses
//! by any interface).

mod caller;
mod handshake;
mod http;
mod progress;
mod report;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use ipnet::IpNet;
use roadweave_stream::{Event as StreamEvent, Streams};
use roadweave_types::Instant;
use roadweave_wire::{ResetCode, StreamId};

use self::caller::{arrived_by, ask_for_interfaces};
use self::handshake::{Dialect, Handshake};
pub use self::report::PlayerTold;
use super::splice::{self, Splice, break_off};
use super::table::{Number, Table};
use super::{Ends, SCRATCH, TURN};
use crate::DeviceError;
use crate::poll::{Event, Interest, Poller, Token};

/// What an entrance is like.
#[derive(Clone, Debug)]
pub struct EntranceSettings {
    /// Where it listens: an address of the LAN.
    pub listen: SocketAddr,
    /// The networks that callers are from.
    pub networks: Vec<IpNet>,
    /// The origins of pages whose players may tell of their buffers, as browsers name them.
    pub origins: Vec<String>,
    /// The most connections at a time.
    pub connections_max: usize,
    /// The most connections of one source address at a time.
    pub connections_of_one_max: usize,
    /// How long a caller may take to say what it wants.
    pub handshake_max: Duration,
    /// How long the far end may take to connect.
    pub connect_max: Duration,
}

impl EntranceSettings {
    /// The settings of an entrance at `listen` for `networks`.
    pub fn new(listen: SocketAddr, networks: Vec<IpNet>) -> Self {
        Self {
            listen,
            networks,
            origins: Vec::new(),
            connections_max: super::connections_max().min(4096),
            connections_of_one_max: 512,
            handshake_max: Duration::from_secs(10),
            connect_max: Duration::from_secs(60),
        }
    }
}

/// How a connection of an application ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntranceEnd {
    /// In order, in both directions.
    Closed,
    /// The application broke it off.
    Aborted,
    /// The stream was reset after the far end had connected.
    Reset,
    /// The far end could not connect, and the application was told why.
    Unconnected,
    /// It could not be opened: too many streams, or none can be.
    NoStream,
    /// What the application said was no request, or none that is served.
    BadRequest,
    /// It asked for something else than a connection, and was answered.
    Served,
    /// It left before it had asked for anything.
    Left,
    /// It did not say in time what it wants.
    Slow,
    /// It came from outside the LAN.
    Stranger,
    /// There were too many.
    TooMany,
}

impl EntranceEnd {
    /// The name that statistics use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Aborted => "aborted",
            Self::Reset => "reset",
            Self::Unconnected => "unconnected",
            Self::NoStream => "no-stream",
            Self::BadRequest => "bad-request",
            Self::Served => "served",
            Self::Left => "left",
            Self::Slow => "slow",
            Self::Stranger => "stranger",
            Self::TooMany => "too-many",
        }
    }
}

/// The proxies of a box; see the [module](super).
#[derive(Debug)]
pub struct Entrance {
    settings: EntranceSettings,
    listener: TcpListener,
    token: Token,
    /// The interfaces by which callers come.
    inside: Vec<u32>,
    connections: Table<Connection>,
    /// The connections of the streams that are open.
    pub(super) streams: BTreeMap<StreamId, Number>,
    /// How many connections each source address has.
    pub(super) callers: BTreeMap<IpAddr, usize>,
    /// Somebody may wait to be taken.
    is_called: bool,
    /// The system has no room for callers until then.
    paused_until: Option<Instant>,
    accepted: u64,
    /// What players told since it was taken, at most [`TOLD_MAX`].
    told: Vec<PlayerTold>,
    ends: Ends<EntranceEnd>,
    scratch: Box<[u8]>,
}

#[derive(Debug)]
struct Connection {
    caller: IpAddr,
    /// `None` only during its turn.
    state: Option<State>,
}

#[derive(Debug)]
enum State {
    /// It says what it wants.
    Asking { socket: TcpStream, handshake: Handshake, closing: bool },
    /// The far end connects; what the application sends goes along.
    Opening { splice: Splice, dialect: Dialect },
    /// It is connected.
    Joined(Splice),
    /// It was told how it ends, and may have been sending meanwhile: were the socket closed with
    /// bytes unread, the kernel's RST would take the answer away.
    Parting { socket: TcpStream, end: EntranceEnd, left: usize },
}

impl Entrance {
    /// Listens; tokens from `token` on are its own, see [`Entrance::owns`].
    ///
    /// # Errors
    /// When the address is another's, or none of this machine.
    pub fn open(settings: EntranceSettings, token: Token) -> Result<Self, DeviceError> {
        let what = || format!("listen for applications at {}", settings.listen);
        let listener = TcpListener::bind(settings.listen)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .and_then(|listener| ask_for_interfaces(&listener).map(|()| listener))
            .map_err(|error| DeviceError::system(what(), error))?;
        Ok(Self {
            settings,
            listener,
            token,
            inside: Vec::new(),
            connections: Table::new(token),
            streams: BTreeMap::new(),
            callers: BTreeMap::new(),
            is_called: false,
            paused_until: None,
            accepted: 0,
            told: Vec::new(),
            ends: Ends::default(),
            scratch: vec![0; SCRATCH].into(),
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The interfaces (by index) that lead to the LAN from now on: who comes by another is no
    /// caller. In the beginning none does.
    pub fn set_inside(&mut self, inside: Vec<u32>) {
        self.inside = inside;
    }

    /// Takes callers from now on.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn register(&self, poller: &Poller) -> Result<(), DeviceError> {
        poller.add(&self.listener, self.token, Interest::Edges)
    }

    /// What players have told since the last call, in the order in which it came.
    pub fn take_told(&mut self) -> Vec<PlayerTold> {
        std::mem::take(&mut self.told)
    }

    /// Whether the token is one of its own.
    pub fn owns(&self, token: Token) -> bool {
        token == self.token || self.connections.number_of(token).is_some()
    }

    /// The poller has told something of a token that it owns.
    pub fn on_ready(&mut self, event: &Event) {
        if event.token == self.token {
            self.is_called = true;
            return;
        }
        let Some(number) = self.connections.number_of(event.token) else { return };
        let Some(connection) = self.connections.get_mut(number) else { return };
        match &mut connection.state {
            Some(State::Asking { closing, .. }) => *closing |= event.closing,
            Some(State::Opening { splice, .. } | State::Joined(splice)) => splice.on_ready(event),
            Some(State::Parting { .. }) | None => {}
        }
        self.connections.wake(number);
    }

    /// Takes what the streams have to tell. A stream that the other end opened is reset: nothing
    /// here is to be connected to.
    pub fn handle_events(&mut self, now: Instant, streams: &mut Streams) {
        while let Some(event) = streams.poll_event(now) {
            self.handle_event(now, event, streams);
        }
    }

    fn handle_event(&mut self, now: Instant, event: StreamEvent, streams: &mut Streams) {
        let id = match event {
            StreamEvent::Opened { id, .. } => {
                // It fails only if that is over already.
                let _ = streams.reset(now, id, ResetCode::Forbidden);
                return;
            }
            StreamEvent::Connected(id)
            | StreamEvent::Readable(id)
            | StreamEvent::Writable(id)
            | StreamEvent::Acknowledged(id)
            | StreamEvent::Finished(id) => id,
            StreamEvent::Stopped { id, .. } | StreamEvent::Reset { id, .. } => id,
        };
        let Some(&number) = self.streams.get(&id) else { return };
        let Some(connection) = self.connections.get_mut(number) else { return };
        let Some(State::Opening { splice, .. } | State::Joined(splice)) = &mut connection.state
        else {
            return;
        };
        match event {
            StreamEvent::Connected(_) => return self.on_connected(now, number, streams),
            StreamEvent::Reset { code, .. } => return self.on_reset(now, number, code),
            StreamEvent::Readable(_) => splice.on_stream_readable(),
            StreamEvent::Writable(_) => splice.on_stream_writable(),
            StreamEvent::Stopped { .. } => splice.on_stream_stopped(),
            StreamEvent::Finished(_) => splice.on_stream_finished(),
            StreamEvent::Acknowledged(_) | StreamEvent::Opened { .. } => {}
        }
        self.connections.wake(number);
    }

    /// All streams are over, and those of the next turns are others.
    pub fn on_streams_over(&mut self, now: Instant) {
        for number in std::mem::take(&mut self.streams).into_values() {
            self.on_reset(now, number, ResetCode::Aborted);
        }
    }

    /// When [`Entrance::turn`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let called = (self.is_called && self.paused_until.is_none()).then_some(Instant::ZERO);
        let others = [called, self.paused_until, self.connections.poll_timeout()];
        others.into_iter().flatten().min()
    }

    /// Does what there is to do, as much as a turn allows.
    pub fn turn(&mut self, now: Instant, poller: &Poller, streams: &mut Streams) {
        // First who is connected: what its host says must not come before the answer.
        self.handle_events(now, streams);
        while let Some(number) = self.connections.take_overdue(now) {
            self.on_overdue(now, number, streams);
        }
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
        }
        if self.paused_until.is_none() {
            self.accept(now, poller);
        }
        for _ in 0..TURN / splice::SHARE {
            let Some(number) = self.connections.take_ready() else { break };
            self.advance(now, number, streams);
        }
        self.handle_events(now, streams);
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Connections that were ever taken: those that are open and those that ended.
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// How those ended that are not open any more.
    pub fn ends(&self) -> &Ends<EntranceEnd> {
        &self.ends
    }

    fn accept(&mut self, now: Instant, poller: &Poller) {
        for _ in 0..ACCEPTED_MAX {
            if !self.is_called {
                return;
            }
            match self.listener.accept() {
                Ok((socket, address)) => self.welcome(now, poller, socket, address),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => self.is_called = false,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    // No descriptors or no memory: others may give some back.
                    _ => {
                        tracing::debug!(%error, "no room for a connection of an application");
                        self.paused_until = Some(now + PAUSE);
                        return;
                    }
                },
            }
        }
    }

    fn welcome(&mut self, now: Instant, poller: &Poller, socket: TcpStream, from: SocketAddr) {
        self.accepted += 1;
        let caller = from.ip().to_canonical();
        let others = self.callers.get(&caller).copied().unwrap_or_default();
        let refusal = if !self.is_neighbour(caller, &socket) {
            Some(EntranceEnd::Stranger)
        } else if self.connections.len() >= self.settings.connections_max
            || others >= self.settings.connections_of_one_max
        {
            Some(EntranceEnd::TooMany)
        } else {
            None
        };
        if let Some(end) = refusal {
            break_off(&socket);
            return self.ends.count(end);
        }
        let token = self.connections.token(self.connections.next());
        let ready = splice::prepare(&socket).map_err(|error| error.to_string()).and_then(|()| {
            poller.add(&socket, token, Interest::Edges).map_err(|error| error.to_string())
        });
        if let Err(error) = ready {
            tracing::debug!(error, "a connection of an application cannot be served");
            return self.ends.count(EntranceEnd::Left);
        }
        *self.callers.entry(caller).or_default() += 1;
        let state = State::Asking { socket, handshake: Handshake::default(), closing: false };
        let number = self.connections.insert(Connection { caller, state: Some(state) });
        self.connections.set_deadline(number, Some(now + self.settings.handshake_max));
    }

    /// Whether the caller is of the LAN, and did not come by an uplink.
    fn is_neighbour(&self, caller: IpAddr, socket: &TcpStream) -> bool {
        self.settings.networks.iter().any(|network| network.contains(&caller))
            && arrived_by(socket).is_some_and(|interface| self.inside.contains(&interface))
    }

    /// The connection is over, its socket closed.
    fn end(&mut self, number: Number, end: EntranceEnd) {
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

/// What players tell in a turn, at most.
const TOLD_MAX: usize = 64;
/// The most callers that are taken in a turn.
const ACCEPTED_MAX: usize = 64;
/// How long no callers are taken after the system had no room for one.
const PAUSE: Duration = Duration::from_millis(100);
