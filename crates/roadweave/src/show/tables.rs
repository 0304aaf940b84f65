//! Tables of paths, links, lanes, legs and servers, for a terminal.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use roadweave_device::status::ShardStatus;
use roadweave_proto::{DropCounters, PathStatus};
use roadweave_quic::EcnMarking;
use roadweave_tunnel::{
    CandidateReport, LaneStats, LegStatus, MemoryStats, OrderStats, PathStatusReport, RouterStatus,
    SessionStats, SessionStatus, TenantStats, UplinkReport,
};
use serde::Serialize;

use super::rates::Rates;

/// Attempts to join: each uplink with each of the server's addresses.
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

/// The shards of a server, if it has more than one.
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

/// The servers that a client chooses from, with their round trips.
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

/// The clients of a server.
pub(super) fn clients(sessions: &[&SessionStatus], rates: &Rates) -> String {
    let mut table =
        new_table("client|address|paths|out\nMbit/s|in\nMbit/s|best\nrtt ms|best\nloss %");
    for session in sessions {
        let usable = || session.paths.iter().filter(|it| it.status == PathStatus::Usable);
        let rate = |side: usize| {
            let of = |path: &PathStatusReport| rates.of(&session.public_key, path.id)[side];
            session.paths.iter().filter_map(of).reduce(|all, rate| all + rate)
        };
        let best = |figure: fn(&PathStatusReport) -> f64| usable().map(figure).reduce(f64::min);
        table.add_row([
            cut(&session.peer, 20),
            cut(session.addresses.first().map_or("-", String::as_str), 18),
            format!("{}/{}", usable().count(), session.paths.len()),
            or_dash(rate(0), 1e6, 2),
            or_dash(rate(1), 1e6, 2),
            or_dash(best(|path| path.smoothed_rtt_ms), 1.0, 1),
            or_dash(best(|path| path.loss.into()), 0.01, 1),
        ]);
    }
    format!("\n{table}\n")
}

/// The paths of a session: their state, and below it their limits.
pub(super) fn paths(session: &SessionStatus, rates: &Rates) -> String {
    let mut fares = new_table(
        "path|uplink|status|out\nMbit/s|in\nMbit/s|rtt\nms|loss\n%|lost|sent\nMB|received\nMB",
    );
    let mut may =
        new_table("uplink|priority|weight|window\nkB|flight\nkB|pacing\nMbit/s|mtu|budget\nkB");
    let mut caps = new_table("uplink|day\nMB|cap\nMB|month\nMB|cap\nMB");
    for path in &session.paths {
        let counters = &path.counters;
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        let [sent, received] = rates.of(&session.public_key, path.id);
        fares.add_row([
            path.id.to_string(),
            path.uplink.as_ref().map_or_else(dash, |name| cut(name, 15)),
            word(&path.status),
            or_dash(sent, 1e6, 2),
            or_dash(received, 1e6, 2),
            scaled(path.smoothed_rtt_ms, 1.0, 1),
            scaled(path.loss.into(), 0.01, 1),
            count(counters.datagrams_lost),
            scaled(counters.bytes_sent as f64, 1e6, 1),
            scaled(counters.bytes_received as f64, 1e6, 1),
        ]);
        may.add_row([
            path.uplink.as_ref().map_or_else(dash, |name| cut(name, 13)),
            word(&path.priority),
            path.weight.to_string(),
            scaled(path.congestion_window_bytes as f64, 1e3, 0),
            scaled(path.bytes_in_flight as f64, 1e3, 0),
            or_dash(bytes(path.pacing_rate_bps), 1e6, 1),
            path.mtu_bytes.to_string(),
            or_dash(bytes(path.redundancy_left_bytes), 1e3, 0),
        ]);
        if path.month_bytes.is_some() {
            caps.add_row([
                path.uplink.as_ref().map_or_else(dash, |name| cut(name, 15)),
                or_dash(bytes(path.day_bytes), 1e6, 1),
                or_dash(bytes(path.daily_cap_bytes), 1e6, 0),
                or_dash(bytes(path.month_bytes), 1e6, 1),
                or_dash(bytes(path.monthly_cap_bytes), 1e6, 0),
            ]);
        }
    }
    let caps = if caps.is_empty() { String::new() } else { format!("{caps}\n") };
    let lost = session.paths.iter().filter(|path| path.ecn == EcnMarking::Lost);
    let lost: Vec<&str> = lost.filter_map(|path| path.uplink.as_deref()).collect();
    let marks = match lost.is_empty() {
        true => String::new(),
        false => format!("packets with ECN vanish on {}, and leave without\n", lost.join(", ")),
    };
    format!("{fares}\n{may}\n{caps}{marks}")
}

/// The links of a redundant router, which have no windows, and the counters of its peer.
pub(super) fn links(peer: &str, status: &RouterStatus, rates: &Rates) -> String {
    let mut fares = new_table("id|link|status|peer|out\nMbit/s|in\nMbit/s|rtt\nms|lost");
    let mut brought =
        new_table("id|sent|sent\nMB|received|received\nMB|adopted|adopted\n%|dupli-\ncates|late");
    for link in &status.paths {
        let counters = &link.counters;
        let [sent, received] = rates.of(peer, link.id);
        fares.add_row([
            link.id.to_string(),
            cut(&link.uplink, 12),
            word(&link.status),
            link.remote.clone().unwrap_or_else(dash),
            or_dash(sent, 1e6, 2),
            or_dash(received, 1e6, 2),
            or_dash(link.smoothed_rtt_ms, 1.0, 1),
            count(link.lost),
        ]);
        brought.add_row([
            link.id.to_string(),
            count(counters.packets_sent),
            scaled(counters.bytes_sent as f64, 1e6, 1),
            count(counters.packets_received),
            scaled(counters.bytes_received as f64, 1e6, 1),
            count(counters.adopted),
            scaled(link.adopted_ratio, 0.01, 2),
            count(counters.duplicates),
            count(counters.late),
        ]);
    }
    let order = status.stats.lanes.first().map(|lane| lane.received.order.clone());
    let order = order.unwrap_or_default();
    format!(
        "{fares}\n{brought}\nthe peer sent {} packets, {} came by no link; it started anew {} times\n\
         {} packets had to wait, {} waits were given up\n",
        status.peer_packets,
        status.peer_packets_lost,
        status.peer_restarts,
        order.waited_packets,
        order.timeouts
    )
}

/// The lanes of a session, the memory that they hold, and drops.
pub(super) fn lanes(stats: &SessionStats) -> String {
    let mut table = new_table(
        "lane|strategy|taken|sent|again|coded|extra\n%|lost|queue\nkB|deli-\nvered|re-\npaired",
    );
    let (mut evenness, mut dropped) = (String::new(), String::new());
    for LaneStats { name, strategy, redundancy, sent, received, .. } in &stats.lanes {
        table.add_row([
            cut(name, 12),
            cut(strategy, 14),
            count(sent.inner_packets),
            count(sent.source_datagrams),
            count(sent.duplicate_datagrams),
            count(sent.coded_datagrams),
            scaled(*redundancy, 0.01, 2),
            count(sent.recovery.lost),
            scaled(sent.queue_bytes as f64, 1e3, 0),
            count(received.delivered_packets),
            count(received.recovered),
        ]);
        evenness += &even_delivery(name, &received.order);
        dropped += &drops(&format!("lane {name} did not send"), &sent.drops);
        dropped += &drops(&format!("lane {name} did not deliver"), &received.drops);
    }
    let outside = drops("dropped outside the lanes", &stats.drops);
    format!("{table}\n{evenness}{}{dropped}{outside}", memory(&stats.memory))
}

/// The lanes whose deadline no usable path can meet.
pub(super) fn out_of_reach(session: &SessionStatus) -> String {
    let usable = session.paths.iter().filter(|path| path.status == PathStatus::Usable);
    let one_way = usable.map(|path| path.min_rtt_ms / 2.0).min_by(f64::total_cmp);
    let line = |lane: &LaneStats| {
        let (deadline, one_way) = (lane.deadline_ms?, one_way?);
        (deadline as f64 <= one_way).then(|| {
            format!(
                "lane {}: deadline_ms is {deadline} and must exceed half the round trip, {} ms on \
                 the nearest path\n",
                lane.name,
                scaled(one_way, 1.0, 0)
            )
        })
    };
    session.stats.lanes.iter().filter_map(line).collect()
}

/// The delay of a lane with even delivery; empty for other lanes.
fn even_delivery(lane: &str, order: &OrderStats) -> String {
    if order.order != "even" {
        return String::new();
    }
    let delay = scaled(order.wait_us as f64, 1e3, 1);
    let late = order.late_packets;
    format!(
        "lane {lane} is delivered evenly, {delay} ms after the quickest; {late} packets were late\n"
    )
}

/// The legs of a proxy or an anchor, each with the name of its other end, and the tenants.
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

/// The memory that lanes hold.
fn memory(memory: &MemoryStats) -> String {
    let mega = |bytes: u64| scaled(bytes as f64, 1e6, 1);
    format!(
        "held, MB: {} in decoders, {} for their order, {} in fragments, {} in queues, {} for repairs\n",
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

/// A line of the counters that are not zero; empty without any.
pub(super) fn counts<'a>(title: &str, counts: impl Iterator<Item = (&'a str, u64)>) -> String {
    let counted = counts.filter(|(_, count)| *count > 0);
    let texts: Vec<String> = counted.map(|(what, count)| format!("{what} {count}")).collect();
    if texts.is_empty() { String::new() } else { format!("{title}: {}\n", texts.join(", ")) }
}

/// A table with these titles, divided by bars.
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

/// A name, cut to `most` characters.
fn cut(name: &str, most: usize) -> String {
    match name.chars().count() <= most {
        true => name.to_owned(),
        false => name.chars().take(most - 1).chain(['~']).collect(),
    }
}

/// A count in at most five characters.
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

/// The JSON word of an enumeration's value.
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
