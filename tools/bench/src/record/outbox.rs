//! Outgoing datagrams: one system call sends a run of one length; the rest waits for the socket.

use roadweave_linux::{Outgoing, SendFailure, SendOutcome, UplinkSocket};
use roadweave_record::RecordPeer;

#[derive(Debug, Default)]
pub struct Outbox {
    to: Option<RecordPeer>,
    contents: Vec<u8>,
    segment: usize,
    held: Option<(RecordPeer, Vec<u8>)>,
    blocked: bool,
    pub failure: Option<SendFailure>,
}

impl Outbox {
    pub fn is_open(&self) -> bool {
        !self.blocked
    }

    pub fn push(&mut self, socket: &mut UplinkSocket, to: RecordPeer, datagram: Vec<u8>) {
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

    fn append(&mut self, to: RecordPeer, datagram: &[u8]) {
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
}

/// Short, so that datagrams are sent as evenly as they were made.
const RUN_BYTES_MAX: usize = 16_000;
