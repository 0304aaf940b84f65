//! Sessions over simulated links: arrivals, delays, and overhead.

use std::collections::BTreeSet;

use roadweave_proto::DropReason;

use crate::world::*;

#[test]
fn four_links_carry_what_none_of_them_could() {
    let links = vec![link(12, 20), link(12, 25), link(12, 30), link(12, 35)];
    let mut world = World::joined(plan("xnc", links));
    let sent = stream(&mut world, 300, 30);
    let arrived = arrivals(&world.up);
    let delays = delays(&sent, &arrived);
    let lost = sent.len() - delays.len();
    assert!(lost * 1000 <= sent.len(), "{lost} of {} lost", sent.len());
    // A packet waits at most for its whole frame on all links, and then for the slowest link.
    let frame_ms = 30e6 / 30.0 / (4.0 * 12e6) * 1e3;
    let p50 = percentile(&delays, 0.5);
    assert!(p50 < 35.0 + frame_ms, "p50 {p50}");
    let redundancy = world.client_status().stats.lanes[0].redundancy;
    assert!(redundancy < 0.10, "{redundancy}");
}

#[test]
fn bursts_of_loss_are_repaired_within_the_deadline() {
    let residual = |strategy| {
        let lossy = |delay| lossy(link(20, delay), 0.02, 8.0);
        let links = vec![lossy(20), lossy(25), link(20, 30)];
        let mut world = World::joined(plan(strategy, links));
        let sent = stream(&mut world, 300, 20);
        let delays = delays(&sent, &arrivals(&world.up));
        let in_time = delays.iter().filter(|delay| **delay <= 250.0).count();
        1.0 - in_time as f64 / sent.len() as f64
    };
    let (coded, single) = (residual("xnc"), residual("single:wwan0"));
    assert!(single > 0.01, "the links are lossy: {single}");
    assert!(coded < single / 10.0, "xnc {coded}, single {single}");
}

#[test]
fn inner_packets_of_any_size_arrive_intact_also_beyond_the_datagram() {
    let mut world = World::joined(plan("xnc", vec![link(50, 10), link(50, 15)]));
    let sizes = [28, 29, 100, 1100, 1200, 1300, 1360, 1400, 1472, 1500, 3000, 9000];
    let (own, other) = ("fd77::2".parse().unwrap(), "2001:db8::1".parse().unwrap());
    let mut sent = BTreeSet::new();
    for (number, size) in (0..).zip(sizes) {
        for packet in [packet_up(number, size), udp_v6(own, other, number, size + 20)] {
            world.send_up(&packet);
            sent.insert(packet);
        }
        world.run(ms(20));
    }
    world.run(ms(500));
    let arrived = world.up.iter().map(|arrival| arrival.packet.to_vec());
    assert_eq!((arrived.collect::<BTreeSet<_>>(), world.up.len()), (sent, 2 * sizes.len()));
}

#[test]
fn a_path_that_goes_silent_costs_no_packet_later_than_threshold_and_round_trip() {
    let links = vec![link(30, 20), link(30, 30), link(30, 35)];
    let mut world = World::joined(plan("xnc", links));
    let sent = stream_with(&mut world, 200, 20, |world, frame| {
        if frame == 100 {
            world.set_dead(0, true);
        }
    });
    let delays = delays(&sent, &arrivals(&world.up));
    // Detection takes at most the deadline of 100 ms, the slowest surviving path has a round trip
    // of 70 ms, and repairs may wait for room beside the stream.
    let limit = f64::from(100 + 70 + 45);
    assert_eq!(delays.len(), sent.len());
    assert!(percentile(&delays, 1.0) <= limit, "{}", percentile(&delays, 1.0));
}

#[test]
fn packets_from_foreign_addresses_are_dropped_and_counted() {
    let mut world = World::joined(plan("xnc", vec![link(20, 20)]));
    world.send_up(&udp_v4([10, 77, 0, 3], [198, 51, 100, 1], 1, 100));
    world.send_up(&udp_v4([10, 77, 0, 2], [198, 51, 100, 1], 2, 100));
    world.send_up(b"no IP packet at all");
    world.run(ms(300));
    assert_eq!(arrivals(&world.up).keys().copied().collect::<Vec<_>>(), [2]);
    assert_eq!(world.server_status()[0].stats.drops.get(DropReason::SpoofedSource), 1);
    assert_eq!(world.client_status().stats.drops.get(DropReason::MalformedInner), 1);
}
