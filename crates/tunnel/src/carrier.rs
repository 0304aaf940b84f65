//! What carries the datagrams of a session from one end to the other.
//!
//! A session chooses a path for each datagram; the carrier keeps the paths alive, measures them,
//! and reports the fate of each datagram. Carriers are multipath QUIC, and GENEVE, which reports
//! nothing and has no window (`geneve.rs`).

use bytes::Bytes;
use roadweave_proto::{Instant, Pacing, PathId, PathSnapshot};
use roadweave_quic::{Connection, SendError as QuicError};

use crate::lane::LaneDatagram;

/// A set of paths to one peer that carry datagrams.
pub trait Carrier {
    /// The current paths, by ascending `PathId`.
    fn paths(&mut self, now: Instant) -> &[PathSnapshot];

    /// The largest datagram that fits all usable paths, bytes.
    fn max_datagram_size(&self) -> usize;

    /// Sets the pacing of datagrams, which snapshots reflect.
    fn set_pacing(&mut self, _pacing: Pacing) {}

    /// Packets wait: wakes the session when the pacer set last lets one through.
    fn on_backlog(&mut self, _now: Instant) {}

    /// Sends `data` on exactly `path`. Its fate comes with its token ([`LaneDatagram::token`]).
    ///
    /// # Errors
    /// Returns the datagram if it cannot leave.
    fn send_on(&mut self, now: Instant, path: PathId, data: LaneDatagram) -> Result<(), SendError>;

    /// Queues a reliable, ordered message. Returns whether it could.
    fn send_message(&mut self, message: Bytes) -> bool;

    /// Records whether a datagram sent on `path` was redundant (a copy or repair).
    fn account(&mut self, _path: PathId, _bytes: u32, _is_redundant: bool) {}

    /// Whether the peer acknowledges datagrams. If not, none is kept, since none could be repaired.
    fn reports_fates(&self) -> bool {
        true
    }

    /// Sends acknowledgements on all paths, or mostly on the fastest one.
    fn acknowledge_on_all(&mut self, _is_on: bool) {}

    /// The path on which waiting acknowledgements should leave now, if any.
    fn feedback_due(&self, _now: Instant) -> Option<PathId> {
        None
    }

    /// Sends a small datagram with the waiting acknowledgements. Its fate is not reported.
    fn send_feedback_on(&mut self, _now: Instant, _path: PathId, _datagram: Bytes) {}

    /// Sends the waiting acknowledgements alone, with `datagram` if they are to elicit an answer.
    fn acknowledge_on(&mut self, _now: Instant, _path: PathId, _datagram: Bytes) {}
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

    fn send_on(&mut self, now: Instant, path: PathId, data: LaneDatagram) -> Result<(), SendError> {
        let token = data.token();
        let LaneDatagram { lane, content, bytes } = data;
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
        // Feedback that cannot leave is made again, with newer figures, when it is due.
        let _ = Connection::send_feedback_on(self, now, path, datagram);
    }

    fn acknowledge_on(&mut self, now: Instant, path: PathId, datagram: Bytes) {
        let _ = Connection::acknowledge_on(self, now, path, datagram);
    }
}
