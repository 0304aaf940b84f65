//! How much unanswered clients send, and how soon they recover.

use std::time::Duration;

use crate::nodes::{Config, Nodes};
use crate::world::ms;
use roadweave_proto::{PathStatus, UplinkId};

const PATHS: u32 = 4;

/// Clients that have not started; a packet takes `time` of the server's and of the clients' CPU.
fn new_clients(clients: usize, time: Duration, seed: u64) -> Nodes {
    let config = Config::direct(clients, "minrtt");
    Nodes::new(Config { uplinks: PATHS, packet_time: time, seed, ..config })
}

fn joined(clients: usize, time: Duration, seed: u64) -> Nodes {
    let mut nodes = new_clients(clients, time, seed);
    for vehicle in 0..clients {
        nodes.start(vehicle);
        nodes.run(ms(97));
    }
    nodes.run(ms(20_000));
    assert!(are_back(&mut nodes));
    nodes
}

fn usable(nodes: &mut Nodes) -> usize {
    let sessions = (0..nodes.config().boxes).filter_map(|it| nodes.client(it)?.status());
    let paths = sessions.flat_map(|session| session.paths);
    paths.filter(|path| path.status == PathStatus::Usable).count()
}

fn are_back(nodes: &mut Nodes) -> bool {
    let clients = nodes.config().boxes;
    nodes.server(0).status().len() == clients && usable(nodes) == clients * PATHS as usize
}

/// Packets that each client sends in a second.
fn packets_up(nodes: &mut Nodes, seconds: u64) -> f64 {
    let before = nodes.counts().up;
    nodes.run(ms(1_000 * seconds));
    (nodes.counts().up - before) as f64 / seconds as f64 / nodes.config().boxes as f64
}

/// Attempts of a client at a session, by uplink.
fn attempts(nodes: &mut Nodes, vehicle: usize) -> Vec<u64> {
    let now = nodes.now();
    let uplinks = nodes.client(vehicle).unwrap().uplinks(now);
    uplinks.iter().map(|uplink| uplink.servers[0].attempts).collect()
}

fn set_dead(nodes: &mut Nodes, vehicle: usize, dead: bool) {
    (0..PATHS).for_each(|uplink| nodes.set_dead(vehicle, uplink, dead));
}

fn close_server(nodes: &mut Nodes) {
    let now = nodes.now();
    nodes.server(0).close(now);
    nodes.flush();
}

fn time_until_back(nodes: &mut Nodes) -> Duration {
    let begin = nodes.now();
    while usable(nodes) == 0 || nodes.joined() == 0 || nodes.server(0).status().is_empty() {
        assert!(nodes.now() - begin < ms(60_000), "it stays away");
        nodes.run(ms(20));
    }
    nodes.now() - begin
}

#[test]
fn after_a_minute_without_an_answer_a_client_sends_a_few_packets_in_a_second() {
    const CLIENTS: usize = 20;
    let mut new = new_clients(CLIENTS, Duration::ZERO, 1);
    (0..CLIENTS).for_each(|vehicle| set_dead(&mut new, vehicle, true));
    (0..CLIENTS).for_each(|vehicle| new.start(vehicle));
    let first = packets_up(&mut new, 10);
    new.run(ms(50_000));
    let later = packets_up(&mut new, 20);
    // With sessions that the server might still have.
    let mut former = joined(CLIENTS, Duration::ZERO, 1);
    (0..CLIENTS).for_each(|vehicle| set_dead(&mut former, vehicle, true));
    former.run(ms(60_000));
    let beside = packets_up(&mut former, 20);
    println!("first {first}, later {later}, beside a session {beside}");
    assert!(first <= 9.0 && later <= 3.2 && beside <= 4.2);
}

#[test]
fn a_client_is_back_soon_after_the_first_of_its_links_is() {
    for (restarts, announces, most) in
        [(false, false, 4_500), (true, false, 12_000), (true, true, 1_500)]
    {
        let took = (0..10).map(|seed| {
            let mut nodes = joined(1, Duration::ZERO, seed);
            set_dead(&mut nodes, 0, true);
            nodes.run(ms(15_000));
            if restarts {
                nodes.start_server(0);
            }
            nodes.run(ms(15_000 + 137 * seed));
            let uplink = seed as u32 % PATHS;
            nodes.set_dead(0, uplink, false);
            let now = nodes.now();
            if announces {
                let client = nodes.client(0).unwrap();
                client.on_new_addresses(now, UplinkId(uplink), "192.0.2.7".into());
                nodes.flush();
            }
            time_until_back(&mut nodes)
        });
        let took: Vec<Duration> = took.collect();
        println!("restarts {restarts}, announces {announces}: {took:?}");
        assert!(took.iter().all(|it| *it <= ms(most)), "{took:?}");
    }
}

#[test]
fn an_uplink_that_comes_after_minutes_without_any_is_tried_at_once() {
    let mut nodes = new_clients(1, Duration::ZERO, 3);
    set_dead(&mut nodes, 0, true);
    nodes.start(0);
    nodes.run(ms(300_000));
    nodes.set_dead(0, 2, false);
    let now = nodes.now();
    let client = nodes.client(0).unwrap();
    client.remove_uplink(now, UplinkId(2));
    client.add_uplink(now, UplinkId(2), "wwan2");
    nodes.flush();
    let took = time_until_back(&mut nodes);
    assert!(took <= ms(1_500), "{took:?}");
}

#[test]
fn clients_that_lose_a_server_at_the_same_moment_come_apart() {
    const CLIENTS: usize = 200;
    let mut nodes = joined(CLIENTS, Duration::ZERO, 1);
    close_server(&mut nodes);
    // It is unreachable for a while.
    nodes.pause_servers(ms(60_000));
    nodes.run(ms(3_000));
    let all = |nodes: &mut Nodes| -> u64 {
        (0..CLIENTS).flat_map(|vehicle| attempts(nodes, vehicle)).sum()
    };
    let mut begun = Vec::new();
    for _ in 0..300 {
        let before = all(&mut nodes);
        nodes.run(ms(100));
        begun.push(all(&mut nodes) - before);
    }
    let mean = begun.iter().sum::<u64>() as f64 / begun.len() as f64;
    println!("in 100 ms {mean} attempts begin of {CLIENTS} clients: {begun:?}");
    // One attempt per client in four seconds.
    assert!((4.0..=7.5).contains(&mean), "{mean}");
    assert!(begun.iter().all(|it| *it <= 20), "{begun:?}");
}

#[test]
fn all_are_back_though_both_ends_have_more_to_do_than_they_can() {
    let mut nodes = joined(150, Duration::from_micros(530), 1);
    nodes.start_server(0);
    let begin = nodes.now();
    while !are_back(&mut nodes) {
        nodes.run(ms(1_000));
        assert!(nodes.now() - begin < ms(30_000), "{} sessions", nodes.server(0).status().len());
    }
}

#[test]
fn a_server_that_is_late_again_and_again_is_not_asked_for_it() {
    let mut nodes = joined(50, Duration::ZERO, 1);
    for _ in 0..20 {
        nodes.pause_servers(ms(400));
        nodes.run(ms(500));
    }
    for side in 0..20 {
        nodes.pause_boxes(ms(400));
        nodes.run(ms(500));
        assert!(side < 10 || usable(&mut nodes) > 0);
    }
    let after = packets_up(&mut nodes, 5);
    assert!(after <= 3.0, "{after}");
}

#[test]
fn a_restart_takes_a_handshake_of_each_client_and_not_one_of_each_path() {
    const CLIENTS: usize = 50;
    let mut nodes = joined(CLIENTS, Duration::ZERO, 1);
    let before = nodes.counts().handshakes_up;
    nodes.start_server(0);
    nodes.run(ms(3_000));
    assert!(are_back(&mut nodes));
    // The first packet of a handshake, and the last.
    let handshakes = (nodes.counts().handshakes_up - before) as f64 / 2.0 / CLIENTS as f64;
    assert!(handshakes < 1.3, "{handshakes} of each client");
}

#[test]
fn others_wait_once_a_late_server_has_answered_and_not_before() {
    // The server is late after its close: a second uplink is tried, and no third after an answer.
    let mut late = new_clients(1, Duration::ZERO, 1);
    late.start(0);
    late.run(ms(5_000));
    let before: u64 = attempts(&mut late, 0).iter().sum();
    close_server(&mut late);
    late.pause_servers(ms(250));
    late.run(ms(2_000));
    let begun = attempts(&mut late, 0).iter().sum::<u64>() - before;
    assert_eq!((begun, late.joined()), (2, 1));
    // The first uplink is dead at the start: the second is tried without a wait.
    let mut nodes = new_clients(1, Duration::ZERO, 1);
    nodes.set_dead(0, 0, true);
    nodes.start(0);
    nodes.run(ms(290));
    assert_eq!((&attempts(&mut nodes, 0)[..2], nodes.joined()), (&[1, 1][..], 1));
}
