//! Restarting servers, links that die and return, pauses, and wrong keys.

use std::time::Duration;

use crate::world::*;
use roadweave_emulate::Direction;
use roadweave_lab::world::Trust;
use roadweave_proto::PathStatus;

#[test]
fn an_unknown_client_is_refused_in_one_line_on_both_sides_without_a_storm() {
    let trust = Trust { client_is_known: false, ..Trust::default() };
    let links = vec![link(20, 20), link(20, 30), link(20, 40)];
    let mut world = World::new(WorldConfig { trust, ..plan("xnc", links) });
    world.run(ms(9_000));
    let log = world.log();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.iter().filter(|line| line.contains("Refused {")).count(), 1, "{log}");
    assert!(lines.iter().all(|line| line.contains("does not know this client's key")), "{log}");
    assert_eq!(lines.len(), 2, "{log}");
}

#[test]
fn a_server_with_another_key_is_not_trusted() {
    let trust = Trust { server_is_right: false, ..Trust::default() };
    let mut world = World::new(WorldConfig { trust, ..two_links() });
    world.run(ms(9_000));
    let log = world.log();
    let lines: Vec<&str> = log.lines().filter(|line| !line.contains("Refused {")).collect();
    assert!(lines.len() == 1 && lines[0].contains("not the expected one"), "{log}");
}

#[test]
fn a_server_that_ends_each_session_is_asked_less_and_less_often() {
    let mut world = World::new(two_links());
    let mut ended = 0;
    for _ in 0..6_000 {
        world.run(ms(10));
        if world.sessions().0 > ended {
            ended = world.sessions().0;
            world.run(ms(100));
            world.close_server();
        }
    }
    // At once, then after 0, 1, 2, 4, 8, 16 and 32 seconds.
    assert!((4..=8).contains(&ended), "{ended} sessions in a minute");
}

fn send_for(world: &mut World, time: Duration, every: Duration) {
    let end = world.now() + time;
    for number in 20_000.. {
        if world.now() >= end {
            return;
        }
        world.send_up(&packet_up(number, 300));
        world.run(every);
    }
}

/// A packet sent from now on arrives within `time`.
fn check_soon(world: &mut World, time: Duration, every: Duration) {
    let before = world.up.len();
    send_for(world, time, every);
    let is_new = |arrival: &Arrival| number(&arrival.packet) >= 20_000;
    let came = world.up[before..].iter().any(is_new);
    assert!(came, "nothing within {time:?}: {:?}", world.client_events());
}

#[test]
fn a_sole_uplink_that_got_a_new_address_while_it_was_dead_comes_back() {
    let mut world = World::joined(plan("xnc", vec![link(20, 20)]));
    stream(&mut world, 30, 5);
    // The server moves the path to the new address, but its challenges are not answered.
    world.set_dead_way(0, Direction::Down, true);
    world.rebind(0);
    for number in 0..100 {
        world.send_up(&packet_up(number, 300));
        world.run(ms(100));
    }
    world.set_dead(0, false);
    check_soon(&mut world, ms(1_900), ms(20));
}

/// The port of the only uplink, of the first or second of two, or of one whose first attempt fails.
#[test]
fn a_port_that_leads_nowhere_is_left_for_another() {
    for links in [vec![link(20, 20)], vec![link(20, 20), link(20, 30)]] {
        let mut world = World::joined(plan("minrtt", links));
        stream(&mut world, 30, 5);
        world.lose_binding(0);
        world.remove_uplink(1);
        check_soon(&mut world, ms(11_500), ms(100));
    }
    let mut world = World::new(WorldConfig { lanes_up: vec![lane("minrtt")], ..two_links() });
    world.lose_binding(1);
    let mut world = world.join();
    assert!(!world.all_paths_usable());
    world.run(ms(15_000));
    assert!(world.all_paths_usable(), "{:?}", world.client_status());

    let mut world = World::new(plan("minrtt", vec![link(20, 20)]));
    world.remove_uplink(0);
    world.run(ms(1_000));
    world.lose_binding(0);
    world.add_uplink(0);
    check_soon(&mut world, ms(2_000), ms(100));
}

#[test]
fn a_path_that_was_dead_for_longer_than_its_port_lasts_comes_back_as_soon_as_any() {
    for seconds in [8, 15, 45] {
        let lanes = vec![lane("minrtt")];
        let mut world = World::joined(WorldConfig { lanes_up: lanes, ..two_links() });
        stream(&mut world, 30, 5);
        world.set_all_dead(true);
        send_for(&mut world, ms(seconds * 1_000), ms(100));
        world.set_all_dead(false);
        let (healed, before) = (world.now(), world.down.len());
        for number in 0..10 {
            world.send_up(&packet_up(30_000 + number, 300));
            world.send(Direction::Down, &packet_down(30_000 + number, 300));
            world.run(ms(50));
        }
        let is_new = |arrival: &Arrival| number(&arrival.packet) >= 30_000;
        let both = [&world.up[..], &world.down[before..]].map(|came| came.iter().any(is_new));
        assert_eq!(both, [true, true], "{seconds} s after {healed}");
    }
}

fn pause(world: &mut World, seconds: u64) {
    let now = world.now();
    world.ends_mut().0.on_pause(now, Duration::from_secs(seconds));
    world.flush();
}

#[test]
fn a_pause_longer_than_the_session_lives_is_followed_by_a_new_session_at_once() {
    let mut world = World::joined(two_links());
    pause(&mut world, 3_600);
    world.run(ms(300));
    assert!(world.is_joined() && world.sessions() == (2, 1), "{:?}", world.client_events());
}

#[test]
fn after_a_short_pause_the_session_lives_if_its_paths_answer() {
    let mut world = World::joined(two_links());
    pause(&mut world, 20);
    let usable = |world: &World| {
        let paths = world.client_status().paths;
        paths.iter().filter(|path| path.status == PathStatus::Usable).count()
    };
    assert_eq!(usable(&world), 0, "nothing is believed");
    world.run(ms(100));
    assert_eq!(usable(&world), 2, "each has answered");
    world.run(ms(10_000));
    assert_eq!(world.sessions(), (1, 0), "{:?}", world.client_events());
}

#[test]
fn after_a_pause_a_silent_session_is_not_awaited() {
    let mut world = World::joined(two_links());
    world.run(ms(40_000));
    let attempts = |world: &World| world.attempts(0) + world.attempts(1);
    let before = attempts(&world);
    world.set_all_dead(true);
    pause(&mut world, 20);
    world.run(ms(500));
    assert!(attempts(&world) > before, "without the usual wait");
    world.set_all_dead(false);
    world.run(ms(3_000));
    assert!(world.is_joined());
    let sent = stream(&mut world, 30, 1);
    assert_eq!(arrivals(&world.up).len(), sent.len(), "and everything passes");
}
