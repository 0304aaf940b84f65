//! The connections of applications, and their steps: ask, open, join, part.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::time::Duration;

use roadweave_linux::{Event, Interest, Poller, Token};
use roadweave_proto::wire::{Destination, ResetCode, StreamId, StreamPriority};
use roadweave_proto::{Instant, earliest};
use roadweave_stream::{Event as StreamEvent, Streams};

use super::super::http_sniffer::{HttpFindings, HttpSniffer};
use super::super::splice::{self, Splice, SpliceEnd, SpliceTurn, break_off, stream_of};
use super::super::table::{Number, Table};
use super::super::{Ends, SCRATCH, TURN};
use super::asked::{Asked, Dialect};
use super::encoder::Listening;
use super::handshake::{Handshake, MESSAGE_MAX};
use super::transparent::{Taking, blame};
use super::{ListenerEnd, ListenerSettings};

#[derive(Debug)]
pub(in crate::streams) struct Connections {
    pub(super) settings: ListenerSettings,
    pub(super) table: Table<AcceptedConnection>,
    pub(in crate::streams) streams: BTreeMap<StreamId, Number>,
    pub(in crate::streams) callers: BTreeMap<IpAddr, usize>,
    pub(super) taking: Taking,
    pub(super) findings: HttpFindings,
    pub(super) listening: Vec<Listening>,
    pub(super) ends: Ends<ListenerEnd>,
    scratch: Box<[u8]>,
}

#[derive(Debug)]
pub(super) struct AcceptedConnection {
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

enum Next {
    Stays(AcceptedState),
    Again(AcceptedState),
    Ends(ListenerEnd),
}

impl Connections {
    pub(super) fn new(settings: ListenerSettings, first: Token) -> Self {
        Self {
            settings,
            table: Table::new(first),
            streams: BTreeMap::new(),
            callers: BTreeMap::new(),
            taking: Taking::default(),
            findings: HttpFindings::default(),
            listening: Vec::new(),
            ends: Ends::default(),
            scratch: vec![0; SCRATCH].into(),
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        earliest([self.taking.rests_until, self.table.poll_timeout()])
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, streams: &mut Streams) {
        while let Some(number) = self.table.take_overdue(now) {
            self.on_overdue(now, number, streams);
        }
    }

    pub(super) fn is_crowded(&self, streams: &Streams) -> bool {
        let (max, free) = (self.settings.connections_max, streams.free_streams());
        let most = max.min(streams.open_streams() + free);
        let left = max.saturating_sub(self.table.len()).min(free);
        left <= most / RESERVE
    }

    pub(super) fn turn(&mut self, now: Instant, streams: &mut Streams) {
        for _ in 0..TURN / splice::SHARE {
            let Some(number) = self.table.take_ready() else { break };
            self.advance(now, number, streams);
        }
        self.handle_events(now, streams);
    }

    pub(super) fn welcome(
        &mut self,
        now: Instant,
        poller: &Poller,
        streams: &mut Streams,
        Accepted { socket, caller, destination }: Accepted,
    ) {
        let others = self.callers.get(&caller).copied().unwrap_or_default();
        if self.table.len() >= self.settings.connections_max
            || others >= self.settings.connections_of_one_max
        {
            self.refuse(&socket, destination.is_some());
            return self.ends.count(ListenerEnd::TooMany);
        }
        let token = self.table.token(self.table.next());
        let ready = splice::prepare(&socket).map_err(|error| error.to_string()).and_then(|()| {
            poller.add(&socket, token, Interest::Edges).map_err(|error| error.to_string())
        });
        if let Err(error) = ready {
            tracing::debug!(error, "a connection of an application was rejected");
            self.refuse(&socket, destination.is_some());
            return self.ends.count(ListenerEnd::Left);
        }
        *self.callers.entry(caller).or_default() += 1;
        let number = self.table.insert(AcceptedConnection { caller, state: None });
        let next = match destination {
            Some(destination) => {
                self.taking.taken += 1;
                let (dialect, head, until) = (None, None, now + ANSWER_MAX);
                let joining = Joining { socket, closing: false, dialect, head, until };
                self.open_stream(now, number, streams, joining, destination)
            }
            None => {
                self.table.set_deadline(number, Some(now + self.settings.handshake_max));
                let handshake = Handshake::default();
                Next::Again(AcceptedState::Asking { socket, handshake, closing: false })
            }
        };
        self.settle(number, next);
    }

    /// If its destination is blamed, new connections to it use the tunnel for a while.
    fn refuse(&self, socket: &TcpStream, is_blamed: bool) {
        if is_blamed {
            blame(socket, self.settings.marks);
        }
        break_off(socket);
    }

    pub(super) fn on_ready(&mut self, event: &Event) {
        let Some(number) = self.table.number_of(event.token) else { return };
        let Some(connection) = self.table.get_mut(number) else { return };
        match &mut connection.state {
            Some(AcceptedState::Asking { closing, .. }) => *closing |= event.closing,
            Some(AcceptedState::Opening { splice, .. } | AcceptedState::Joined(splice)) => {
                splice.on_ready(event)
            }
            Some(AcceptedState::Parting { .. }) | None => {}
        }
        self.table.wake(number);
    }

    pub(super) fn handle_events(&mut self, now: Instant, streams: &mut Streams) {
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
        let Some(connection) = self.table.get_mut(number) else { return };
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
        self.table.wake(number);
    }

    pub(super) fn on_streams_over(&mut self, now: Instant) {
        for number in std::mem::take(&mut self.streams).into_values() {
            self.on_reset(now, number, ResetCode::Aborted);
        }
    }

    fn advance(&mut self, now: Instant, number: Number, streams: &mut Streams) {
        let Some(connection) = self.table.get_mut(number) else { return };
        let Some(state) = connection.state.take() else { return };
        let next = match state {
            AcceptedState::Asking { socket, handshake, closing } => {
                self.ask(now, number, streams, Asking { socket, handshake, closing })
            }
            AcceptedState::Opening { mut splice, dialect } => {
                match splice.turn(now, streams, &mut self.scratch, &mut self.findings) {
                    SpliceTurn::Over(SpliceEnd::Reset(code)) => {
                        self.refuse_spliced(now, number, splice, dialect, code)
                    }
                    SpliceTurn::Over(over) => self.end_spliced(now, number, splice, over),
                    SpliceTurn::More => Next::Again(AcceptedState::Opening { splice, dialect }),
                    SpliceTurn::Idle => Next::Stays(AcceptedState::Opening { splice, dialect }),
                }
            }
            AcceptedState::Joined(mut splice) => {
                match splice.turn(now, streams, &mut self.scratch, &mut self.findings) {
                    SpliceTurn::Over(over) => self.end_spliced(now, number, splice, over),
                    SpliceTurn::More => Next::Again(AcceptedState::Joined(splice)),
                    SpliceTurn::Idle => Next::Stays(AcceptedState::Joined(splice)),
                }
            }
            AcceptedState::Parting { socket, end, left } => {
                drain(socket, end, left, &mut self.scratch)
            }
        };
        self.settle(number, next);
    }

    fn on_connected(&mut self, now: Instant, number: Number, streams: &mut Streams) {
        let Some(connection) = self.table.get_mut(number) else { return };
        let next = match connection.state.take() {
            Some(AcceptedState::Opening { splice, dialect }) => {
                self.table.set_deadline(number, None);
                if say(&splice.socket, dialect.map_or(&[], Dialect::connected)) {
                    Next::Again(AcceptedState::Joined(splice))
                } else {
                    let _ = streams.reset(now, splice.stream, ResetCode::Aborted);
                    self.end_spliced(now, number, splice, SpliceEnd::Aborted)
                }
            }
            Some(state) => Next::Stays(state),
            None => return,
        };
        self.settle(number, next);
    }

    fn on_reset(&mut self, now: Instant, number: Number, code: ResetCode) {
        let Some(connection) = self.table.get_mut(number) else { return };
        let next = match connection.state.take() {
            Some(AcceptedState::Opening { splice, dialect }) => {
                self.refuse_spliced(now, number, splice, dialect, code)
            }
            Some(AcceptedState::Joined(splice)) => {
                self.end_spliced(now, number, splice, SpliceEnd::Reset(code))
            }
            Some(state) => Next::Stays(state),
            None => return,
        };
        self.settle(number, next);
    }

    fn on_overdue(&mut self, now: Instant, number: Number, streams: &mut Streams) {
        let Some(connection) = self.table.get_mut(number) else { return };
        let next = match connection.state.take() {
            Some(AcceptedState::Asking { socket, handshake, .. }) => {
                self.part(now, number, socket, handshake.too_slow(), ListenerEnd::Slow)
            }
            Some(AcceptedState::Opening { splice, dialect: None }) if !self.taking.is_wanted => {
                // The tunnel is slow, not the destination.
                self.table.set_deadline(number, Some(now + ANSWER_MAX));
                Next::Stays(AcceptedState::Opening { splice, dialect: None })
            }
            Some(AcceptedState::Opening { splice, dialect }) => {
                let code = ResetCode::TimedOut;
                let _ = streams.reset(now, splice.stream, code);
                self.refuse_spliced(now, number, splice, dialect, code)
            }
            Some(AcceptedState::Parting { end, .. }) => Next::Ends(end),
            Some(state) => Next::Stays(state),
            None => return,
        };
        self.settle(number, next);
    }

    fn settle(&mut self, number: Number, next: Next) {
        let (state, again) = match next {
            Next::Ends(end) => return self.end(number, end),
            Next::Stays(state) => (state, false),
            Next::Again(state) => (state, true),
        };
        if let Some(connection) = self.table.get_mut(number) {
            connection.state = Some(state);
        }
        if again {
            self.table.wake(number);
        }
    }

    fn ask(&mut self, now: Instant, number: Number, streams: &mut Streams, asking: Asking) -> Next {
        let Asking { mut socket, mut handshake, closing } = asking;
        loop {
            let length = match socket.peek(&mut self.scratch[..MESSAGE_MAX]) {
                Ok(0) => return Next::Ends(ListenerEnd::Left),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Next::Stays(AcceptedState::Asking { socket, handshake, closing });
                }
                Err(_) => return Next::Ends(ListenerEnd::Left),
            };
            let asked = handshake.read(&self.scratch[..length], &self.settings.fields.origins);
            let consumed = match asked {
                Asked::More if closing => return Next::Ends(ListenerEnd::Left),
                Asked::More => {
                    return Next::Stays(AcceptedState::Asking { socket, handshake, closing });
                }
                Asked::Greeted { length, .. }
                | Asked::Connect { length, .. }
                | Asked::Listen { length, .. } => length,
                Asked::Refused { .. } | Asked::Reported { .. } => 0,
            };
            if socket.read_exact(&mut self.scratch[..consumed]).is_err() {
                return Next::Ends(ListenerEnd::Left);
            }
            match asked {
                Asked::More => {}
                Asked::Greeted { answer, .. } => {
                    if !say(&socket, &answer) {
                        return Next::Ends(ListenerEnd::Left);
                    }
                }
                Asked::Connect { destination, dialect, head, .. } => {
                    let (dialect, until) = (Some(dialect), now + self.settings.connect_max);
                    let joined = Joining { socket, closing, dialect, head, until };
                    return self.open_stream(now, number, streams, joined, destination);
                }
                Asked::Reported { players, answer } => {
                    players.into_iter().for_each(|report| self.findings.add_report(report));
                    return self.part(now, number, socket, answer, ListenerEnd::Served);
                }
                Asked::Listen { request, .. } => {
                    self.listening.push(Listening { socket, request });
                    return Next::Ends(ListenerEnd::Served);
                }
                Asked::Refused { answer, end } => {
                    return self.part(now, number, socket, answer, end);
                }
            }
        }
    }

    fn open_stream(
        &mut self,
        now: Instant,
        number: Number,
        streams: &mut Streams,
        Joining { socket, closing, dialect, head, until }: Joining,
        destination: Destination,
    ) -> Next {
        let http_sniffer = self.http_sniffer(number, destination.port());
        match streams.open(now, destination, StreamPriority::default()) {
            Ok(id) => {
                self.streams.insert(id, number);
                self.table.set_deadline(number, Some(until));
                // Bytes behind the request leave with the stream's first packet.
                let mut splice = Splice::new(socket, id, closing).with_sniffer(http_sniffer);
                if let Some((head, content)) = head
                    && !splice.begin_with(now, streams, &head, content, &mut self.findings)
                {
                    let _ = streams.reset(now, id, ResetCode::TooMany);
                    return self.refuse_spliced(now, number, splice, dialect, ResetCode::TooMany);
                }
                Next::Again(AcceptedState::Opening { splice, dialect })
            }
            Err(error) => {
                tracing::debug!(%error, "cannot open a stream for a connection of an application");
                let Some(dialect) = dialect else {
                    self.refuse(&socket, true);
                    return Next::Ends(ListenerEnd::NoStream);
                };
                let answer = dialect.refused(ResetCode::TooMany);
                self.part(now, number, socket, answer, ListenerEnd::NoStream)
            }
        }
    }

    fn http_sniffer(&mut self, number: Number, port: u16) -> Option<HttpSniffer> {
        let caller = self.table.get_mut(number)?.caller;
        let is_http = self.settings.fields.http_ports.contains(&port);
        is_http.then(|| HttpSniffer::of_application(caller))
    }

    fn refuse_spliced(
        &mut self,
        now: Instant,
        number: Number,
        splice: Splice,
        dialect: Option<Dialect>,
        code: ResetCode,
    ) -> Next {
        self.streams.remove(&splice.stream);
        let socket = splice.socket;
        let Some(dialect) = dialect else {
            let is_at_fault = self.taking.on_unconnected(now, code);
            self.refuse(&socket, is_at_fault);
            return Next::Ends(ListenerEnd::Unconnected);
        };
        let answer = dialect.refused(code);
        self.part(now, number, socket, answer, ListenerEnd::Unconnected)
    }

    fn end_spliced(
        &mut self,
        now: Instant,
        number: Number,
        splice: Splice,
        over: SpliceEnd,
    ) -> Next {
        self.streams.remove(&splice.stream);
        let socket = splice.socket;
        Next::Ends(match over {
            SpliceEnd::Closed if splice.left.is_some() => {
                return self.part(now, number, socket, Vec::new(), ListenerEnd::Closed);
            }
            SpliceEnd::Closed => ListenerEnd::Closed,
            SpliceEnd::Aborted => ListenerEnd::Aborted,
            SpliceEnd::Reset(code) => {
                break_off(&socket);
                ListenerEnd::of_reset(code)
            }
        })
    }

    fn part(
        &mut self,
        now: Instant,
        number: Number,
        socket: TcpStream,
        answer: Vec<u8>,
        end: ListenerEnd,
    ) -> Next {
        if !say(&socket, &answer) || socket.shutdown(Shutdown::Write).is_err() {
            return Next::Ends(end);
        }
        self.table.set_deadline(number, Some(now + PARTING_MAX));
        Next::Again(AcceptedState::Parting { socket, end, left: PARTING_BYTES_MAX })
    }

    fn end(&mut self, number: Number, end: ListenerEnd) {
        let Some(connection) = self.table.remove(number) else { return };
        self.ends.count(end);
        if let Some(count) = self.callers.get_mut(&connection.caller) {
            *count -= 1;
            if *count == 0 {
                self.callers.remove(&connection.caller);
            }
        }
    }
}

/// `destination`: `None` for a connection to the proxies.
pub(super) struct Accepted {
    pub(super) socket: TcpStream,
    pub(super) caller: IpAddr,
    pub(super) destination: Option<Destination>,
}

struct Joining {
    socket: TcpStream,
    closing: bool,
    /// `None` for a transparent connection.
    dialect: Option<Dialect>,
    /// The first bytes of the stream, and how many bytes of the socket follow; `None`: all.
    head: Option<(Vec<u8>, u64)>,
    until: Instant,
}

struct Asking {
    socket: TcpStream,
    handshake: Handshake,
    closing: bool,
}

/// The kernel has room for a few bytes, since nearly nothing was sent before.
fn say(mut socket: &TcpStream, bytes: &[u8]) -> bool {
    bytes.is_empty() || socket.write(bytes).is_ok_and(|length| length == bytes.len())
}

fn drain(mut socket: TcpStream, end: ListenerEnd, mut left: usize, scratch: &mut [u8]) -> Next {
    loop {
        match socket.read(scratch) {
            Ok(length) if length == 0 || length >= left => return Next::Ends(end),
            Ok(length) => left -= length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Next::Stays(AcceptedState::Parting { socket, end, left });
            }
            Err(_) => return Next::Ends(end),
        }
    }
}

/// The limit for the far end of a transparent connection, whose destination answered before.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const PARTING_MAX: Duration = Duration::from_secs(2);
const PARTING_BYTES_MAX: usize = 256 << 10;
const RESERVE: usize = 8;
