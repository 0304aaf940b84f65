//! Uplinks behind a captive portal.

use crate::world::*;
use roadweave_emulate::Direction;
use roadweave_tunnel::{Notice, Portal};

fn set_portal(world: &mut World, link: usize) {
    world.set_portal(link, Some(Portal { url: Some("http://login.example/".to_owned()) }));
}

fn held_back(world: &World) -> Vec<bool> {
    world.uplinks().iter().map(|uplink| uplink.portal.is_some()).collect()
}

/// A session over the first of two links; the second passes nothing.
fn behind_one() -> World {
    let mut world = World::new(two_links());
    world.set_dead(1, true);
    world.join()
}

#[test]
fn behind_a_portal_an_uplink_is_tried_no_more_than_another_and_comes_back_by_itself() {
    let sent = |world: &mut World| {
        world.run(ms(10_000));
        let before = world.link_stats(1, Direction::Up).pushed;
        world.run(ms(120_000));
        world.link_stats(1, Direction::Up).pushed - before
    };
    let tried = sent(&mut behind_one());
    let mut world = behind_one();
    set_portal(&mut world, 1);
    let sent = sent(&mut world);
    assert!((20..=tried).contains(&sent), "{sent} and {tried}");
    assert_eq!(held_back(&world), [false, true]);
    // A login without a report.
    world.set_dead(1, false);
    world.run(ms(10_000));
    assert!(world.all_paths_usable() && held_back(&world) == [false, false]);
    let is_portal = |it: &Notice| matches!(it, Notice::Portal { uplink } if uplink == "wwan1");
    let is_over =
        |it: &Notice| matches!(it, Notice::PortalOver { uplink, .. } if uplink == "wwan1");
    assert_eq!([count(world.notices(), is_portal), count(world.notices(), is_over)], [1, 1]);
}

#[test]
fn the_only_uplink_has_a_session_within_ten_seconds_of_the_login() {
    for hours in [0, 1] {
        let mut world = World::new(plan("xnc", vec![link(20, 20)]));
        world.set_dead(0, true);
        set_portal(&mut world, 0);
        world.run(ms(30_000 + hours * 3_600_000));
        let why = world.why_no_session();
        assert!(why.as_ref().is_some_and(|why| why.contains("log in")), "{why:?}");
        world.set_dead(0, false);
        world.run(ms(10_000));
        assert!(world.is_joined() && held_back(&world) == [false], "after {hours} h");
    }
}

#[test]
fn an_uplink_behind_a_portal_lets_nothing_wait_for_it() {
    // The server of the other uplink restarts, after a long wait at the portal.
    let mut world = behind_one();
    set_portal(&mut world, 1);
    world.run(ms(60_000));
    world.set_dead(0, true);
    world.restart_server().unwrap();
    stream(&mut world, 300, 1);
    world.set_dead(0, false);
    world.run(ms(8_000));
    assert!(world.is_joined(), "{:?}", world.client_events());
}

#[test]
fn what_a_network_says_of_itself_costs_no_path_that_works() {
    let mut world = World::joined(two_links());
    set_portal(&mut world, 0);
    world.run(ms(100));
    assert_eq!(held_back(&world), [false, false], "its path is validated");
    // One that a portal has cut off is held back until it answers.
    world.set_dead(1, true);
    stream(&mut world, 60, 2);
    set_portal(&mut world, 1);
    assert_eq!(held_back(&world), [false, true], "it is silent");
    world.set_dead(1, false);
    stream(&mut world, 120, 2);
    assert!(world.all_paths_usable() && held_back(&world) == [false, false]);
    // A wrong report before the path is open delays it only by seconds.
    let mut world = World::new(two_links());
    set_portal(&mut world, 1);
    let mut world = world.join();
    world.run(ms(8_000));
    assert!(world.all_paths_usable() && held_back(&world) == [false, false]);
}
