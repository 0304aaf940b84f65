//! Restarting servers, links that die and return, and wrong keys.

use std::time::Duration;

use crate::world::*;
use roadweave_emulate::Direction;
use roadweave_tunnel::{ClientEvent, ServerEvent};

/// Events and notices of both sides within `time`.
fn refusals(plan: Plan, time: Duration) -> (Vec<String>, Vec<String>) {
    let mut world = plan.build();
    world.run(time);
    let client = world
        .client_events
        .iter()
        .map(|(_, event)| match event {
            ClientEvent::Left { reason, .. } => reason.clone(),
            other => format!("{other:?}"),
        })
        .chain(world.inner.notices().iter().map(|(_, notice)| notice.to_string()))
        .collect();
    let server = world
        .server_events
        .iter()
        .map(|(_, event)| match event {
            ServerEvent::Refused { reason } => reason.clone(),
            other => format!("{other:?}"),
        })
        .collect();
    (client, server)
}

#[test]
fn an_unknown_client_is_refused_in_one_line_on_both_sides_without_a_storm() {
    let links = vec![link(20, 20), link(20, 30), link(20, 40)];
    let plan = Plan { wrong_client: true, ..Plan::new("xnc", links) };
    let (client, server) = refusals(plan, Duration::from_secs(9));
    assert_eq!((client.len(), server.len()), (1, 1), "{client:?} {server:?}");
    assert!(client[0].contains("does not know this client's key"), "{client:?}");
    assert!(server[0].contains("does not know this client's key"), "{server:?}");
}

#[test]
fn a_server_with_another_key_is_not_trusted() {
    let plan = Plan { wrong_server: true, ..Plan::new("xnc", vec![link(20, 20), link(20, 30)]) };
    let (client, _) = refusals(plan, Duration::from_secs(9));
    assert_eq!(client.len(), 1, "{client:?}");
    assert!(client[0].contains("not the one expected"), "{client:?}");
}

#[test]
fn a_server_that_ends_each_session_is_asked_less_and_less_often() {
    let mut world = Plan::new("xnc", vec![link(20, 20), link(20, 30)]).build();
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

#[test]
fn a_sole_uplink_that_got_a_new_address_while_it_was_dead_comes_back() {
    let mut world = Plan::new("xnc", vec![link(20, 20)]).build().join();
    stream(&mut world, 30, 5);
    // The server moves the path to the new address, but its challenges are not answered.
    world.inner.set_dead_way(0, Direction::Down, true);
    world.inner.rebind(0);
    for number in 0..100 {
        world.send_up(&packet_up(number, 300));
        world.run(ms(100));
    }
    world.set_dead(0, false);
    let resumed = first_of(&mut world, 100, ms(20));
    assert!(resumed.is_some_and(|after| after < ms(1900)), "{resumed:?} {:?}", world.client_events);
}

/// Sends packets for `seconds`; returns when the first one arrived.
fn first_through(world: &mut World, seconds: u64) -> Option<Duration> {
    first_of(world, seconds * 10, ms(100))
}

fn first_of(world: &mut World, packets: u64, interval: Duration) -> Option<Duration> {
    let (began, before) = (world.now, world.up.len());
    for number in 0..packets {
        world.send_up(&packet_up(20_000 + number, 300));
        world.run(interval);
    }
    let new = |arrival: &&Arrival| number(&arrival.packet) >= 20_000;
    world.up[before..].iter().find(new).map(|arrival| arrival.at.since(began))
}

#[test]
fn a_port_whose_translation_leads_nowhere_is_left_during_a_session() {
    for links in [vec![link(20, 20)], vec![link(20, 20), link(20, 30)]] {
        let mut world = Plan::new("minrtt", links).build().join();
        stream(&mut world, 30, 5);
        world.inner.lose_binding(0);
        world.inner.remove_uplink(1);
        let first = first_through(&mut world, 30);
        assert!(first.is_some_and(|after| after < ms(11_500)), "{first:?}");
        assert!(world.inner.all_paths_usable() || world.inner.links() > 1);
    }
}

#[test]
fn a_second_path_whose_port_leads_nowhere_opens_from_another() {
    let mut world = Plan::new("minrtt", vec![link(20, 20), link(20, 30)]).build();
    world.inner.lose_binding(1);
    let mut world = world.join();
    assert!(!world.inner.all_paths_usable());
    world.run(ms(15_000));
    assert!(world.inner.all_paths_usable(), "{:?}", world.client_status());
}

#[test]
fn a_second_attempt_at_a_session_leaves_from_another_port() {
    let mut world = Plan::new("minrtt", vec![link(20, 20)]).build();
    world.inner.remove_uplink(0);
    world.run(ms(1_000));
    world.inner.lose_binding(0);
    world.inner.add_uplink(0);
    let first = first_through(&mut world, 10);
    assert!(first.is_some_and(|after| after < ms(2_000)), "{first:?}");
}

#[test]
fn a_path_that_was_dead_for_longer_than_its_port_lasts_comes_back_as_soon_as_any() {
    for seconds in [8, 15, 45] {
        let mut world = Plan::new("minrtt", vec![link(20, 20), link(20, 30)]).build().join();
        stream(&mut world, 30, 5);
        (0..2).for_each(|index| world.set_dead(index, true));
        first_through(&mut world, seconds);
        (0..2).for_each(|index| world.set_dead(index, false));
        let (healed, before) = (world.now, world.down.len());
        for number in 0..40 {
            world.send_up(&packet_up(30_000 + number, 300));
            world.send_down(&packet_down(30_000 + number, 300));
            world.run(ms(50));
        }
        let first = |all: &[Arrival]| {
            let new = all.iter().find(|arrival| number(&arrival.packet) >= 30_000);
            new.map(|arrival| arrival.at.since(healed))
        };
        let both = [first(&world.up), first(&world.down[before..])];
        let soon = |after: &Option<Duration>| after.is_some_and(|after| after < ms(500));
        assert!(both.iter().all(soon), "{seconds} s: {both:?}");
    }
}
