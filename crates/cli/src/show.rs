//! `roadweave show`: paths, lanes and statistics of a running client, server or router.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use roadweave_terminal::out;
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
            let status = roadweave_device::control::request(&self.socket, "status", &Value::Null)?;
            if self.json {
                out::line(format_args!("{status:#}"))?;
            } else {
                out::print(render(&status))?;
            }
            let Some(seconds) = self.watch else { return Ok(()) };
            std::thread::sleep(Duration::from_secs_f64(seconds.clamp(0.1, 3600.0)));
        }
    }
}

fn render(status: &Value) -> String {
    let mut text = format!(
        "{} {}, up {} s, device {}\n",
        text_of(&status["role"]),
        text_of(&status["name"]),
        status["uptime_seconds"].as_f64().unwrap_or(0.0) as u64,
        text_of(&status["tun"])
    );
    let sessions = status["sessions"].as_array().map_or(&[][..], Vec::as_slice);
    if sessions.is_empty() {
        text += "no session";
        text += &status["no_session"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
        text += "\n";
        text += &ways(status);
    }
    for session in sessions {
        let addresses: Vec<String> = list(&session["addresses"]).map(text_of).collect();
        text +=
            &format!("\nsession with {}: {}\n", text_of(&session["peer"]), addresses.join(", "));
        text += &if status["role"] == "router" { links(session) } else { paths(session) };
        text += &lanes(session);
        text += &drops("dropped outside the lanes", &session["drops"]);
    }
    text += &drops("dropped outside any session", &status["drops"]);
    text += &drops("refused", &status["refusals"]);
    match status["log"]["lines_lost"].as_u64() {
        None | Some(0) => text,
        Some(lost) => text + &format!("lines of the log that could not be written: {lost}\n"),
    }
}

/// The ways to the server: each uplink with each of the server's addresses.
fn ways(status: &Value) -> String {
    if list(&status["uplinks"]).next().is_none() {
        return String::new();
    }
    let mut table = Table::new();
    let header = ["uplink", "heard", "server", "state", "attempts", "rests s", "last"];
    table.load_preset(presets::NOTHING).set_header(header);
    for uplink in list(&status["uplinks"]) {
        let name = text_of(&uplink["name"]);
        let heard = if uplink["heard"] == true { "yes" } else { "no" };
        if list(&uplink["servers"]).next().is_none() {
            table.add_row([&name, heard, "no address known", "-", "-", "-", "-"]);
        }
        for server in list(&uplink["servers"]) {
            table.add_row([
                name.clone(),
                heard.to_owned(),
                text_of(&server["server"]),
                text_of(&server["state"]),
                server["attempts"].to_string(),
                scaled(&server["rest_seconds"], 1.0, 1),
                text_of(&server["last"]),
            ]);
        }
    }
    format!("\n{table}\n")
}

fn paths(session: &Value) -> String {
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
    for path in list(&session["paths"]) {
        let counters = &path["counters"];
        table.add_row([
            path["id"].to_string(),
            text_of(&path["uplink"]),
            text_of(&path["status"]),
            scaled(&path["smoothed_rtt_ms"], 1.0, 1),
            scaled(&path["congestion_window_bytes"], 1e3, 0),
            scaled(&path["bytes_in_flight"], 1e3, 0),
            scaled(&path["pacing_rate_bps"], 1e6, 1),
            scaled(&counters["bytes_sent"], 1e6, 1),
            scaled(&counters["bytes_received"], 1e6, 1),
            counters["datagrams_lost"].to_string(),
            path["mtu_bytes"].to_string(),
            text_of(&path["priority"]),
            path["weight"].to_string(),
            scaled(&path["month_bytes"], 1e6, 1),
            scaled(&path["monthly_cap_bytes"], 1e6, 0),
            scaled(&path["redundancy_left_bytes"], 1e3, 0),
        ]);
    }
    format!("{table}\n")
}

/// The links of a redundant router, which have no windows, and what the peer sent over all of them.
fn links(session: &Value) -> String {
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
    for link in list(&session["paths"]) {
        let counters = &link["counters"];
        table.add_row([
            link["id"].to_string(),
            text_of(&link["uplink"]),
            text_of(&link["status"]),
            text_of(&link["remote"]),
            scaled(&link["smoothed_rtt_ms"], 1.0, 1),
            counters["packets_sent"].to_string(),
            scaled(&counters["bytes_sent"], 1e6, 1),
            counters["packets_received"].to_string(),
            scaled(&counters["bytes_received"], 1e6, 1),
            counters["adopted"].to_string(),
            scaled(&link["adopted_ratio"], 0.01, 2),
            counters["duplicates"].to_string(),
            counters["late"].to_string(),
            link["lost"].to_string(),
        ]);
    }
    let order = &list(&session["lanes"]).next().unwrap_or(&Value::Null)["received"]["order"];
    format!(
        "{table}\nthe peer sent {} packets, {} came by no link; it started anew {} times\n\
         {} packets had to wait, {} waits were given up\n",
        session["peer_packets"],
        session["peer_packets_lost"],
        session["peer_restarts"],
        order["waited_packets"],
        order["timeouts"]
    )
}

fn lanes(session: &Value) -> String {
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
    for lane in list(&session["lanes"]) {
        let (sent, received) = (&lane["sent"], &lane["received"]);
        table.add_row([
            text_of(&lane["name"]),
            text_of(&lane["strategy"]),
            sent["inner_packets"].to_string(),
            sent["source_datagrams"].to_string(),
            sent["duplicate_datagrams"].to_string(),
            sent["coded_datagrams"].to_string(),
            scaled(&lane["redundancy"], 0.01, 2),
            sent["recovery"]["lost"].to_string(),
            received["delivered_packets"].to_string(),
            received["recovered"].to_string(),
            scaled(&sent["queue_bytes"], 1e3, 0),
        ]);
        let name = text_of(&lane["name"]);
        dropped += &drops(&format!("lane {name} did not send"), &sent["drops"]);
        dropped += &drops(&format!("lane {name} did not deliver"), &received["drops"]);
    }
    format!("{table}\n{}{dropped}", memory(&session["memory"]))
}

/// What the lanes hold.
fn memory(memory: &Value) -> String {
    let part = |name: &str| scaled(&memory[format!("{name}_bytes")], 1e6, 1);
    if memory.is_null() {
        return String::new();
    }
    format!(
        "held, MB: {} in decoders, {} for their order, {} in fragments, {} in queues, {} for repairs\n",
        part("decoder"),
        part("reorder"),
        part("fragment"),
        part("queue"),
        part("encoder"),
    )
}

fn drops(title: &str, drops: &Value) -> String {
    let reasons: Vec<String> = drops
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, packets)| packets.as_u64() != Some(0))
        .map(|(reason, packets)| format!("{reason} {packets}"))
        .collect();
    if reasons.is_empty() { String::new() } else { format!("{title}: {}\n", reasons.join(", ")) }
}

fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

fn scaled(value: &Value, unit: f64, decimals: usize) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |number| format!("{:.decimals$}", number / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_becomes_a_page_with_its_paths_lanes_and_drops() {
        let status = serde_json::json!({
            "role": "client", "name": "bus", "uptime_seconds": 12.5, "tun": "rw0",
            "drops": { "no-session": 3 }, "log": { "lines_lost": 29 },
            "refusals": { "unknown-key": 31 },
            "sessions": [{
                "peer": "192.0.2.1:4433", "addresses": ["10.77.0.2/32"], "drops": {},
                "paths": [{ "id": 2, "uplink": "wwan0", "status": "suspect",
                            "smoothed_rtt_ms": 61.25, "priority": "backup", "weight": 7,
                            "month_bytes": 123_450_000, "monthly_cap_bytes": 5_000_000_000_u64,
                            "redundancy_left_bytes": 77_000, "counters": { "bytes_sent": 2_500_000 } }],
                "lanes": [{ "name": "default", "strategy": "xnc", "redundancy": 0.034,
                            "sent": { "drops": { "queue-expired": 7 } }, "received": {} }],
                "memory": { "decoder_bytes": 3_210_000, "reorder_bytes": 654_000 },
            }],
        });
        let page = render(&status);
        for part in [
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
            "refused: unknown-key 31",
            "could not be written: 29",
        ] {
            assert!(page.contains(part), "{part} is not in:\n{page}");
        }
    }

    #[test]
    fn without_a_session_it_says_why() {
        let status = serde_json::json!({
            "role": "client", "name": "bus", "uptime_seconds": 12.0, "tun": "rw0",
            "sessions": [], "drops": {},
            "no_session": "no attempt has been welcomed yet",
            "uplinks": [
                { "name": "wwan0", "heard": true, "servers": [{
                    "server": "192.0.2.1:4433", "state": "resting", "attempts": 3,
                    "rest_seconds": 8.25, "last": "refused by the server",
                }] },
                { "name": "wlan0", "heard": false, "servers": [] },
            ],
        });
        let page = render(&status);
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
        let status = serde_json::json!({
            "role": "router", "name": "rw0", "uptime_seconds": 3.0, "tun": "rw0",
            "drops": { "unknown-peer": 5 },
            "sessions": [{
                "peer": "the other router", "addresses": ["10.88.0.2/30"], "drops": {},
                "peer_packets": 170_445, "peer_packets_lost": 4, "peer_restarts": 1,
                "paths": [{ "id": 0, "uplink": "lte", "status": "usable", "remote": "10.1.0.1:6081",
                            "smoothed_rtt_ms": 40.04, "adopted_ratio": 0.7253, "lost": 3542,
                            "counters": { "adopted": 123_619, "duplicates": 11, "late": 22 } }],
                "lanes": [{ "name": "default", "strategy": "redundant", "sent": {},
                            "received": { "order": { "waited_packets": 77, "timeouts": 706 } } }],
            }],
        });
        let page = render(&status);
        for part in [
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
        ] {
            assert!(page.contains(part), "{part} is not in:\n{page}");
        }
    }
}
