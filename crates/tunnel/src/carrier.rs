//! What carries the datagrams of a session from one end to the other.
//!
//! A session decides per datagram which path it takes; the carrier keeps the paths alive, measures
//! them, and tells what became of each datagram. Multipath QUIC is one, GENEVE another, which tells
//! nothing and has no window (`geneve.rs`).

use bytes::Bytes;
use roadweave_proto::{Instant, Pacing, PathId, PathSnapshot};
use roadweave_quic::{Connection, SendError as QuicError};

use crate::lane::LaneDatagram;

/// A set of paths to one peer, each of which takes datagrams.
pub trait Carrier {
    /// The paths as they are now, ascending `PathId`.
    fn paths(&mut self, now: Instant) -> &[PathSnapshot];

    /// The largest datagram that every usable path takes, bytes.
    fn max_datagram_size(&self) -> usize;

    /// From now on datagrams are paced as `pacing` says, and snapshots tell of that pacer.
    fn set_pacing(&mut self, pacing: Pacing);

    /// Packets wait, paced as said last: wakes the session when a pacer lets one through.
    fn on_backlog(&mut self, now: Instant);

    /// Sends `datagram` on exactly `path`; what becomes of it is told with its token
    /// ([`LaneDatagram::token`]).
    ///
    /// # Errors
    /// Gives the datagram back when it cannot leave.
    fn send_on(
        &mut self,
        now: Instant,
        path: PathId,
        datagram: LaneDatagram,
    ) -> Result<(), SendError>;

    /// Queues a message that reaches the peer for certain, in order, while there is a session.
    /// Returns whether it could.
    fn send_message(&mut self, message: Bytes) -> bool;

    /// A datagram that was sent on `path` is redundant: a copy, a repair. Or it is not.
    fn account(&mut self, _path: PathId, _bytes: u32, _is_redundant: bool) {}

    /// Whether the peer acknowledges datagrams, so that their fate is told. Where it does not,
    /// nothing is kept of what was sent: it could never be repaired.
    fn tells_fates(&self) -> bool {
        true
    }

    /// Acknowledgements leave on all paths from now on, or mostly on the fastest one.
    fn acknowledge_on_all(&mut self, _is_on: bool) {}

    /// The path on which acknowledgements should leave now, if any wait.
    fn feedback_due(&self, now: Instant) -> Option<PathId>;

    /// Sends a small datagram that takes the waiting acknowledgements along. Its fate is not told.
    fn send_feedback_on(&mut self, now: Instant, path: PathId, datagram: Bytes);

    /// Sends the waiting acknowledgements when there is no feedback to take them along; with
    /// `datagram` if they are to ask for an answer.
    fn acknowledge_on(&mut self, now: Instant, path: PathId, datagram: Bytes);
}

/// Why a datagram could not leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The path has no room, or may not be used now.
    Blocked(LaneDatagram),
    /// The datagram is larger than the path takes.
    TooLarge(LaneDatagram),
}

impl Carrier for Connection {
    fn paths(&mut self, now: Instant) -> &[PathSnapshot] {
        self.refresh(now);
        Connection::paths(self)
    }

    fn max_datagram_size(&self) -> usize {
        Connection::max_datagram_size(self)
    }

    fn set_pacing(&mut self, pacing: Pacing) {
        Connection::set_pacing(self, pacing);
    }

    fn on_backlog(&mut self, now: Instant) {
        Connection::on_backlog(self, now);
    }

    fn send_on(
        &mut self,
        now: Instant,
        path: PathId,
        datagram: LaneDatagram,
    ) -> Result<(), SendError> {
        let token = datagram.token();
        let LaneDatagram { lane, content, bytes } = datagram;
        let back = |bytes| LaneDatagram { lane, content, bytes };
        Connection::send_on(self, now, path, bytes, token).map_err(|error| match error {
            QuicError::TooLarge { datagram, .. } => SendError::TooLarge(back(datagram)),
            other => SendError::Blocked(back(other.into_datagram())),
        })
    }

    fn send_message(&mut self, message: Bytes) -> bool {
        let queued = Connection::send_message(self, message);
        queued.inspect_err(|error| tracing::warn!(%error, "cannot send a control message")).is_ok()
    }

    fn account(&mut self, path: PathId, bytes: u32, is_redundant: bool) {
        Connection::account(self, path, bytes, is_redundant);
    }

    fn acknowledge_on_all(&mut self, is_on: bool) {
        Connection::acknowledge_on_all(self, is_on);
    }

    fn feedback_due(&self, now: Instant) -> Option<PathId> {
        Connection::feedback_due(self, now)
    }

    fn send_feedback_on(&mut self, now: Instant, path: PathId, datagram: Bytes) {
        // Feedback that cannot leave is made anew, with newer figures, when it is due again.
        let _ = Connection::send_feedback_on(self, now, path, datagram);
    }

    fn acknowledge_on(&mut self, now: Instant, path: PathId, datagram: Bytes) {
        let _ = Connection::acknowledge_on(self, now, path, datagram);
    }
}
