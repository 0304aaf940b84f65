//! `roadweave show`: paths, lanes and statistics of a running client, server or router.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use roadweave_device::local;
use roadweave_device::status::{AnchorRoleStatus, RoleStatus, RouterSession, Status};
use roadweave_terminal::out;
use roadweave_tunnel::{
    CandidateReport, LaneStats, LegStatus, MemoryStats, PathStatusReport, RouterStatus,
    SessionStats, SessionStatus, TenantStats, UplinkReport,
};
use roadweave_types::DropCounters;
use serde::Serialize;
use serde_json::Value;

/// Shows paths, lanes and statistics of a running client, server or router.
#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// The socket of the running client, server or router
    #[arg(long, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
    /// Print everything as one JSON object
    #[arg(long)]
    json: bool,
    /// Show it again every so many seconds
    #[arg(long, value_name = "SECONDS")]
    watch: Option<f64>,
}

impl ShowArgs {
    /// # Errors
    /// When nothing runs behind the socket.
    pub fn run(&self) -> Result<()> {
        loop {
            if self.json {
                let status = local::request(&self.socket, "status", &Value::Null)?;
                out::line(format_args!("{status:#}"))?;
            } else {
                out::print(render(&local::status(&self.socket)?))?;
            }
            let Some(seconds) = self.watch else { return Ok(()) };
            std::thread::sleep(Duration::from_secs_f64(seconds.clamp(0.1, 3600.0)));
        }
    }
}

fn render(status: &Status) -> String {
    let Status { name, tun, uptime_seconds, .. } = status;
    let role = match &status.role {
        RoleStatus::Client(_) => "client",
        RoleStatus::Server(_) => "server",
        RoleStatus::Router(_) => "router",
        RoleStatus::Proxy(_) => "proxy",
        RoleStatus::Anchor(_) => "anchor",
    };
    let device = if tun.is_empty() { "no device".to_owned() } else { format!("device {tun}") };
    let mut text = format!("{role} {name}, up {} s, {device}\n", *uptime_seconds as u64);
    let sessions: Vec<String> = match &status.role {
        RoleStatus::Client(client) => client.sessions.iter().map(session).collect(),
        RoleStatus::Server(server) => server.sessions.iter().map(session).collect(),
        RoleStatus::Router(router) => router.sessions.iter().map(router_session).collect(),
        RoleStatus::Proxy(proxy) => {
            text +=
                &passing(proxy.passing.legs.iter().map(|leg| ("", leg)), &proxy.passing.tenants);
            proxy.sessions.iter().map(session).collect()
        }
        RoleStatus::Anchor(AnchorRoleStatus { passing: anchor }) => {
            let legs = anchor.legs.iter().map(|(name, leg)| (name.as_str(), leg));
            text += &passing(legs, &anchor.tenants);
            Vec::new()
        }
    };
    if sessions.is_empty() && !matches!(status.role, RoleStatus::Anchor(_)) {
        text += "no session";
        if let RoleStatus::Client(client) = &status.role {
            text += &client.no_session.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            text += "\n";
            text += &ways(&client.uplinks);
        } else {
            text += "\n";
        }
    }
    text += &sessions.concat();
    if let RoleStatus::Client(client) = &status.role {
        text += &candidates(&client.candidates);
    }
    text += &drops("dropped outside any session", &status.drops);
    let refusals = match &status.role {
        RoleStatus::Server(server) => Some(&server.refusals),
        RoleStatus::Proxy(proxy) => Some(&proxy.refusals),
        RoleStatus::Anchor(anchor) => Some(&anchor.passing.refusals),
        RoleStatus::Client(_) | RoleStatus::Router(_) => None,
    };
    if let Some(refusals) = refusals {
        let refusals = refusals.iter().map(|(kind, count)| (kind.as_str(), *count));
        text += &counts("refused", refusals);
    }
    match status.log.lines_lost {
        0 => text,
        lost => text + &format!("lines of the log that could not be written: {lost}\n"),
    }
}

/// The legs of a proxy or an anchor, each with the name of its other end, and the tenants.
fn passing<'a>(
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

fn session(session: &SessionStatus) -> String {
    let SessionStatus { peer, addresses, stats, .. } = session;
    let title = format!("\nsession with {peer}: {}\n", addresses.join(", "));
    title + &paths(&session.paths) + &lanes(stats)
}

fn router_session(session: &RouterSession) -> String {
    let RouterSession { peer, addresses, status } = session;
    let title = format!("\nsession with {peer}: {}\n", addresses.join(", "));
    title + &links(status) + &lanes(&status.stats)
}

/// The ways to the server: each uplink with each of the server's addresses.
fn ways(uplinks: &[UplinkReport]) -> String {
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

/// The servers that a client chooses from, with the round trips that it compares.
fn candidates(candidates: &[CandidateReport]) -> String {
    if candidates.is_empty() {
        return String::new();
    }
    let mut table =
        new_table(&["server", "site", "place", "figure ms", "measured s ago", "rests s", "last"]);
    for candidate in candidates {
        table.add_row([
            candidate.name.clone(),
            candidate.site.clone(),
            word(&candidate.place),
            or_dash(candidate.figure_ms, 1.0, 1),
            or_dash(candidate.measured_seconds_ago, 1.0, 0),
            or_dash(candidate.rest_seconds, 1.0, 1),
            candidate.last.clone().unwrap_or_else(dash),
        ]);
    }
    format!("\n{table}\n")
}

fn paths(paths: &[PathStatusReport]) -> String {
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
fn links(status: &RouterStatus) -> String {
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
fn lanes(stats: &SessionStats) -> String {
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
    let mut dropped = String::new();
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
        dropped += &drops(&format!("lane {name} did not send"), &sent.drops);
        dropped += &drops(&format!("lane {name} did not deliver"), &received.drops);
    }
    let outside = drops("dropped outside the lanes", &stats.drops);
    format!("{table}\n{}{dropped}{outside}", memory(&stats.memory))
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

fn drops(title: &str, drops: &DropCounters) -> String {
    let mut reasons: Vec<_> = drops.iter().map(|(reason, count)| (reason.name(), count)).collect();
    reasons.sort_unstable();
    counts(title, reasons.into_iter())
}

/// A line with what was counted, but for zeros; nothing if there is nothing else.
fn counts<'a>(title: &str, counts: impl Iterator<Item = (&'a str, u64)>) -> String {
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

#[cfg(test)]
mod tests {
    use roadweave_device::status::{
        ClientStatus, DeviceCounters, LogCounters, RouterRoleStatus, ServerStatus,
    };
    use roadweave_tunnel::{LinkCounters, LinkStatus, PairReport, PairState};
    use roadweave_types::{DropReason, PathStatus, Priority};

    use super::*;

    fn dropped(reason: DropReason, packets: u64) -> DropCounters {
        let mut drops = DropCounters::default();
        drops.add(reason, packets);
        drops
    }

    fn status(name: &str, role: RoleStatus) -> Status {
        Status {
            name: name.to_owned(),
            version: "0.1.0".to_owned(),
            uptime_seconds: 12.5,
            tun: "rw0".to_owned(),
            device: DeviceCounters::default(),
            log: LogCounters::default(),
            drops: DropCounters::default(),
            role,
        }
    }

    fn check(status: &Status, parts: &[&str]) {
        let page = render(status);
        for part in parts {
            assert!(page.contains(part), "{part} is not in:\n{page}");
        }
    }

    fn path() -> PathStatusReport {
        let mut counters = roadweave_quic::PathStats::default();
        counters.bytes_sent = 2_500_000;
        PathStatusReport {
            id: 2,
            uplink: Some("wwan0".to_owned()),
            remote: None,
            status: PathStatus::Suspect,
            smoothed_rtt_ms: 61.25,
            min_rtt_ms: 60.0,
            rtt_deviation_ms: 1.0,
            loss: 0.0,
            congestion_window_bytes: 0,
            bytes_in_flight: 0,
            pacing_rate_bps: None,
            mtu_bytes: 1_200,
            priority: Priority::Backup,
            weight: 7,
            month_bytes: Some(123_450_000),
            monthly_cap_bytes: Some(5_000_000_000),
            redundancy_left_bytes: Some(77_000),
            counters,
        }
    }

    #[test]
    fn a_status_becomes_a_page_with_its_paths_lanes_and_drops() {
        let mut lane = LaneStats { name: "default".to_owned(), ..LaneStats::default() };
        lane.redundancy = 0.034;
        lane.sent.drops = dropped(DropReason::QueueExpired, 7);
        let mut stats = SessionStats { lanes: vec![lane], ..SessionStats::default() };
        stats.memory.decoder_bytes = 3_210_000;
        stats.memory.reorder_bytes = 654_000;
        let session = SessionStatus {
            peer: "192.0.2.1:4433".to_owned(),
            public_key: String::new(),
            addresses: vec!["10.77.0.2/32".to_owned()],
            paths: vec![path()],
            stats,
        };
        let client = ClientStatus { sessions: vec![session], ..ClientStatus::default() };
        let mut client = status("bus", RoleStatus::Client(client));
        client.drops = dropped(DropReason::NoSession, 3);
        client.log.lines_lost = 29;
        check(
            &client,
            &[
                "client bus, up 12 s",
                "10.77.0.2/32",
                "wwan0",
                "suspect",
                "61.2",
                "backup",
                "123.5",
                "5000",
                "77",
                "2.5",
                "3.40",
                "queue-expired 7",
                "3.2 in decoders, 0.7 for their order",
                "no-session 3",
                "could not be written: 29",
            ],
        );
    }

    #[test]
    fn a_server_tells_whom_it_refused() {
        let refusals = [("unknown-key".to_owned(), 31), ("unused".to_owned(), 0)].into();
        let server = ServerStatus { refusals, ..ServerStatus::default() };
        let server = status("192.0.2.1:4433", RoleStatus::Server(server));
        check(&server, &["server 192.0.2.1:4433", "refused: unknown-key 31\n", "no session\n"]);
    }

    #[test]
    fn without_a_session_it_says_why() {
        let resting = PairReport {
            server: "192.0.2.1:4433".to_owned(),
            state: PairState::Resting,
            attempts: 3,
            rest_seconds: Some(8.25),
            last: Some("refused by the server".to_owned()),
        };
        let uplink = |name: &str, heard, servers| {
            let name = name.to_owned();
            UplinkReport { name, heard, servers }
        };
        let client = ClientStatus {
            no_session: Some("no attempt has been welcomed yet".to_owned()),
            uplinks: vec![uplink("wwan0", true, vec![resting]), uplink("wlan0", false, Vec::new())],
            ..ClientStatus::default()
        };
        let page = render(&status("bus", RoleStatus::Client(client)));
        assert!(page.contains("no session: no attempt has been welcomed yet"), "{page}");
        let row = |name: &str| {
            let line = page.lines().find(|line| line.contains(name)).expect("a row");
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row("wwan0"), "wwan0 yes 192.0.2.1:4433 resting 3 8.2 refused by the server");
        assert_eq!(row("wlan0"), "wlan0 no no address known - - - -");
    }

    #[test]
    fn a_router_shows_its_links_and_what_each_brought() {
        let link = LinkStatus {
            id: 0,
            uplink: "lte".to_owned(),
            remote: Some("10.1.0.1:6081".to_owned()),
            status: PathStatus::Usable,
            smoothed_rtt_ms: Some(40.04),
            min_rtt_ms: None,
            rtt_deviation_ms: None,
            lost: 3542,
            adopted_ratio: 0.7253,
            counters: LinkCounters { adopted: 123_619, duplicates: 11, ..LinkCounters::default() },
        };
        let mut lane = LaneStats { name: "default".to_owned(), ..LaneStats::default() };
        lane.received.order.waited_packets = 77;
        lane.received.order.timeouts = 706;
        let session = RouterSession {
            peer: "the other router".to_owned(),
            addresses: vec!["10.88.0.2/30".to_owned()],
            status: RouterStatus {
                paths: vec![link],
                peer_packets: 170_445,
                peer_packets_lost: 4,
                peer_restarts: 1,
                stats: SessionStats { lanes: vec![lane], ..SessionStats::default() },
            },
        };
        let router = RouterRoleStatus { sessions: vec![session], sockets: Vec::new() };
        let mut router = status("rw0", RoleStatus::Router(router));
        router.drops = dropped(DropReason::UnknownPeer, 5);
        check(
            &router,
            &[
                "router rw0",
                "lte",
                "10.1.0.1:6081",
                "40.0",
                "123619",
                "72.53",
                "3542",
                "170445 packets, 4 came by no link",
                "77 packets had to wait, 706 waits",
                "unknown-peer 5",
            ],
        );
    }
}
