//! The attempts to connect to a host that has several addresses (RFC 8305, "happy eyeballs"): the
//! next begins after 250 ms, or at once after a failure; the first to connect ends the others.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use roadweave_linux::{Poller, Token};
use roadweave_proto::Instant;
use roadweave_proto::wire::ResetCode;

use super::source::connect;

const DELAY: Duration = Duration::from_millis(250);

pub(super) const AT_ONCE: usize = 2;

pub(super) enum AttemptOutcome {
    Connected(TcpStream),
    Failed(ResetCode),
    Pending,
}

#[derive(Debug)]
pub(super) struct Attempts {
    addresses: VecDeque<SocketAddr>,
    sockets: Vec<TcpStream>,
    next: Instant,
    failure: ResetCode,
}

impl Attempts {
    pub(super) fn new(addresses: VecDeque<SocketAddr>) -> Self {
        Self {
            addresses,
            sockets: Vec::new(),
            next: Instant::ZERO,
            failure: ResetCode::Unreachable,
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        (!self.addresses.is_empty() && self.sockets.len() < AT_ONCE).then_some(self.next)
    }

    /// `source`: the source (`None`: this machine's), or an error if no longer allowed.
    pub(super) fn advance(
        &mut self,
        now: Instant,
        poller: &Poller,
        token: Token,
        source: &dyn Fn(SocketAddr) -> io::Result<Option<IpAddr>>,
    ) -> AttemptOutcome {
        for socket in std::mem::take(&mut self.sockets) {
            match state_of(&socket) {
                Ok(true) => return AttemptOutcome::Connected(socket),
                Ok(false) => self.sockets.push(socket),
                Err(error) => self.on_failure(now, &error),
            }
        }
        while self.sockets.is_empty() || self.sockets.len() < AT_ONCE && self.next <= now {
            let Some(address) = self.addresses.pop_front() else { break };
            self.next = now + DELAY;
            let begun = source(address).and_then(|source| connect(address, source, poller, token));
            match begun {
                Ok(socket) => self.sockets.push(socket),
                Err(error) => self.on_failure(now, &error),
            }
        }
        match self.sockets.is_empty() {
            true => AttemptOutcome::Failed(self.failure),
            false => AttemptOutcome::Pending,
        }
    }

    fn on_failure(&mut self, now: Instant, error: &io::Error) {
        self.failure = match error.kind() {
            io::ErrorKind::ConnectionRefused => ResetCode::Refused,
            io::ErrorKind::TimedOut => ResetCode::TimedOut,
            io::ErrorKind::PermissionDenied => ResetCode::Forbidden,
            _ => ResetCode::Unreachable,
        };
        self.next = now;
    }
}

fn state_of(socket: &TcpStream) -> io::Result<bool> {
    match socket.take_error()? {
        Some(error) => Err(error),
        None => Ok(socket.peer_addr().is_ok()),
    }
}
