//! A status as OpenMetrics text: `roadweave_...`, in base units. Only what never decreases is a
//! counter; sums over sessions are gauges. Paths restart their counters with their session.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode as encode_text;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use roadweave_proto::PathStatus;
use roadweave_tunnel::{
    Figure, LaneStats, LegStatus, Metric, PathStatusReport, SessionStats, TenantStats, Totals,
    count, delays, flag, gauge, metrics,
};

use super::load::Used;
use crate::modem::ModemFacts;
use crate::status::{ClientStatus, RoleStatus, RouterRoleStatus, ShardStatus, Status};

const INSTANCE: &[Metric<InstanceMetrics>] = metrics![
    "uptime" "seconds" "Time since the program started" |it| gauge(it.status.uptime_seconds),
    "processor" "seconds" "Processor time that the program has used"
        |it| Some(Figure::Time(it.used.processor.as_secs_f64())),
    "load" "ratios" "The share of one core that the program used recently"
        |it| gauge(it.used.share),
    "log_lines_lost" "" "Log lines that could not be written"
        |it| count(it.status.log.lines_lost),
];

const DEVICE: &[Metric<[u64; 2]>] = metrics![
    "device_packets" "" "Inner packets through the TUN device" |it| count(it[0]),
    "device" "bytes" "Bytes of the inner packets through the TUN device" |it| count(it[1]),
];

const TENANT: &[Metric<[u64; 2]>] = metrics![
    "tenant_packets" "" "Inner packets that passed, by tenant" |it| count(it[0]),
    "tenant" "bytes" "Bytes of the inner packets that passed, by tenant" |it| count(it[1]),
];

const TOTALS: &[Metric<Totals>] = metrics![
    "sessions" "" "Clients with a session" |it| Some(Figure::Level(it.sessions)),
    "standbys" "" "Standby connections of clients" |it| Some(Figure::Level(it.standbys)),
    "draining" ""
        "1 while draining: no new clients are accepted, and the current ones are moved away"
        |it| Some(Figure::Level(it.draining.into())),
];

const LANE: &[Metric<LaneStats>] = metrics![
    "lane_tx_packets" "" "Inner packets that a lane took to send"
        |it| count(it.sent.inner_packets),
    "lane_rx_packets" "" "Inner packets that a lane delivered"
        |it| count(it.received.delivered_packets),
    "lane_recovered_packets" "" "Inner packets that a lane delivered only thanks to a repair"
        |it| count(it.received.recovered),
    "lane_excess_delay" "seconds" "How much longer inner packets took than the quickest recent one"
        |it| delays(it.received.excess_delays),
];

const LEG: &[Metric<LegStatus>] = metrics![
    "leg_up" "" "1 while the leg is up and answers" |it| flag(it.is_up),
    "leg_round_trip" "seconds" "The smoothed round-trip time of a leg"
        |it| gauge(it.smoothed_rtt_ms / 1e3),
    "leg_loss" "ratios" "The share of a leg's datagrams that the network lost recently"
        |it| gauge(it.loss.into()),
    "leg_attachments" "" "Clients attached through a leg" |it| gauge(it.attachments as f64),
];

const MODEM: &[Metric<ModemFacts>] = metrics![
    "uplink_rsrp_dbm" "" "The power of a modem's reference signal" |it| gauge(it.rsrp_dbm?),
    "uplink_rsrq_db" "" "The quality of a modem's reference signal" |it| gauge(it.rsrq_db?),
    "uplink_sinr_db" "" "A modem's signal above noise and interference" |it| gauge(it.sinr_db?),
    "uplink_rssi_dbm" "" "The total power that an uplink receives" |it| gauge(it.rssi_dbm?),
];

const SHARD: &[Metric<ShardStatus>] = metrics![
    "shard_failures" "" "How often a shard failed and restarted" |it| count(it.failures),
    "shard_handed_over" "" "Packets that arrived at the wrong shard and were passed to their own"
        |it| count(it.handed_over),
];

/// The metrics of paths that links of a router have too.
const OF_LINKS: &str = "path_tx path_rx path_tx_packets path_rx_packets path_lost_packets \
    path_usable path_smoothed_round_trip path_sampled_round_trip";

pub(super) fn encode(status: Status, used: Used) -> String {
    let mut registry = Registry::with_prefix("roadweave");
    registry.register_collector(Box::new(InstanceMetrics { status, used }));
    let mut text = String::new();
    let _ = encode_text(&mut text, &registry);
    text
}

#[derive(Debug)]
struct InstanceMetrics {
    status: Status,
    used: Used,
}

impl Collector for InstanceMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = &self.status;
        let mut out = Out(encoder);
        let build = [("version", status.version.as_str()), ("role", status.role.name())];
        let about = ("build_info", "", "1, with the version and the role");
        out.each(about, [(build, Figure::Level(1))])?;
        out.all(INSTANCE, [([], self)])?;
        let drops = status.drops.iter();
        let drops =
            drops.map(|(reason, times)| ([("reason", reason.name())], Figure::Count(times)));
        out.each(("drops", "", "Inner packets discarded, by reason"), drops)?;
        if !status.tun.is_empty() {
            let (read, written) = ([("direction", "read")], [("direction", "written")]);
            let it = &status.device;
            let both = [[it.packets_read, it.bytes_read], [it.packets_written, it.bytes_written]];
            out.all(DEVICE, [(read, &both[0]), (written, &both[1])])?;
        }
        match &status.role {
            RoleStatus::Server(role) => {
                out.totals(&role.totals, role.memory_bytes)?;
                let numbers: Vec<_> = (0..role.shards.len()).map(|it| it.to_string()).collect();
                let shards = numbers.iter().map(|number| [("shard", number.as_str())]);
                out.all(SHARD, shards.zip(&role.shards))?;
                out.refusals(&role.refusals)
            }
            RoleStatus::Proxy(role) => {
                out.totals(&role.totals, role.memory_bytes)?;
                out.refusals(&role.refusals)?;
                out.tenants(&role.passing.tenants)?;
                let legs = role.passing.legs.iter();
                out.all(LEG, legs.map(|leg| ([("peer", leg.public_key.as_str())], leg)))
            }
            RoleStatus::Anchor(role) => {
                out.refusals(&role.passing.refusals)?;
                out.tenants(&role.passing.tenants)?;
                // A proxy that has come again has two legs for a while: the later counts.
                let legs: BTreeMap<_, _> =
                    role.passing.legs.iter().map(|(name, leg)| (name.as_str(), leg)).collect();
                out.all(LEG, legs.iter().map(|(name, leg)| ([("peer", *name)], *leg)))
            }
            RoleStatus::Client(role) => {
                out.session(!role.sessions.is_empty(), role.paths().cloned().collect(), |_| true)?;
                out.uplinks(role)?;
                out.lanes(role.sessions.first().map(|session| &session.stats))
            }
            RoleStatus::Router(RouterRoleStatus { sessions, .. }) => {
                let links = sessions.iter().flat_map(|session| &session.status.paths);
                let links: Vec<_> = links.map(PathStatusReport::from).collect();
                let is_up = links.iter().any(|link| link.status == PathStatus::Usable);
                out.session(is_up, links, |name| OF_LINKS.split(' ').any(|it| it == name))?;
                out.lanes(sessions.first().map(|session| &session.status.stats))
            }
        }
    }
}

type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    fn totals(&mut self, totals: &Totals, memory_bytes: u64) -> fmt::Result {
        self.all(TOTALS, [([], totals)])?;
        let about = ("memory", "bytes", "Memory that all sessions hold");
        self.each(about, [([], Figure::Level(memory_bytes))])?;
        let paths = totals.paths.iter();
        let paths = paths
            .map(|(status, count)| ([("status", status.name())], Figure::Gauge(*count as f64)));
        self.each(("paths", "", "Paths of all sessions, by status"), paths)?;
        let quantiles = totals.round_trips.iter().flat_map(|all| {
            [("0.5", all.p50_ms), ("0.9", all.p90_ms), ("0.99", all.p99_ms)]
                .map(|(share, ms)| ([("quantile", share)], Figure::Gauge(ms / 1e3)))
        });
        let help = "Smoothed round-trip times of the usable paths";
        self.each(("path_round_trip", "seconds", help), quantiles)
    }

    fn refusals(&mut self, refusals: &BTreeMap<String, u64>) -> fmt::Result {
        let kinds = refusals.iter();
        let kinds = kinds.map(|(kind, times)| ([("kind", kind.as_str())], Figure::Count(*times)));
        self.each(("refusals", "", "Connections refused, by kind"), kinds)
    }

    fn tenants(&mut self, tenants: &BTreeMap<String, TenantStats>) -> fmt::Result {
        let carried = tenants.iter().flat_map(|(tenant, it)| {
            [("up", [it.packets_up, it.bytes_up]), ("down", [it.packets_down, it.bytes_down])].map(
                |(direction, it)| ([("tenant", tenant.as_str()), ("direction", direction)], it),
            )
        });
        let carried: Vec<_> = carried.collect();
        self.all(TENANT, carried.iter().map(|(labels, it)| (*labels, it)))?;
        let drops = tenants.iter().flat_map(|(tenant, it)| {
            it.drops.iter().map(move |(reason, times)| {
                ([("tenant", tenant.as_str()), ("reason", reason.name())], Figure::Count(times))
            })
        });
        self.each(("tenant_drops", "", "Inner packets discarded, by tenant and reason"), drops)
    }

    fn session(
        &mut self,
        is_up: bool,
        paths: Vec<PathStatusReport>,
        is_chosen: fn(&str) -> bool,
    ) -> fmt::Result {
        let about = ("session_up", "", "1 while there is a session");
        self.each(about, flag(is_up).map(|is_up| ([], is_up)))?;
        let numbers: Vec<_> = paths.iter().map(|path| path.id.to_string()).collect();
        let paths = numbers.iter().zip(&paths).map(|(number, path)| {
            let interface = path.uplink.as_deref().unwrap_or_default();
            ([("path", number.as_str()), ("interface", interface)], path)
        });
        self.all(PathStatusReport::METRICS.iter().filter(|it| is_chosen(it.0)), paths)
    }

    fn uplinks(&mut self, role: &ClientStatus) -> fmt::Result {
        let portals = role.uplinks.iter().filter_map(|uplink| {
            Some(([("uplink", uplink.name.as_str())], flag(uplink.portal.is_some())?))
        });
        let help = "1 while the network of an uplink requires a login";
        self.each(("uplink_portal", "", help), portals)?;
        let info = role.modems.iter().map(|(name, facts)| {
            let labels = [
                ("uplink", name.as_str()),
                ("operator", facts.operator.as_deref().unwrap_or_default()),
                ("technology", facts.technology.as_deref().unwrap_or_default()),
                ("apn", facts.apn.as_deref().unwrap_or_default()),
            ];
            (labels, Figure::Gauge(1.0))
        });
        self.each(("uplink_modem_info", "", "1, with what a modem is connected to"), info)?;
        let modems = role.modems.iter();
        self.all(MODEM, modems.map(|(name, facts)| ([("uplink", name.as_str())], facts)))
    }

    fn lanes(&mut self, stats: Option<&SessionStats>) -> fmt::Result {
        let lanes = stats.into_iter().flat_map(|stats| &stats.lanes);
        self.all(LANE, lanes.map(|lane| ([("lane", lane.name.as_str())], lane)))
    }

    fn all<'a, T: 'static, const N: usize>(
        &mut self,
        metrics: impl IntoIterator<Item = &'static Metric<T>>,
        things: impl IntoIterator<Item = (Labels<'a, N>, &'a T), IntoIter: Clone>,
    ) -> fmt::Result {
        let things = things.into_iter();
        for (name, unit, help, figure) in metrics {
            let members = things.clone().filter_map(|(labels, it)| Some((labels, figure(it)?)));
            self.each((name, unit, help), members)?;
        }
        Ok(())
    }

    fn each<'a, const N: usize>(
        &mut self,
        (name, unit, help): (&str, &str, &str),
        members: impl IntoIterator<Item = (Labels<'a, N>, Figure)>,
    ) -> fmt::Result {
        let mut members = members.into_iter().peekable();
        let Some((_, first)) = members.peek() else { return Ok(()) };
        let kind = match first {
            Figure::Count(_) | Figure::Time(_) => MetricType::Counter,
            Figure::Level(_) | Figure::Gauge(_) => MetricType::Gauge,
            Figure::Delays(_) => MetricType::Histogram,
        };
        let unit = (!unit.is_empty()).then(|| Unit::Other(unit.to_owned()));
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, figure) in members {
            match N {
                0 => write(&mut family, figure)?,
                _ => write(&mut family.encode_family(&labels)?, figure)?,
            }
        }
        Ok(())
    }
}

fn write(to: &mut MetricEncoder<'_>, figure: Figure) -> fmt::Result {
    match figure {
        Figure::Count(count) => to.encode_counter::<NoLabelSet, _, u64>(&count, None),
        Figure::Time(seconds) => to.encode_counter::<NoLabelSet, _, u64>(&seconds, None),
        Figure::Level(level) => to.encode_gauge(&level),
        Figure::Gauge(value) => to.encode_gauge(&value),
        Figure::Delays(delays) => {
            let buckets: Vec<_> = delays.buckets().collect();
            to.encode_histogram::<NoLabelSet>(delays.sum_seconds(), delays.count(), &buckets, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use roadweave_proto::Delays;

    use super::*;
    use crate::golden::assert_golden;
    use crate::status::examples::statuses;

    const USED: Used = Used { processor: Duration::from_millis(1_500), share: 0.25 };

    #[test]
    fn the_metrics_of_each_role_are_in_their_golden_file() {
        for status in statuses() {
            let name = format!("metrics-{}.txt", status.role.name());
            assert_golden(&name, &encode(status, USED));
        }
    }

    #[test]
    fn what_has_no_value_is_left_out() {
        for mut status in statuses() {
            status.tun.clear();
            match &mut status.role {
                RoleStatus::Client(role) => {
                    let session = &mut role.sessions[0];
                    session.stats.lanes[0].received.excess_delays = Delays::default();
                    let path = &mut session.paths[0];
                    (path.day_bytes, path.daily_cap_bytes) = (None, None);
                    (path.month_bytes, path.monthly_cap_bytes) = (None, None);
                }
                RoleStatus::Proxy(role) => role.refusals.clear(),
                _ => continue,
            }
            let text = encode(status, USED);
            for part in ["roadweave_device", "excess_delay", "_day_", "month", "refusals"] {
                assert!(!text.contains(part), "{part} is in\n{text}");
            }
        }
    }

    #[test]
    fn the_board_and_the_alerts_ask_for_figures_that_there_are() {
        let all: String = statuses().into_iter().map(|status| encode(status, USED)).collect();
        let names: BTreeSet<&str> = names(&all).collect();
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

    fn names(text: &str) -> impl Iterator<Item = &str> {
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        words.filter(|word| word.starts_with("roadweave_"))
    }
}
