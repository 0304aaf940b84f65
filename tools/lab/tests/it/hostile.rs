//! Attackers in a WiFi, captive portals and unusable servers: they affect only their own uplink or
//! address.

use std::time::Duration;

use crate::world::*;
use roadweave_lab::world::{Hostility, OtherServer, Stranger, Strangers};
use roadweave_proto::Instant;
use roadweave_tunnel::{ClientEvent, PairState};

const FORGED_CLOSE: Hostility = Hostility::Stranger(Stranger { close: 1.0, ..STRANGER });
const ALL_FORGED: Hostility = Hostility::Stranger(Stranger {
    close: 1.0,
    frames: 1.0,
    versions: 1.0,
    retry: 1.0,
    reset: 1.0,
    seed: 7,
});
const STRANGER: Stranger =
    Stranger { close: 0.0, frames: 0.0, versions: 0.0, retry: 0.0, reset: 0.0, seed: 7 };

/// A fast hostile link, and a slower good one.
fn beside_lte(hostility: Hostility) -> Plan {
    let mut plan = Plan::new("xnc", vec![link(20, 5), link(20, 30)]);
    plan.strangers.links.insert(0, hostility);
    plan
}

fn with_server(kind: OtherServer) -> Plan {
    let other = ("192.0.2.9:4433".parse().expect("an address"), kind);
    let strangers = Strangers { servers: vec![other], ..Strangers::default() };
    Plan { strangers, ..Plan::new("xnc", vec![link(20, 20), link(20, 30)]) }
}

fn joined_at(world: &mut World, time: Duration) -> Option<Instant> {
    let end = world.now + time;
    while world.now < end && !world.inner.is_joined() {
        world.run(ms(10));
    }
    world.inner.is_joined().then(|| world.client_events[0].0)
}

fn check_joins_soon(plan: Plan, what: &str) -> World {
    let mut world = plan.build();
    let joined = joined_at(&mut world, Duration::from_secs(20));
    assert!(
        joined.is_some_and(|joined| joined < at(1000)),
        "{what}: joined at {joined:?} {:?} {:?}",
        world.inner.notices(),
        world.inner.uplinks()
    );
    world
}

fn flow(world: &mut World, time: Duration) -> (usize, usize) {
    let before = world.up.len();
    let count = time.as_millis() as u64 / 20;
    let first = world.now.as_nanos();
    for number in 0..count {
        world.send_up(&packet_up(first + number, 300));
        world.run(ms(20));
    }
    world.run(ms(1000));
    (world.up.len() - before, count as usize)
}

#[test]
fn a_forged_close_on_one_uplink_costs_the_others_nothing() {
    let world = check_joins_soon(beside_lte(FORGED_CLOSE), "a forged close");
    let notice = world.inner.notices()[0].1.to_string();
    assert!(notice.contains("wwan0"), "{notice}");
    assert!(notice.contains("had not proved to be the server"), "{notice}");
}

#[test]
fn nothing_that_can_be_forged_on_one_uplink_costs_the_others_anything() {
    for kind in [
        Stranger { frames: 1.0, ..STRANGER },
        Stranger { versions: 1.0, ..STRANGER },
        Stranger { retry: 1.0, ..STRANGER },
        Stranger { reset: 1.0, ..STRANGER },
    ] {
        check_joins_soon(beside_lte(Hostility::Stranger(kind)), &format!("{kind:?}"));
    }
    check_joins_soon(beside_lte(ALL_FORGED), "all of it");
}

#[test]
fn a_captive_portal_costs_the_other_uplinks_nothing_and_is_forgotten_when_it_opens() {
    let mut world = check_joins_soon(beside_lte(Hostility::Portal), "a portal");
    world.run(ms(5000));
    assert_eq!(world.client_status().paths.iter().filter(|path| path.id == 0).count(), 1);
    world.set_hostility(0, None);
    world.run(ms(40_000));
    assert!(world.inner.all_paths_usable(), "{:?}", world.client_status().paths);
    assert_eq!(world.sessions(), (1, 0));
}

#[test]
fn a_network_that_lets_handshakes_through_and_nothing_more_wins_no_race() {
    let mut world = check_joins_soon(beside_lte(Hostility::HandshakesOnly), "handshakes only");
    let (came, sent) = flow(&mut world, Duration::from_secs(10));
    assert_eq!((came, world.sessions()), (sent, (1, 0)));
}

#[test]
fn an_uplink_that_connects_and_is_not_welcomed_rests_alone() {
    let mut plan = Plan::new("xnc", vec![link(20, 5)]);
    plan.strangers.links.insert(0, Hostility::HandshakesOnly);
    let mut world = plan.build();
    world.run(ms(5500));
    let pair = world.inner.uplinks()[0].servers[0].clone();
    assert_eq!(pair.state, PairState::Resting, "{pair:?}");
    assert!(pair.last.is_some_and(|last| last.contains("no welcome came")));
    world.inner.add_uplink(0);
    world.set_hostility(0, None);
    assert!(joined_at(&mut world, Duration::from_secs(3)).is_some());
}

#[test]
fn a_network_that_lets_a_session_begin_and_nothing_more_is_tried_ever_less_and_costs_no_other() {
    let mut begun_in_vain = Vec::new();
    for packets in [2, 4, 8, 16] {
        let mut world = beside_lte(Hostility::FirstPackets(packets)).build();
        // The good link becomes available later.
        world.set_dead(1, true);
        world.run(ms(120_000));
        begun_in_vain.push(world.sessions().1);
        world.set_dead(1, false);
        world.run(ms(15_000));
        let (came, sent) = flow(&mut world, Duration::from_secs(30));
        assert!(came * 100 >= sent * 99, "{packets}: {came} of {sent} {:?}", world.client_events);
    }
    // The first two let no welcome through. The others let sessions begin; each session lasts 5 s,
    // and a rest follows.
    assert_eq!(begun_in_vain[..2], [0, 0]);
    assert!(begun_in_vain[2..].iter().all(|left| (4..=8).contains(left)), "{begun_in_vain:?}");
}

#[test]
fn a_server_of_the_list_that_is_of_no_use_delays_no_other() {
    for kind in [
        OtherServer::Refuses,
        OtherServer::WrongKey,
        OtherServer::OtherVersion,
        OtherServer::Silent,
    ] {
        let mut world = check_joins_soon(with_server(kind), &format!("{kind:?}"));
        let (came, sent) = flow(&mut world, Duration::from_secs(2));
        assert_eq!((came, world.sessions()), (sent, (1, 0)), "{kind:?}");
        // The same after a restart of the right server, while the other is not yet tried again.
        world.restart_server();
        let restarted = world.now;
        world.run(ms(4000));
        let joined = world.client_events.iter().rev().find_map(|(at, event)| match event {
            ClientEvent::Joined { .. } => Some(*at),
            _ => None,
        });
        assert!(
            joined.is_some_and(|at| at > restarted && at.since(restarted) <= ms(2500)),
            "{kind:?}: {joined:?} after {restarted:?} {:?}",
            world.client_events
        );
    }
}

#[test]
fn attempts_under_fire_are_few_and_go_on_as_soon_as_it_stops() {
    let links = vec![link(20, 20), link(20, 30)];
    let mut plan = Plan::new("xnc", links);
    (0..2).for_each(|link| _ = plan.strangers.links.insert(link, ALL_FORGED));
    let mut world = plan.build();
    assert_eq!(joined_at(&mut world, Duration::from_secs(100)), None);
    for uplink in world.inner.uplinks() {
        let attempts = uplink.servers[0].attempts;
        assert!((5..=12).contains(&attempts), "{attempts} attempts in 100 s");
    }
    assert!(world.inner.notices().len() <= 40, "{:?}", world.inner.notices());
    (0..2).for_each(|link| world.set_hostility(link, None));
    // The session comes up after the first rest.
    let rests = world.inner.uplinks().into_iter().filter_map(|up| up.servers[0].rest_seconds);
    let rest = rests.fold(f64::INFINITY, f64::min).min(30.0);
    let (stopped, soon) = (world.now, Duration::from_secs_f64(rest + 1.0));
    let joined = joined_at(&mut world, Duration::from_secs(40));
    assert!(joined.is_some_and(|joined| joined < stopped + soon), "{joined:?}, {rest} s rest");
}

#[test]
fn forged_packets_end_no_session_and_begin_no_other() {
    let mut world = Plan::new("xnc", vec![link(20, 20), link(20, 30)]).build();
    // Attackers see the handshakes, and forge packets once the session is up.
    (0..2).for_each(|link| world.set_hostility(link, Some(Hostility::Stranger(STRANGER))));
    let mut world = world.join();
    (0..2).for_each(|link| world.set_hostility(link, Some(ALL_FORGED)));
    let (came, sent) = flow(&mut world, Duration::from_secs(10));
    assert_eq!((came, world.sessions()), (sent, (1, 0)), "{:?}", world.client_events);
}

#[test]
fn a_silent_session_is_not_given_up_for_a_connection_that_is_not_welcomed() {
    let mut world = Plan::new("xnc", vec![link(20, 5), link(20, 30)]).build();
    world.set_dead(0, true);
    let mut world = world.join();
    assert_eq!(world.sessions(), (1, 0));
    // From now on the WiFi lets handshakes through, and the link of the session dies.
    world.set_hostility(0, Some(Hostility::HandshakesOnly));
    world.set_dead(0, false);
    world.set_dead(1, true);
    world.run(ms(20_000));
    assert_eq!(world.sessions(), (1, 0), "{:?}", world.client_events);
    world.set_dead(1, false);
    let (came, sent) = flow(&mut world, Duration::from_secs(2));
    assert!(came * 10 >= sent * 9, "{came} of {sent}");
    assert_eq!(world.sessions(), (1, 0), "the same session goes on");
}
