//! A status as OpenMetrics text: `roadweave_...`, in base units.
//!
//! A figure is a counter only if it never decreases. Sums over sessions are gauges, since sessions
//! end.

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

/// The metrics of `status`, which may leave out the sessions.
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
/// The labels that distinguish the metrics of a family.
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

    /// A figure with a new name leaves empty plots and silent alerts.
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

    /// The words of `text` that are names of figures.
    fn names(text: &str) -> impl Iterator<Item = &str> {
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        words.filter(|word| word.starts_with("roadweave_"))
    }
}
