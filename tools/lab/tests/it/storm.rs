//! How much unanswered clients send, and how soon they recover.

use std::time::Duration;

use crate::nodes::{Config, Nodes};
use crate::world::ms;
use roadweave_proto::{PathStatus, UplinkId};

const PATHS: u32 = 4;

/// Clients that have not started; a packet takes `time` of the server's and of the clients' CPU.
fn crowd(clients: usize, time: Duration, seed: u64) -> Nodes {
    let config = Config::crowd(clients, "minrtt");
    Nodes::new(Config { uplinks: PATHS, packet_time: time, seed, ..config })
}

fn joined(clients: usize, time: Duration, seed: u64) -> Nodes {
    let mut crowd = crowd(clients, time, seed);
    for vehicle in 0..clients {
        crowd.start(vehicle);
        crowd.run(ms(97));
    }
    crowd.run(ms(20_000));
    assert!(are_back(&mut crowd));
    crowd
}

fn usable(crowd: &mut Nodes) -> usize {
    let sessions = (0..crowd.config().boxes).filter_map(|it| crowd.client(it)?.status());
    let paths = sessions.flat_map(|session| session.paths);
    paths.filter(|path| path.status == PathStatus::Usable).count()
}

fn are_back(crowd: &mut Nodes) -> bool {
    let clients = crowd.config().boxes;
    crowd.server(0).status().len() == clients && usable(crowd) == clients * PATHS as usize
}

/// Packets that each client sends in a second.
fn packets_up(crowd: &mut Nodes, seconds: u64) -> f64 {
    let before = crowd.counts().up;
    crowd.run(ms(1_000 * seconds));
    (crowd.counts().up - before) as f64 / seconds as f64 / crowd.config().boxes as f64
}

/// Attempts of a client at a session, by uplink.
fn attempts(crowd: &mut Nodes, vehicle: usize) -> Vec<u64> {
    let now = crowd.now();
    let uplinks = crowd.client(vehicle).unwrap().uplinks(now);
    uplinks.iter().map(|uplink| uplink.servers[0].attempts).collect()
}

fn set_dead(crowd: &mut Nodes, vehicle: usize, dead: bool) {
    (0..PATHS).for_each(|uplink| crowd.set_dead(vehicle, uplink, dead));
}

fn close_server(crowd: &mut Nodes) {
    let now = crowd.now();
    crowd.server(0).close(now);
    crowd.flush();
}

fn time_until_back(crowd: &mut Nodes) -> Duration {
    let begin = crowd.now();
    while usable(crowd) == 0 || crowd.joined() == 0 || crowd.server(0).status().is_empty() {
        assert!(crowd.now() - begin < ms(60_000), "it stays away");
        crowd.run(ms(20));
    }
    crowd.now() - begin
}

#[test]
fn after_a_minute_without_an_answer_a_client_sends_a_few_packets_in_a_second() {
    const CLIENTS: usize = 20;
    let mut new = crowd(CLIENTS, Duration::ZERO, 1);
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
    for (restarts, told, most) in
        [(false, false, 4_500), (true, false, 12_000), (true, true, 1_500)]
    {
        let took = (0..10).map(|seed| {
            let mut crowd = joined(1, Duration::ZERO, seed);
            set_dead(&mut crowd, 0, true);
            crowd.run(ms(15_000));
            if restarts {
                crowd.start_server(0);
            }
            crowd.run(ms(15_000 + 137 * seed));
            let uplink = seed as u32 % PATHS;
            crowd.set_dead(0, uplink, false);
            let now = crowd.now();
            if told {
                let client = crowd.client(0).unwrap();
                client.on_new_addresses(now, UplinkId(uplink), "192.0.2.7".into());
                crowd.flush();
            }
            time_until_back(&mut crowd)
        });
        let took: Vec<Duration> = took.collect();
        println!("restarts {restarts}, told {told}: {took:?}");
        assert!(took.iter().all(|it| *it <= ms(most)), "{took:?}");
    }
}

#[test]
fn an_uplink_that_comes_after_minutes_without_any_is_tried_at_once() {
    let mut crowd = crowd(1, Duration::ZERO, 3);
    set_dead(&mut crowd, 0, true);
    crowd.start(0);
    crowd.run(ms(300_000));
    crowd.set_dead(0, 2, false);
    let now = crowd.now();
    let client = crowd.client(0).unwrap();
    client.remove_uplink(now, UplinkId(2));
    client.add_uplink(now, UplinkId(2), "wwan2");
    crowd.flush();
    let took = time_until_back(&mut crowd);
    assert!(took <= ms(1_500), "{took:?}");
}

#[test]
fn clients_that_lose_a_server_at_the_same_moment_come_apart() {
    const CLIENTS: usize = 200;
    let mut crowd = joined(CLIENTS, Duration::ZERO, 1);
    close_server(&mut crowd);
    // It is unreachable for a while.
    crowd.pause_servers(ms(60_000));
    crowd.run(ms(3_000));
    let all = |crowd: &mut Nodes| -> u64 {
        (0..CLIENTS).flat_map(|vehicle| attempts(crowd, vehicle)).sum()
    };
    let mut begun = Vec::new();
    for _ in 0..300 {
        let before = all(&mut crowd);
        crowd.run(ms(100));
        begun.push(all(&mut crowd) - before);
    }
    let mean = begun.iter().sum::<u64>() as f64 / begun.len() as f64;
    println!("in 100 ms {mean} attempts begin of {CLIENTS} clients: {begun:?}");
    // One attempt per client in four seconds.
    assert!((4.0..=7.5).contains(&mean), "{mean}");
    assert!(begun.iter().all(|it| *it <= 20), "{begun:?}");
}

#[test]
fn all_are_back_though_both_ends_have_more_to_do_than_they_can() {
    let mut crowd = joined(150, Duration::from_micros(530), 1);
    crowd.start_server(0);
    let begin = crowd.now();
    while !are_back(&mut crowd) {
        crowd.run(ms(1_000));
        assert!(crowd.now() - begin < ms(30_000), "{} sessions", crowd.server(0).status().len());
    }
}

#[test]
fn a_server_that_is_late_again_and_again_is_not_asked_for_it() {
    let mut crowd = joined(50, Duration::ZERO, 1);
    for _ in 0..20 {
        crowd.pause_servers(ms(400));
        crowd.run(ms(500));
    }
    for side in 0..20 {
        crowd.pause_boxes(ms(400));
        crowd.run(ms(500));
        assert!(side < 10 || usable(&mut crowd) > 0);
    }
    let after = packets_up(&mut crowd, 5);
    assert!(after <= 3.0, "{after}");
}

#[test]
fn a_restart_takes_a_handshake_of_each_client_and_not_one_of_each_path() {
    const CLIENTS: usize = 50;
    let mut crowd = joined(CLIENTS, Duration::ZERO, 1);
    let before = crowd.counts().handshakes_up;
    crowd.start_server(0);
    crowd.run(ms(3_000));
    assert!(are_back(&mut crowd));
    // The first packet of a handshake, and the last.
    let handshakes = (crowd.counts().handshakes_up - before) as f64 / 2.0 / CLIENTS as f64;
    assert!(handshakes < 1.3, "{handshakes} of each client");
}

#[test]
fn others_wait_once_a_late_server_has_answered_and_not_before() {
    // The server is late after its close: a second uplink is tried, and no third after an answer.
    let mut late = crowd(1, Duration::ZERO, 1);
    late.start(0);
    late.run(ms(5_000));
    let before: u64 = attempts(&mut late, 0).iter().sum();
    close_server(&mut late);
    late.pause_servers(ms(250));
    late.run(ms(2_000));
    let begun = attempts(&mut late, 0).iter().sum::<u64>() - before;
    assert_eq!((begun, late.joined()), (2, 1));
    // The first uplink is dead at the start: the second is tried without a wait.
    let mut crowd = crowd(1, Duration::ZERO, 1);
    crowd.set_dead(0, 0, true);
    crowd.start(0);
    crowd.run(ms(290));
    assert_eq!((&attempts(&mut crowd, 0)[..2], crowd.joined()), (&[1, 1][..], 1));
}
