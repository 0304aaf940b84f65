//! The statistics of a session, for `roadweave show` and the lab's reports.

use roadweave_proto::wire::LaneReport;
use roadweave_proto::{DropCounters, LaneId};
use serde::{Deserialize, Serialize};

use super::LoadStats;
use crate::lane::{EncoderTarget, LaneSender, MemoryStats, ReceiveStats, SendStats};

/// The statistics of one lane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaneStats {
    /// The lane's name.
    pub name: String,
    /// The strategy of the sending direction.
    pub strategy: String,
    /// The packet delay that its applications want, in the sending direction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// What was sent.
    pub sent: SendStats,
    /// The last target of an encoder, if one has asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoder: Option<EncoderTarget>,
    /// Bytes sent beyond the inner packets, per byte of inner packets.
    pub redundancy: f64,
    /// What was received.
    pub received: ReceiveStats,
    /// Packets of the sending direction that the peer delivered, by its own count.
    pub peer_delivered: u64,
    /// Packets of the sending direction that the peer got only by a repair.
    pub peer_recovered: u64,
    /// Packets of the sending direction that the peer still lacks.
    pub peer_missing: u64,
}

/// The statistics of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionStats {
    /// The sending lanes as configured, then lanes that only the peer has, by number.
    pub lanes: Vec<LaneStats>,
    /// The memory of all lanes.
    pub memory: MemoryStats,
    /// The traffic of speed tests.
    #[serde(skip_serializing_if = "LoadStats::is_nothing")]
    pub load: LoadStats,
    /// Datagrams and packets discarded outside the lanes, by reason.
    pub drops: DropCounters,
}

impl LaneStats {
    pub(super) fn sending(sender: &LaneSender, report: LaneReport, received: ReceiveStats) -> Self {
        let sent = sender.stats();
        Self {
            name: sender.config.name.clone(),
            strategy: sender.config.strategy.to_string(),
            deadline_ms: u64::try_from(sender.config.deadline.as_millis()).ok(),
            encoder: sender.chooser.last_encoder_target(),
            redundancy: sent.redundancy(),
            sent,
            received,
            peer_delivered: report.delivered,
            peer_recovered: report.recovered,
            peer_missing: report.lost,
        }
    }

    pub(super) fn only_received(lane: LaneId, received: ReceiveStats) -> Self {
        Self { name: format!("received-{}", lane.0), received, ..Self::default() }
    }
}
