//! Sessions over simulated links: arrivals, delays, and overhead.

use roadweave_proto::DropReason;
use roadweave_quic::CongestionControl;

use crate::world::*;

#[test]
fn four_links_carry_what_none_of_them_could() {
    let links = vec![link(12, 20), link(12, 25), link(12, 30), link(12, 35)];
    let mut world = Plan::new("xnc", links).build().join();
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
        let lossy = |delay| link(20, delay).lossy(0.02, 8.0);
        let links = vec![lossy(20), lossy(25), link(20, 30)];
        let mut world = Plan::new(strategy, links).build().join();
        let sent = stream(&mut world, 300, 20);
        let arrived = arrivals(&world.up);
        let late = sent
            .iter()
            .filter(|(n, at)| arrived.get(n).is_none_or(|there| there.since(**at) > ms(250)))
            .count();
        late as f64 / sent.len() as f64
    };
    let (coded, single) = (residual("xnc"), residual("single:wwan0"));
    assert!(single > 0.01, "the links are lossy: {single}");
    assert!(coded < single / 10.0, "xnc {coded}, single {single}");
}

#[test]
fn inner_packets_of_any_size_arrive_intact_also_beyond_the_datagram() {
    let mut world = Plan::new("xnc", vec![link(50, 10), link(50, 15)]).build().join();
    let sizes = [28, 29, 100, 1100, 1200, 1300, 1360, 1400, 1472, 1500, 3000, 9000];
    let mut sent = Vec::new();
    for (number, size) in (0..).zip(sizes) {
        let v4 = udp_v4([10, 77, 0, 2], [198, 51, 100, 1], number, size);
        let source = "fd77::2".parse().expect("an address");
        let v6 = udp_v6(source, "2001:db8::1".parse().expect("an address"), number, size + 20);
        for packet in [v4, v6] {
            world.send_up(&packet);
            sent.push(packet);
        }
        world.run(ms(20));
    }
    world.run(ms(500));
    let arrived: Vec<_> = world.up.iter().map(|arrival| arrival.packet.to_vec()).collect();
    assert_eq!(arrived.len(), sent.len());
    for packet in sent {
        assert!(arrived.contains(&packet), "a packet of {} bytes is missing", packet.len());
    }
}

#[test]
fn a_path_that_goes_silent_costs_no_packet_later_than_threshold_and_round_trip() {
    let links = vec![link(30, 20), link(30, 30), link(30, 35)];
    let mut world = Plan::new("xnc", links).build().join();
    let mut died = None;
    let sent = stream_with(&mut world, 200, 20, |world, frame| {
        if frame == 100 {
            world.set_dead(0, true);
            died = Some(world.now);
        }
    });
    let died = died.expect("it died");
    let arrived = arrivals(&world.up);
    // Detection takes at most the deadline of 100 ms, the slowest surviving path has a round trip
    // of 70 ms, and repairs may wait for room beside the stream.
    let limit = ms(100 + 70 + 45);
    let late: Vec<_> = sent
        .iter()
        .filter(|(n, at)| arrived.get(n).is_none_or(|there| there.since(**at) > limit))
        .map(|(number, at)| (number, at.since(died), arrived.get(number).map(|t| t.since(*at))))
        .collect();
    assert!(late.is_empty(), "too late: {late:?}");
}

#[test]
fn packets_from_foreign_addresses_are_dropped_and_counted() {
    let mut world = Plan::new("xnc", vec![link(20, 20)]).build().join();
    world.send_up(&udp_v4([10, 77, 0, 3], [198, 51, 100, 1], 1, 100));
    world.send_up(&udp_v4([10, 77, 0, 2], [198, 51, 100, 1], 2, 100));
    world.send_up(b"no IP packet at all");
    world.run(ms(300));
    assert_eq!(arrivals(&world.up).keys().copied().collect::<Vec<_>>(), [2]);
    assert_eq!(world.inner.server_status()[0].stats.drops.get(DropReason::SpoofedSource), 1);
    assert_eq!(world.client_status().stats.drops.get(DropReason::MalformedInner), 1);
}

#[test]
fn equal_seeds_give_equal_runs() {
    let run = |seed, congestion| {
        let links = [20, 30].map(|delay| link(15, delay).lossy(0.03, 6.0));
        let plan = Plan { seed, congestion, ..Plan::new("xnc", links.into()) };
        let mut world = plan.build().join();
        stream(&mut world, 60, 20);
        let arrived: Vec<_> =
            world.up.iter().map(|arrival| (arrival.at, number(&arrival.packet))).collect();
        (arrived, format!("{:?}", world.client_status()))
    };
    for congestion in [CongestionControl::Bbr, CongestionControl::Cubic] {
        assert_eq!(run(1, congestion), run(1, congestion));
        assert_ne!(run(1, congestion).0, run(2, congestion).0);
    }
}
