//! The status of sessions and paths for `roadweave show`, as plain serialisable values.

use std::cmp::Ordering;
use std::time::Duration;

use roadweave_proto::{Delays, PathSnapshot, PathStatus, Priority, Rate};
use roadweave_quic::{Connection, EcnMarking, PathStats};
use serde::{Deserialize, Serialize};

use crate::figure::{Column, Figure, Metric, count, flag, gauge};
use crate::metrics;
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

impl PathStatusReport {
    /// Its metrics.
    pub const METRICS: &[Metric<Self>] = metrics![
        "path_tx" "bytes" "UDP payload sent by a path" |it| count(it.counters.bytes_sent),
        "path_rx" "bytes" "UDP payload received by a path" |it| count(it.counters.bytes_received),
        "path_tx_packets" "" "Packets sent by a path" |it| count(it.counters.packets_sent),
        "path_rx_packets" "" "Packets received by a path" |it| count(it.counters.packets_received),
        "path_lost_packets" ""
            "Packets that the path lost: at a client those it sent, at a router its peer's"
            |it| count(it.counters.datagrams_lost),
        "path_usable" "" "1 while the path answers and carries data"
            |it| flag(it.status == PathStatus::Usable),
        "path_smoothed_round_trip" "seconds" "The smoothed round-trip time of a path"
            |it| gauge(it.smoothed_rtt_ms / 1e3),
        "path_loss" "ratios" "The share of a path's packets that were lost recently"
            |it| gauge(it.loss.into()),
        "path_pacing_bytes_per_second" "" "Bytes a second that the pacer of a path allows"
            |it| gauge(it.pacing_rate_bps? as f64 / 8.0),
        "path_day" "bytes" "Bytes that an interface with a cap carried today"
            |it| gauge(it.day_bytes? as f64),
        "path_day_cap" "bytes" "Bytes that an interface may carry in a day"
            |it| gauge(it.daily_cap_bytes? as f64),
        "path_month" "bytes" "Bytes that an interface with a cap carried since its billing day"
            |it| gauge(it.month_bytes? as f64),
        "path_month_cap" "bytes" "Bytes that an interface may carry in a month"
            |it| gauge(it.monthly_cap_bytes? as f64),
        "path_sampled_round_trip" "seconds"
            "Round-trip times of a path, one for each acknowledgement, at a router one for each \
             hello"
            |it| Some(Figure::Delays(it.round_trips)),
    ];

    /// Its columns in the first table of paths.
    pub const TRAFFIC: &[Column<Self>] = &[
        ("rtt\nms", |it| Some(it.smoothed_rtt_ms), Some((1.0, 1))),
        ("loss\n%", |it| Some(it.loss.into()), Some((0.01, 1))),
        ("lost", |it| Some(it.counters.datagrams_lost as f64), None),
        ("sent\nMB", |it| Some(it.counters.bytes_sent as f64), Some((1e6, 1))),
        ("received\nMB", |it| Some(it.counters.bytes_received as f64), Some((1e6, 1))),
    ];

    /// Its columns in the table of limits.
    pub const LIMITS: &[Column<Self>] = &[
        ("weight", |it| Some(it.weight.into()), Some((1.0, 0))),
        ("window\nkB", |it| Some(it.congestion_window_bytes as f64), Some((1e3, 0))),
        ("flight\nkB", |it| Some(it.bytes_in_flight as f64), Some((1e3, 0))),
        ("pacing\nMbit/s", |it| Some(it.pacing_rate_bps? as f64), Some((1e6, 1))),
        ("mtu", |it| Some(it.mtu_bytes.into()), Some((1.0, 0))),
        ("budget\nkB", |it| Some(it.redundancy_left_bytes? as f64), Some((1e3, 0))),
    ];

    /// Its columns in the table of caps.
    pub const CAPS: &[Column<Self>] = &[
        ("day\nMB", |it| Some(it.day_bytes? as f64), Some((1e6, 1))),
        ("cap\nMB", |it| Some(it.daily_cap_bytes? as f64), Some((1e6, 0))),
        ("month\nMB", |it| Some(it.month_bytes? as f64), Some((1e6, 1))),
        ("cap\nMB", |it| Some(it.monthly_cap_bytes? as f64), Some((1e6, 0))),
    ];

    /// Of the cap that is reached first: the bytes left, and the cap.
    pub fn nearest_cap(&self) -> Option<(u64, u64)> {
        let day = self.daily_cap_bytes.zip(self.day_bytes);
        let caps = [day, self.monthly_cap_bytes.zip(self.month_bytes)];
        caps.into_iter().flatten().map(|(cap, used)| (cap.saturating_sub(used), cap)).min()
    }
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

impl SessionStatus {
    /// The paths that carry data.
    pub fn usable(&self) -> impl Iterator<Item = &PathStatusReport> {
        self.paths.iter().filter(|path| path.status == PathStatus::Usable)
    }

    /// The usable path with the least loss, of several the one with the shortest round trip.
    pub fn best(&self) -> Option<&PathStatusReport> {
        self.usable().min_by(|a, b| fares(a, b))
    }

    /// The order of sessions that fare worst first: without a usable path, by the loss of the best
    /// path, by its round trip, by name.
    pub fn worst_first(&self, other: &Self) -> Ordering {
        let order = match (self.best(), other.best()) {
            (Some(own), Some(others)) => fares(others, own),
            (own, others) => own.is_some().cmp(&others.is_some()),
        };
        order.then_with(|| self.peer.cmp(&other.peer))
    }
}

fn fares(a: &PathStatusReport, b: &PathStatusReport) -> Ordering {
    a.loss.total_cmp(&b.loss).then(a.smoothed_rtt_ms.total_cmp(&b.smoothed_rtt_ms))
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
        redundancy_left_bytes: path.policy.redundancy_percent.map(|_| path.redundancy_left),
        round_trips: connection.round_trips(path.id).unwrap_or_default(),
        counters: connection.path_stats(path.id).unwrap_or_default(),
        ..PathStatusReport::default()
    };
    connection.paths().iter().map(report).collect()
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}
