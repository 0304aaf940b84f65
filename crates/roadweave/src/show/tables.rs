//! Tables of paths, links, lanes, legs and servers, for a terminal.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use roadweave_node::status::ShardStatus;
use roadweave_proto::DropCounters;
use roadweave_quic::EcnMarking;
use roadweave_tunnel::{
    CandidateReport, Column, LaneStats, LegStatus, LinkStatus, MemoryStats, OrderStats,
    PathStatusReport, RouterStatus, SessionStats, SessionStatus, TenantStats, UplinkReport,
};
use serde::Serialize;

use super::rates::Rates;

pub(super) fn ways(uplinks: &[UplinkReport]) -> String {
    if uplinks.is_empty() {
        return String::new();
    }
    let mut table = new_table("uplink|heard|server|state|attempts|rests s|last");
    for uplink in uplinks {
        let heard = match uplink.heard {
            _ if uplink.portal.is_some() => "portal",
            true => "yes",
            false => "no",
        };
        if uplink.servers.is_empty() {
            table.add_row([&uplink.name, heard, "no address known", "-", "-", "-", "-"]);
        }
        for server in &uplink.servers {
            table.add_row([
                uplink.name.clone(),
                heard.to_owned(),
                server.server.clone(),
                word(&server.state),
                server.attempts.to_string(),
                or_dash(server.rest_seconds, 1.0, 1),
                server.last.clone().unwrap_or_else(dash),
            ]);
        }
    }
    format!("\n{table}\n")
}

pub(super) fn shards(shards: &[ShardStatus]) -> String {
    if shards.is_empty() {
        return String::new();
    }
    let mut table = new_table("shard|state|sessions|handed over|failures");
    for (number, shard) in shards.iter().enumerate() {
        table.add_row([
            number.to_string(),
            if shard.runs { "runs" } else { "does not answer" }.to_owned(),
            shard.sessions.to_string(),
            shard.handed_over.to_string(),
            shard.failures.to_string(),
        ]);
    }
    format!("\n{table}\n")
}

pub(super) fn candidates(candidates: &[CandidateReport]) -> String {
    if candidates.is_empty() {
        return String::new();
    }
    let mut table = new_table("server|site|place|figure ms|measured s ago|rests s|last");
    for candidate in candidates {
        table.add_row([
            candidate.name.clone(),
            candidate.site.clone(),
            word(&candidate.place) + if candidate.last_resort { ", last resort" } else { "" },
            or_dash(candidate.figure_ms, 1.0, 1),
            or_dash(candidate.measured_seconds_ago, 1.0, 0),
            or_dash(candidate.rest_seconds, 1.0, 1),
            candidate.last.clone().unwrap_or_else(dash),
        ]);
    }
    format!("\n{table}\n")
}

pub(super) fn clients(sessions: &[&SessionStatus], rates: &Rates) -> String {
    let mut table =
        new_table("client|address|paths|out\nMbit/s|in\nMbit/s|best\nrtt ms|best\nloss %");
    for session in sessions {
        let rate = |side: usize| {
            let of = |path: &PathStatusReport| rates.of(&session.public_key, path.id)[side];
            session.paths.iter().filter_map(of).reduce(|all, rate| all + rate)
        };
        let best =
            |figure: fn(&PathStatusReport) -> f64| session.usable().map(figure).reduce(f64::min);
        table.add_row([
            cut(&session.peer, 20),
            cut(session.addresses.first().map_or("-", String::as_str), 18),
            format!("{}/{}", session.usable().count(), session.paths.len()),
            or_dash(rate(0), 1e6, 2),
            or_dash(rate(1), 1e6, 2),
            or_dash(best(|path| path.smoothed_rtt_ms), 1.0, 1),
            or_dash(best(|path| path.loss.into()), 0.01, 1),
        ]);
    }
    format!("\n{table}\n")
}

pub(super) fn paths(session: &SessionStatus, rates: &Rates) -> String {
    let (about, limits) = (PathStatusReport::TRAFFIC, PathStatusReport::LIMITS);
    let mut fares = table_of("path|uplink|status|out\nMbit/s|in\nMbit/s", about);
    let mut may = table_of("uplink|priority", limits);
    let mut caps = table_of("uplink", PathStatusReport::CAPS);
    for path in &session.paths {
        let uplink = |most| path.uplink.as_ref().map_or_else(dash, |name| cut(name, most));
        let [sent, received] = rates.of(&session.public_key, path.id);
        let (sent, received) = (or_dash(sent, 1e6, 2), or_dash(received, 1e6, 2));
        let first = [path.id.to_string(), uplink(15), word(&path.status), sent, received];
        fares.add_row(first.into_iter().chain(cells(about, path)));
        may.add_row([uplink(13), word(&path.priority)].into_iter().chain(cells(limits, path)));
        if path.month_bytes.is_some() {
            caps.add_row([uplink(15)].into_iter().chain(cells(PathStatusReport::CAPS, path)));
        }
    }
    let caps = if caps.is_empty() { String::new() } else { format!("{caps}\n") };
    let lost = session.paths.iter().filter(|path| path.ecn == EcnMarking::Lost);
    let lost: Vec<&str> = lost.filter_map(|path| path.uplink.as_deref()).collect();
    let marks = match lost.is_empty() {
        true => String::new(),
        false => format!("ECN is off on {}: packets with ECN marks are lost\n", lost.join(", ")),
    };
    format!("{fares}\n{may}\n{caps}{marks}")
}

/// The links of a redundant router, which have no windows, and the counters of its peer.
pub(super) fn links(peer: &str, status: &RouterStatus, rates: &Rates) -> String {
    let mut fares = table_of("id|link|status|peer|out\nMbit/s|in\nMbit/s", LinkStatus::TRAFFIC);
    let mut brought = table_of("id", LinkStatus::PACKETS);
    for link in &status.paths {
        let [sent, received] = rates.of(peer, link.id);
        let first = [
            link.id.to_string(),
            cut(&link.uplink, 12),
            word(&link.status),
            link.remote.clone().unwrap_or_else(dash),
            or_dash(sent, 1e6, 2),
            or_dash(received, 1e6, 2),
        ];
        fares.add_row(first.into_iter().chain(cells(LinkStatus::TRAFFIC, link)));
        brought.add_row([link.id.to_string()].into_iter().chain(cells(LinkStatus::PACKETS, link)));
    }
    let order = status.stats.lanes.first().map(|lane| lane.received.order.clone());
    let order = order.unwrap_or_default();
    format!(
        "{fares}\n{brought}\n\
         the peer sent {} packets, {} arrived over no link; it restarted {} times\n\
         {} packets waited for earlier ones, {} waits timed out\n",
        status.peer_packets,
        status.peer_packets_lost,
        status.peer_restarts,
        order.waited_packets,
        order.timeouts
    )
}

const LANE: &[Column<LaneStats>] = &[
    ("taken", |it| Some(it.sent.inner_packets as f64), None),
    ("sent", |it| Some(it.sent.source_datagrams as f64), None),
    ("again", |it| Some(it.sent.duplicate_datagrams as f64), None),
    ("coded", |it| Some(it.sent.coded_datagrams as f64), None),
    ("extra\n%", |it| Some(it.redundancy), Some((0.01, 2))),
    ("lost", |it| Some(it.sent.recovery.lost as f64), None),
    ("queue\nkB", |it| Some(it.sent.queue_bytes as f64), Some((1e3, 0))),
    ("deli-\nvered", |it| Some(it.received.delivered_packets as f64), None),
    ("re-\npaired", |it| Some(it.received.recovered as f64), None),
];

pub(super) fn lanes(stats: &SessionStats) -> String {
    let mut table = table_of("lane|strategy", LANE);
    let (mut evenness, mut dropped) = (String::new(), String::new());
    for lane in &stats.lanes {
        let LaneStats { name, strategy, sent, received, .. } = lane;
        table.add_row([cut(name, 12), cut(strategy, 14)].into_iter().chain(cells(LANE, lane)));
        evenness += &even_delivery(name, &received.order);
        dropped += &drops(&format!("lane {name} dropped before sending"), &sent.drops);
        dropped += &drops(&format!("lane {name} dropped on receipt"), &received.drops);
    }
    let outside = drops("dropped outside the lanes", &stats.drops);
    format!("{table}\n{evenness}{}{dropped}{outside}", memory(&stats.memory))
}

pub(super) fn out_of_reach(session: &SessionStatus) -> String {
    let one_way = session.usable().map(|path| path.min_rtt_ms / 2.0).min_by(f64::total_cmp);
    let line = |lane: &LaneStats| {
        let (deadline, one_way) = (lane.deadline_ms?, one_way?);
        (deadline as f64 <= one_way).then(|| {
            format!(
                "lane {}: deadline_ms is {deadline}; raise it above half the round trip, {} ms on \
                 the nearest path\n",
                lane.name,
                scaled(one_way, 1.0, 0)
            )
        })
    };
    session.stats.lanes.iter().filter_map(line).collect()
}

fn even_delivery(lane: &str, order: &OrderStats) -> String {
    if order.order != "even" {
        return String::new();
    }
    let delay = scaled(order.wait_us as f64, 1e3, 1);
    let late = order.late_packets;
    format!(
        "lane {lane} is delivered evenly, {delay} ms after the fastest; {late} packets were late\n"
    )
}

pub(super) fn passing<'a>(
    legs: impl Iterator<Item = (&'a str, &'a LegStatus)>,
    tenants: &BTreeMap<String, TenantStats>,
) -> String {
    let mut table = new_table("leg|state|rtt ms|clients|sent|lost|waiting kB");
    for (name, leg) in legs {
        let other = if name.is_empty() { &leg.public_key } else { name };
        table.add_row([
            other.to_owned(),
            (if leg.is_up { "up" } else { "away" }).to_owned(),
            format!("{:.1}", leg.smoothed_rtt_ms),
            leg.attachments.to_string(),
            leg.datagrams_sent.to_string(),
            leg.datagrams_lost.to_string(),
            (leg.waiting_bytes / 1_000).to_string(),
        ]);
    }
    let mut of_tenants = new_table("tenant|up MB|down MB|dropped");
    for (name, stats) in tenants {
        of_tenants.add_row([
            name.clone(),
            format!("{:.1}", stats.bytes_up as f64 / 1e6),
            format!("{:.1}", stats.bytes_down as f64 / 1e6),
            stats.drops.total().to_string(),
        ]);
    }
    format!("\n{table}\n\n{of_tenants}\n")
}

fn memory(memory: &MemoryStats) -> String {
    let mega = |bytes: u64| scaled(bytes as f64, 1e6, 1);
    format!(
        "memory, MB: {} decoders, {} reordering, {} fragments, {} queues, {} repairs\n",
        mega(memory.decoder_bytes),
        mega(memory.reorder_bytes),
        mega(memory.fragment_bytes),
        mega(memory.queue_bytes),
        mega(memory.encoder_bytes),
    )
}

pub(super) fn drops(title: &str, drops: &DropCounters) -> String {
    let mut reasons: Vec<_> = drops.iter().map(|(reason, count)| (reason.name(), count)).collect();
    reasons.sort_unstable();
    counts(title, reasons.into_iter())
}

pub(super) fn counts<'a>(title: &str, counts: impl Iterator<Item = (&'a str, u64)>) -> String {
    let counted = counts.filter(|(_, count)| *count > 0);
    let texts: Vec<String> = counted.map(|(what, count)| format!("{what} {count}")).collect();
    if texts.is_empty() { String::new() } else { format!("{title}: {}\n", texts.join(", ")) }
}

fn new_table(titles: &str) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(titles.split('|'));
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if number >= 3 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn table_of<T>(titles: &str, columns: &[Column<T>]) -> Table {
    let more = columns.iter().map(|(title, ..)| format!("|{title}"));
    new_table(&(titles.to_owned() + &more.collect::<String>()))
}

fn cells<T>(columns: &[Column<T>], of: &T) -> impl Iterator<Item = String> {
    columns.iter().map(move |(_, value, scale)| match (value(of), scale) {
        (None, _) => dash(),
        (Some(value), None) => count(value as u64),
        (Some(value), Some((unit, decimals))) => scaled(value, *unit, *decimals),
    })
}

fn cut(name: &str, most: usize) -> String {
    match name.chars().count() <= most {
        true => name.to_owned(),
        false => name.chars().take(most - 1).chain(['~']).collect(),
    }
}

fn count(count: u64) -> String {
    let mut scaled = count as f64;
    for unit in ["", "k", "M", "G", "T", "P", "E"] {
        if scaled < 9_999.5 || unit.is_empty() && count < 100_000 {
            return format!("{scaled:.0}{unit}");
        }
        scaled /= 1e3;
    }
    count.to_string()
}

fn word(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).ok();
    value.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_else(dash)
}

fn dash() -> String {
    "-".to_owned()
}

fn or_dash(value: Option<f64>, unit: f64, decimals: usize) -> String {
    value.map_or_else(dash, |value| scaled(value, unit, decimals))
}

fn scaled(value: f64, unit: f64, decimals: usize) -> String {
    format!("{:.decimals$}", value / unit)
}
