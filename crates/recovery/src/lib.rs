//! Decides which packets are lost, and how they are repaired.
//!
//! ```text
//! sent, acknowledged, lost ─► Recovery ─► poll_repair ─► again | copies | coded | abandon
//! ```
//!
//! A recovery tracks packets by their ID and never sees their bytes; it says what should be sent,
//! and the tunnel encodes and sends it. It knows neither QUIC nor the code. The tunnel's table of
//! strategies gives recoveries their names.

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
    /// The packet's ID; first copies come in ascending order without gaps.
    pub id: PacketId,
    /// The path of this copy.
    pub path: PathId,
    /// The length of its datagram, bytes.
    pub bytes: u32,
    /// Whether a video frame ends with it.
    pub ends_frame: bool,
    /// How urgent it is, when it leaves for the first time; a packet that leaves again is first.
    pub urgency: Urgency,
}

/// What should be done about a loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Send this packet again, before new ones, where the scheduler says.
    Again {
        /// The packet.
        id: PacketId,
    },
    /// Send the packet itself once on each of these paths, now.
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
        /// Bit i: the i-th of them is lost; the others have arrived, or may yet.
        lost: u64,
        /// How many coded packets to send on each path, ascending.
        shares: Vec<(PathId, u16)>,
    },
    /// Send a further copy of this packet, which may be on its way, on this path now.
    Reinject {
        /// The packet.
        id: PacketId,
        /// The path.
        path: PathId,
    },
    /// Nothing more will be tried for these packets: their time is over.
    Abandon {
        /// The first packet.
        start: PacketId,
        /// How many.
        count: u32,
    },
}

impl Repair {
    /// The lost packets that it is to bring back; none if it gives them up, or nothing is known to
    /// be lost.
    pub fn brings_back(&self) -> impl Iterator<Item = PacketId> + use<> {
        let (start, lost) = match *self {
            Self::Again { id } | Self::Copies { id, .. } => (id, 1),
            Self::Coded { start, lost, .. } => (start, lost),
            Self::Reinject { .. } | Self::Abandon { .. } => (PacketId(0), 0),
        };
        start.of_mask(lost)
    }
}

/// What a recovery has done so far, in packets unless it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryStats {
    /// Packets taken for lost, by either detection.
    pub lost: u64,
    /// Packets taken for lost by the recovery's own timer.
    pub lost_by_timer: u64,
    /// Packets taken for lost whose acknowledgement came after all.
    pub spurious: u64,
    /// Repairs asked for.
    pub repairs: u64,
    /// Packets that the repairs were to bring back.
    pub repaired: u64,
    /// Packets given up because their time was over.
    pub abandoned: u64,
}

/// Watches the source packets of one lane and asks for repairs.
///
/// A packet may be sent on several paths: each copy is told by itself, and the packet is lost only
/// when all of them are.
pub trait Recovery: Send + std::fmt::Debug {
    /// A copy of a source packet left: the first, a further one, or one after [`Repair::Again`].
    fn on_sent(&mut self, now: Instant, packet: SentCopy, paths: &[PathSnapshot]);

    /// A copy of a source packet waits for its path. [`Recovery::on_sent`] follows when it leaves,
    /// or [`Recovery::on_lost`] if it never does.
    fn on_waiting(&mut self, now: Instant, packet: SentCopy, paths: &[PathSnapshot]);

    /// The packet that left last ended a video frame, as is known now.
    fn on_frame_ended(&mut self) {}

    /// The peer has it.
    fn on_acknowledged(&mut self, now: Instant, id: PacketId);

    /// The peer has a datagram of the repair that begins with packet `start`.
    fn on_repair_acknowledged(&mut self, _start: PacketId) {}

    /// Whether a repair may cover `id`, so that it must be kept although the peer has it;
    /// [`Recovery::poll_done`] says when that is over.
    fn needs(&self, _id: PacketId) -> bool {
        false
    }

    /// Packets that it kept for repairs and needs no more unless [`Recovery::needs`] says so: the
    /// first, and how many. The peer has each of them, or a repair was sent for it. Call until
    /// `None`, after acknowledgements and repairs.
    fn poll_done(&mut self) -> Option<(PacketId, u32)> {
        None
    }

    /// Lost packets that the peer has by acknowledged repairs: the first, and bit i for the i-th
    /// from it on. Call until `None`, after acknowledgements.
    fn poll_arrived(&mut self) -> Option<(PacketId, u64)> {
        None
    }

    /// A packet of [`Repair::Again`] found no room in time.
    fn on_abandoned(&mut self, id: PacketId);

    /// Nobody needs the packet any more: no repair is worth it. Whether it was under way, or lost
    /// and not repaired yet.
    fn on_superseded(&mut self, _id: PacketId) -> bool {
        false
    }

    /// QUIC declared the copy on `path` lost, the path was closed, or a copy that waited cannot
    /// leave.
    fn on_lost(&mut self, now: Instant, id: PacketId, path: PathId);

    /// What to do next, one repair at a time: call until `None`, after every event and timeout.
    ///
    /// `paths`: all paths of the session, ascending `PathId`, as they are after the last repair,
    /// with the room that repairs may have there ([`PathOffer::repair_room`]). `backlog`: the bytes
    /// of the lane's packets that have not left for the first time; where there are none, what room
    /// the paths have is to spare.
    fn poll_repair(
        &mut self,
        now: Instant,
        paths: &[PathOffer<'_>],
        backlog: u64,
    ) -> Option<Repair>;

    /// The most urgent of what has not left for the first time is of this urgency: what is under
    /// way and more urgent may be sent again before it (XLINK section 5.1).
    fn set_next(&mut self, _urgency: Urgency) {}

    /// The receiving application tells how its buffer does.
    fn set_qoe(&mut self, _now: Instant, _qoe: Qoe) {}

    /// Whether all packets are settled, so that it has nothing left to do.
    fn is_settled(&self) -> bool;

    /// A packet that was taken for lost since the last call, for whoever follows single packets.
    /// Packets that nobody fetches are forgotten, the oldest first.
    fn poll_lost(&mut self) -> Option<PacketId> {
        None
    }

    /// When [`Recovery::poll_repair`] must be asked again at the latest.
    fn poll_timeout(&self) -> Option<Instant>;

    /// What it has done so far.
    fn stats(&self) -> RecoveryStats;
}

impl RecoveryStats {
    /// Adds the figures of `other`.
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

/// What every recovery may need to know of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// The packet delay that the lane's application wants.
    pub deadline: Duration,
    /// The age after which a packet is worth no repair (t_expire, CellFusion section 4.4.3).
    pub expire_after: Duration,
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self { deadline: Duration::from_millis(100), expire_after: Duration::from_millis(700) }
    }
}

/// Bytes that may leave on `path` at once, when what waits for it has left, for packets that are
/// not known to be lost: never more than its policy leaves.
pub fn spare(path: &PathOffer<'_>) -> u64 {
    let paced = path.snapshot.pacing_budget.saturating_sub(path.queued_bytes);
    path.repair_room().min(path.redundancy_left()).min(paced)
}

#[cfg(test)]
mod contract;

/// Snapshots for tests.
#[cfg(test)]
mod testing {
    use super::*;

    /// Recoveries among paths without restrictions, for which nothing waits.
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

    pub(crate) fn free(paths: &[PathSnapshot]) -> Vec<PathOffer<'_>> {
        paths.iter().map(PathOffer::free).collect()
    }

    /// A usable path with a round-trip time of `rtt_ms` and a free window of `packets` packets of
    /// 1,200 bytes.
    pub(crate) fn path(id: u32, rtt_ms: u64, packets: u64) -> PathSnapshot {
        let rtt = Duration::from_millis(rtt_ms);
        let pto = rtt + Duration::from_millis(10);
        PathSnapshot { pto, ..PathSnapshot::idle(PathId(id), rtt, packets * 1200) }
    }
}
