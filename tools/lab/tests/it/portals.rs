//! Uplinks behind a captive portal.

use crate::world::*;
use roadweave_emulate::Direction;
use roadweave_tunnel::{Notice, Portal};

fn portal() -> Option<Portal> {
    Some(Portal { url: Some("http://login.example/".to_owned()) })
}

/// Packets sent over a link in the next `seconds`.
fn sent_in(world: &mut World, index: usize, seconds: u64) -> u64 {
    let sent = |world: &World| world.inner.link_stats(index, Direction::Up).pushed;
    let before = sent(world);
    world.run(ms(seconds * 1_000));
    sent(world) - before
}

fn is_held_back(world: &World, index: usize) -> bool {
    world.inner.uplinks()[index].portal.is_some()
}

fn why_no_session(world: &mut World) -> Option<String> {
    let now = world.now;
    world.inner.ends_mut().0.why_no_session(now)
}

/// A session over the first of two links; the second passes nothing.
fn behind_one() -> World {
    let mut world = Plan::new("xnc", vec![link(20, 20), link(20, 30)]).build();
    world.set_dead(1, true);
    world.join()
}

#[test]
fn behind_a_portal_an_uplink_is_tried_no_more_than_another_and_comes_back_by_itself() {
    let mut world = behind_one();
    world.inner.set_portal(1, portal());
    world.run(ms(10_000));
    let held_back = sent_in(&mut world, 1, 120);
    let mut other = behind_one();
    other.run(ms(10_000));
    let tried = sent_in(&mut other, 1, 120);
    assert!((20..=tried).contains(&held_back), "{held_back} and {tried}");
    assert!(is_held_back(&world, 1) && !is_held_back(&world, 0));
    // A login without a report.
    world.set_dead(1, false);
    world.run(ms(10_000));
    assert!(world.inner.all_paths_usable() && !is_held_back(&world, 1));
    let told = |wanted: fn(&Notice) -> bool| {
        world.inner.notices().iter().filter(|(_, notice)| wanted(notice)).count()
    };
    assert_eq!(told(|it| matches!(it, Notice::Portal { uplink } if uplink == "wwan1")), 1);
    assert_eq!(told(|it| matches!(it, Notice::PortalOver { uplink, .. } if uplink == "wwan1")), 1);
}

#[test]
fn the_only_uplink_has_a_session_within_ten_seconds_of_the_login() {
    for hours in [0, 1] {
        let mut world = Plan::new("xnc", vec![link(20, 20)]).build();
        world.set_dead(0, true);
        world.inner.set_portal(0, portal());
        world.run(ms(30_000 + hours * 3_600_000));
        let why = why_no_session(&mut world);
        assert!(why.as_ref().is_some_and(|why| why.contains("log in")), "{why:?}");
        world.set_dead(0, false);
        world.run(ms(10_000));
        assert!(world.inner.is_joined() && !is_held_back(&world, 0), "after {hours} h");
    }
}

#[test]
fn an_uplink_behind_a_portal_lets_nothing_wait_for_it() {
    // The server of the other uplink restarts, after a long wait at the portal.
    let mut world = behind_one();
    world.inner.set_portal(1, portal());
    world.run(ms(60_000));
    world.set_dead(0, true);
    world.restart_server();
    stream(&mut world, 300, 1);
    world.set_dead(0, false);
    world.run(ms(8_000));
    assert!(world.inner.is_joined(), "{:?}", world.client_events);
}

#[test]
fn what_a_network_says_of_itself_costs_no_path_that_works() {
    let mut world = Plan::new("xnc", vec![link(20, 20), link(20, 30)]).build().join();
    world.inner.set_portal(0, portal());
    world.run(ms(100));
    assert!(!is_held_back(&world, 0), "its path is validated");
    // A wrong report before the path is open delays it only by seconds.
    let mut world = Plan::new("xnc", vec![link(20, 20), link(20, 30)]).build();
    world.inner.set_portal(1, portal());
    let mut world = world.join();
    world.run(ms(8_000));
    assert!(world.inner.all_paths_usable() && !is_held_back(&world, 1));
}

#[test]
fn a_path_that_a_portal_has_cut_off_is_held_back_until_it_answers() {
    let mut world = Plan::new("xnc", vec![link(20, 20), link(20, 30)]).build().join();
    world.set_dead(1, true);
    stream(&mut world, 60, 2);
    world.inner.set_portal(1, portal());
    assert!(is_held_back(&world, 1), "it is silent");
    world.set_dead(1, false);
    stream(&mut world, 120, 2);
    assert!(!is_held_back(&world, 1) && world.inner.all_paths_usable());
}
