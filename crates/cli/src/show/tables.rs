//! Tables of paths, links, lanes, legs and servers, for a terminal.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use roadweave_device::status::ShardStatus;
use roadweave_tunnel::{
    CandidateReport, LaneStats, LegStatus, MemoryStats, OrderStats, PathStatusReport, RouterStatus,
    SessionStats, TenantStats, UplinkReport,
};
use roadweave_types::DropCounters;
use serde::Serialize;

/// The ways to the server: each uplink with each of the server's addresses.
pub(super) fn ways(uplinks: &[UplinkReport]) -> String {
    if uplinks.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    let header = ["uplink", "heard", "server", "state", "attempts", "rests s", "last"];
    table.load_preset(presets::NOTHING).set_header(header);
    for uplink in uplinks {
        let heard = if uplink.heard { "yes" } else { "no" };
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
    let mut table = new_table(&["shard", "state", "sessions", "handed over", "failures"]);
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

/// The servers that a client chooses from, with the round trips that it compares.
pub(super) fn candidates(candidates: &[CandidateReport]) -> String {
    if candidates.is_empty() {
        return String::new();
    }
    let mut table =
        new_table(&["server", "site", "place", "figure ms", "measured s ago", "rests s", "last"]);
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

pub(super) fn paths(paths: &[PathStatusReport]) -> String {
    let mut table = new_table(&[
        "path",
        "uplink",
        "status",
        "rtt ms",
        "window kB",
        "in flight kB",
        "pacing Mbit/s",
        "sent MB",
        "received MB",
        "lost",
        "mtu",
        "priority",
        "weight",
        "month MB",
        "cap MB",
        "budget kB",
    ]);
    for path in paths {
        let counters = &path.counters;
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        table.add_row([
            path.id.to_string(),
            path.uplink.clone().unwrap_or_else(dash),
            word(&path.status),
            scaled(path.smoothed_rtt_ms, 1.0, 1),
            scaled(path.congestion_window_bytes as f64, 1e3, 0),
            scaled(path.bytes_in_flight as f64, 1e3, 0),
            or_dash(bytes(path.pacing_rate_bps), 1e6, 1),
            scaled(counters.bytes_sent as f64, 1e6, 1),
            scaled(counters.bytes_received as f64, 1e6, 1),
            counters.datagrams_lost.to_string(),
            path.mtu_bytes.to_string(),
            word(&path.priority),
            path.weight.to_string(),
            or_dash(bytes(path.month_bytes), 1e6, 1),
            or_dash(bytes(path.monthly_cap_bytes), 1e6, 0),
            or_dash(bytes(path.redundancy_left_bytes), 1e3, 0),
        ]);
    }
    format!("{table}\n")
}

/// The links of a redundant router, which have no windows, and what the peer sent over all of them.
pub(super) fn links(status: &RouterStatus) -> String {
    let mut table = new_table(&[
        "id",
        "link",
        "status",
        "peer",
        "rtt ms",
        "sent",
        "sent MB",
        "received",
        "received MB",
        "adopted",
        "adopted %",
        "duplicates",
        "late",
        "lost",
    ]);
    for link in &status.paths {
        let counters = &link.counters;
        table.add_row([
            link.id.to_string(),
            link.uplink.clone(),
            word(&link.status),
            link.remote.clone().unwrap_or_else(dash),
            or_dash(link.smoothed_rtt_ms, 1.0, 1),
            counters.packets_sent.to_string(),
            scaled(counters.bytes_sent as f64, 1e6, 1),
            counters.packets_received.to_string(),
            scaled(counters.bytes_received as f64, 1e6, 1),
            counters.adopted.to_string(),
            scaled(link.adopted_ratio, 0.01, 2),
            counters.duplicates.to_string(),
            counters.late.to_string(),
            link.lost.to_string(),
        ]);
    }
    let order = status.stats.lanes.first().map(|lane| lane.received.order.clone());
    let order = order.unwrap_or_default();
    format!(
        "{table}\nthe peer sent {} packets, {} came by no link; it started anew {} times\n\
         {} packets had to wait, {} waits were given up\n",
        status.peer_packets,
        status.peer_packets_lost,
        status.peer_restarts,
        order.waited_packets,
        order.timeouts
    )
}

/// The lanes of a session, what they hold, and what was dropped.
pub(super) fn lanes(stats: &SessionStats) -> String {
    let mut table = new_table(&[
        "lane",
        "strategy",
        "in",
        "sent",
        "again",
        "coded",
        "redundancy %",
        "lost",
        "delivered",
        "recovered",
        "queue kB",
    ]);
    let (mut evenness, mut dropped) = (String::new(), String::new());
    for LaneStats { name, strategy, redundancy, sent, received, .. } in &stats.lanes {
        table.add_row([
            name.clone(),
            strategy.clone(),
            sent.inner_packets.to_string(),
            sent.source_datagrams.to_string(),
            sent.duplicate_datagrams.to_string(),
            sent.coded_datagrams.to_string(),
            scaled(*redundancy, 0.01, 2),
            sent.recovery.lost.to_string(),
            received.delivered_packets.to_string(),
            received.recovered.to_string(),
            scaled(sent.queue_bytes as f64, 1e3, 0),
        ]);
        evenness += &even_delivery(name, &received.order);
        dropped += &drops(&format!("lane {name} did not send"), &sent.drops);
        dropped += &drops(&format!("lane {name} did not deliver"), &received.drops);
    }
    let outside = drops("dropped outside the lanes", &stats.drops);
    format!("{table}\n{evenness}{}{dropped}{outside}", memory(&stats.memory))
}

/// What a lane costs that is delivered evenly; nothing of others.
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
    let mut table = new_table(&["leg", "state", "rtt ms", "clients", "sent", "lost", "waiting kB"]);
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
    let mut of_tenants = new_table(&["tenant", "up MB", "down MB", "dropped"]);
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

/// What the lanes hold.
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

/// A line with what was counted, but for zeros; nothing if there is nothing else.
pub(super) fn counts<'a>(title: &str, counts: impl Iterator<Item = (&'a str, u64)>) -> String {
    let counted = counts.filter(|(_, count)| *count > 0);
    let texts: Vec<String> = counted.map(|(what, count)| format!("{what} {count}")).collect();
    if texts.is_empty() { String::new() } else { format!("{title}: {}\n", texts.join(", ")) }
}

fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The word that JSON has for a value of an enumeration.
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
