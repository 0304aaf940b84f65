//! Decides which packets are lost, and how they are repaired.
//!
//! ```text
//! sent, acknowledged, lost ─► Recovery ─► poll_repair ─► again | copies | coded | abandon
//! ```
//!
//! A recovery tracks packets by ID and never sees their bytes. It knows neither QUIC nor the code.

mod flight;
mod insurance;
mod none;
mod qoe;
mod reliable;
mod threshold;
mod xlink;
mod xnc;

use std::time::Duration;

use roadweave_proto::{Instant, PacketId, PathId, PathOffer, PathSnapshot, Urgency};
use serde::{Deserialize, Serialize};

pub use insurance::{Insurance, Premium};
pub use none::NoRecovery;
pub use qoe::Qoe;
pub use reliable::Reliable;
pub use threshold::loss_threshold;
pub use xlink::{Thresholds, Xlink};
pub use xnc::{Detection, Spread, Xnc, XncConfig};

/// A copy of a source packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentCopy {
    /// Its ID; first copies ascend without gaps.
    pub id: PacketId,
    /// The path of the copy.
    pub path: PathId,
    /// Length of its datagram, bytes.
    pub bytes: u32,
    /// Whether a video frame ends with it.
    pub ends_frame: bool,
    /// Its urgency when it leaves first; [`Urgency::FIRST`] when it leaves again.
    pub urgency: Urgency,
}

/// What to do about a loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Send the packet again, before new ones, on a path that the scheduler chooses.
    Again {
        /// The packet.
        id: PacketId,
    },
    /// Send the packet once on each of these paths, now.
    Copies {
        /// The packet.
        id: PacketId,
        /// The paths, ascending.
        paths: Vec<PathId>,
    },
    /// Send coded packets over a run of packets, now.
    Coded {
        /// The first packet of the run.
        start: PacketId,
        /// The packets in it.
        count: u16,
        /// Bit i: the i-th packet is lost; the others have arrived, or may yet.
        lost: u64,
        /// Coded packets by path, ascending.
        shares: Vec<(PathId, u16)>,
    },
    /// Send a further copy of a packet that may be in flight on this path, now.
    Reinject {
        /// The packet.
        id: PacketId,
        /// The path.
        path: PathId,
    },
    /// Give up these packets: their time is over.
    Abandon {
        /// The first packet.
        start: PacketId,
        /// Their number.
        count: u32,
    },
}

impl Repair {
    /// The lost packets that it restores; none if it gives them up, or no loss is known.
    pub fn brings_back(&self) -> impl Iterator<Item = PacketId> + use<> {
        let (start, lost) = match *self {
            Self::Again { id } | Self::Copies { id, .. } => (id, 1),
            Self::Coded { start, lost, .. } => (start, lost),
            Self::Reinject { .. } | Self::Abandon { .. } => (PacketId(0), 0),
        };
        start.of_mask(lost)
    }
}

/// Counters, in packets unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecoveryStats {
    /// Lost packets, by either detection.
    pub lost: u64,
    /// Lost packets by the recovery's own timer.
    pub lost_by_timer: u64,
    /// Lost packets that were acknowledged after all.
    pub spurious: u64,
    /// Repairs requested.
    pub repairs: u64,
    /// Packets that the repairs were to restore.
    pub repaired: u64,
    /// Packets given up.
    pub abandoned: u64,
}

/// Watches the source packets of one lane and requests repairs.
///
/// Each copy of a packet is reported; the packet is lost when all of them are.
pub trait Recovery: Send + std::fmt::Debug {
    /// Notes a copy: the first, a further one, or one after [`Repair::Again`].
    fn on_sent(&mut self, now: Instant, packet: SentCopy, paths: &[PathSnapshot]);

    /// A copy waits for its path. [`Recovery::on_sent`] or [`Recovery::on_lost`] follows.
    fn on_waiting(&mut self, now: Instant, packet: SentCopy, paths: &[PathSnapshot]);

    /// The last packet ended a video frame.
    fn on_frame_ended(&mut self) {}

    /// The peer has the packet.
    fn on_acknowledged(&mut self, now: Instant, id: PacketId);

    /// The peer has a datagram of the repair that begins with packet `start`.
    fn on_repair_acknowledged(&mut self, _start: PacketId) {}

    /// Whether a repair may cover `id`, so that it must be kept although the peer has it, until
    /// [`Recovery::poll_done`].
    fn needs(&self, _id: PacketId) -> bool {
        false
    }

    /// Packets kept for repairs that are not needed any more unless [`Recovery::needs`] says so:
    /// the first, and the number. Call until `None`, after acknowledgements and repairs.
    fn poll_done(&mut self) -> Option<(PacketId, u32)> {
        None
    }

    /// Lost packets that acknowledged repairs restored: the first, and bit i for the i-th from it
    /// on. Call until `None`, after acknowledgements.
    fn poll_arrived(&mut self) -> Option<(PacketId, u64)> {
        None
    }

    /// A packet of [`Repair::Again`] found no room in time.
    fn on_abandoned(&mut self, id: PacketId);

    /// The packet is not needed. Returns whether it was in flight, or lost and not repaired.
    fn on_superseded(&mut self, _id: PacketId) -> bool {
        false
    }

    /// The copy on `path` is lost: by QUIC, by the end of the path, or because it cannot leave.
    fn on_lost(&mut self, now: Instant, id: PacketId, path: PathId);

    /// The next repair; call until `None`, after every event and timeout.
    ///
    /// `paths`: all paths of the session by ascending `PathId`, as they are after the last repair,
    /// with the room for repairs ([`PathOffer::repair_room`]). `backlog`: bytes of packets that
    /// have not left for the first time; if 0, the room of the paths is spare.
    fn poll_repair(
        &mut self,
        now: Instant,
        paths: &[PathOffer<'_>],
        backlog: u64,
    ) -> Option<Repair>;

    /// Whether to ask again once nothing waits, for spare room and for what a full path refused.
    fn asks_twice(&self) -> bool {
        true
    }

    /// Sets the urgency of the next new packet: more urgent packets in flight may be sent again
    /// first (XLINK section 5.1).
    fn set_next(&mut self, _urgency: Urgency) {}

    /// Sets the state of the receiving application's buffer.
    fn set_qoe(&mut self, _now: Instant, _qoe: Qoe) {}

    /// Whether nothing is left to do.
    fn is_settled(&self) -> bool;

    /// A packet lost since the last call; the oldest are forgotten if not fetched.
    fn poll_lost(&mut self) -> Option<PacketId> {
        None
    }

    /// When to call [`Recovery::poll_repair`] at the latest.
    fn poll_timeout(&self) -> Option<Instant>;

    /// The counters.
    fn stats(&self) -> RecoveryStats;
}

impl RecoveryStats {
    /// Adds the counters of `other`.
    pub fn merge(&mut self, other: &Self) {
        let Self { lost, lost_by_timer, spurious, repairs, repaired, abandoned } = other;
        self.lost += lost;
        self.lost_by_timer += lost_by_timer;
        self.spurious += spurious;
        self.repairs += repairs;
        self.repaired += repaired;
        self.abandoned += abandoned;
    }
}

/// What a recovery may know of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// The delay that the application wants.
    pub deadline: Duration,
    /// The age after which a packet is not repaired (t_expire, CellFusion section 4.4.3).
    pub expire_after: Duration,
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self { deadline: Duration::from_millis(100), expire_after: Duration::from_millis(700) }
    }
}

/// Bytes that may leave on `path` at once after what waits for it, for packets not known to be
/// lost, within its policy.
pub fn spare(path: &PathOffer<'_>) -> u64 {
    let paced = path.snapshot.pacing_budget.saturating_sub(path.queued_bytes);
    path.repair_room().min(path.redundancy_left()).min(paced)
}

#[cfg(test)]
mod contract;

#[cfg(test)]
mod testing {
    use super::*;

    pub(crate) trait Among: Recovery {
        fn poll_repair_among(
            &mut self,
            now: Instant,
            paths: &[PathSnapshot],
            backlog: u64,
        ) -> Option<Repair> {
            self.poll_repair(now, &free(paths), backlog)
        }
    }

    impl<R: Recovery + ?Sized> Among for R {}

    pub(crate) fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    pub(crate) fn sent(id: u32, path: u32) -> SentCopy {
        let (id, path, urgency) = (PacketId(id), PathId(path), Urgency::FIRST);
        SentCopy { id, path, bytes: 1200, ends_frame: false, urgency }
    }

    pub(crate) fn free(paths: &[PathSnapshot]) -> Vec<PathOffer<'_>> {
        paths.iter().map(PathOffer::free).collect()
    }

    /// A usable path with a free window of `packets` packets of 1,200 bytes.
    pub(crate) fn path(id: u32, rtt_ms: u64, packets: u64) -> PathSnapshot {
        let rtt = Duration::from_millis(rtt_ms);
        let pto = rtt + Duration::from_millis(10);
        PathSnapshot { pto, ..PathSnapshot::idle(PathId(id), rtt, packets * 1200) }
    }
}
