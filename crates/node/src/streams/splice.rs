//! One TCP socket and one stream, joined in both directions.
//!
//! ```text
//! socket ─ read, as much as the stream has room for ─► stream     FIN ─► finish      (up)
//! socket ◄─ write, straight from the stream's buffer ─ stream     FIN ◄─ finished    (down)
//!
//! RST ─► reset; but behind a FIN: stop, so that what was sent before it still arrives
//! RST ◄─ reset
//! ```
//!
//! No bytes are buffered here: bytes that the stream does not take stay in the socket, whose window
//! closes; bytes that the socket does not take stay in the stream, whose credit does not grow.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use roadweave_linux::Event;
use roadweave_proto::Instant;
use roadweave_proto::wire::{ResetCode, StreamId};
use roadweave_stream::{Event as StreamEvent, StreamError, Streams};
use socket2::{SockRef, TcpKeepalive};

use super::http_sniffer::{HttpFindings, HttpSniffer};

#[derive(Debug)]
pub(super) struct Splice {
    pub(super) socket: TcpStream,
    pub(super) stream: StreamId,
    up: Up,
    down: Down,
    readable: bool,
    writable: bool,
    closing: bool,
    /// `closing` may be an error; the kernel was not asked yet.
    unasked: bool,
    has_room: bool,
    has_bytes: bool,
    http_sniffer: Option<Box<HttpSniffer>>,
    /// Bytes of the socket that still go into the stream; `None`: all.
    pub(super) left: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Up {
    Open,
    Finished,
    Stopped,
    /// Finishes the stream only after the answer: to some hosts a FIN ends both directions.
    Held,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Down {
    Open,
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpliceTurn {
    Idle,
    More,
    Over(SpliceEnd),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpliceEnd {
    Closed,
    Aborted,
    Reset(ResetCode),
}

impl Splice {
    /// `closing`: whether the poller has reported that already.
    pub(super) fn new(socket: TcpStream, stream: StreamId, closing: bool) -> Self {
        Self {
            socket,
            stream,
            up: Up::Open,
            down: Down::Open,
            readable: true,
            writable: true,
            closing,
            unasked: closing,
            has_room: true,
            has_bytes: true,
            http_sniffer: None,
            left: None,
        }
    }

    /// Only `content` bytes of the socket follow. Returns `false` if there was no room.
    pub(super) fn begin_with(
        &mut self,
        now: Instant,
        streams: &mut Streams,
        head: &[u8],
        content: u64,
        findings: &mut HttpFindings,
    ) -> bool {
        if streams.write(now, self.stream, head) != Ok(head.len()) {
            return false;
        }
        if let Some(http_sniffer) = &mut self.http_sniffer {
            http_sniffer.on_sent(now, streams, self.stream, head, findings);
        }
        self.left = Some(content);
        if content == 0 {
            self.up = Up::Held;
        }
        true
    }

    pub(super) fn with_sniffer(mut self, http_sniffer: Option<HttpSniffer>) -> Self {
        self.http_sniffer = http_sniffer.map(Box::new);
        self
    }

    pub(super) fn on_ready(&mut self, event: &Event) {
        self.readable |= event.readable || event.closing;
        self.writable |= event.writable || event.closing;
        self.closing |= event.closing;
        self.unasked |= event.closing;
    }

    pub(super) fn on_stream(&mut self, event: &StreamEvent) {
        match event {
            StreamEvent::Readable(_) => self.has_bytes = true,
            StreamEvent::Writable(_) => self.has_room = true,
            StreamEvent::Stopped { .. } if matches!(self.up, Up::Open | Up::Held) => {
                self.up = Up::Stopped;
            }
            StreamEvent::Finished(_) => self.on_stream_finished(),
            _ => {}
        }
    }

    pub(super) fn on_stream_finished(&mut self) {
        if self.down == Down::Open {
            self.down = Down::Finished;
            let _ = self.socket.shutdown(Shutdown::Write);
        }
    }

    pub(super) fn turn(
        &mut self,
        now: Instant,
        streams: &mut Streams,
        scratch: &mut [u8],
        findings: &mut HttpFindings,
    ) -> SpliceTurn {
        if self.unasked {
            self.unasked = false;
            if !matches!(self.socket.take_error(), Ok(None)) {
                return self.on_failure(now, streams);
            }
        }
        if self.up == Up::Held && (self.closing || self.down == Down::Finished) {
            if let Err(error) = streams.finish(now, self.stream) {
                return SpliceTurn::Over(SpliceEnd::Reset(Failed::code(error)));
            }
            self.up = Up::Finished;
        }
        let read = self.read(now, streams, scratch, findings);
        let result = read.and_then(|()| self.write(now, streams, findings));
        match result {
            Err(Failed::Socket) => self.on_failure(now, streams),
            Err(Failed::Stream(code)) => SpliceTurn::Over(SpliceEnd::Reset(code)),
            Ok(()) if self.down == Down::Finished && self.up == Up::Held => SpliceTurn::More,
            Ok(()) if self.up != Up::Open && self.down == Down::Finished => {
                SpliceTurn::Over(SpliceEnd::Closed)
            }
            Ok(()) if self.can_read() || self.can_write() => SpliceTurn::More,
            Ok(()) => SpliceTurn::Idle,
        }
    }

    fn can_read(&self) -> bool {
        self.up == Up::Open && self.readable && self.has_room
    }

    fn can_write(&self) -> bool {
        self.down == Down::Open && self.writable && self.has_bytes
    }

    fn read(
        &mut self,
        now: Instant,
        streams: &mut Streams,
        scratch: &mut [u8],
        findings: &mut HttpFindings,
    ) -> Result<(), Failed> {
        let mut left = SHARE;
        while self.can_read() && left > 0 {
            let most = self.left.map_or(usize::MAX, |left| left.min(SHARE as u64) as usize);
            let room = match streams.room(now, self.stream) {
                Ok(room) => room,
                Err(StreamError::Finished) => {
                    self.up = Up::Stopped;
                    break;
                }
                Err(error) => return Err(Failed::stream(error)),
            };
            if room == 0 {
                self.has_room = false;
                break;
            }
            let room = room.min(scratch.len()).min(left).min(most);
            match self.socket.read(&mut scratch[..room]) {
                Ok(0) => {
                    streams.finish(now, self.stream).map_err(Failed::stream)?;
                    self.up = Up::Finished;
                }
                Ok(length) => {
                    let taken = streams.write(now, self.stream, &scratch[..length]);
                    let taken = taken.map_err(Failed::stream)?;
                    assert_eq!(taken, length, "the stream had told its room");
                    if let Some(http_sniffer) = &mut self.http_sniffer {
                        http_sniffer.on_sent(
                            now,
                            streams,
                            self.stream,
                            &scratch[..length],
                            findings,
                        );
                    }
                    left -= length;
                    if let Some(all) = &mut self.left {
                        *all -= length as u64;
                        if *all == 0 {
                            self.up = Up::Held;
                        }
                    }
                }
                Err(error) => self.readable = may_go_on(&error)?,
            }
        }
        Ok(())
    }

    fn write(
        &mut self,
        now: Instant,
        streams: &mut Streams,
        findings: &mut HttpFindings,
    ) -> Result<(), Failed> {
        let mut left = SHARE;
        while self.can_write() && left > 0 {
            let (mut written, mut offered) = (Ok(0), 0);
            let taken = streams.read_with(now, self.stream, |[front, back]| {
                let front = &front[..front.len().min(left)];
                let back = &back[..back.len().min(left - front.len())];
                offered = front.len() + back.len();
                if offered > 0 {
                    let pieces = [IoSlice::new(front), IoSlice::new(back)];
                    written = self.socket.write_vectored(&pieces);
                }
                let length = written.as_ref().map_or(0, |length| *length);
                if let Some(http_sniffer) = self.http_sniffer.as_mut().filter(|_| length > 0) {
                    http_sniffer.on_received(&front[..length.min(front.len())], findings);
                    http_sniffer.on_received(&back[..length.saturating_sub(front.len())], findings);
                }
                length
            });
            let taken = taken.map_err(Failed::stream)?;
            left -= taken;
            match written {
                Ok(_) if offered == 0 => self.has_bytes = false,
                Ok(_) => self.writable = taken == offered,
                Err(error) => self.writable = may_go_on(&error)?,
            }
        }
        Ok(())
    }

    /// Settles the stream of a failed socket. Bytes up are lost unless the peer had ended them.
    fn on_failure(&mut self, now: Instant, streams: &mut Streams) -> SpliceTurn {
        let result = match self.up {
            Up::Finished => streams.stop(now, self.stream, ResetCode::Aborted),
            Up::Open | Up::Stopped | Up::Held => {
                streams.reset(now, self.stream, ResetCode::Aborted)
            }
        };
        match result.map_err(Failed::stream) {
            Err(Failed::Stream(code)) => SpliceTurn::Over(SpliceEnd::Reset(code)),
            _ => SpliceTurn::Over(SpliceEnd::Aborted),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failed {
    Socket,
    Stream(ResetCode),
}

impl Failed {
    fn stream(error: StreamError) -> Self {
        Self::Stream(Self::code(error))
    }

    fn code(error: StreamError) -> ResetCode {
        match error {
            StreamError::Reset(code) => code,
            _ => ResetCode::Unknown,
        }
    }
}

fn may_go_on(error: &io::Error) -> Result<bool, Failed> {
    match error.kind() {
        io::ErrorKind::WouldBlock => Ok(false),
        io::ErrorKind::Interrupted => Ok(true),
        _ => Err(Failed::Socket),
    }
}

pub(super) fn stream_of(event: &StreamEvent) -> StreamId {
    match event {
        StreamEvent::Connected(id)
        | StreamEvent::Readable(id)
        | StreamEvent::Writable(id)
        | StreamEvent::Acknowledged(id)
        | StreamEvent::Finished(id)
        | StreamEvent::Opened { id, .. }
        | StreamEvent::Stopped { id, .. }
        | StreamEvent::Reset { id, .. } => *id,
    }
}

/// Closing the socket sends an RST from now on.
pub(super) fn break_off(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

pub(super) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    // The stream paces its bytes: Nagle's algorithm would only delay them.
    socket.set_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(ALIVE).with_interval(ALIVE_AGAIN).with_retries(ALIVE_TRIES);
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

/// Bytes that a connection moves each way before others get their turn.
pub(super) const SHARE: usize = 64 << 10;
/// Keepalive: a connection whose peer vanished ends after four minutes.
const ALIVE: Duration = Duration::from_secs(120);
const ALIVE_AGAIN: Duration = Duration::from_secs(30);
const ALIVE_TRIES: u32 = 4;
