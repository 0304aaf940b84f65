//! Chooses the paths for each packet.
//!
//! ```text
//! packet, snapshot of the paths ─► Scheduler::select ─► Send(paths) | Wait
//! ```
//!
//! A scheduler sees snapshots and returns a decision; it does no I/O, reads no clock, and knows
//! neither QUIC nor recovery nor coding. The tunnel's table of strategies gives them their names.

mod ecf;
mod lola;
mod minrtt;
mod ordered;
mod pace;
mod path_set;
mod policed;
mod raven;
mod redundant;
mod single;
mod windows;

use std::time::Duration;

use roadweave_proto::{Instant, PathId, PathOffer, PathStatus};

pub use ecf::Ecf;
pub use lola::Lola;
pub use minrtt::MinRtt;
pub use ordered::Ordered;
pub use path_set::PathSet;
pub use policed::Policed;
pub use raven::{Raven, RavenConfig};
pub use redundant::Redundant;
pub use single::Single;
pub use windows::Windows;

/// What a scheduler may need to know of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// The packet delay that the lane's application wants.
    pub deadline: Duration,
    /// Whether a slow path carries only what the faster ones would not pass in the meantime.
    pub patient: bool,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self { deadline: Duration::from_millis(100), patient: false }
    }
}

/// What a scheduler may know of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInfo {
    /// The length of the datagram that carries it, bytes.
    pub bytes: usize,
    /// The bytes that wait to be sent, those of the packet included.
    pub backlog_bytes: u64,
    /// A hash of the packet's 5-tuple: equal within a flow.
    pub flow: u64,
    /// The bytes of its flow that wait to be sent, those of the packet included; in a long queue
    /// only those near its front.
    pub flow_bytes: u64,
    /// How long it has waited for a path.
    pub waited: Duration,
    /// Whether it is of streams: they put in order what comes, and so no path comes too early for
    /// it.
    pub is_of_streams: bool,
}

/// A datagram that the peer confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcknowledgedDatagram {
    /// The path it went out on.
    pub path: PathId,
    /// When the datagram left.
    pub sent: Instant,
    /// The length of the packet that carried it, bytes.
    pub bytes: u32,
    /// Its round trip, without what the peer waited.
    pub rtt: Duration,
}

/// What to do with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send it once on each of these paths; the set is not empty. On a path without room it waits
    /// for that path, which [`PathOffer::queued_bytes`] tells; a copy that still waits when
    /// another was acknowledged is withdrawn.
    Send(PathSet),
    /// Keep it: no path has room, or waiting is better.
    Wait,
}

/// Chooses the paths for one packet at a time.
pub trait Scheduler: Send + std::fmt::Debug {
    /// Chooses the paths for `packet`.
    ///
    /// `paths`: all paths of the session, ascending [`roadweave_proto::PathId`]; the decision names
    /// positions in this slice. Returns [`Decision::Wait`] when every congestion window is full.
    fn select(&mut self, now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision;

    /// A datagram of the lane left on `path`: a source packet, a copy or a coded packet of `bytes`
    /// bytes. `flow`: that of the packet, as [`PacketInfo::flow`]; 0 for coded packets and parts.
    fn on_sent(&mut self, _now: Instant, _path: PathId, _bytes: u32, _flow: u64) {}

    /// The peer has a datagram of the lane.
    fn on_acknowledged(&mut self, _now: Instant, _acknowledged: &AcknowledgedDatagram, _flow: u64) {
    }

    /// A datagram of the lane was lost on `path`.
    fn on_lost(&mut self, _now: Instant, _path: PathId, _flow: u64) {}

    /// The name of the network that `path` runs over, by which it is known again after a restart.
    fn name_path(&mut self, _path: PathId, _name: &str) {}

    /// What it has learned of the networks, as JSON, to be kept over restarts; `None` if it learns
    /// nothing.
    fn learned(&self) -> Option<String> {
        None
    }

    /// Takes up what [`Scheduler::learned`] gave in an earlier life.
    ///
    /// # Errors
    /// When it cannot be read; nothing is changed then.
    fn restore(&mut self, _learned: &str) -> Result<(), RestoreError> {
        Ok(())
    }

    /// How much a video has of what each of `paths` brings in time, where its packets go where this
    /// scheduler sends them; `rooms` are bytes, or bytes in a second, by path ([`Windows`]).
    ///
    /// By itself a packet goes wherever there is room, so it is the sum.
    fn share_of(&self, _paths: &[PathOffer<'_>], rooms: &[f64]) -> f64 {
        rooms.iter().sum()
    }

    /// Whether it keeps each flow on its path: then nobody else may spread its packets.
    fn keeps_flows(&self) -> bool {
        false
    }
}

/// What a scheduler had learned cannot be taken up again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what was learned cannot be read: {0}")]
pub struct RestoreError(pub String);

/// The status that data may use now: usable paths where there are any, otherwise suspect ones.
pub fn best_status(paths: &[PathOffer<'_>]) -> Option<PathStatus> {
    [PathStatus::Usable, PathStatus::Suspect]
        .into_iter()
        .find(|status| paths.iter().any(|path| path.has_status(*status)))
}

/// Snapshots and packets for tests.
#[cfg(test)]
mod testing {
    use roadweave_proto::PathSnapshot;

    use super::*;

    /// Schedulers among paths without restrictions, for which nothing waits.
    pub(crate) trait Among: Scheduler {
        fn select_among(
            &mut self,
            now: Instant,
            packet: &PacketInfo,
            paths: &[PathSnapshot],
        ) -> Decision {
            self.select(now, packet, &free(paths))
        }
    }

    impl<S: Scheduler + ?Sized> Among for S {}

    pub(crate) fn free(paths: &[PathSnapshot]) -> Vec<PathOffer<'_>> {
        paths.iter().map(PathOffer::free).collect()
    }

    /// A usable path with a round-trip time of `rtt_ms` and a free window of `room` bytes.
    pub(crate) fn path(id: u32, rtt_ms: u64, room: u64) -> PathSnapshot {
        PathSnapshot::idle(PathId(id), Duration::from_millis(rtt_ms), room)
    }

    /// A packet of `bytes` bytes that has just come, alone.
    pub(crate) fn packet(bytes: usize) -> PacketInfo {
        PacketInfo {
            bytes,
            backlog_bytes: bytes as u64,
            flow: 0,
            flow_bytes: bytes as u64,
            waited: Duration::ZERO,
            is_of_streams: false,
        }
    }
}
