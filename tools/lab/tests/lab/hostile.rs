//! Attackers, captive portals and unusable servers: they affect only their own uplink or address.

use std::time::Duration;

use crate::world::*;
use roadweave_lab::world::{Hostility, OtherServer, Stranger, Strangers};
use roadweave_tunnel::{ClientEvent, PairState};

const STRANGER: Stranger =
    Stranger { close: 0.0, frames: 0.0, versions: 0.0, retry: 0.0, reset: 0.0, seed: 7 };
const ALL_FORGED: Hostility = Hostility::Stranger(Stranger {
    close: 1.0,
    frames: 1.0,
    versions: 1.0,
    retry: 1.0,
    reset: 1.0,
    seed: 7,
});

/// A fast hostile link, and a slower good one.
fn beside_lte(hostility: Hostility) -> WorldConfig {
    let strangers = Strangers { links: [(0, hostility)].into(), ..Strangers::default() };
    WorldConfig { strangers, ..plan("xnc", vec![link(20, 5), link(20, 30)]) }
}

fn joined_soon(plan: WorldConfig, what: &str) -> World {
    let mut world = World::new(plan);
    world.run(ms(1_000));
    assert!(world.is_joined(), "{what}: {:?} {:?}", world.notices(), world.uplinks());
    world
}

/// Sends packets for `time`; returns how many arrived and how many were sent.
fn flow(world: &mut World, time: Duration) -> (usize, usize) {
    let before = world.up.len();
    let count = time.as_millis() as u64 / 20;
    let first = world.now().as_nanos();
    for number in 0..count {
        world.send_up(&packet_up(first + number, 300));
        world.run(ms(20));
    }
    world.run(ms(1000));
    (world.up.len() - before, count as usize)
}

fn check_flow(world: &mut World, time: Duration) {
    let (came, sent) = flow(world, time);
    assert_eq!((came, world.sessions()), (sent, (1, 0)), "{:?}", world.client_events());
}

#[test]
fn nothing_that_can_be_forged_on_one_uplink_costs_the_others_anything() {
    let close = Hostility::Stranger(Stranger { close: 1.0, ..STRANGER });
    let world = joined_soon(beside_lte(close), "a forged close");
    let notice = world.notices()[0].1.to_string();
    assert!(notice.contains("wwan0"), "{notice}");
    assert!(notice.contains("had not proved to be the server"), "{notice}");
    for kind in [
        Stranger { frames: 1.0, ..STRANGER },
        Stranger { versions: 1.0, ..STRANGER },
        Stranger { retry: 1.0, ..STRANGER },
        Stranger { reset: 1.0, ..STRANGER },
    ] {
        joined_soon(beside_lte(Hostility::Stranger(kind)), &format!("{kind:?}"));
    }
    joined_soon(beside_lte(ALL_FORGED), "all of it");
}

#[test]
fn a_captive_portal_costs_the_other_uplinks_nothing_and_is_forgotten_when_it_opens() {
    let mut world = joined_soon(beside_lte(Hostility::Portal), "a portal");
    world.run(ms(5000));
    assert_eq!(world.client_status().paths.iter().filter(|path| path.id == 0).count(), 1);
    world.set_hostility(0, None).unwrap();
    world.run(ms(40_000));
    assert!(world.all_paths_usable(), "{:?}", world.client_status().paths);
    assert_eq!(world.sessions(), (1, 0));
}

#[test]
fn a_network_that_lets_handshakes_through_and_nothing_more_wins_no_race() {
    let mut world = joined_soon(beside_lte(Hostility::HandshakesOnly), "handshakes only");
    check_flow(&mut world, ms(10_000));
}

#[test]
fn an_uplink_that_connects_and_is_not_welcomed_rests_alone() {
    let strangers = beside_lte(Hostility::HandshakesOnly).strangers;
    let mut world = World::new(WorldConfig { strangers, ..plan("xnc", vec![link(20, 5)]) });
    world.run(ms(5500));
    let pair = world.uplinks()[0].servers[0].clone();
    assert_eq!(pair.state, PairState::Resting, "{pair:?}");
    assert!(pair.last.is_some_and(|last| last.contains("no welcome came")));
    world.add_uplink(0);
    world.set_hostility(0, None).unwrap();
    world.run(ms(3_000));
    assert!(world.is_joined());
}

#[test]
fn a_network_that_lets_a_session_begin_and_nothing_more_is_tried_ever_less_and_costs_no_other() {
    let mut begun_in_vain = Vec::new();
    for packets in [2, 4, 8, 16] {
        let mut world = World::new(beside_lte(Hostility::FirstPackets(packets)));
        // The good link becomes available later.
        world.set_dead(1, true);
        world.run(ms(120_000));
        begun_in_vain.push(world.sessions().1);
        world.set_dead(1, false);
        world.run(ms(15_000));
        let (came, sent) = flow(&mut world, ms(30_000));
        assert!(came * 100 >= sent * 99, "{packets}: {came} of {sent} {:?}", world.client_events());
    }
    // The first two pass no welcome. The others let sessions begin, which last 5 s; a rest follows.
    assert_eq!(begun_in_vain[..2], [0, 0]);
    assert!(begun_in_vain[2..].iter().all(|left| (4..=8).contains(left)), "{begun_in_vain:?}");
}

#[test]
fn a_server_of_the_list_that_is_of_no_use_delays_no_other() {
    use OtherServer::{OtherVersion, Refuses, Silent, WrongKey};
    for kind in [Refuses, WrongKey, OtherVersion, Silent] {
        let servers = vec![("192.0.2.9:4433".parse().expect("an address"), kind)];
        let strangers = Strangers { servers, ..Strangers::default() };
        let mut world = joined_soon(WorldConfig { strangers, ..two_links() }, &format!("{kind:?}"));
        check_flow(&mut world, ms(2_000));
        // The same after a restart of the right server, while the other is not yet tried again.
        let joins = |world: &World| {
            count(world.client_events(), |event| matches!(event, ClientEvent::Joined { .. }))
        };
        let before = joins(&world);
        world.restart_server().unwrap();
        world.run(ms(2_500));
        assert!(joins(&world) > before, "{kind:?}: {:?}", world.client_events());
    }
}

#[test]
fn attempts_under_fire_are_few_and_go_on_as_soon_as_it_stops() {
    let links = [(0, ALL_FORGED), (1, ALL_FORGED)].into();
    let strangers = Strangers { links, ..Strangers::default() };
    let mut world = World::new(WorldConfig { strangers, ..two_links() });
    world.run(ms(100_000));
    assert!(!world.is_joined());
    for link in 0..2 {
        let attempts = world.attempts(link);
        assert!((5..=12).contains(&attempts), "{attempts} attempts in 100 s");
    }
    assert!(world.notices().len() <= 40, "{:?}", world.notices());
    (0..2).for_each(|link| world.set_hostility(link, None).unwrap());
    // The session comes up after the first rest.
    let rests = world.uplinks().into_iter().filter_map(|up| up.servers[0].rest_seconds);
    let rest = rests.fold(f64::INFINITY, f64::min).min(30.0);
    world.run(Duration::from_secs_f64(rest + 1.0));
    assert!(world.is_joined(), "{rest} s rest");
}

#[test]
fn forged_packets_end_no_session_and_begin_no_other() {
    let mut world = World::new(two_links());
    // Attackers see the handshakes, and forge packets once the session is up.
    let quiet = Hostility::Stranger(STRANGER);
    (0..2).for_each(|link| world.set_hostility(link, Some(quiet)).unwrap());
    let mut world = world.join();
    (0..2).for_each(|link| world.set_hostility(link, Some(ALL_FORGED)).unwrap());
    check_flow(&mut world, ms(10_000));
}

#[test]
fn a_silent_session_is_not_given_up_for_a_connection_that_is_not_welcomed() {
    let mut world = World::new(plan("xnc", vec![link(20, 5), link(20, 30)]));
    world.set_dead(0, true);
    let mut world = world.join();
    assert_eq!(world.sessions(), (1, 0));
    // From now on the WiFi lets handshakes through, and the link of the session dies.
    world.set_hostility(0, Some(Hostility::HandshakesOnly)).unwrap();
    world.set_dead(0, false);
    world.set_dead(1, true);
    world.run(ms(20_000));
    assert_eq!(world.sessions(), (1, 0), "{:?}", world.client_events());
    world.set_dead(1, false);
    let (came, sent) = flow(&mut world, ms(2_000));
    assert!(came * 10 >= sent * 9, "{came} of {sent}");
    assert_eq!(world.sessions(), (1, 0), "the same session goes on");
}
