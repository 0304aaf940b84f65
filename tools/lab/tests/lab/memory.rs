//! Memory of sessions as counted by the kernel for a process without other tests.

use std::env;
use std::process::Command;
use std::time::Duration;

use crate::nodes::{Config, Hostile, Nodes};

const MIB: u64 = 1 << 20;
const ALONE: &str = "ROADWEAVE_TEST_ALONE";

/// Whether this process runs the test `name` alone; if not, one that does has run and succeeded.
#[expect(clippy::disallowed_methods, reason = "the memory of a process is measured")]
fn is_alone(name: &str) -> bool {
    if env::var_os(ALONE).is_some() {
        return true;
    }
    let mut test = Command::new(env::current_exe().unwrap());
    let ran = test.args(["--exact", name]).env(ALONE, "1").output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    false
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn press(nodes: &mut Nodes, hostile: &mut [Hostile], millis: u64) {
    for _ in 0..millis / 5 {
        hostile.iter_mut().for_each(|hostile| hostile.press(nodes));
        nodes.flush();
        nodes.run(Duration::from_millis(5));
        nodes.arrivals();
    }
}

#[test]
fn a_server_holds_no_more_than_it_says_whatever_its_clients_send() {
    if !is_alone("memory::a_server_holds_no_more_than_it_says_whatever_its_clients_send") {
        return;
    }
    let mut nodes = Nodes::new(Config {
        memory_max: 24 << 20,
        client_memory_max: 16 << 20,
        ..Config::direct(3, "minrtt")
    });
    let mut hostile = [0, 1, 2].map(|vehicle| Hostile::start(&mut nodes, vehicle));
    press(&mut nodes, &mut hostile, 300);
    let (before, reckoned_before) = (resident(), nodes.server(0).memory());
    let mut most = 0;
    for _ in 0..4 {
        press(&mut nodes, &mut hostile, 500);
        most = most.max(resident());
    }
    let reckoned = nodes.server(0).memory() - reckoned_before;
    let held = most - before;
    // The process also contains the clients and the allocator's reserves.
    let text = format!("{} MiB, and {} by its own account", held / MIB, reckoned / MIB);
    assert!(held < (24 + 12) * MIB, "{text}");
    assert!(reckoned > 12 * MIB, "they got somewhere: {text}");
}
