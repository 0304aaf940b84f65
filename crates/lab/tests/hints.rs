//! Which uplink is tried first is a hint: it decides beginnings, and no more.

mod world;

use roadweave_emulate::Direction;
use roadweave_tunnel::ClientEvent;
use world::*;

/// Packets that each link was given by now.
fn sent(world: &World) -> [u64; 2] {
    [0, 1].map(|link| world.inner.link_stats(link, Direction::Up).pushed)
}

/// Two links between which nothing but a hint decides, and a session that has just ended since both
/// were dead: round trips are to be measured anew, and both links live again.
fn at_a_beginning(one_way_ms: [u64; 2], first: usize) -> World {
    let links = one_way_ms.map(|delay| link(20, delay)).to_vec();
    let mut world = Plan::new("minrtt", links).build().join();
    world.run(ms(3_000));
    let names = world.inner.uplinks().into_iter().map(|uplink| uplink.name);
    for (link, name) in names.collect::<Vec<_>>().into_iter().enumerate() {
        world.inner.ends_mut().0.set_rank(&name, if link == first { 0 } else { 4 });
    }
    for link in [0, 1] {
        world.set_dead(link, true);
    }
    let has_left = |world: &World| {
        world.client_events.iter().any(|(_, event)| matches!(event, ClientEvent::Left { .. }))
    };
    for _ in 0..60_000 {
        if has_left(&world) {
            break;
        }
        world.run(ms(1));
    }
    assert!(has_left(&world), "a session over dead links ends");
    for link in [0, 1] {
        world.set_dead(link, false);
    }
    world
}

#[test]
fn the_first_packets_of_a_session_go_over_the_uplink_that_the_hint_names() {
    for first in [0, 1] {
        let mut world = at_a_beginning([20, 20], first);
        let before = sent(&world);
        while sent(&world) == before {
            world.run(ms(1));
        }
        let begun = sent(&world);
        assert!(begun[first] > before[first], "{first}: {before:?} {begun:?}");
        assert_eq!(begun[1 - first], before[1 - first], "the other begins later");
        let mut world = world.join();
        let status = world.inner.client_status().expect("a session");
        let name = world.inner.uplinks()[first].name.clone();
        assert_eq!(status.paths[0].uplink.as_deref(), Some(name.as_str()), "its first path");
        // Data before both links are measured.
        let before = sent(&world);
        stream(&mut world, 20, 1);
        let after = sent(&world);
        let [of_first, of_other] = [first, 1 - first].map(|link| after[link] - before[link]);
        assert!(of_first >= 15 && of_first > of_other, "{of_first} and {of_other}");
    }
}

#[test]
fn a_hint_that_lies_costs_the_beginning_and_what_is_measured_wins() {
    let mut world = at_a_beginning([10, 150], 1).join();
    world.run(ms(3_000));
    let before = sent(&world);
    stream(&mut world, 300, 1);
    let after = sent(&world);
    let [fast, slow] = [0, 1].map(|link| after[link] - before[link]);
    assert!(fast > 10 * slow, "{fast} over the fast link, {slow} over the slow one");
}
