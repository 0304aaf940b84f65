//! Prometheus, if installed, evaluates deploy/prometheus's board and alerts over client and server.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;

use crate::common::*;
use serde_json::Value;

const BOARD: &str = include_str!("../../../../deploy/prometheus/roadweave.grafana.json");
const RULES: &str = include_str!("../../../../deploy/prometheus/roadweave.rules.yml");
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
    if !is_installed("prometheus") {
        return;
    }
    on_network(|network| {
        network.edit("client.toml", |text| {
            let cap = "[[uplinks.policies]]\nname = \"eth1\"\nmetered = { monthly_cap_mb = 5000, \
                       daily_cap_mb = 500 }\n";
            text + cap + "[metrics]\nlisten = \"127.0.0.1:9474\"\n"
        });
        network.edit("server.toml", |text| {
            // Gives figures of ages: packets of a lane with an expiry carry their time.
            let lane = "[[lanes]]\nexpire_after_ms = 1000\n";
            format!("metrics = {{ listen = \"0.0.0.0:9474\" }}\n{text}{lane}")
        });
        let (server, client) = network.start_both();
        network.wait_for_paths(&["eth1", "eth2"]);
        let _prometheus = start(&network);
        let mut pings = network.vehicle.command("ping");
        pings.args(["-n", "-q", "-i", "0.05", GATEWAY_V4]).stdout(Stdio::null());
        let mut pings = pings.spawn().unwrap();

        wait_until("both are scraped twice", || {
            let counted = ask(&network.vehicle, "count_over_time(roadweave_build_info[1m]) >= 2");
            counted.as_array().unwrap().len() == 2
        });
        let asked: Vec<String> = expressions(&serde_json::from_str(BOARD).unwrap());
        assert!(asked.len() > 10, "{asked:?}");
        for query in &asked {
            let query = query.replace("$instance", ".*");
            assert!(!query.contains('$'), "{query}: a variable that is not known here");
            wait_until(&format!("the board finds something by {query}"), || {
                !ask(&network.vehicle, &query).as_array().unwrap().is_empty()
            });
        }
        let written = RULES.lines().filter(|line| line.trim_start().starts_with("- alert: "));
        let written: BTreeSet<&str> =
            written.map(|line| line.rsplit(' ').next().unwrap()).collect();
        let found = rules(&network);
        let known: BTreeSet<&str> =
            found.iter().map(|rule| rule["name"].as_str().unwrap()).collect();
        assert_eq!(known, written);
        for rule in &found {
            assert!(rule["health"] == "ok" && rule["state"] == "inactive", "{rule:#}");
        }
        server.interrupt();
        client.wait_for("closed by the peer");
        wait_until("a client without a session is noticed", || {
            rules(&network)
                .iter()
                .any(|rule| rule["name"] == "RoadweaveSessionDown" && rule["state"] == "pending")
        });
        pings.kill().unwrap();
        pings.wait().unwrap();
    });
}

fn start(network: &TestNetwork) -> Daemon {
    fs::write(network.path("rules.yml"), RULES).unwrap();
    fs::write(network.path("prometheus.yml"), CONFIG).unwrap();
    let mut command = network.vehicle.command("prometheus");
    command.arg(format!("--config.file={}", network.path("prometheus.yml").display()));
    command.arg(format!("--storage.tsdb.path={}", network.path("tsdb").display()));
    command.arg(format!("--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}"));
    let prometheus = Daemon::start(command, network.path("prometheus.log"));
    prometheus.wait_for("Server is ready to receive web requests");
    prometheus
}

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

fn rules(network: &TestNetwork) -> Vec<Value> {
    let groups = data(&network.vehicle, "/api/v1/rules");
    let groups = groups["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}
