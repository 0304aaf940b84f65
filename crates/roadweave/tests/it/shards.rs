//! A server of several shards: clients find theirs over all paths, and it acts as one server.

use std::fs;

use crate::common::*;
use rustix::process::Signal;
use serde_json::{Value, json};

const SHARDS: usize = 2;

/// Boxes behind two carriers; each carrier gives all of them one address.
///
/// ```text
/// box n: eth1 100.65.n.2 ── b(n) carrier1 wan0 10.1.0.2 ── eth1 10.1.0.1 :server
///        eth2 100.66.n.2 ── b(n) carrier2 wan0 10.2.0.2 ── eth2 10.2.0.1
/// ```
struct Fleet {
    network: TestNetwork,
    carriers: [NetNs; 2],
    boxes: Vec<NetNs>,
    server: Daemon,
    clients: Vec<Daemon>,
}

impl Fleet {
    fn new(count: usize) -> Self {
        let network = TestNetwork::without_uplinks();
        let carriers = [1, 2].map(|number| carrier(&network, number));
        let boxes: Vec<NetNs> = (0..count).map(|number| connected_box(number, &carriers)).collect();
        network.edit("server.toml", |text| format!("shards = {SHARDS}\n{text}"));
        let text = fs::read_to_string(network.path("client.toml")).unwrap();
        let mut peers = String::new();
        for number in 1..count {
            let keys = keygen();
            let own = with_key(&text, "private_key", &keys.private);
            let own = format!("{own}[tun]\nname = \"rw{number}\"\n");
            network.write(&format!("client{number}.toml"), own);
            let address = format!("{}/32", inner(number));
            peers += &keys.peer(&format!("box-{number}"), &address);
        }
        network.edit("server.toml", |text| text + &peers);
        let server = network.start_server();
        let mut fleet = Self { network, carriers, boxes, server, clients: Vec::new() };
        for number in 0..count {
            let client = fleet.start(number);
            client.wait_for("joined");
            fleet.clients.push(client);
        }
        fleet.wait_for_sessions(count);
        fleet
    }

    fn start(&self, number: usize) -> Daemon {
        let name = if number == 0 { "client".to_owned() } else { format!("client{number}") };
        self.network.start(&self.boxes[number], "client", &name)
    }

    fn restart_last(&mut self, signal: Signal) {
        let last = self.clients.pop().unwrap();
        last.signal(signal);
        drop(last);
        let client = self.start(self.clients.len());
        client.wait_for("joined");
        self.clients.push(client);
        self.wait_for_sessions(self.clients.len());
    }

    fn wait_for_sessions(&self, count: usize) -> Value {
        self.network.wait_for_status(SERVER, &format!("{count} sessions"), |status| {
            status["sessions"].as_array().is_some_and(|all| all.len() == count)
                && sessions_of_shards(status).iter().sum::<u64>() == count as u64
        })
    }

    fn spread(&mut self) {
        let watch = Watch::start();
        while sessions_of_shards(&self.network.show(SERVER)).contains(&0) {
            assert!(watch.elapsed() < WAIT_MAX, "all of them are at one shard");
            self.restart_last(Signal::KILL);
        }
    }

    fn check_traffic(&self, times: u32) {
        let options = format!("-c {times} -i 0.05");
        for number in 0..self.clients.len() {
            check_ping(&self.network.server, &inner(number), &options);
            check_ping(&self.boxes[number], GATEWAY_V4, &options);
        }
    }

    fn session(&self, status: &Value, number: usize) -> Value {
        let sessions = status["sessions"].as_array().unwrap().iter();
        let own = format!("{}/32", inner(number));
        let mut mine =
            sessions.filter(|it| it["addresses"].as_array().unwrap().contains(&json!(own)));
        let session = mine.next().unwrap_or_else(|| panic!("no session of {own}: {status:#}"));
        assert!(mine.next().is_none(), "two sessions of {own}: {status:#}");
        session.clone()
    }
}

/// A network that translates the addresses behind it to its own, with random ports.
fn carrier(network: &TestNetwork, number: usize) -> NetNs {
    let carrier = NetNs::create(&format!("carrier{number}")).unwrap();
    let (near, far) = (format!("10.{number}.0.2/24"), format!("10.{number}.0.1/24"));
    cable((&carrier, "wan0", &[&near]), (&network.server, &format!("eth{number}"), &[&far]));
    carrier.ip(&format!("route add default via 10.{number}.0.1")).unwrap();
    carrier.set_forwarding().unwrap();
    nft(
        &carrier,
        "table ip carrier { chain out { type nat hook postrouting priority srcnat; \
         oifname wan0 meta l4proto udp masquerade to :20000-60000 random; }; }",
    );
    carrier
}

fn connected_box(number: usize, carriers: &[NetNs; 2]) -> NetNs {
    let namespace = NetNs::create(&format!("box{number}")).unwrap();
    for (uplink, carrier) in (1..).zip(carriers) {
        let end = |last: u8| format!("100.{}.{number}.{last}", 64 + uplink);
        let (name, far) = (format!("eth{uplink}"), format!("b{number}"));
        let (near_address, far_address) = (format!("{}/24", end(2)), format!("{}/24", end(1)));
        cable((&namespace, &name, &[&near_address]), (carrier, &far, &[&far_address]));
        let route = format!("route add default via {} dev {name} metric {uplink}00", end(1));
        namespace.ip(&route).unwrap();
    }
    namespace
}

fn inner(number: usize) -> String {
    format!("10.77.0.{}", 2 + number)
}

fn sessions_of_shards(status: &Value) -> Vec<u64> {
    let shards = status["shards"].as_array().unwrap_or_else(|| panic!("no shards: {status:#}"));
    shards.iter().map(|shard| shard["sessions"].as_u64().unwrap()).collect()
}

fn remotes(session: &Value) -> Vec<String> {
    let paths = session["paths"].as_array().unwrap().iter();
    paths.map(|path| path["remote"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn clients_on_all_shards_are_served_as_by_one_loop() {
    run_sandboxed(|| {
        let mut fleet = Fleet::new(5);
        fleet.spread();
        for (number, client) in (0..).zip(&fleet.clients) {
            let instance = if number == 0 { CLIENT.to_owned() } else { format!("rw{number}") };
            let both = |status: &Value| usable(status) == ["eth1", "eth2"];
            fleet.network.wait_for_status(&instance, "two paths", both);
            assert_eq!(client.count("joined"), 1, "{}", client.log());
        }
        fleet.check_traffic(10);
        let before = fleet.network.show(SERVER);
        let shards = before["shards"].as_array().unwrap();
        let handed_over: u64 =
            shards.iter().map(|shard| shard["handed_over"].as_u64().unwrap()).sum();
        let packets = before["device"]["packets_written"].as_u64().unwrap();
        assert!(handed_over * 4 < packets, "{before:#}");
        // Addresses and ports of the carriers change. All paths carry all pings.
        for instance in (0..5).map(|number| format!("rw{number}")) {
            let path = socket(&instance);
            let set = ["set", "--socket", &path, "interactive", "strategy", "redundant"];
            assert!(roadweave(&set).status.success());
        }
        for round in 0..3 {
            let carriers = (1..).zip(&fleet.carriers);
            carriers.for_each(|(number, carrier)| rebind(carrier, number, round));
            fleet.check_traffic(10);
            fleet.network.wait_for_status(SERVER, "all come from there", |status| {
                let mut remotes = (0..5).flat_map(|number| remotes(&fleet.session(status, number)));
                let end = format!(".0.{}:", 10 + round);
                remotes.all(|remote| remote.contains(&end))
            });
        }
        let after = fleet.network.show(SERVER);
        assert_eq!(sessions_of_shards(&before), sessions_of_shards(&after), "they moved");
        for client in &fleet.clients {
            assert_eq!(client.count("joined"), 1, "{}", client.log());
        }
        for number in 0..fleet.clients.len() {
            let session = fleet.session(&after, number);
            assert_eq!(usable(&json!({ "sessions": [session] })), ["eth1", "eth2"]);
        }
        let packets = |status: &Value| status["device"]["packets_read"].as_u64().unwrap();
        assert!(packets(&after) >= 200, "{after:#}");
        let page = fleet.network.page(SERVER);
        assert!(page.contains("handed over"), "{page}");
        check_replaced_sessions(&mut fleet);
        check_changes(&fleet);
        fleet.server.interrupt();
    });
}

/// Gives a carrier another address: its translator forgets all flows and chooses other ports.
fn rebind(carrier: &NetNs, number: usize, round: usize) {
    let words = [
        "address flush dev wan0".to_owned(),
        format!("address add 10.{number}.0.{}/24 dev wan0", 10 + round),
        format!("route replace default via 10.{number}.0.1"),
    ];
    words.iter().for_each(|words| carrier.ip(words).unwrap());
}

/// After a kill the server hears no goodbye: the next session replaces the former one.
fn check_replaced_sessions(fleet: &mut Fleet) {
    let replaced = "a newer session of the same client replaces it";
    let before = fleet.server.count(replaced);
    (0..6).for_each(|_| fleet.restart_last(Signal::KILL));
    fleet.check_traffic(3);
    assert!(fleet.server.count(replaced) > before, "{}", fleet.server.log());
}

fn check_changes(fleet: &Fleet) {
    let set = ["set", "--socket", &socket(SERVER), "interactive", "strategy", "redundant"];
    assert!(roadweave(&set).status.success());
    let status = fleet.network.show(SERVER);
    for number in 0..5 {
        let lane = &fleet.session(&status, number)["lanes"][1];
        assert_eq!(lane["strategy"], "redundant", "{lane:#}");
    }
    fleet.network.edit("server.toml", |text| {
        let end = text.find("[[peers]]\nname = \"box-1\"").unwrap();
        text[..end].to_owned()
    });
    fleet.server.reload();
    fleet.wait_for_sessions(1);
    for client in &fleet.clients[1..] {
        client.wait_for("refused by the server");
    }
    check_ping(&fleet.network.server, &inner(0), "-c 3 -i 0.05");
}
