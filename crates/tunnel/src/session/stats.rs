//! The statistics of a session, for `roadweave show` and the lab's reports.

use roadweave_proto::{DropCounters, LaneId};
use serde::{Deserialize, Serialize};

use super::{LoadStats, Session};
use crate::lane::{EncoderTarget, LaneReceiver, LaneSender, MemoryStats, ReceiveStats, SendStats};

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

impl Session {
    /// The statistics so far.
    pub fn stats(&self) -> SessionStats {
        let lane = |(position, sender): (usize, &LaneSender)| {
            let id = LaneId(position as u8);
            let report = self.peer_reports.get(&id.0).copied().unwrap_or_default();
            let sent = sender.stats();
            LaneStats {
                name: sender.config.name.clone(),
                strategy: sender.config.strategy.to_string(),
                deadline_ms: u64::try_from(sender.config.deadline.as_millis()).ok(),
                encoder: sender.last_encoder_target(),
                redundancy: sent.redundancy(),
                sent,
                received: self.received(id),
                peer_delivered: report.delivered,
                peer_recovered: report.recovered,
                peer_missing: report.lost,
            }
        };
        let beyond = LaneId(self.senders.len() as u8);
        let only_received = self.receivers.range(beyond..).map(|(id, _)| LaneStats {
            name: format!("received-{}", id.0),
            received: self.received(*id),
            ..LaneStats::default()
        });
        SessionStats {
            lanes: self.senders.iter().enumerate().map(lane).chain(only_received).collect(),
            memory: self.memory(),
            load: self.loads.stats,
            drops: self.output.drops.clone(),
        }
    }

    pub(crate) fn drops(&self) -> DropCounters {
        let mut drops = self.output.drops.clone();
        self.senders.iter().for_each(|sender| drops.merge(&sender.stats().drops));
        self.receivers.values().for_each(|receiver| drops.merge(&receiver.stats().drops));
        self.past.values().for_each(|past| drops.merge(&past.drops));
        drops
    }

    fn received(&self, lane: LaneId) -> ReceiveStats {
        let mut stats = self.receivers.get(&lane).map(LaneReceiver::stats).unwrap_or_default();
        self.past.get(&lane).into_iter().for_each(|past| stats.add_past(past));
        stats
    }
}
