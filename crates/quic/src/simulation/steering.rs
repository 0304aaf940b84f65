//! Datagrams leave on the path that the caller chose, and each gets one true fate.

use super::wire::{Wire, links, links_with};
use super::*;

fn lossy(loss: f64) -> Vec<Wire> {
    links_with(&[20, 50, 80, 110], |direction| direction.loss = loss)
}

const ALL: [u32; 4] = [0, 1, 2, 3];

fn check_steering(congestion: CongestionControl, loss: f64) {
    for seed in [1, 2] {
        let config = TransportConfig { congestion, ..config(seed) };
        let mut world = World::connected_with(links(&[20, 50, 80, 110]), &config);
        for (link, lossy) in world.links.iter_mut().zip(lossy(loss)) {
            link.directions = lossy.directions;
        }
        world.send_each(CLIENT, &ALL, ms(1), ms(3000));
        world.send_each(SERVER, &ALL, ms(1), ms(1000));
        for link in &mut world.links {
            link.directions.iter_mut().for_each(|direction| direction.loss = 0.0);
        }
        world.send_each(CLIENT, &ALL, ms(10), ms(100));
        world.send_each(SERVER, &ALL, ms(10), ms(100));
        world.run(ms(4000));
        for side in [CLIENT, SERVER] {
            let sent = world.sides[side].books.sent.len();
            assert!(sent > 100, "only {sent} were sent, seed {seed}, loss {loss}");
            assert_eq!(world.check_books(side), 0, "each datagram has a fate");
            let stats = world.side(side).stats();
            assert_eq!((stats.on_wrong_path, stats.delayed_in_library), (0, 0), "seed {seed}");
        }
    }
}

#[test]
fn no_datagram_takes_another_path() {
    for congestion in [CongestionControl::Bbr, CongestionControl::Cubic] {
        [0.0, 0.05].into_iter().for_each(|loss| check_steering(congestion, loss));
    }
    check_steering(CongestionControl::Bbr, 0.3);
}

#[test]
fn small_datagrams_get_a_packet_each() {
    let mut world = World::connected(links(&[20, 50]));
    for _ in 0..10 {
        world.send(CLIENT, PathId(1), 20).unwrap();
    }
    let before = world.stats(CLIENT, 1);
    world.run(ms(500));
    assert_eq!(before.datagrams_sent, 10);
    assert!(before.packets_sent >= 10);
    assert_eq!(world.sides[CLIENT].books.acknowledged.len(), 10);
    assert_eq!(world.check_books(CLIENT), 0);
}

#[test]
fn probes_of_a_dead_path_take_no_datagram_along() {
    let mut world = World::connected(links(&[20, 50, 80]));
    world.links[1].set_dead(true);
    for _ in 0..5 {
        world.send(CLIENT, PathId(1), 1000).unwrap();
    }
    world.send_each(CLIENT, &[0, 2], ms(1), ms(5000));
    world.run(ms(1000));
    world.check_books(CLIENT);
    let stats = world.client().stats();
    assert_eq!((stats.on_wrong_path, stats.delayed_in_library), (0, 0));
    let lost = world.sides[CLIENT].books.lost.len();
    let delivered = world.sides[SERVER].books.received.len();
    assert_eq!(lost, 0, "nothing else is lost");
    assert_eq!(delivered + 5, world.sides[CLIENT].books.sent.len());
}

#[test]
fn a_path_that_is_not_validated_takes_no_datagram() {
    let mut world = World::connected(links(&[20, 50]));
    world.links.push(Wire::new(2, ms(30)).with(|direction| direction.dead = true));
    world.open(2).unwrap();
    world.settle();
    world.run(ms(300));
    assert_eq!(world.status(CLIENT, PathId(2)), PathStatus::Validating);
    let datagram = Bytes::from_static(b"\x01 unchanged");
    let now = world.now;
    let refused = world.client().send_on(now, PathId(2), datagram.clone(), 99);
    assert_eq!(refused, Err(SendError::NotUsable(datagram)));
    world.send_each(CLIENT, &[0, 1], ms(2), ms(500));
    world.run(ms(500));
    assert_eq!(world.check_books(CLIENT), 0);
    assert_eq!(world.client().stats().on_wrong_path, 0);
}

#[test]
fn datagrams_of_the_largest_size_arrive_and_larger_ones_are_refused() {
    let mut world = World::connected(links(&[20, 50]));
    world.run(ms(3000));
    for path in [PathId(0), PathId(1)] {
        assert_eq!(world.path(CLIENT, path).mtu, 1472, "discovery has found the MTU");
    }
    let max = world.client().max_datagram_size();
    assert!((1400..1472).contains(&max), "{max}");
    for len in [max - 1, max] {
        let token = world.send(CLIENT, PathId(1), len).unwrap();
        world.run(ms(300));
        assert!(world.is_acknowledged(CLIENT, token));
    }
    let now = world.now;
    let large = Bytes::from(vec![1; max + 1]);
    let refused = world.client().send_on(now, PathId(1), large.clone(), 7);
    assert_eq!(refused, Err(SendError::TooLarge { max, datagram: large }));
    for first in [0xfd, 0xfe, 0xff] {
        let datagram = Bytes::from(vec![first; max]);
        world.client().send_on(now, PathId(0), datagram, first.into()).unwrap();
    }
    world.carry(CLIENT);
    world.run(ms(300));
    assert_eq!(world.sides[SERVER].books.feedback_received, 3, "all three came");
    assert_eq!(world.stats(SERVER, 0).datagrams_received, 3);
}

/// The library has one largest datagram for all paths, those that are not validated yet included,
/// and holds no path back: datagrams that wait when an uplink is added must be cut again.
#[test]
fn a_path_that_joins_narrows_all_others_until_its_mtu_is_known() {
    let mut all = links(&[20, 50]);
    all[1].set_dead(true);
    let mut world = World::new(all, &config(7));
    world.connect(0);
    world.run(ms(3000));
    let wide = world.client().max_datagram_size();
    assert!(wide > 1400, "{wide}");
    world.open(1).unwrap();
    world.settle();
    world.run(ms(100));
    assert!(world.client().max_datagram_size() < 1200, "it is not even validated");
    world.links[1].set_dead(false);
    world.run(ms(2000));
    assert_eq!(world.client().max_datagram_size(), wide);
}

#[test]
fn equal_seeds_give_equal_runs() {
    for congestion in [CongestionControl::Bbr, CongestionControl::Cubic] {
        let config = TransportConfig { congestion, ..config(7) };
        let run = || {
            let mut world = World::connected_with(lossy(0.1), &config);
            world.send_each(CLIENT, &ALL, ms(1), ms(1000));
            world.run(ms(1000));
            (world.packets, world.sides[CLIENT].books.acknowledged.clone())
        };
        let (first, second) = (run(), run());
        assert_eq!(first.0, second.0);
        assert!(first.1 == second.1, "the same datagrams are acknowledged at the same times");
    }
}
