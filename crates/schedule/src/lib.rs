//! Chooses the paths of each packet.
//!
//! ```text
//! packet, snapshot of the paths ─► Scheduler::select ─► Send(paths) | Wait
//! ```
//!
//! A scheduler sees snapshots and returns a decision, without I/O, clock, QUIC or coding.

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

/// What a scheduler may know of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// The delay that the application wants.
    pub deadline: Duration,
    /// Whether a slow path carries only what the faster ones cannot pass in the meantime.
    pub patient: bool,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self { deadline: Duration::from_millis(100), patient: false }
    }
}

/// A packet to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInfo {
    /// Length of its datagram, bytes.
    pub bytes: usize,
    /// Bytes that wait to be sent, including this packet.
    pub backlog_bytes: u64,
    /// Hash of the 5-tuple.
    pub flow: u64,
    /// Bytes of its flow that wait near the front of the queue, including this packet.
    pub flow_bytes: u64,
    /// Time since it came.
    pub waited: Duration,
    /// Whether it belongs to streams, which restore the order of packets.
    pub is_of_streams: bool,
}

/// An acknowledged datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcknowledgedDatagram {
    /// Its path.
    pub path: PathId,
    /// When it left.
    pub sent: Instant,
    /// Length of its packet, bytes.
    pub bytes: u32,
    /// Its round trip without the peer's delay.
    pub rtt: Duration,
}

/// What to do with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send it once on each of these paths; the set is not empty. A packet for a path without room
    /// waits for that path ([`PathOffer::queued_bytes`]); a copy that still waits when another one
    /// was acknowledged is withdrawn.
    Send(PathSet),
    /// Keep it: no path has room, or waiting is better.
    Wait,
}

/// Chooses the paths for one packet at a time.
pub trait Scheduler: Send + std::fmt::Debug {
    /// Chooses the paths for `packet`.
    ///
    /// `paths`: all paths of the session by ascending [`roadweave_proto::PathId`]; the decision
    /// names positions in it. Returns [`Decision::Wait`] when every congestion window is full.
    fn select(&mut self, now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision;

    /// A datagram of the lane left on `path`: a packet, a copy or a coded packet. `flow`: as
    /// [`PacketInfo::flow`]; 0 for coded packets and parts.
    fn on_sent(&mut self, _now: Instant, _path: PathId, _bytes: u32, _flow: u64) {}

    /// The peer acknowledged a datagram of the lane.
    fn on_acknowledged(&mut self, _now: Instant, _acknowledged: &AcknowledgedDatagram, _flow: u64) {
    }

    /// A datagram of the lane was lost on `path`.
    fn on_lost(&mut self, _now: Instant, _path: PathId, _flow: u64) {}

    /// Names the network of `path`, which identifies it over restarts.
    fn name_path(&mut self, _path: PathId, _name: &str) {}

    /// What it has learned of the networks, as JSON; `None` if it learns nothing.
    fn learned(&self) -> Option<String> {
        None
    }

    /// Restores the result of [`Scheduler::learned`].
    ///
    /// # Errors
    /// When it cannot be read; nothing is changed then.
    fn restore(&mut self, _learned: &str) -> Result<(), RestoreError> {
        Ok(())
    }

    /// The part of `rooms` that a video may use; `rooms`: bytes, or bytes per second, by path
    /// ([`Windows`]). The sum, unless the scheduler sends elsewhere.
    fn share_of(&self, _paths: &[PathOffer<'_>], rooms: &[f64]) -> f64 {
        rooms.iter().sum()
    }

    /// Whether it keeps each flow on one path; then its packets must not be spread by others.
    fn keeps_flows(&self) -> bool {
        false
    }
}

/// What was learned cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the learned state cannot be read: {0}")]
pub struct RestoreError(pub String);

/// [`PathStatus::Usable`] if any path is, otherwise [`PathStatus::Suspect`] if any is.
pub fn best_status(paths: &[PathOffer<'_>]) -> Option<PathStatus> {
    [PathStatus::Usable, PathStatus::Suspect]
        .into_iter()
        .find(|status| paths.iter().any(|path| path.has_status(*status)))
}

#[cfg(test)]
mod testing {
    use roadweave_proto::PathSnapshot;

    use super::*;

    pub(crate) trait Among: Scheduler {
        fn select_among(
            &mut self,
            now: Instant,
            packet: &PacketInfo,
            paths: &[PathSnapshot],
        ) -> Decision {
            self.select(now, packet, &free(paths))
        }

        fn choose(&mut self, paths: &[PathSnapshot]) -> Decision {
            self.select_among(Instant::ZERO, &packet(1200), paths)
        }
    }

    impl<S: Scheduler + ?Sized> Among for S {}

    pub(crate) fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    pub(crate) fn to(position: usize) -> Decision {
        Decision::Send(PathSet::one(position))
    }

    pub(crate) fn to_all(positions: &[usize]) -> Decision {
        Decision::Send(positions.iter().copied().collect())
    }

    /// A packet of 1,200 bytes, the first of `backlog_bytes` that wait.
    pub(crate) fn packet_of(backlog_bytes: u64) -> PacketInfo {
        PacketInfo { backlog_bytes, flow_bytes: backlog_bytes, ..packet(1200) }
    }

    pub(crate) fn free(paths: &[PathSnapshot]) -> Vec<PathOffer<'_>> {
        paths.iter().map(PathOffer::free).collect()
    }

    /// A usable path with a free window of `room` bytes.
    pub(crate) fn path(id: u32, rtt_ms: u64, room: u64) -> PathSnapshot {
        PathSnapshot::idle(PathId(id), Duration::from_millis(rtt_ms), room)
    }

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
