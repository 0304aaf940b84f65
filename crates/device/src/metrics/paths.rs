//! The paths and lanes of a client or a router as OpenMetrics.
//!
//! Paths count from the beginning of their session: a reader of counters sees a new session as a
//! restart, as it sees that of a program.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use roadweave_proto::{Delays, PathStatus};
use roadweave_tunnel::{LaneStats, LinkStatus, PathStatusReport};

use super::text::{Family, counters, gauges, histograms, one};
use super::uplinks::uplinks;
use crate::status::{ClientStatus, RouterRoleStatus};

/// The figures of a path of a client or a router.
#[derive(Default)]
struct Path<'a> {
    number: String,
    interface: &'a str,
    is_usable: bool,
    bytes: [u64; 2],
    packets: [u64; 2],
    lost: u64,
    round_trip_ms: Option<f64>,
    round_trips: Delays,
    loss: Option<f64>,
    pacing_bps: Option<u64>,
    day_bytes: Option<u64>,
    daily_cap_bytes: Option<u64>,
    month_bytes: Option<u64>,
    monthly_cap_bytes: Option<u64>,
}

impl<'a> Path<'a> {
    fn of_client(path: &'a PathStatusReport) -> Self {
        let counters = &path.counters;
        Self {
            number: path.id.to_string(),
            interface: path.uplink.as_deref().unwrap_or_default(),
            is_usable: path.status == PathStatus::Usable,
            bytes: [counters.bytes_sent, counters.bytes_received],
            packets: [counters.packets_sent, counters.packets_received],
            lost: counters.datagrams_lost,
            round_trip_ms: Some(path.smoothed_rtt_ms),
            round_trips: path.round_trips,
            loss: Some(path.loss.into()),
            pacing_bps: path.pacing_rate_bps,
            day_bytes: path.day_bytes,
            daily_cap_bytes: path.daily_cap_bytes,
            month_bytes: path.month_bytes,
            monthly_cap_bytes: path.monthly_cap_bytes,
        }
    }

    fn of_router(link: &'a LinkStatus) -> Self {
        let counters = &link.counters;
        Self {
            number: link.id.to_string(),
            interface: &link.uplink,
            is_usable: link.status == PathStatus::Usable,
            bytes: [counters.bytes_sent, counters.bytes_received],
            packets: [counters.packets_sent, counters.packets_received],
            lost: link.lost,
            round_trip_ms: link.smoothed_rtt_ms,
            round_trips: link.round_trips,
            ..Self::default()
        }
    }
}

/// The figures of a client.
pub(super) fn of_client(out: &mut DescriptorEncoder<'_>, role: &ClientStatus) -> fmt::Result {
    up(out, !role.sessions.is_empty())?;
    let all: Vec<_> = role.sessions.iter().flat_map(|it| &it.paths).map(Path::of_client).collect();
    paths(out, &all)?;
    uplinks(out, role)?;
    lanes(out, role.sessions.first().map_or(&[][..], |session| &session.stats.lanes[..]))
}

/// The figures of a router; its session is up while a link answers.
pub(super) fn of_router(out: &mut DescriptorEncoder<'_>, role: &RouterRoleStatus) -> fmt::Result {
    let links = role.sessions.iter().flat_map(|session| &session.status.paths);
    let all: Vec<_> = links.map(Path::of_router).collect();
    up(out, all.iter().any(|path| path.is_usable))?;
    paths(out, &all)?;
    lanes(out, role.sessions.first().map_or(&[][..], |session| &session.status.stats.lanes[..]))
}

fn up(out: &mut DescriptorEncoder<'_>, is_up: bool) -> fmt::Result {
    let value = f64::from(u8::from(is_up));
    one(out, ("session_up", "1 while there is a session", None), &ConstGauge::new(value))
}

fn paths(out: &mut DescriptorEncoder<'_>, paths: &[Path<'_>]) -> fmt::Result {
    let mut count = |family: Family<'_>, figure: fn(&Path<'_>) -> u64| {
        counters(out, family, paths.iter().map(|path| (labels(path), figure(path))))
    };
    let bytes = Some(&Unit::Bytes);
    count(("path_tx", "UDP payload sent by a path", bytes), |path| path.bytes[0])?;
    count(("path_rx", "UDP payload received by a path", bytes), |path| path.bytes[1])?;
    count(("path_tx_packets", "Packets sent by a path", None), |path| path.packets[0])?;
    count(("path_rx_packets", "Packets received by a path", None), |path| path.packets[1])?;
    let help = "Packets that the path lost: of a client those it sent, of a router its peer's";
    count(("path_lost_packets", help, None), |path| path.lost)?;
    let mut gauge = |family: Family<'_>, figure: fn(&Path<'_>) -> Option<f64>| {
        let told = paths.iter().filter_map(|path| Some((labels(path), figure(path)?)));
        gauges(out, family, told)
    };
    let usable = |path: &Path<'_>| Some(f64::from(u8::from(path.is_usable)));
    gauge(("path_usable", "1 while the path answers and carries data", None), usable)?;
    let help = "The smoothed round-trip time of a path";
    let round_trip = |path: &Path<'_>| path.round_trip_ms.map(|ms| ms / 1e3);
    gauge(("path_smoothed_round_trip", help, Some(&Unit::Seconds)), round_trip)?;
    let help = "The share of a path's packets that were lost of late";
    gauge(("path_loss", help, Some(&Unit::Ratios)), |path| path.loss)?;
    let help = "Bytes a second that the pacer of a path lets go";
    let pacing = |path: &Path<'_>| path.pacing_bps.map(|bps| bps as f64 / 8.0);
    gauge(("path_pacing_bytes_per_second", help, None), pacing)?;
    let mut carried = |name, help, figure: fn(&Path<'_>) -> Option<u64>| {
        let told = paths.iter().filter_map(|path| Some((labels(path), figure(path)? as f64)));
        gauges(out, (name, help, bytes), told)
    };
    let help = "What an interface with a cap has carried today";
    carried("path_day", help, |path| path.day_bytes)?;
    let help = "What an interface may carry in a day";
    carried("path_day_cap", help, |path| path.daily_cap_bytes)?;
    let help = "What an interface with a cap has carried since its billing day";
    carried("path_month", help, |path| path.month_bytes)?;
    let help = "What an interface may carry in a month";
    carried("path_month_cap", help, |path| path.monthly_cap_bytes)?;
    let help =
        "Round-trip times of a path, one for each acknowledgement, of a router for each hello";
    let all = paths.iter().map(|path| (labels(path), path.round_trips));
    histograms(out, ("path_sampled_round_trip", help), all)
}

fn labels<'a>(path: &'a Path<'_>) -> [(&'static str, &'a str); 2] {
    [("path", &path.number), ("interface", path.interface)]
}

fn lanes(out: &mut DescriptorEncoder<'_>, lanes: &[LaneStats]) -> fmt::Result {
    let mut count = |name: &str, help: &str, figure: fn(&LaneStats) -> u64| {
        let all = lanes.iter().map(|lane| ([("lane", lane.name.as_str())], figure(lane)));
        counters(out, (name, help, None), all)
    };
    let help = "Inner packets that a lane took to send";
    count("lane_tx_packets", help, |lane| lane.sent.inner_packets)?;
    let help = "Inner packets that a lane delivered";
    count("lane_rx_packets", help, |lane| lane.received.delivered_packets)?;
    let help = "Inner packets that a lane delivered by a repair only";
    count("lane_recovered_packets", help, |lane| lane.received.recovered)?;
    let help = "How much longer inner packets took than the quickest of late";
    let delays = lanes.iter().filter(|lane| !lane.received.excess_delays.is_empty());
    let delays = delays.map(|lane| ([("lane", lane.name.as_str())], lane.received.excess_delays));
    histograms(out, ("lane_excess_delay", help), delays)
}
