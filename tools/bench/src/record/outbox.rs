//! Outgoing datagrams: runs of one length are sent by one system call, and the rest waits while the
//! socket is full.

use std::net::{IpAddr, SocketAddr};

use roadweave_linux::{Outgoing, SendFailure, SendOutcome, UplinkSocket};

#[derive(Debug, Default)]
pub struct Outbox {
    to: Option<Destination>,
    contents: Vec<u8>,
    segment: usize,
    held: Option<(Destination, Vec<u8>)>,
    blocked: bool,
    pub failure: Option<SendFailure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    pub remote: SocketAddr,
    /// The source address; without it the kernel chooses.
    pub local: Option<IpAddr>,
}

impl Outbox {
    /// Whether a datagram may be pushed; otherwise wait until the socket is writable.
    pub fn is_open(&self) -> bool {
        !self.blocked
    }

    /// Takes a datagram while the outbox is open; sends the current run first if it does not fit.
    pub fn push(&mut self, socket: &mut UplinkSocket, to: Destination, datagram: Vec<u8>) {
        let fits = self.to == Some(to)
            && self.segment == datagram.len()
            && self.contents.len() + datagram.len() <= RUN_BYTES_MAX;
        if !fits {
            self.flush(socket);
        }
        if self.blocked {
            self.held = Some((to, datagram));
            return;
        }
        self.append(to, &datagram);
    }

    pub fn flush(&mut self, socket: &mut UplinkSocket) {
        self.send(socket);
        if !self.blocked
            && let Some((to, datagram)) = self.held.take()
        {
            self.append(to, &datagram);
            self.send(socket);
        }
    }

    fn append(&mut self, to: Destination, datagram: &[u8]) {
        self.to = Some(to);
        self.segment = datagram.len();
        self.contents.extend_from_slice(datagram);
    }

    fn send(&mut self, socket: &mut UplinkSocket) {
        let Some(to) = self.to.filter(|_| !self.contents.is_empty()) else { return };
        let outcome = socket.send(&Outgoing {
            destination: to.remote,
            source: to.local,
            ecn: None,
            contents: &self.contents,
            segment_size: self.segment,
        });
        self.blocked = outcome == SendOutcome::Blocked;
        self.failure = match outcome {
            SendOutcome::Failed(failure) => Some(failure),
            SendOutcome::Sent | SendOutcome::Blocked => None,
        };
        if !self.blocked {
            self.contents.clear();
        }
    }

    /// Discards waiting datagrams when the socket is replaced.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Short, so that datagrams are sent as evenly as they were made.
const RUN_BYTES_MAX: usize = 16_000;
