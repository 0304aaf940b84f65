//! `roadweave speedtest` over cables that `tc` shapes.

#![allow(
    clippy::disallowed_methods,
    reason = "end-to-end tests start programs, open sockets and wait"
)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

#[path = "it/common/mod.rs"]
#[allow(dead_code, unused_imports, reason = "a part of it is used")]
mod common;

use std::process::Output;

use common::*;
use serde_json::Value;

const UPLINKS: [&str; 2] = ["eth1", "eth2"];
const METERED: &str = "\n[[uplinks.policies]]\nname = \"eth2\"\nmetered.monthly_cap_mb = 5000\n";

fn is_shaped(namespace: &NetNs, interface: &str, mbps: u32) -> bool {
    let mut command = namespace.command("tc");
    let rate = format!("rate {mbps}mbit burst 16kb latency 60ms");
    command.args(["qdisc", "replace", "dev", interface, "root", "tbf"]).args(rate.split(' '));
    has("tc qdisc tbf", command.output().is_ok_and(|output| output.status.success()))
}

fn speedtest(words: &[&str]) -> Output {
    let socket = socket(CLIENT);
    let words: Vec<&str> =
        ["speedtest", "--socket", &socket].iter().chain(words).copied().collect();
    roadweave(&words)
}

#[test]
fn each_uplink_shows_what_its_cable_carries_and_a_metered_one_waits_to_be_meant() {
    on_network(|network| {
        network.edit("client.toml", |text| text + METERED);
        network.edit("server.toml", |text| text + "\n[speedtest]\nenabled = true\n");
        let ends = [(&network.vehicle, "eth1", 8), (&network.server, "eth1", 16)];
        if !ends.iter().all(|(namespace, interface, mbps)| is_shaped(namespace, interface, *mbps)) {
            return;
        }
        let (server, client) = network.start_both();
        network.wait_for_paths(&UPLINKS);

        let output = speedtest(&["--seconds", "2", "--json"]);
        assert!(output.status.success(), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["state"], "done", "{report:#}");
        let mbps = |direction: &str| report["rows"][0][direction]["bps"].as_f64().unwrap() / 1e6;
        let (up, down) = (mbps("up"), mbps("down"));
        assert!((5.0..8.1).contains(&up) && (10.0..16.2).contains(&down), "{report:#}");
        let second = &report["rows"][1];
        assert!(second["left_out"].is_string() && second["up"].is_null(), "{report:#}");

        let output = speedtest(&["--seconds", "1", "--metered"]);
        let page = String::from_utf8(output.stdout).unwrap();
        let notes = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{page}\n{notes}");
        let has_row = |begin: &str| page.lines().any(|line| line.starts_with(begin));
        assert!(has_row("eth1") && has_row("eth2") && has_row("all together"), "{page}");
        assert!(notes.contains("measuring all together up"), "{notes}");
        assert!(page.lines().all(|line| line.trim_end().chars().count() <= 80), "{page}");

        let output = speedtest(&["--uplink", "wwan9"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains("eth1, eth2"), "{said}");
        let session = &network.show(CLIENT)["sessions"][0];
        assert!(session["load"]["sent_bytes"].as_u64() > Some(0), "{session:#}");
        assert_eq!((client.count("joined"), server.count("joined")), (1, 1), "{}", client.log());
        interrupt([client, server]);
    });
}
