//! Acknowledgements: how late, how many, on which path, and how true.

use super::wire::links;
use super::*;

/// Sends a datagram of 1000 bytes each `interval` on the given paths in turn, for `span`.
fn send_on_each(world: &mut World, paths: &[u32], interval: Duration, span: Duration) {
    let mut next = world.now;
    let mut turn = 0;
    world.run_with(span, |world| {
        while next <= world.now {
            let _ = world.send(CLIENT, PathId(paths[turn % paths.len()]), 1000);
            turn += 1;
            next += interval;
        }
        Some(next)
    });
}

/// The time from sending to the acknowledgement of each datagram sent on `path` within `during`.
fn latencies(world: &World, path: u32, during: std::ops::Range<Instant>) -> Vec<Duration> {
    let books = &world.sides[CLIENT].books;
    let sent = books.sent.iter().filter(|(_, (p, at))| p.0 == path && during.contains(at));
    sent.map(|(token, (_, at))| {
        let told = books.acknowledged.get(token).map(|(_, told)| *told);
        told.unwrap_or_else(|| panic!("datagram {token} was never acknowledged")) - *at
    })
    .collect()
}

#[test]
fn acknowledgements_take_the_fastest_path_and_are_at_most_2_ms_late() {
    for feedback in [true, false] {
        let mut world = World::connected(links(&[80, 20, 50, 110]));
        world.sides[SERVER].feedback = feedback;
        send_on_each(&mut world, &[0, 1, 2, 3], ms(1), ms(500));
        let start = world.now;
        send_on_each(&mut world, &[0, 1, 2, 3], ms(1), ms(1000));
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
            assert!(
                quick * 10 >= latencies.len() * 4,
                "path {path}: {quick} of {}",
                latencies.len()
            );
        }
    }
}

#[test]
fn acknowledgements_do_not_grow_with_the_packet_rate() {
    let mut world = World::connected(links(&[20, 30]));
    for (interval, most) in [(10_000, 1100), (100_000, 1100), (1_000_000, 1100)] {
        send_on_each(&mut world, &[0, 1], Duration::from_nanos(interval), ms(100));
        let before = world.server().path_stats(PathId(0)).unwrap().packets_sent;
        send_on_each(&mut world, &[0, 1], Duration::from_nanos(interval), ms(1000));
        let sent = world.server().path_stats(PathId(0)).unwrap().packets_sent - before;
        assert!((400..most).contains(&sent), "{sent} packets a second at {interval} ns");
    }
}

#[test]
fn feedback_is_never_answered_by_feedback() {
    let mut world = World::connected(links(&[20, 30]));
    send_on_each(&mut world, &[0, 1], ms(1), ms(500));
    world.run(ms(500));
    assert!(world.sides[CLIENT].books.feedback_received > 200);
    assert_eq!(world.sides[SERVER].books.feedback_received, 0);
}

#[test]
fn a_black_hole_on_the_first_path_hides_no_acknowledgement() {
    for feedback in [true, false] {
        let mut world = World::connected(links(&[20, 30, 50, 80]));
        world.sides[SERVER].feedback = feedback;
        send_on_each(&mut world, &[0, 1, 2, 3], ms(1), ms(1000));
        world.links[0].set_dead(true);
        let start = world.now;
        send_on_each(&mut world, &[1, 2, 3], ms(1), ms(3000));
        let end = world.now;
        world.run(ms(1000));
        for (path, delay) in [(1, 30), (2, 50), (3, 80)] {
            let latencies = latencies(&world, path, start..end);
            let most = *latencies.iter().max().unwrap();
            // The answering side notices within a PTO and moves to the next path.
            assert!(most <= ms(delay + 30 + 130), "path {path}: {most:?}, feedback {feedback}");
            let settled = self::latencies(&world, path, start + ms(500)..end);
            let most = *settled.iter().max().unwrap();
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
    send_on_each(&mut world, &[0, 1, 2, 3], ms(1), ms(1000));
    (0..2).for_each(|link| world.links[link].directions[SERVER].dead = true);
    let start = world.now;
    send_on_each(&mut world, &[0, 1, 2, 3], ms(1), ms(300));
    world.run(ms(1000));
    for (path, delay) in [(0, 20), (1, 30), (2, 50), (3, 80)] {
        // Long before anybody knows that these two are dead.
        let latencies = latencies(&world, path, start..start + ms(60));
        let most = *latencies.iter().max().unwrap();
        assert!(most <= ms(delay + 50 + 60), "path {path}: {most:?}");
    }
}

#[test]
fn the_books_of_the_path_balance() {
    let lossy = |link: super::wire::Wire| link.with(|direction| direction.loss = 0.05);
    let mut world = World::connected(links(&[20, 50]).into_iter().map(lossy).collect());
    send_on_each(&mut world, &[0, 1], ms(1), ms(2000));
    for link in &mut world.links {
        link.directions.iter_mut().for_each(|direction| direction.loss = 0.0);
    }
    send_on_each(&mut world, &[0, 1], ms(10), ms(200));
    world.run(ms(4000));
    for path in [PathId(0), PathId(1)] {
        let stats = world.client().path_stats(path).unwrap();
        let told = stats.datagrams_acknowledged + stats.datagrams_lost;
        assert_eq!(stats.datagrams_sent, told, "{path}");
        let received = world.server().path_stats(path).unwrap().datagrams_received;
        assert!(received >= stats.datagrams_acknowledged && received <= stats.datagrams_sent);
        assert_eq!(world.path(CLIENT, path).bytes_in_flight, 0);
    }
}

#[test]
fn a_machine_that_wakes_late_makes_no_round_trip_longer_than_it_must() {
    // The late side, whether it knows when it received what it is handed.
    let rtt = |side: usize, stamped: bool| {
        let mut world = World::connected(links(&[20]));
        world.sides[side].late = ms(8);
        world.sides[side].stamped = stamped;
        send_on_each(&mut world, &[0], ms(50), ms(1000));
        world.run(ms(100));
        world.path(CLIENT, PathId(0)).latest_rtt
    };
    // The peer waits for up to 1.5 ms whether there is more to acknowledge.
    let soon = ms(40)..=ms(42);
    let late = ms(48)..=ms(50);
    assert!(soon.contains(&rtt(CLIENT, true)), "it ends when it is received");
    assert!(late.contains(&rtt(CLIENT, false)));
    assert_eq!(rtt(SERVER, true), ms(48), "the peer has waited already");
    assert!(late.contains(&rtt(SERVER, false)));
}
