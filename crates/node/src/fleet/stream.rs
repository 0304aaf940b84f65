//! One stream to a controller: TLS 1.3 over TCP, on a non-blocking socket. Each step has a
//! deadline. Messages and reads of a turn are bounded, so a hostile peer affects this stream only.
//! Only the program's own answers count as life: the kernel acknowledges for it.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::{Down, FrameDecoder, FrameError, Up, encode};
use roadweave_identity::tls::{self, HandshakeRefusal, TlsSide};
use roadweave_identity::{Identity, PeerPolicy, PublicKey};
use roadweave_linux::bind_to_interface;
use roadweave_linux::socket::begin_connect;
use roadweave_proto::Instant;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConnection, Error as TlsError};
use socket2::{Domain, Protocol, Socket, Type};

use super::controller_route::ControllerRoute;

pub(super) const ALPN: &[u8] = b"roadweave-control/1";
const SETUP_MAX: Duration = Duration::from_secs(10);
const ANSWER_MAX: Duration = Duration::from_secs(15);
const UNSENT_MAX: usize = 64 * 1024;
const READS_MAX: usize = 16;
pub(super) const EARLY_MAX: usize = 64;

pub(super) struct ControllerStream {
    socket: TcpStream,
    tls: ClientConnection,
    refusal: Arc<HandshakeRefusal>,
    pub(super) address: SocketAddr,
    pub(super) way: ControllerRoute,
    state: StreamState,
    decoder: FrameDecoder,
    frames: VecDeque<Down>,
    keep_alive: Duration,
    heard: Instant,
    asked: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamState {
    Connecting {
        until: Instant,
    },
    Handshaking {
        until: Instant,
    },
    /// Both keys are proved, but the peer's program has not answered yet.
    Greeting {
        until: Instant,
        peer: PublicKey,
    },
    Up {
        peer: PublicKey,
    },
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Device(#[from] roadweave_linux::DeviceError),
    #[error("its key is {0}, which is not a controller of this fleet")]
    OtherKey(PublicKey),
    #[error("it rejects this key: {0}")]
    Refused(roadweave_identity::Refusal),
    #[error("it is not a controller: {0}")]
    Tls(TlsError),
    #[error("it does not speak {}", String::from_utf8_lossy(ALPN))]
    OtherProtocol,
    #[error("it sent an invalid message: {0}")]
    Frame(#[from] FrameError),
    #[error("no answer")]
    NoConnection,
    #[error("it does not answer")]
    Mute,
    #[error("it sent more than {EARLY_MAX} messages but no answer")]
    NoAnswer,
    #[error("it no longer answers")]
    Silent,
    #[error("it has closed the stream")]
    Closed,
}

impl ControllerStream {
    pub(super) fn begin(
        now: Instant,
        identity: &Identity,
        policy: Arc<dyn PeerPolicy>,
        way: ControllerRoute,
        address: SocketAddr,
        keep_alive: Duration,
    ) -> Result<Self, StreamError> {
        let refusal = Arc::new(HandshakeRefusal::default());
        let time = Arc::new(NoTime);
        let side = TlsSide { identity, policy, refusal: refusal.clone(), alpn: ALPN, time };
        let config = tls::client(side).map_err(StreamError::Tls)?;
        let name = ServerName::try_from(tls::SERVER_NAME).map_err(io::Error::other)?;
        let mut tls = ClientConnection::new(Arc::new(config), name).map_err(StreamError::Tls)?;
        tls.set_buffer_limit(Some(2 * UNSENT_MAX));
        let address = way.with_scope(address);
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        let _ = socket.set_tcp_nodelay(true);
        if let Some(interface) = way.interface() {
            bind_to_interface(&socket, interface)?;
        }
        begin_connect(&socket, address)?;
        Ok(Self {
            socket: socket.into(),
            tls,
            refusal,
            address,
            way,
            state: StreamState::Connecting { until: now + SETUP_MAX },
            decoder: FrameDecoder::default(),
            frames: VecDeque::new(),
            keep_alive,
            heard: now,
            asked: None,
        })
    }

    pub(super) fn peer(&self) -> Option<PublicKey> {
        match self.state {
            StreamState::Up { peer } => Some(peer),
            _ => None,
        }
    }

    #[cfg(test)]
    pub(super) fn is_greeting(&self) -> bool {
        matches!(self.state, StreamState::Greeting { .. })
    }

    /// After an error, [`ControllerStream::poll_frame`] may still have earlier messages.
    pub(super) fn turn(&mut self, now: Instant) -> Result<(), StreamError> {
        if let StreamState::Connecting { until } = self.state {
            if let Some(error) = self.socket.take_error()? {
                return Err(error.into());
            }
            match self.socket.peer_addr() {
                Ok(_) => self.state = StreamState::Handshaking { until: now + SETUP_MAX },
                Err(_) if now >= until => return Err(StreamError::NoConnection),
                Err(_) => return Ok(()),
            }
        }
        self.write()?;
        self.read(now)?;
        self.write()?;
        match self.state {
            StreamState::Connecting { .. } => Ok(()),
            StreamState::Handshaking { until } if self.tls.is_handshaking() => match now >= until {
                true => Err(StreamError::Mute),
                false => Ok(()),
            },
            StreamState::Handshaking { .. } => self.finish_handshake(now),
            StreamState::Greeting { peer, .. } if self.asked.is_none() => {
                self.state = StreamState::Up { peer };
                Ok(())
            }
            StreamState::Greeting { until, .. } if now >= until => Err(StreamError::Mute),
            StreamState::Greeting { .. } => Ok(()),
            StreamState::Up { .. } => self.keep_alive(now),
        }
    }

    fn finish_handshake(&mut self, now: Instant) -> Result<(), StreamError> {
        if self.tls.alpn_protocol() != Some(ALPN) {
            return Err(StreamError::OtherProtocol);
        }
        let peer = self.tls.peer_certificates().and_then(tls::peer_key);
        let (peer, until) = (peer.ok_or(StreamError::OtherProtocol)?, now + SETUP_MAX);
        self.state = StreamState::Greeting { until, peer };
        self.ask(now)
    }

    fn keep_alive(&mut self, now: Instant) -> Result<(), StreamError> {
        match self.asked {
            Some(asked) if now >= asked.max(self.heard) + ANSWER_MAX => Err(StreamError::Silent),
            None if now >= self.heard + self.keep_alive => self.ask(now),
            _ => Ok(()),
        }
    }

    pub(super) fn ask(&mut self, now: Instant) -> Result<(), StreamError> {
        self.asked.get_or_insert(now);
        self.send(&Up::Alive)
    }

    pub(super) fn send(&mut self, message: &Up) -> Result<(), StreamError> {
        let bytes = encode(message)?;
        self.tls.writer().write_all(&bytes)?;
        self.write()
    }

    pub(super) fn has_room(&mut self) -> bool {
        self.peer().is_some() && !self.tls.wants_write()
    }

    pub(super) fn poll_frame(&mut self) -> Option<Down> {
        self.frames.pop_front()
    }

    pub(super) fn wants_write(&self) -> bool {
        matches!(self.state, StreamState::Connecting { .. }) || self.tls.wants_write()
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        match self.state {
            StreamState::Connecting { until }
            | StreamState::Handshaking { until }
            | StreamState::Greeting { until, .. } => until,
            StreamState::Up { .. } => {
                let answer_until = |asked: Instant| asked.max(self.heard) + ANSWER_MAX;
                self.asked.map_or(self.heard + self.keep_alive, answer_until)
            }
        }
    }

    fn write(&mut self) -> Result<(), StreamError> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(StreamError::Closed),
                Ok(_) => {}
                Err(error) if is_pending(&error) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn read(&mut self, now: Instant) -> Result<(), StreamError> {
        for _ in 0..READS_MAX {
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => return Err(StreamError::Closed),
                Ok(_) => {}
                Err(error) if is_pending(&error) => break,
                Err(error) => return Err(error.into()),
            }
            if let Err(error) = self.tls.process_new_packets() {
                let _ = self.write();
                return Err(self.explain(error));
            }
            self.heard = now;
            self.take_frames()?;
        }
        Ok(())
    }

    fn take_frames(&mut self) -> Result<(), StreamError> {
        let mut bytes = [0; 16 * 1024];
        loop {
            let length = match io::Read::read(&mut self.tls.reader(), &mut bytes) {
                Ok(0) => return Err(StreamError::Closed),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            self.decoder.push(&bytes[..length]);
            while let Some(frame) = self.decoder.poll()? {
                if frame == Down::Alive {
                    self.asked = None;
                }
                let has_answered = self.peer().is_some() || self.asked.is_none();
                if !has_answered && self.frames.len() >= EARLY_MAX {
                    return Err(StreamError::NoAnswer);
                }
                self.frames.push_back(frame);
            }
        }
    }

    fn explain(&self, error: TlsError) -> StreamError {
        if let Some((key, _)) = self.refusal.take() {
            return StreamError::OtherKey(key);
        }
        match error {
            TlsError::AlertReceived(alert) => match tls::refusal_of(alert) {
                Some(refusal) => StreamError::Refused(refusal),
                None => StreamError::Tls(TlsError::AlertReceived(alert)),
            },
            error => StreamError::Tls(error),
        }
    }
}

impl AsFd for ControllerStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn is_pending(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Keys have no dates, so the time of day is not used.
#[derive(Debug)]
pub(super) struct NoTime;

impl TimeProvider for NoTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::ZERO))
    }
}
