//! What many clients cost a server when one of both is late: signs of life that they ask for, and
//! handshakes.

use std::time::Duration;

use roadweave_lab::crowd::{Crowd, CrowdConfig};
use roadweave_proto::PathStatus;

const CLIENTS: usize = 50;
const PATHS: u32 = 4;
const ALL_PATHS: usize = CLIENTS * PATHS as usize;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn run(crowd: &mut Crowd, time: Duration) {
    crowd.run_until(crowd.now() + time);
}

/// Idle clients that have all their paths; each packet takes so many microseconds of the server's
/// processor, and of the one that all clients share.
fn idle_crowd(server: u64, vehicles: u64) -> Crowd {
    let config = CrowdConfig {
        uplinks: PATHS,
        server_time: Duration::from_micros(server),
        vehicles_time: Duration::from_micros(vehicles),
        ..CrowdConfig::new(CLIENTS, "minrtt")
    };
    let mut crowd = Crowd::new(config).unwrap();
    for vehicle in 0..CLIENTS {
        crowd.start(vehicle, 0);
        run(&mut crowd, ms(83));
    }
    run(&mut crowd, ms(20_000));
    assert_eq!(usable(&mut crowd), [ALL_PATHS; 2]);
    crowd
}

/// How many paths are usable, at clients and at the server.
fn usable(crowd: &mut Crowd) -> [usize; 2] {
    let clients: Vec<_> = (0..CLIENTS).filter_map(|it| crowd.client(it)?.status()).collect();
    [clients, crowd.server().status()].map(|sessions| {
        let paths = sessions.iter().flat_map(|session| &session.paths);
        paths.filter(|path| path.status == PathStatus::Usable).count()
    })
}

/// How many packets each client sends in each of the next seconds.
fn packets_up(crowd: &mut Crowd, seconds: usize) -> Vec<u64> {
    let second = |_| {
        let before = crowd.counts().up;
        run(crowd, ms(1_000));
        (crowd.counts().up - before).div_ceil(CLIENTS as u64)
    };
    (0..seconds).map(second).collect()
}

/// How soon after a restart of the server all clients have all their paths again.
fn all_back(crowd: &mut Crowd, limit: Duration) -> Duration {
    crowd.restart_server().unwrap();
    let begin = crowd.now();
    // As long as nobody has noticed, all seem to be there.
    run(crowd, ms(1_000));
    while usable(crowd) != [ALL_PATHS; 2] {
        let (took, sessions) = (crowd.now() - begin, crowd.server().status().len());
        assert!(took < limit, "{sessions} sessions, {:?} paths after {took:?}", usable(crowd));
        run(crowd, ms(100));
    }
    crowd.now() - begin
}

#[test]
fn idle_clients_ask_ever_less_of_a_server_that_does_not_answer() {
    let mut crowd = idle_crowd(0, 0);
    let quiet = packets_up(&mut crowd, 1)[0];
    assert!(quiet <= 2, "{quiet} packets of an idle client in a second");
    crowd.pause_server(ms(4_900));
    let asked = packets_up(&mut crowd, 5);
    assert!(asked.iter().all(|packets| *packets <= 60), "{asked:?}");
    assert!(asked[3..].iter().all(|packets| *packets <= 8), "{asked:?}");
    run(&mut crowd, ms(500));
    assert_eq!(usable(&mut crowd), [ALL_PATHS; 2], "and all is well again at once");
    let after = packets_up(&mut crowd, 5);
    assert!(after.iter().sum::<u64>() <= 15, "{after:?}");
}

#[test]
fn a_server_that_is_late_again_and_again_is_not_asked_for_it() {
    let mut crowd = idle_crowd(0, 0);
    for _ in 0..20 {
        crowd.pause_server(ms(400));
        run(&mut crowd, ms(500));
    }
    for side in 0..20 {
        crowd.pause_vehicles(ms(400));
        run(&mut crowd, ms(500));
        assert!(side < 10 || usable(&mut crowd)[0] > 0);
    }
    let after = packets_up(&mut crowd, 5);
    assert!(after.iter().sum::<u64>() <= 15, "{after:?}");
}

#[test]
fn all_are_back_after_a_restart_although_the_server_has_more_to_do_than_it_can() {
    let mut crowd = idle_crowd(400, 0);
    let took = all_back(&mut crowd, ms(15_000));
    println!("server of 2,500 packets per second: {took:?}");
}

#[test]
fn all_are_back_after_a_restart_although_clients_have_more_to_do_than_they_can() {
    let mut crowd = idle_crowd(0, 400);
    let took = all_back(&mut crowd, ms(15_000));
    println!("clients of 2,500 packets per second: {took:?}");
}

#[test]
fn a_restart_takes_a_handshake_of_each_client_and_not_one_of_each_path() {
    let mut crowd = idle_crowd(0, 0);
    let before = crowd.counts().handshakes_up;
    let took = all_back(&mut crowd, ms(3_000));
    // The first packet of a handshake, and the last.
    let handshakes = (crowd.counts().handshakes_up - before) as f64 / 2.0 / CLIENTS as f64;
    assert!(handshakes < 1.3, "{handshakes} of each client, all back after {took:?}");
}

#[test]
fn others_wait_once_a_late_server_has_answered_and_not_before() {
    let config = CrowdConfig { uplinks: PATHS, ..CrowdConfig::new(1, "minrtt") };
    let attempts = |crowd: &mut Crowd| -> Vec<u64> {
        let now = crowd.now();
        let uplinks = crowd.client(0).unwrap().uplinks(now);
        uplinks.iter().map(|uplink| uplink.servers[0].attempts).collect()
    };
    // It is late after a goodbye: the second uplink is tried, and no other once it has answered.
    let mut crowd = Crowd::new(config.clone()).unwrap();
    crowd.start(0, 0);
    run(&mut crowd, ms(5_000));
    let before: u64 = attempts(&mut crowd).iter().sum();
    let now = crowd.now();
    crowd.server().close(now);
    crowd.flush();
    crowd.pause_server(ms(250));
    run(&mut crowd, ms(2_000));
    let begun = attempts(&mut crowd).iter().sum::<u64>() - before;
    assert_eq!((begun, crowd.joined()), (2, 1));
    // The first is dead at the start: the second is not kept waiting.
    let mut crowd = Crowd::new(config).unwrap();
    crowd.set_dead(0, 0, true);
    crowd.start(0, 0);
    run(&mut crowd, ms(290));
    assert_eq!((&attempts(&mut crowd)[..2], crowd.joined()), (&[1, 1][..], 1));
}
