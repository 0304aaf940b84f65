//! A status as OpenMetrics text: `roadweave_...`, in base units.
//!
//! What grows is a counter only if it never shrinks: sums over sessions, which end, are none.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode as encode_text;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use roadweave_proto::{Delays, DropReason};
use roadweave_tunnel::{LegStatus, TenantStats, Totals};

use super::load::Used;
use super::paths;
use crate::status::{DeviceCounters, RoleStatus, ShardStatus, Status};

/// The figures of `status`, of which no session needs to be told.
pub(super) fn encode(status: Status, used: Used) -> String {
    let mut registry = Registry::with_prefix("roadweave");
    registry.register_collector(Box::new(Figures { status, used }));
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = encode_text(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Figures {
    status: Status,
    used: Used,
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self { status, used } = self;
        let out = &mut encoder;
        let build = [("version", status.version.as_str()), ("role", status.role.name())];
        let help = "1, with the version and the role";
        each(out, ("build_info", help, None), [(build, ConstGauge::new(1_u64))])?;
        let up = ConstGauge::new(status.uptime_seconds);
        one(out, ("uptime", "For how long it runs", Some(&Unit::Seconds)), &up)?;
        let help = "Processor time that the program has used";
        let processor = ConstCounter::new(used.processor.as_secs_f64());
        one(out, ("processor", help, Some(&Unit::Seconds)), &processor)?;
        let help = "The share of one core that the program has used of late";
        one(out, ("load", help, Some(&Unit::Ratios)), &ConstGauge::new(used.share))?;
        let help = "Log lines that could not be written";
        one(out, ("log_lines_lost", help, None), &ConstCounter::new(status.log.lines_lost))?;
        let drops = status.drops.iter();
        let drops = drops.map(|(reason, count)| ([("reason", reason.name())], count));
        counters(out, ("drops", "Inner packets discarded, by reason", None), drops)?;
        if !status.tun.is_empty() {
            device(out, &status.device)?;
        }
        match &status.role {
            RoleStatus::Server(role) => {
                totals(out, &role.totals, role.memory_bytes)?;
                shards(out, &role.shards)?;
                refusals(out, &role.refusals)
            }
            RoleStatus::Proxy(role) => {
                totals(out, &role.totals, role.memory_bytes)?;
                refusals(out, &role.refusals)?;
                tenants(out, &role.passing.tenants)?;
                legs(out, role.passing.legs.iter().map(|leg| (leg.public_key.as_str(), leg)))
            }
            RoleStatus::Anchor(role) => {
                refusals(out, &role.passing.refusals)?;
                tenants(out, &role.passing.tenants)?;
                // A proxy that has come again has two legs for a while: the later counts.
                let newest: BTreeMap<_, _> =
                    role.passing.legs.iter().map(|(name, leg)| (name.as_str(), leg)).collect();
                legs(out, newest.iter().map(|(name, leg)| (*name, *leg)))
            }
            RoleStatus::Client(role) => paths::of_client(out, role),
            RoleStatus::Router(role) => paths::of_router(out, role),
        }
    }
}

fn device(out: &mut DescriptorEncoder<'_>, device: &DeviceCounters) -> fmt::Result {
    let both =
        |read, written| [([("direction", "read")], read), ([("direction", "written")], written)];
    let packets = both(device.packets_read, device.packets_written);
    counters(out, ("device_packets", "Inner packets through the TUN device", None), packets)?;
    let help = "Bytes of the inner packets through the TUN device";
    let bytes = both(device.bytes_read, device.bytes_written);
    counters(out, ("device", help, Some(&Unit::Bytes)), bytes)
}

fn totals(out: &mut DescriptorEncoder<'_>, totals: &Totals, memory_bytes: u64) -> fmt::Result {
    let help = "Clients with a session";
    one(out, ("sessions", help, None), &ConstGauge::new(totals.sessions))?;
    let help = "Clients that stand by";
    one(out, ("standbys", help, None), &ConstGauge::new(totals.standbys))?;
    let help = "1 while it takes no new clients and lets go those that it has";
    one(out, ("draining", help, None), &ConstGauge::new(u64::from(totals.draining)))?;
    let help = "What all sessions hold";
    one(out, ("memory", help, Some(&Unit::Bytes)), &ConstGauge::new(memory_bytes))?;
    let paths = totals.paths.iter();
    let paths = paths.map(|(status, count)| ([("status", status.name())], *count as f64));
    gauges(out, ("paths", "Paths of all sessions, by what they may carry", None), paths)?;
    let quantiles = totals.round_trips.iter().flat_map(|all| {
        [("0.5", all.p50_ms), ("0.9", all.p90_ms), ("0.99", all.p99_ms)]
            .map(|(share, ms)| ([("quantile", share)], ms / 1e3))
    });
    let help = "Smoothed round-trip times of the usable paths";
    gauges(out, ("path_round_trip", help, Some(&Unit::Seconds)), quantiles)
}

fn shards(out: &mut DescriptorEncoder<'_>, shards: &[ShardStatus]) -> fmt::Result {
    let numbers: Vec<String> = (0..shards.len()).map(|number| number.to_string()).collect();
    let all = |figure: fn(&ShardStatus) -> u64| {
        let labels = numbers.iter().map(|number| [("shard", number.as_str())]);
        labels.zip(shards.iter().map(figure))
    };
    let help = "How often a shard has failed and begun anew";
    counters(out, ("shard_failures", help, None), all(|shard| shard.failures))?;
    let help = "Packets that came to a shard, were another's, and were handed over";
    counters(out, ("shard_handed_over", help, None), all(|shard| shard.handed_over))
}

fn refusals(out: &mut DescriptorEncoder<'_>, refusals: &BTreeMap<String, u64>) -> fmt::Result {
    let kinds = refusals.iter().map(|(kind, count)| ([("kind", kind.as_str())], *count));
    counters(out, ("refusals", "Who was not let in, by kind", None), kinds)
}

fn tenants(
    out: &mut DescriptorEncoder<'_>,
    tenants: &BTreeMap<String, TenantStats>,
) -> fmt::Result {
    let both = |up: fn(&TenantStats) -> u64, down: fn(&TenantStats) -> u64| {
        tenants.iter().flat_map(move |(tenant, stats)| {
            [("up", up(stats)), ("down", down(stats))].map(|(direction, count)| {
                ([("tenant", tenant.as_str()), ("direction", direction)], count)
            })
        })
    };
    let packets = both(|stats| stats.packets_up, |stats| stats.packets_down);
    counters(out, ("tenant_packets", "Inner packets that passed, by tenant", None), packets)?;
    let bytes = both(|stats| stats.bytes_up, |stats| stats.bytes_down);
    let help = "Bytes of the inner packets that passed, by tenant";
    counters(out, ("tenant", help, Some(&Unit::Bytes)), bytes)?;
    let drops = tenants.iter().flat_map(|(tenant, stats)| {
        let labels = |reason: DropReason| [("tenant", tenant.as_str()), ("reason", reason.name())];
        stats.drops.iter().map(move |(reason, count)| (labels(reason), count))
    });
    let help = "Inner packets discarded, by tenant and reason";
    counters(out, ("tenant_drops", help, None), drops)
}

/// Legs with the names of their other ends.
fn legs<'a>(
    out: &mut DescriptorEncoder<'_>,
    legs: impl Iterator<Item = (&'a str, &'a LegStatus)> + Clone,
) -> fmt::Result {
    let all = |figure: fn(&LegStatus) -> f64| {
        legs.clone().map(move |(peer, leg)| ([("peer", peer)], figure(leg)))
    };
    let is_up = all(|leg| f64::from(u8::from(leg.is_up)));
    gauges(out, ("leg_up", "1 while the leg is up and answers", None), is_up)?;
    let help = "The smoothed round-trip time of a leg";
    let round_trips = all(|leg| leg.smoothed_rtt_ms / 1e3);
    gauges(out, ("leg_round_trip", help, Some(&Unit::Seconds)), round_trips)?;
    let help = "The share of a leg's datagrams that the network has lost of late";
    gauges(out, ("leg_loss", help, Some(&Unit::Ratios)), all(|leg| f64::from(leg.loss)))?;
    let attachments = all(|leg| leg.attachments as f64);
    gauges(out, ("leg_attachments", "Clients attached by a leg", None), attachments)
}

/// A family's name without prefix and unit, its help, and its unit.
pub(super) type Family<'a> = (&'a str, &'a str, Option<&'a Unit>);
/// What tells one of a family from another.
pub(super) type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

pub(super) fn gauges<'a, const N: usize>(
    out: &mut DescriptorEncoder<'_>,
    family: Family<'_>,
    values: impl IntoIterator<Item = (Labels<'a, N>, f64)>,
) -> fmt::Result {
    each(out, family, values.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value))))
}

pub(super) fn counters<'a, const N: usize>(
    out: &mut DescriptorEncoder<'_>,
    family: Family<'_>,
    values: impl IntoIterator<Item = (Labels<'a, N>, u64)>,
) -> fmt::Result {
    each(out, family, values.into_iter().map(|(labels, value)| (labels, ConstCounter::new(value))))
}

/// Delays as a histogram in seconds.
pub(super) fn histograms<'a, const N: usize>(
    out: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    values: impl IntoIterator<Item = (Labels<'a, N>, Delays)>,
) -> fmt::Result {
    let values = values.into_iter().map(|(labels, delays)| (labels, Histogram(delays)));
    each(out, (name, help, Some(&Unit::Seconds)), values)
}

/// What is counted already, where the library's own histogram counts itself.
struct Histogram(Delays);

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let buckets: Vec<(f64, u64)> = self.0.buckets().collect();
        let (sum, count) = (self.0.sum_seconds(), self.0.count());
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

pub(super) fn one(
    out: &mut DescriptorEncoder<'_>,
    (name, help, unit): Family<'_>,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(out.encode_descriptor(name, help, unit, metric.metric_type())?)
}

/// A family without members is left out.
fn each<'a, M: EncodeMetric, const N: usize>(
    out: &mut DescriptorEncoder<'_>,
    (name, help, unit): Family<'_>,
    members: impl IntoIterator<Item = (Labels<'a, N>, M)>,
) -> fmt::Result {
    let mut members = members.into_iter().peekable();
    let Some((_, first)) = members.peek() else { return Ok(()) };
    let mut family = out.encode_descriptor(name, help, unit, first.metric_type())?;
    for (labels, metric) in members {
        metric.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use roadweave_proto::{DropCounters, PathStatus};
    use roadweave_tunnel::{LaneStats, ProxyStatus, RoundTrips, SessionStats};

    use super::*;
    use crate::status::{LogCounters, ProxyRoleStatus, ServerStatus};

    #[test]
    fn the_figures_of_a_proxy_are_open_metrics() {
        let mut drops = DropCounters::default();
        drops.add(DropReason::NoSession, 3);
        let tenant = TenantStats {
            packets_up: 5,
            bytes_up: 700,
            drops: drops.clone(),
            ..Default::default()
        };
        let leg = LegStatus {
            public_key: "key\"\n".to_owned(),
            is_up: true,
            smoothed_rtt_ms: 12.5,
            ..Default::default()
        };
        let passing =
            ProxyStatus { legs: vec![leg], tenants: [("acme".to_owned(), tenant)].into() };
        let totals = Totals {
            sessions: 2,
            draining: true,
            paths: [(PathStatus::Usable, 4)].into(),
            round_trips: Some(RoundTrips { p50_ms: 40.0, p90_ms: 60.0, p99_ms: 80.0 }),
            ..Default::default()
        };
        let role = ProxyRoleStatus { totals, passing, ..Default::default() };
        let status = Status { drops, tun: String::new(), ..status(RoleStatus::Proxy(role)) };
        let text = encode(status, Used { processor: Duration::from_millis(1_500), share: 0.25 });
        for line in [
            "roadweave_build_info{version=\"1.2.3\",role=\"proxy\"} 1",
            "# TYPE roadweave_uptime_seconds gauge",
            "roadweave_uptime_seconds 12.5",
            "roadweave_processor_seconds_total 1.5",
            "roadweave_load_ratios 0.25",
            "roadweave_drops_total{reason=\"no-session\"} 3",
            "roadweave_sessions 2",
            "roadweave_draining 1",
            "roadweave_paths{status=\"usable\"} 4.0",
            "roadweave_path_round_trip_seconds{quantile=\"0.99\"} 0.08",
            "roadweave_tenant_bytes_total{tenant=\"acme\",direction=\"up\"} 700",
            "roadweave_tenant_drops_total{tenant=\"acme\",reason=\"no-session\"} 3",
            "roadweave_leg_up{peer=\"key\\\"\\n\"} 1.0",
            "roadweave_leg_round_trip_seconds{peer=\"key\\\"\\n\"} 0.0125",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
        assert!(!text.contains("device"), "a proxy has none");
        assert!(!text.contains("refusals"), "there were none");
    }

    /// What is told of an instance in this role.
    fn status(role: RoleStatus) -> Status {
        Status {
            name: "[::]:4433".to_owned(),
            version: "1.2.3".to_owned(),
            uptime_seconds: 12.5,
            tun: "rw0".to_owned(),
            device: DeviceCounters::default(),
            log: LogCounters::default(),
            drops: DropCounters::default(),
            fleet: None,
            role,
        }
    }

    fn delays(ms: &[u64]) -> Delays {
        let mut delays = Delays::default();
        ms.iter().for_each(|ms| delays.add(Duration::from_millis(*ms)));
        delays
    }

    /// A client with a path over an interface with a cap.
    fn client() -> Status {
        let mut counters = roadweave_quic::PathStats::default();
        (counters.bytes_sent, counters.datagrams_lost) = (2_500_000, 4);
        let path = roadweave_tunnel::PathStatusReport {
            id: 2,
            uplink: Some("wwan\"0".to_owned()),
            remote: None,
            status: PathStatus::Usable,
            smoothed_rtt_ms: 61.5,
            min_rtt_ms: 60.0,
            rtt_deviation_ms: 1.0,
            loss: 0.25,
            congestion_window_bytes: 0,
            bytes_in_flight: 0,
            pacing_rate_bps: Some(8_000),
            mtu_bytes: 1_200,
            ecn: roadweave_quic::EcnMarking::Marked,
            priority: roadweave_proto::Priority::Primary,
            weight: 7,
            rate_limit_bps: None,
            day_bytes: Some(30),
            daily_cap_bytes: Some(40),
            month_bytes: Some(50),
            monthly_cap_bytes: Some(60),
            redundancy_left_bytes: None,
            round_trips: delays(&[4, 61, 62, 2_500]),
            counters,
        };
        let mut lane = LaneStats { name: "real-time".to_owned(), ..LaneStats::default() };
        lane.received.excess_delays = delays(&[0, 8, 120]);
        let session = roadweave_tunnel::SessionStatus {
            peer: "192.0.2.1:4433".to_owned(),
            public_key: String::new(),
            addresses: Vec::new(),
            paths: vec![path],
            stats: SessionStats { lanes: vec![lane], ..SessionStats::default() },
        };
        let uplink = roadweave_tunnel::UplinkReport {
            name: "wlan0".to_owned(),
            heard: false,
            rank: 0,
            portal: Some(roadweave_tunnel::Portal::default()),
            servers: Vec::new(),
        };
        let (sessions, uplinks) = (vec![session], vec![uplink]);
        let facts = crate::ModemFacts {
            operator: Some("Some \"Operator\"".to_owned()),
            rsrp_dbm: Some(-95.5),
            ..Default::default()
        };
        let modems = [("wwan0".to_owned(), facts)].into();
        let role = crate::status::ClientStatus { sessions, uplinks, modems, ..Default::default() };
        status(RoleStatus::Client(role))
    }

    /// A server with two shards.
    fn server() -> Status {
        let shard = |failures| ShardStatus { failures, handed_over: 9, ..ShardStatus::default() };
        let role = ServerStatus { shards: vec![shard(0), shard(2)], ..ServerStatus::default() };
        let mut drops = DropCounters::default();
        drops.add(DropReason::NoSession, 3);
        Status { drops, ..status(RoleStatus::Server(role)) }
    }

    const IDLE: Used = Used { processor: Duration::ZERO, share: 0.0 };

    #[test]
    fn a_client_tells_of_each_path_with_its_interface() {
        let mut status = client();
        let text = encode(status.clone(), IDLE);
        let labels = "{path=\"2\",interface=\"wwan\\\"0\"}";
        for line in [
            "roadweave_session_up 1.0".to_owned(),
            "roadweave_uplink_portal{uplink=\"wlan0\"} 1.0".to_owned(),
            "roadweave_uplink_rsrp_dbm{uplink=\"wwan0\"} -95.5".to_owned(),
            "roadweave_uplink_modem_info{uplink=\"wwan0\",operator=\"Some \\\"Operator\\\"\",\
             technology=\"\",apn=\"\"} 1.0"
                .to_owned(),
            format!("roadweave_path_tx_bytes_total{labels} 2500000"),
            format!("roadweave_path_lost_packets_total{labels} 4"),
            format!("roadweave_path_usable{labels} 1.0"),
            format!("roadweave_path_smoothed_round_trip_seconds{labels} 0.0615"),
            format!("roadweave_path_loss_ratios{labels} 0.25"),
            format!("roadweave_path_pacing_bytes_per_second{labels} 1000.0"),
            format!("roadweave_path_day_bytes{labels} 30.0"),
            format!("roadweave_path_day_cap_bytes{labels} 40.0"),
            format!("roadweave_path_month_bytes{labels} 50.0"),
            format!("roadweave_path_month_cap_bytes{labels} 60.0"),
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
        if let RoleStatus::Client(role) = &mut status.role {
            let path = &mut role.sessions[0].paths[0];
            (path.day_bytes, path.daily_cap_bytes) = (None, None);
            (path.month_bytes, path.monthly_cap_bytes) = (None, None);
        }
        let text = encode(status, IDLE);
        assert!(!text.contains("month") && !text.contains("_day_"), "it has no cap");
    }

    #[test]
    fn delays_are_histograms_whose_buckets_hold_those_before() {
        let mut status = client();
        let text = encode(status.clone(), IDLE);
        let path = "path=\"2\",interface=\"wwan\\\"0\"";
        let of_path = |bound: &str| format!("_bucket{{le=\"{bound}\",{path}}}");
        for (line, value) in [
            (of_path("0.005"), "1"),
            (of_path("0.05"), "1"),
            (of_path("0.075"), "3"),
            (of_path("2.0"), "3"),
            (of_path("+Inf"), "4"),
            (format!("_count{{{path}}}"), "4"),
            (format!("_sum{{{path}}}"), "2.627"),
        ] {
            let line = format!("roadweave_path_sampled_round_trip_seconds{line} {value}");
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
        for (bound, value) in [("0.005", 1), ("0.01", 2), ("0.1", 2), ("0.15", 3), ("+Inf", 3)] {
            let labels = format!("le=\"{bound}\",lane=\"real-time\"");
            let line = format!("roadweave_lane_excess_delay_seconds_bucket{{{labels}}} {value}");
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
        if let RoleStatus::Client(role) = &mut status.role {
            role.sessions[0].stats.lanes[0].received.excess_delays = Delays::default();
        }
        assert!(!encode(status, IDLE).contains("excess_delay"), "its packets tell no times");
    }

    #[test]
    fn each_shard_of_a_server_has_figures_of_its_own() {
        let text = encode(server(), IDLE);
        for line in [
            "roadweave_shard_failures_total{shard=\"0\"} 0",
            "roadweave_shard_failures_total{shard=\"1\"} 2",
            "roadweave_shard_handed_over_total{shard=\"1\"} 9",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
    }

    /// Whoever renames a figure would otherwise leave empty plots and silent alerts.
    #[test]
    fn the_board_and_the_alerts_ask_for_figures_that_there_are() {
        let told = encode(client(), IDLE) + &encode(server(), IDLE);
        let names: BTreeSet<&str> = names(&told).collect();
        let files = [
            include_str!("../../../../deploy/prometheus/roadweave.grafana.json"),
            include_str!("../../../../deploy/prometheus/roadweave.rules.yml"),
        ];
        for file in files {
            let asked: BTreeSet<&str> = self::names(file).collect();
            assert!(asked.len() > 5, "{asked:?}");
            assert!(asked.is_subset(&names), "{:?}", asked.difference(&names));
        }
    }

    /// The words of `text` that are names of figures.
    fn names(text: &str) -> impl Iterator<Item = &str> {
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        words.filter(|word| word.starts_with("roadweave_"))
    }
}
