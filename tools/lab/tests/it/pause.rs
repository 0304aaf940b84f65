//! A client that was paused checks its session and paths at once.

use std::time::Duration;

use crate::world::*;
use roadweave_proto::PathStatus;
use roadweave_tunnel::ClientEvent;

fn pause(world: &mut World, lasted: Duration) {
    let now = world.now;
    world.inner.ends_mut().0.on_pause(now, lasted);
    world.flush();
}

fn joins_and_leaves(world: &World) -> (usize, usize) {
    let events = || world.client_events.iter().map(|(_, event)| event);
    let joined = events().filter(|event| matches!(event, ClientEvent::Joined { .. })).count();
    (joined, events().filter(|event| matches!(event, ClientEvent::Left { .. })).count())
}

fn attempts(world: &mut World) -> u64 {
    let now = world.now;
    let uplinks = world.inner.ends_mut().0.uplinks(now);
    uplinks.iter().flat_map(|uplink| &uplink.servers).map(|pair| pair.attempts).sum()
}

fn world() -> World {
    Plan::new("xnc", vec![link(20, 20), link(20, 30)]).build().join()
}

#[test]
fn a_pause_longer_than_the_session_lives_is_followed_by_a_new_session_at_once() {
    let mut world = world();
    pause(&mut world, Duration::from_secs(3_600));
    world.run(ms(300));
    assert_eq!(joins_and_leaves(&world), (2, 1), "{:?}", world.client_events);
    assert!(world.inner.is_joined());
}

#[test]
fn after_a_short_pause_the_session_lives_if_its_paths_answer() {
    let mut world = world();
    pause(&mut world, Duration::from_secs(20));
    let usable = |world: &World| {
        let status = world.client_status();
        status.paths.iter().filter(|path| path.status == PathStatus::Usable).count()
    };
    assert_eq!(usable(&world), 0, "nothing is believed");
    world.run(ms(100));
    assert_eq!(usable(&world), 2, "each has answered");
    world.run(ms(10_000));
    assert_eq!(joins_and_leaves(&world), (1, 0), "{:?}", world.client_events);
}

#[test]
fn after_a_pause_nobody_waits_for_a_session_that_does_not_answer() {
    let mut world = world();
    world.run(ms(40_000));
    let before = attempts(&mut world);
    (0..2).for_each(|index| world.set_dead(index, true));
    pause(&mut world, Duration::from_secs(20));
    world.run(ms(500));
    assert!(attempts(&mut world) > before, "without the usual wait");
    (0..2).for_each(|index| world.set_dead(index, false));
    world.run(ms(3_000));
    assert!(world.inner.is_joined());
    let sent = stream(&mut world, 30, 1);
    assert_eq!(arrivals(&world.up).len(), sent.len(), "and everything passes");
}
