//! Receive counters of one lane.

use roadweave_proto::{Delays, DropCounters};
use serde::{Deserialize, Serialize};

use crate::lane::reorder::OrderStats;

/// Receive counters of one lane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReceiveStats {
    /// Inner packets delivered.
    pub delivered_packets: u64,
    /// Bytes of inner packets delivered.
    pub delivered_bytes: u64,
    /// Source packets and fragments that were new when they came.
    pub source_datagrams: u64,
    /// Coded datagrams that came in.
    pub coded_datagrams: u64,
    /// Packets that coded datagrams recovered.
    pub recovered: u64,
    /// Coded datagrams without new information.
    pub redundant: u64,
    /// Delay until delivery beyond that of the quickest recent packet, for stamped packets.
    #[serde(skip_serializing_if = "Delays::is_empty")]
    pub excess_delays: Delays,
    /// How packets waited for one another.
    pub order: OrderStats,
    /// What was discarded, by reason.
    pub drops: DropCounters,
}

impl ReceiveStats {
    pub(crate) fn add_past(&mut self, past: &Self) {
        self.delivered_packets += past.delivered_packets;
        self.delivered_bytes += past.delivered_bytes;
        self.source_datagrams += past.source_datagrams;
        self.coded_datagrams += past.coded_datagrams;
        self.recovered += past.recovered;
        self.redundant += past.redundant;
        self.excess_delays.merge(&past.excess_delays);
        self.order.waited_packets += past.order.waited_packets;
        self.order.late_packets += past.order.late_packets;
        self.order.timeouts += past.order.timeouts;
        self.order.forced += past.order.forced;
        self.drops.merge(&past.drops);
    }
}
