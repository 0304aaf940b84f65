//! The status of sessions and paths for `roadweave show`, as plain serialisable values.

use std::time::Duration;

use roadweave_proto::{Delays, PathSnapshot, PathStatus, Priority, Rate};
use roadweave_quic::{Connection, EcnMarking, PathStats};
use serde::{Deserialize, Serialize};

use crate::session::SessionStats;

/// One path: addresses, measurements and counters. Times are in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathStatusReport {
    /// The path's number in its connection.
    pub id: u32,
    /// The uplink's name, once known.
    pub uplink: Option<String>,
    /// The peer's address.
    pub remote: Option<String>,
    /// Whether the path may carry packets.
    pub status: PathStatus,
    /// The smoothed round-trip time.
    pub smoothed_rtt_ms: f64,
    /// The smallest round-trip time of the last seconds.
    pub min_rtt_ms: f64,
    /// The mean deviation of the round-trip times.
    pub rtt_deviation_ms: f64,
    /// The share of packets lost recently, 0..1.
    pub loss: f32,
    /// The congestion window.
    pub congestion_window_bytes: u64,
    /// Bytes sent and neither acknowledged nor declared lost.
    pub bytes_in_flight: u64,
    /// The rate of the pacer, once there is one.
    pub pacing_rate_bps: Option<u64>,
    /// The largest UDP payload that fits.
    pub mtu_bytes: u16,
    /// Whether packets on it are marked as ECN-capable.
    pub ecn: EcnMarking,
    /// Its priority. Beyond its caps an uplink is a backup.
    pub priority: Priority,
    /// Its share among paths of equal priority.
    pub weight: u8,
    /// The rate limit of its policy.
    pub rate_limit_bps: Option<u64>,
    /// Bytes of its uplink today (UTC), both ways, if it has a cap; unknown at the server.
    pub day_bytes: Option<u64>,
    /// Bytes a day beyond which it is a backup; unknown at the server.
    pub daily_cap_bytes: Option<u64>,
    /// Bytes of its uplink in the billing month, both ways, if it has a cap; unknown at the server.
    pub month_bytes: Option<u64>,
    /// Bytes a month beyond which it is a backup; unknown at the server.
    pub monthly_cap_bytes: Option<u64>,
    /// Bytes of copies and repairs it may carry now, if limited.
    pub redundancy_left_bytes: Option<u64>,
    /// Round trips since its address last changed, one per acknowledgement.
    pub round_trips: Delays,
    /// Its counters.
    pub counters: PathStats,
}

/// One session with its paths.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionStatus {
    /// The peer's name: the client's own, or the server's address.
    pub peer: String,
    /// The peer's public key.
    pub public_key: String,
    /// The client's inner addresses.
    pub addresses: Vec<String>,
    /// The paths, by ID.
    pub paths: Vec<PathStatusReport>,
    /// The lanes.
    #[serde(flatten)]
    pub stats: SessionStats,
}

pub(crate) fn path_reports(
    connection: &Connection,
    uplink: impl Fn(&PathSnapshot) -> Option<String>,
) -> Vec<PathStatusReport> {
    let report = |path: &PathSnapshot| PathStatusReport {
        id: path.id.0,
        uplink: uplink(path),
        remote: connection.remote_address(path.id).map(|address| address.to_string()),
        status: path.status,
        smoothed_rtt_ms: millis(path.smoothed_rtt),
        min_rtt_ms: millis(path.min_rtt),
        rtt_deviation_ms: millis(path.rtt_deviation),
        loss: path.loss,
        congestion_window_bytes: path.congestion_window,
        bytes_in_flight: path.bytes_in_flight,
        pacing_rate_bps: path.pacing_rate.map(Rate::as_bps),
        mtu_bytes: path.mtu,
        ecn: connection.ecn_marking(path.id).unwrap_or_default(),
        priority: path.policy.priority,
        weight: path.policy.weight,
        rate_limit_bps: path.policy.rate_max.map(Rate::as_bps),
        day_bytes: None,
        daily_cap_bytes: None,
        month_bytes: None,
        monthly_cap_bytes: None,
        redundancy_left_bytes: path.policy.redundancy_percent.map(|_| path.redundancy_left),
        round_trips: connection.round_trips(path.id).unwrap_or_default(),
        counters: connection.path_stats(path.id).unwrap_or_default(),
    };
    connection.paths().iter().map(report).collect()
}

fn millis(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}
