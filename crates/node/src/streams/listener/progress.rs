//! The steps of a connection: ask, open, join, part.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::{Destination, ResetCode, StreamPriority};
use roadweave_stream::Streams;

use super::super::splice::{Splice, SpliceEnd, SpliceTurn, break_off};
use super::super::table::Number;
use super::asked::{Asked, Dialect};
use super::encoder::Listening;
use super::handshake::{Handshake, MESSAGE_MAX};
use super::{AcceptedState, ListenerEnd, StreamListener};

pub(super) enum Next {
    Stays(AcceptedState),
    Again(AcceptedState),
    Ends(ListenerEnd),
}

impl StreamListener {
    pub(super) fn advance(&mut self, now: Instant, number: Number, streams: &mut Streams) {
        let Some(connection) = self.connections.get_mut(number) else { return };
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

    pub(super) fn on_connected(&mut self, now: Instant, number: Number, streams: &mut Streams) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let next = match connection.state.take() {
            Some(AcceptedState::Opening { splice, dialect }) => {
                self.connections.set_deadline(number, None);
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

    pub(super) fn on_reset(&mut self, now: Instant, number: Number, code: ResetCode) {
        let Some(connection) = self.connections.get_mut(number) else { return };
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

    pub(super) fn on_overdue(&mut self, now: Instant, number: Number, streams: &mut Streams) {
        let Some(connection) = self.connections.get_mut(number) else { return };
        let next = match connection.state.take() {
            Some(AcceptedState::Asking { socket, handshake, .. }) => {
                self.part(now, number, socket, handshake.too_slow(), ListenerEnd::Slow)
            }
            Some(AcceptedState::Opening { splice, dialect: None }) if !self.taking.is_wanted => {
                // The tunnel is slow, not the destination.
                self.connections.set_deadline(number, Some(now + ANSWER_MAX));
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

    pub(super) fn settle(&mut self, number: Number, next: Next) {
        let (state, again) = match next {
            Next::Ends(end) => return self.end(number, end),
            Next::Stays(state) => (state, false),
            Next::Again(state) => (state, true),
        };
        if let Some(connection) = self.connections.get_mut(number) {
            connection.state = Some(state);
        }
        if again {
            self.connections.wake(number);
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

    pub(super) fn open_stream(
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
                self.connections.set_deadline(number, Some(until));
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
                    self.refuse_socket(&socket, true);
                    return Next::Ends(ListenerEnd::NoStream);
                };
                let answer = dialect.refused(ResetCode::TooMany);
                self.part(now, number, socket, answer, ListenerEnd::NoStream)
            }
        }
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
            self.on_unconnected(now, &socket, code);
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
        self.connections.set_deadline(number, Some(now + PARTING_MAX));
        Next::Again(AcceptedState::Parting { socket, end, left: PARTING_BYTES_MAX })
    }
}

pub(super) struct Joining {
    pub(super) socket: TcpStream,
    pub(super) closing: bool,
    /// `None` for a transparent connection.
    pub(super) dialect: Option<Dialect>,
    /// The first bytes of the stream, and how many bytes of the socket follow; `None`: all.
    pub(super) head: Option<(Vec<u8>, u64)>,
    pub(super) until: Instant,
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
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(10);
const PARTING_MAX: Duration = Duration::from_secs(2);
const PARTING_BYTES_MAX: usize = 256 << 10;
