//! Networks that carry marks for ECN, remove them, or drop what is marked.

use super::wire::{links, links_with};
use super::*;

fn marking(world: &mut World, side: usize, path: u32) -> EcnMarking {
    world.side(side).ecn_marking(PathId(path)).expect("there is such a path")
}

fn exchange(world: &mut World, path: PathId, span: Duration) -> usize {
    let end = world.now + span;
    world.every(ms(20), span, |world, _| {
        for side in [CLIENT, SERVER] {
            _ = world.send(side, path, 500);
        }
    });
    let late = |(.., at): &&(u64, PathId, usize, Instant)| *at + ms(1000) >= end;
    world.sides[SERVER].books.received.iter().filter(late).count()
}

fn marked(delays: &[u64], marks: Marks) -> Vec<Wire> {
    links_with(delays, |way| way.marks = marks)
}

#[test]
fn marks_that_arrive_stay() {
    let mut world = World::connected(marked(&[20, 300], Marks::Carried));
    for path in 0..2 {
        assert!(exchange(&mut world, PathId(path), ms(3000)) > 40);
        for side in [CLIENT, SERVER] {
            assert_eq!(marking(&mut world, side, path), EcnMarking::Marked, "path {path}");
        }
    }
    world.links[0].set_dead(true);
    exchange(&mut world, PathId(0), ms(400));
    world.links[0].set_dead(false);
    assert!(exchange(&mut world, PathId(0), ms(3000)) > 40);
    assert_eq!(marking(&mut world, CLIENT, 0), EcnMarking::Marked);
}

#[test]
fn marks_that_are_removed_end() {
    let mut world = World::connected(links(&[20]));
    exchange(&mut world, PathId(0), ms(1000));
    assert_eq!(marking(&mut world, CLIENT, 0), EcnMarking::Unreported);
}

#[test]
fn a_session_begins_where_marked_packets_are_dropped() {
    for dropped in [[true, true], [true, false], [false, true]] {
        let mut network = marked(&[20, 30], Marks::Carried);
        for link in &mut network {
            for (way, is_dropped) in link.directions.iter_mut().zip(dropped) {
                way.marks = if is_dropped { Marks::Dropped } else { Marks::Carried };
            }
        }
        let mut world = World::new(network, &config(7));
        let began = world.now;
        world.connect(0);
        world.run(ms(3000));
        let connected = |side: usize| world.sides[side].books.connected.first().cloned();
        let client = connected(CLIENT).expect("a session").1.since(began);
        assert!(client < ms(2000), "{dropped:?}: {client:?}");
        assert!(connected(SERVER).is_some(), "{dropped:?}");
        world.open(1).unwrap();
        world.settle();
        world.run(ms(5000));
        for path in 0..2 {
            assert!(exchange(&mut world, PathId(path), ms(4000)) > 40, "{dropped:?}: path {path}");
        }
        assert_eq!(marking(&mut world, CLIENT, 0), EcnMarking::Lost, "{dropped:?}");
    }
}

#[test]
fn a_path_comes_back_that_moves_into_a_network_which_drops_marked_packets() {
    for dropped in [vec![CLIENT, SERVER], vec![CLIENT], vec![SERVER]] {
        let mut world = World::connected(marked(&[20, 50], Marks::Carried));
        assert!(exchange(&mut world, PathId(1), ms(2000)) > 40);
        assert_eq!(marking(&mut world, CLIENT, 1), EcnMarking::Marked);
        for side in &dropped {
            world.links[1].direction(*side).marks = Marks::Dropped;
        }
        assert!(exchange(&mut world, PathId(1), ms(4000)) > 40, "{dropped:?}");
        if dropped.contains(&CLIENT) {
            assert_eq!(marking(&mut world, CLIENT, 1), EcnMarking::Lost, "{dropped:?}");
        }
        for side in [CLIENT, SERVER] {
            assert_eq!(world.status(side, PathId(1)), PathStatus::Usable);
        }
        assert_eq!(marking(&mut world, CLIENT, 0), EcnMarking::Marked, "of this path alone");
    }
}
