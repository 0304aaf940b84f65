//! The board and the alerts of deploy/prometheus, asked of a real Prometheus that watches a client
//! and its server.
//!
//! Where `prometheus` or `promtool` are missing, the test says so and is skipped.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::common::*;
use serde_json::Value;

const BOARD: &str = include_str!("../../../../deploy/prometheus/roadweave.grafana.json");
const RULES: &str = include_str!("../../../../deploy/prometheus/roadweave.rules.yml");
/// Where the client and the server tell their figures, and Prometheus listens, in the box.
const CLIENT_PORT: u16 = 9474;
const PROMETHEUS_PORT: u16 = 9090;
const CONFIG: &str = "global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: [rules.yml]
scrape_configs:
  - job_name: roadweave
    static_configs:
      - targets: ['127.0.0.1:9474', '10.77.0.1:9474']
";

#[test]
fn what_the_board_and_the_alerts_ask_is_answered_by_prometheus() {
    if ["prometheus", "promtool"].iter().any(|program| is_missing(program)) {
        return;
    }
    run_sandboxed(|| {
        let road = Road::new();
        road.edit("client.toml", |text| {
            // So that there are figures of caps.
            let cap = "[[uplinks.policies]]\nname = \"eth1\"\nmetered = { monthly_cap_mb = 5000, \
                       daily_cap_mb = 500 }\n";
            text + cap + "[metrics]\nlisten = \"127.0.0.1:9474\"\n"
        });
        road.edit("server.toml", |text| {
            // Packets of a lane that expire tell when they were sent.
            let lane = "[[lanes]]\nexpire_after_ms = 1000\n";
            format!("metrics = {{ listen = \"0.0.0.0:9474\" }}\n{text}{lane}")
        });
        let (server, client) = road.start_both();
        road.wait_for_paths(&["eth1", "eth2"]);
        check_with_promtool(&road);
        let _prometheus = start(&road);
        let mut pings = road.vehicle.command("ping");
        pings.args(["-n", "-q", "-i", "0.05", GATEWAY_V4]).stdout(Stdio::null());
        let mut pings = pings.spawn().unwrap();

        wait_until("both are scraped twice", || {
            let counted = ask(&road.vehicle, "count_over_time(roadweave_build_info[1m]) >= 2");
            counted.as_array().unwrap().len() == 2
        });
        let asked: Vec<String> = expressions(&serde_json::from_str(BOARD).unwrap());
        assert!(asked.len() > 10, "{asked:?}");
        for query in &asked {
            let query = query.replace("$instance", ".*");
            assert!(!query.contains('$'), "{query}: a variable that is not known here");
            wait_until(&format!("the board finds something by {query}"), || {
                !ask(&road.vehicle, &query).as_array().unwrap().is_empty()
            });
        }
        check_rules(&road);

        // An alert hears of what it is there for.
        server.interrupt();
        client.wait_for("closed by the peer");
        wait_until("a client without a session is noticed", || {
            rules(&road)
                .iter()
                .any(|rule| rule["name"] == "RoadweaveSessionDown" && rule["state"] == "pending")
        });
        pings.kill().unwrap();
        pings.wait().unwrap();
    });
}

/// Holds what the client tells, the rules and the configuration against `promtool`.
fn check_with_promtool(road: &Road) {
    fs::write(road.path("rules.yml"), RULES).unwrap();
    fs::write(road.path("prometheus.yml"), CONFIG).unwrap();
    for words in [["check", "rules", "rules.yml"], ["check", "config", "prometheus.yml"]] {
        let output = promtool(road, &words, "");
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
    let answer = http_get(&road.vehicle, CLIENT_PORT, "/metrics");
    let (head, figures) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let output = promtool(road, &["check", "metrics"], figures);
    // It reads the older format, where the help of a counter bears its whole name; OpenMetrics, in
    // which Prometheus asks, leaves out the ending there.
    let said = String::from_utf8(output.stderr).unwrap();
    let others: Vec<&str> =
        said.lines().filter(|line| !line.ends_with("_total no help text")).collect();
    assert!(others.is_empty(), "{others:#?}");
}

fn promtool(road: &Road, words: &[&str], input: &str) -> Output {
    let mut command = Command::new("promtool");
    command.args(words).current_dir(road.path("")).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn start(road: &Road) -> Daemon {
    let mut command = road.vehicle.command("prometheus");
    command.arg(format!("--config.file={}", road.path("prometheus.yml").display()));
    command.arg(format!("--storage.tsdb.path={}", road.path("tsdb").display()));
    command.arg(format!("--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}"));
    let prometheus = Daemon::start(command, road.path("prometheus.log"));
    prometheus.wait_for("Server is ready to receive web requests");
    prometheus
}

/// All queries of a board.
fn expressions(board: &Value) -> Vec<String> {
    match board {
        Value::Object(fields) => {
            let own = fields.get("expr").and_then(Value::as_str).map(str::to_owned);
            own.into_iter().chain(fields.values().flat_map(expressions)).collect()
        }
        Value::Array(values) => values.iter().flat_map(expressions).collect(),
        _ => Vec::new(),
    }
}

/// What Prometheus answers to a query.
fn ask(namespace: &NetNs, query: &str) -> Value {
    let query: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
    data(namespace, &format!("/api/v1/query?query={query}"))["result"].clone()
}

fn data(namespace: &NetNs, path: &str) -> Value {
    let answer = http_get(namespace, PROMETHEUS_PORT, path);
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let mut answer: Value = serde_json::from_str(body).unwrap();
    assert_eq!(answer["status"], "success", "{answer:#}");
    answer["data"].take()
}

fn rules(road: &Road) -> Vec<Value> {
    let groups = data(&road.vehicle, "/api/v1/rules");
    let groups = groups["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

/// Every alert was evaluated without an error, and nothing is wrong yet.
fn check_rules(road: &Road) {
    let written = RULES.lines().filter(|line| line.trim_start().starts_with("- alert: "));
    let written: BTreeSet<&str> = written.map(|line| line.rsplit(' ').next().unwrap()).collect();
    let rules = rules(road);
    let known: BTreeSet<&str> = rules.iter().map(|rule| rule["name"].as_str().unwrap()).collect();
    assert_eq!(known, written);
    for rule in &rules {
        assert_eq!(rule["health"], "ok", "{rule:#}");
        assert_eq!(rule["state"], "inactive", "{rule:#}");
    }
}

fn is_missing(program: &str) -> bool {
    let missing = Command::new(program).arg("--version").output().is_err();
    if missing {
        let required = std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_some();
        assert!(!required, "{program} is not installed");
        eprintln!("skipped: {program} is not installed");
    }
    missing
}
