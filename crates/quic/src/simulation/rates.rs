//! Congestion control and pacing on links with a rate.

use roadweave_proto::{Pacing, Rate};

use super::wire::{Wire, links, links_with};
use super::*;

fn saturate(world: &mut World, span: Duration) {
    world.run_with(span, |world| {
        let now = world.now;
        world.client().set_pacing(Pacing::Rate);
        world.client().refresh(now);
        let paths: Vec<_> = world.client().paths().to_vec();
        let len = world.client().max_datagram_size().min(1200);
        for path in paths.iter().filter(|path| path.is_usable()) {
            while world.send(CLIENT, path.id, len).is_ok() {}
        }
        None
    });
}

fn at(mbps: u64) -> Option<Rate> {
    Some(Rate::from_kbps(mbps * 1000))
}

fn single(mbps: u64) -> World {
    World::connected(links_with(&[20], |direction| direction.rate = at(mbps)))
}

fn delivered(world: &mut World, act: impl FnOnce(&mut World)) -> Vec<f64> {
    let start = world.now;
    let before: Vec<_> = world.links.iter().map(|l| l.directions[CLIENT].delivered_bytes).collect();
    act(world);
    let span = (world.now - start).as_secs_f64();
    let bytes = world.links.iter().zip(before);
    bytes.map(|(l, b)| (l.directions[CLIENT].delivered_bytes - b) as f64 * 8e-6 / span).collect()
}

fn percentile(waits: &mut [Duration], share: f64) -> Duration {
    waits.sort();
    waits[((waits.len() - 1) as f64 * share) as usize]
}

#[test]
fn saturated_links_are_filled_without_long_queues() {
    let rates = [20, 10, 5];
    let links = links(&[20, 40, 60]).into_iter().zip(rates);
    let links = links.map(|(link, mbps)| link.with(|direction| direction.rate = at(mbps)));
    let mut world = World::connected(links.collect());
    saturate(&mut world, ms(5000));
    world.links.iter_mut().for_each(|link| link.directions[CLIENT].waited.clear());
    let delivered = delivered(&mut world, |world| saturate(world, ms(20_000)));
    for (index, rate) in rates.into_iter().enumerate() {
        let share = delivered[index] / rate as f64;
        let waits = &mut world.links[index].directions[CLIENT].waited;
        let (median, p95) = (percentile(waits, 0.5), percentile(waits, 0.95));
        let found = format!("{rate} Mbit/s: {share:.3} filled, queue {median:?}, p95 {p95:?}");
        assert!(share > 0.97, "{found}");
        assert!(median < ms(10) && p95 < ms(80), "{found}");
    }
}

#[test]
fn cubic_fills_its_links() {
    let links = links_with(&[20, 40], |direction| direction.rate = at(10));
    let config = TransportConfig { congestion: CongestionControl::Cubic, ..config(1) };
    let mut world = World::connected_with(links, &config);
    saturate(&mut world, ms(5000));
    let delivered = delivered(&mut world, |world| saturate(world, ms(10_000)));
    assert!(delivered.iter().all(|rate| *rate > 9.0), "{delivered:?}");
}

#[test]
fn a_slow_flow_does_not_spoil_the_estimate() {
    let mut world = single(20);
    // Video of 4 Mbit/s: a frame of 14 datagrams each 33 ms.
    let mut next = world.now;
    let (mut queue, mut frames, mut late) = (0, 0, 0);
    world.run_with(ms(20_000), |world| {
        while next <= world.now {
            frames += 1;
            late += i32::from(queue > 0);
            queue += 14;
            next += ms(33);
        }
        while queue > 0 && world.send(CLIENT, PathId(0), 1200).is_ok() {
            queue -= 1;
        }
        Some(next)
    });
    let rate = world.path(CLIENT, PathId(0)).pacing_rate.unwrap();
    assert!(late * 100 <= frames, "{late} of {frames} frames had not left before the next");
    assert!((Rate::from_kbps(7_000)..=Rate::from_kbps(60_000)).contains(&rate), "{rate}");
    let waits = &mut world.links[0].directions[CLIENT].waited;
    assert!(percentile(waits, 0.99) < ms(12));
}

#[test]
fn a_blocked_sender_is_woken_when_there_is_room() {
    let mut world = single(10);
    while world.send(CLIENT, PathId(0), 1200).is_ok() {}
    let now = world.now;
    let datagram = Bytes::from(vec![1; 1200]);
    let blocked = world.client().send_on(now, PathId(0), datagram.clone(), 0);
    assert_eq!(blocked, Err(SendError::Blocked(datagram)));
    let due = world.client().poll_timeout().unwrap();
    assert!(due > now && due < now + ms(50), "{:?}", due - now);
}

#[test]
fn packets_that_overtake_each_other_are_neither_lost_nor_congestion() {
    // Cubic halves its rate for each of the few packets whose acknowledgements were forgotten.
    for (congestion, least) in [(CongestionControl::Bbr, 9.0), (CongestionControl::Cubic, 3.0)] {
        let link = Wire::new(0, ms(10)).with(|direction| {
            (direction.rate, direction.jitter) = (at(10), ms(50));
        });
        let config = TransportConfig { congestion, ..config(1) };
        let mut world = World::connected_with(vec![link], &config);
        saturate(&mut world, ms(5000));
        let before = world.stats(CLIENT, 0);
        let delivered = delivered(&mut world, |world| saturate(world, ms(10_000)))[0];
        let after = world.stats(CLIENT, 0);
        let lost = after.datagrams_lost - before.datagrams_lost;
        let sent = after.datagrams_sent - before.datagrams_sent;
        assert!(delivered > least, "{congestion:?}: {delivered} of 10 Mbit/s");
        assert!(lost * 100 <= sent * 2, "{congestion:?}: {lost} of {sent}");
    }
}
