//! Acknowledgements: how late, how many, on which path, and how true.

use super::wire::{links, links_with};
use super::*;

fn latencies(world: &World, path: u32, during: std::ops::Range<Instant>) -> Vec<Duration> {
    let books = &world.sides[CLIENT].books;
    let sent = books.sent.iter().filter(|(_, (p, at))| p.0 == path && during.contains(at));
    sent.map(|(token, (_, at))| books.acknowledged[token].1 - *at).collect()
}

#[test]
fn acknowledgements_take_the_fastest_path_and_are_at_most_2_ms_late() {
    for feedback in [true, false] {
        let mut world = World::connected(links(&[80, 20, 50, 110]));
        world.sides[SERVER].feedback = feedback;
        world.send_each(CLIENT, &[0, 1, 2, 3], ms(1), ms(500));
        let start = world.now;
        world.send_each(CLIENT, &[0, 1, 2, 3], ms(1), ms(1000));
        let end = world.now;
        world.run(ms(500));
        for (path, delay) in [(0, 80), (1, 20), (2, 50), (3, 110)] {
            let latencies = latencies(&world, path, start..end);
            let (least, most) = (latencies.iter().min().unwrap(), latencies.iter().max().unwrap());
            // There on its own path, back on path 1, or with one in four feedbacks on path 2.
            let back = if feedback { 50 } else { 20 };
            assert!(*least >= ms(delay + 20), "path {path}: {least:?}");
            assert!(*most <= ms(delay + back + 3), "path {path}: {most:?}, feedback {feedback}");
            let quick = latencies.iter().filter(|latency| **latency <= ms(delay + 20 + 3)).count();
            let all = latencies.len();
            assert!(quick * 10 >= all * 4, "path {path}: {quick} of {all}");
        }
        assert_eq!(world.sides[CLIENT].books.feedback_received > 200, feedback);
        assert_eq!(world.sides[SERVER].books.feedback_received, 0, "none for feedback");
    }
}

#[test]
fn acknowledgements_do_not_grow_with_the_packet_rate() {
    let mut world = World::connected(links(&[20, 30]));
    for interval in [10_000, 100_000, 1_000_000].map(Duration::from_nanos) {
        world.send_each(CLIENT, &[0, 1], interval, ms(100));
        let before = world.stats(SERVER, 0).packets_sent;
        world.send_each(CLIENT, &[0, 1], interval, ms(1000));
        let sent = world.stats(SERVER, 0).packets_sent - before;
        assert!((400..1100).contains(&sent), "{sent} packets a second at {interval:?}");
    }
}

#[test]
fn a_black_hole_on_the_first_path_hides_no_acknowledgement() {
    for feedback in [true, false] {
        let mut world = World::connected(links(&[20, 30, 50, 80]));
        world.sides[SERVER].feedback = feedback;
        world.send_each(CLIENT, &[0, 1, 2, 3], ms(1), ms(1000));
        world.links[0].set_dead(true);
        let start = world.now;
        world.send_each(CLIENT, &[1, 2, 3], ms(1), ms(3000));
        let end = world.now;
        world.run(ms(1000));
        for (path, delay) in [(1, 30), (2, 50), (3, 80)] {
            let most = latencies(&world, path, start..end).into_iter().max().unwrap();
            // The answering side notices within a PTO and moves to the next path.
            assert!(most <= ms(delay + 30 + 130), "path {path}: {most:?}, feedback {feedback}");
            let most = latencies(&world, path, start + ms(500)..end).into_iter().max().unwrap();
            let back = if feedback { 50 } else { 30 };
            assert!(most <= ms(delay + back + 3), "path {path}: {most:?}, feedback {feedback}");
        }
        assert_eq!(world.status(SERVER, PathId(0)), PathStatus::Suspect);
    }
}

#[test]
fn acknowledgements_on_all_paths_survive_two_dead_ways_back() {
    let mut world = World::connected(links(&[20, 30, 50, 80]));
    world.server().acknowledge_on_all(true);
    world.send_each(CLIENT, &[0, 1, 2, 3], ms(1), ms(1000));
    (0..2).for_each(|link| world.links[link].directions[SERVER].dead = true);
    let start = world.now;
    world.send_each(CLIENT, &[0, 1, 2, 3], ms(1), ms(300));
    world.run(ms(1000));
    for (path, delay) in [(0, 20), (1, 30), (2, 50), (3, 80)] {
        // Long before either side knows that two paths are dead.
        let most = latencies(&world, path, start..start + ms(60)).into_iter().max().unwrap();
        assert!(most <= ms(delay + 50 + 60), "path {path}: {most:?}");
    }
}

#[test]
fn the_books_of_the_path_balance() {
    let mut world = World::connected(links_with(&[20, 50], |direction| direction.loss = 0.05));
    world.send_each(CLIENT, &[0, 1], ms(1), ms(2000));
    for link in &mut world.links {
        link.directions.iter_mut().for_each(|direction| direction.loss = 0.0);
    }
    world.send_each(CLIENT, &[0, 1], ms(10), ms(200));
    world.run(ms(4000));
    for path in 0..2 {
        let stats = world.stats(CLIENT, path);
        let settled = stats.datagrams_acknowledged + stats.datagrams_lost;
        assert_eq!(stats.datagrams_sent, settled, "{path}");
        let received = world.stats(SERVER, path).datagrams_received;
        assert!(received >= stats.datagrams_acknowledged && received <= stats.datagrams_sent);
        assert_eq!(world.path(CLIENT, PathId(path)).bytes_in_flight, 0);
    }
}

#[test]
fn a_machine_that_wakes_late_makes_no_round_trip_longer_than_it_must() {
    let rtt = |side: usize, stamped: bool| {
        let mut world = World::connected(links(&[20]));
        world.sides[side].late = ms(8);
        world.sides[side].stamped = stamped;
        world.send_each(CLIENT, &[0], ms(50), ms(1000));
        world.run(ms(100));
        world.path(CLIENT, PathId(0)).latest_rtt
    };
    // The peer waits up to 1.5 ms for more to acknowledge.
    let soon = ms(40)..=ms(42);
    let late = ms(48)..=ms(50);
    assert!(soon.contains(&rtt(CLIENT, true)), "it ends when it is received");
    assert!(late.contains(&rtt(CLIENT, false)));
    assert_eq!(rtt(SERVER, true), ms(48), "the peer has waited already");
    assert!(late.contains(&rtt(SERVER, false)));
}
