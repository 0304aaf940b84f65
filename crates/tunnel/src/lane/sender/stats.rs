//! Send counters of one lane.

use roadweave_proto::DropCounters;
use roadweave_recovery::RecoveryStats;
use serde::{Deserialize, Serialize};

/// Send counters of one lane, in packets and bytes of datagram payload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SendStats {
    /// Inner packets that came in.
    pub inner_packets: u64,
    /// Bytes of inner packets that came in.
    pub inner_bytes: u64,
    /// Inner packets that left at least once.
    pub sent_packets: u64,
    /// Bytes of inner packets that left at least once, each packet once.
    pub sent_bytes: u64,
    /// Source datagrams, first transmissions (a fragmented packet has several).
    pub source_datagrams: u64,
    /// Bytes of source datagrams, first transmissions.
    pub source_bytes: u64,
    /// Source datagrams sent again, or on further paths.
    pub duplicate_datagrams: u64,
    /// Bytes of source datagrams sent again, or on further paths.
    pub duplicate_bytes: u64,
    /// Coded datagrams.
    pub coded_datagrams: u64,
    /// Bytes of coded datagrams.
    pub coded_bytes: u64,
    /// Bytes that wait for a free window.
    pub queue_bytes: u64,
    /// Bytes of copies that each wait for one path.
    pub copy_queue_bytes: u64,
    /// What the recovery did.
    pub recovery: RecoveryStats,
    /// What was discarded, by reason.
    pub drops: DropCounters,
}

impl SendStats {
    /// (source + coded + duplicate bytes - inner bytes) / inner bytes; 0 before the first packet.
    pub fn redundancy(&self) -> f64 {
        if self.sent_bytes == 0 {
            return 0.0;
        }
        let sent = self.source_bytes + self.duplicate_bytes + self.coded_bytes;
        sent as f64 / self.sent_bytes as f64 - 1.0
    }
}
