//! The status of a router.

use roadweave_proto::{Delays, PathStatus};
use serde::{Deserialize, Serialize};

use crate::figure::Column;
use crate::geneve::{LinkCounters, LinkState};
use crate::session::SessionStats;
use crate::status::{PathStatusReport, millis};

/// The status of a link for `roadweave show`. Times are in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkStatus {
    /// Its number in the configuration.
    pub id: u32,
    /// The link's name.
    pub uplink: String,
    /// The address of its other end, if it is known.
    pub remote: Option<String>,
    /// Whether the link answers.
    pub status: PathStatus,
    /// The smoothed round trip of its hellos.
    pub smoothed_rtt_ms: Option<f64>,
    /// The smallest round trip.
    pub min_rtt_ms: Option<f64>,
    /// The mean deviation of the round trips.
    pub rtt_deviation_ms: Option<f64>,
    /// The round trips of all its hellos.
    pub round_trips: Delays,
    /// Packets of the peer that did not come over this link.
    pub lost: u64,
    /// The share of adopted packets that came over this link, 0 to 1 (table III of the paper).
    pub adopted_ratio: f64,
    /// Counters of the link.
    pub counters: LinkCounters,
}

impl LinkStatus {
    /// `peer_packets`: how many the peer has sent; `adopted`: how many came first, over any link.
    pub(super) fn of(
        (id, (link, status)): (usize, (&LinkState, PathStatus)),
        peer_packets: u64,
        adopted: u64,
    ) -> Self {
        let rtt = link.rtt();
        Self {
            id: id as u32,
            uplink: link.config.name.clone(),
            remote: link.remote().map(|address| address.to_string()),
            status,
            smoothed_rtt_ms: rtt.map(|rtt| millis(rtt.smoothed())),
            min_rtt_ms: rtt.map(|rtt| millis(rtt.min())),
            rtt_deviation_ms: rtt.map(|rtt| millis(rtt.variation())),
            round_trips: link.round_trips,
            lost: peer_packets.saturating_sub(link.counters.inner_distinct),
            adopted_ratio: link.counters.adopted as f64 / adopted.max(1) as f64,
            counters: link.counters,
        }
    }

    /// Its columns in the first table of links.
    pub const TRAFFIC: &[Column<Self>] = &[
        ("rtt\nms", |it| it.smoothed_rtt_ms, Some((1.0, 1))),
        ("lost", |it| Some(it.lost as f64), None),
    ];

    /// Its columns in the table of packets.
    pub const PACKETS: &[Column<Self>] = &[
        ("sent", |it| Some(it.counters.packets_sent as f64), None),
        ("sent\nMB", |it| Some(it.counters.bytes_sent as f64), Some((1e6, 1))),
        ("received", |it| Some(it.counters.packets_received as f64), None),
        ("received\nMB", |it| Some(it.counters.bytes_received as f64), Some((1e6, 1))),
        ("adopted", |it| Some(it.counters.adopted as f64), None),
        ("adopted\n%", |it| Some(it.adopted_ratio), Some((0.01, 2))),
        ("dupli-\ncates", |it| Some(it.counters.duplicates as f64), None),
        ("late", |it| Some(it.counters.late as f64), None),
    ];
}

/// A link as a path, as far as it has figures of one; a round trip that is not known is NaN.
impl From<&LinkStatus> for PathStatusReport {
    fn from(link: &LinkStatus) -> Self {
        let mut path = Self {
            id: link.id,
            uplink: Some(link.uplink.clone()),
            status: link.status,
            smoothed_rtt_ms: link.smoothed_rtt_ms.unwrap_or(f64::NAN),
            round_trips: link.round_trips,
            ..Self::default()
        };
        path.counters.packets_sent = link.counters.packets_sent;
        path.counters.bytes_sent = link.counters.bytes_sent;
        path.counters.packets_received = link.counters.packets_received;
        path.counters.bytes_received = link.counters.bytes_received;
        path.counters.datagrams_lost = link.lost;
        path
    }
}

/// The status of a router for `roadweave show`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouterStatus {
    /// The links, like the paths of other sessions.
    pub paths: Vec<LinkStatus>,
    /// Inner packets that the peer has sent since it was first heard, by its sequence numbers.
    pub peer_packets: u64,
    /// Packets of the peer that came over no link.
    pub peer_packets_lost: u64,
    /// How often the peer restarted.
    pub peer_restarts: u64,
    /// The lane, and what was dropped outside it.
    #[serde(flatten)]
    pub stats: SessionStats,
}
