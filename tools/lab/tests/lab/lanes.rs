//! Lanes over simulated links: which packets they accept, in what order, and when these expire.

use std::collections::BTreeMap;

use crate::world::{
    Arrival, World, arrivals, delays, lane, link, lossy, ms, number, packet_up, plan_with, stream,
    stream_of,
};
use roadweave_lab::strategies;
use roadweave_proto::{DropReason, Instant, Order};
use roadweave_tunnel::{LaneConfig, LaneRule, LaneStats, Strategy, default_lanes};

const BUFFER: Order = Order::Reorder { max_buffer: Order::DEFAULT_BUFFER };

fn ordered(strategy: &str, order: Order) -> Vec<LaneConfig> {
    vec![LaneConfig { order, ..lane(strategy) }]
}

fn received(world: &World) -> LaneStats {
    world.server_status().remove(0).stats.lanes.remove(0)
}

/// Packets delivered after one that was sent later.
fn overtaken(world: &World) -> usize {
    let mut newest = 0;
    let mut is_overtaken = |number: u64| {
        let before = newest;
        newest = newest.max(number);
        number < before
    };
    world.up.iter().filter(|arrival| is_overtaken(number(&arrival.packet))).count()
}

#[test]
fn a_promised_order_holds_over_unequal_lossy_links() {
    let run = |order| {
        let links = [10, 60].map(|delay| lossy(link(12, delay), 0.03, 3.0)).into();
        let mut world = World::joined(plan_with(ordered("xnc", order), links));
        let sent = stream(&mut world, 150, 15);
        let missing = sent.len() - arrivals(&world.up).len();
        assert!(missing < 20, "{order:?}: {missing}");
        (overtaken(&world), received(&world).received)
    };
    assert!(run(Order::Pass).0 > 100);
    let (overtaken, received) = run(BUFFER);
    assert_eq!((overtaken, received.order.held_packets), (0, 0));
    assert!(received.order.order == "reorder" && received.order.waited_packets > 100);

    let (overtaken, received) = run(Order::Adaptive { max_buffer: Order::DEFAULT_BUFFER });
    assert!(overtaken < 20, "{overtaken}");
    assert_eq!(received.order.order, "reorder-adaptive");
    assert_eq!(received.drops.get(DropReason::OutOfOrder), 0);
}

/// Two unequal links, neither with enough capacity alone, look like one with a constant delay.
#[test]
fn every_strategy_can_be_delivered_evenly() {
    const PACKETS: u64 = 2_500;
    /// Packets sent until the delay is known.
    const LEAD: usize = 1_000;
    for strategy in strategies::plain_names() {
        let lanes = ordered(strategy, Order::Even { max_buffer: ms(300) });
        let mut world = World::joined(plan_with(lanes, vec![link(3, 15), link(5, 45)]));
        let mut sent = Vec::new();
        for number in 0..PACKETS {
            sent.push(world.now());
            world.send_up(&packet_up(number, 1_200));
            world.run(ms(3));
            if number % 1_000 == 900 {
                // The faster link loses its queue, which is repaired later.
                world.set_dead(0, true);
                world.set_dead(0, false);
            }
        }
        world.run(ms(1_500));
        let arrived = arrivals(&world.up);
        let delay = |(number, sent): (u64, &Instant)| Some(arrived.get(&number)?.since(*sent));
        let delays: Vec<_> = (0..).zip(&sent).map(delay).collect();
        let pairs = delays[LEAD..].windows(2);
        let mut variation: Vec<_> =
            pairs.filter_map(|pair| Some(pair[0]?.abs_diff(pair[1]?).as_micros())).collect();
        variation.sort_unstable();
        let p80 = variation[variation.len() * 800 / 1_000];
        assert!(p80 <= 1_100, "{strategy}: {p80}");
        let order = received(&world).received.order;
        assert!(order.order == "even" && order.waited_packets > 0, "{strategy}");
    }
}

const FRAME_PACKETS: u16 = 6;

fn rtp(number: u16) -> Vec<u8> {
    let mut packet = packet_up(number.into(), 1200);
    let frame = u32::from(number / FRAME_PACKETS);
    let marker = u8::from(number % FRAME_PACKETS == FRAME_PACKETS - 1) << 7;
    let sequence = number.wrapping_add(u16::MAX - 100).to_be_bytes();
    let header = [&[0x80, 96 | marker][..], &sequence, &(frame * 2970).to_be_bytes(), b"ssrc"];
    packet[28..40].copy_from_slice(&header.concat());
    packet
}

#[test]
fn a_frame_that_lost_something_comes_whole_and_in_order_once_it_is_repaired() {
    const FRAMES: u16 = 60;
    /// Frames until the flow is recognised as RTP with markers.
    const LEAD: u16 = 4;
    /// The faster link loses its queue in the middle of this frame.
    const BROKEN: u16 = 30;
    /// Delay of the fastest path, which does not count, and a margin for pacers and clocks.
    const ONE_WAY_MS: u64 = 15 + 5;
    let (deadline, decode, interval) = (ms(100), ms(10), ms(33));
    let order = Order::Frames { deadline, decode, max_buffer: Order::DEFAULT_BUFFER };
    let links = vec![link(20, 15), link(20, 30)];
    let mut world = World::joined(plan_with(ordered("xnc", order), links));
    let mut sent = Vec::new();
    for frame in 0..FRAMES {
        sent.push(world.now());
        (0..FRAME_PACKETS).for_each(|at| world.send_up(&rtp(frame * FRAME_PACKETS + at)));
        world.run(ms(3));
        if frame == BROKEN {
            world.set_dead(0, true);
            world.set_dead(0, false);
        }
        world.run(interval - ms(3));
    }
    world.run(ms(1_500));
    let came = world.up.iter().map(|Arrival { at, packet }| {
        let sequence = u16::from_be_bytes([packet[30], packet[31]]);
        (sequence.wrapping_sub(u16::MAX - 100), *at)
    });
    let came: Vec<(u16, Instant)> =
        came.skip_while(|(number, _)| *number < LEAD * FRAME_PACKETS).collect();
    assert!(came.is_sorted() && came.len() == usize::from((FRAMES - LEAD) * FRAME_PACKETS));
    for frame in came.chunks(FRAME_PACKETS.into()) {
        let (number, at) = frame[0];
        assert!(frame.iter().all(|(_, other)| *other == at), "{number} came at one moment");
        let after = at.since(sent[usize::from(number / FRAME_PACKETS)]);
        assert!(after <= deadline + interval - decode + ms(ONE_WAY_MS), "{number} after {after:?}");
        let is_broken = number / FRAME_PACKETS == BROKEN;
        assert!(!is_broken || after > ms(3 * ONE_WAY_MS), "it was repaired: {after:?}");
    }
    let order = received(&world).received.order;
    assert!(order.waited_packets > 100, "{order:?}");
    assert_eq!((order.order.as_str(), order.timeouts), ("frames", 0));
}

#[test]
fn after_a_blackout_nothing_older_than_the_expiry_arrives() {
    for strategy in ["raven", "minrtt", "ecf", "xlink", "xnc", "redundant", "pluribus"] {
        let lanes = vec![LaneConfig { expire_after: Some(ms(300)), ..lane(strategy) }];
        let mut world = World::joined(plan_with(lanes, vec![link(20, 20), link(10, 40)]));
        let mut sent = BTreeMap::new();
        for number in 0..600 {
            if let 100 | 500 = number {
                (0..2).for_each(|link| world.set_dead(link, number == 100));
            }
            sent.insert(number, world.now());
            world.send_up(&packet_up(number, 120));
            world.run(ms(10));
        }
        world.run(ms(12_000));
        let delays = delays(&sent, &arrivals(&world.up));
        let latest = delays.last().expect("some arrived");
        // The delay of the fastest link does not count.
        assert!(*latest <= 300.0 + 25.0, "{strategy}: {latest} ms");
        assert!((181..300).contains(&delays.len()), "{strategy}: {}", delays.len());
        let stats = world.client_status().stats.lanes.remove(0).sent;
        let reasons = [DropReason::QueueExpired, DropReason::RepairExpired, DropReason::CopyUnsent];
        let given_up: u64 = reasons.into_iter().map(|reason| stats.drops.get(reason)).sum();
        assert!(given_up > 0 || strategy == "redundant", "{strategy}: {stats:?}");
    }
}

#[test]
fn without_configuration_each_flow_finds_its_lane() {
    let expiries: Vec<_> = default_lanes().iter().map(|lane| lane.expire_after).collect();
    assert_eq!(expiries, [None, Some(ms(1_000)), None, None]);
    let links = vec![link(20, 10), link(20, 30)];
    let mut world = World::joined(plan_with(default_lanes(), links));
    let udp = |port: u8, payload: &[u8]| {
        let mut packet = packet_up(0, 28 + payload.len());
        packet[23] = port;
        packet[28..].copy_from_slice(payload);
        packet
    };
    for sequence in 0..100_u16 {
        let [high, low] = sequence.to_be_bytes();
        let rtp = [&[0x80, 96, high, low, 0, 0, 0, 0, 0, 0, 0, 1][..], &[5; 900]].concat();
        world.send_up(&udp(1, &rtp));
        let mut tcp = udp(2, &[6; 1300]);
        tcp[9] = 6;
        for _ in 0..3 {
            world.send_up(&tcp);
            world.send_up(&udp(3, &[0x40; 1200]));
        }
        world.send_up(&udp(4, &[9; 40]));
        world.run(ms(30));
    }
    world.run(ms(500));
    let lanes = world.client_status().stats.lanes;
    let names: Vec<&str> = lanes.iter().map(|lane| lane.name.as_str()).collect();
    assert_eq!(names, ["real-time", "interactive", "tcp", "other"]);
    let packets: Vec<u64> = lanes.iter().map(|lane| lane.sent.inner_packets).collect();
    // A flow counts as small until its class is known.
    assert_eq!(packets[0], 97);
    assert!(packets[2] > 270 && packets[3] > 270, "{packets:?}");
    assert_eq!((packets.iter().sum::<u64>(), world.up.len()), (800, 800));
    let lanes = world.server_status().remove(0).stats.lanes;
    let orders: Vec<_> = lanes[..4].iter().map(|lane| lane.received.order.order.as_str()).collect();
    assert_eq!(orders, ["reorder-adaptive"; 4]);
}

#[test]
fn lanes_of_equal_rank_share_and_lanes_of_higher_rank_wait() {
    let share = |ranks: [u8; 2]| {
        let lane = |at: usize| {
            let port = [5000, 5001][at];
            LaneConfig {
                rule: LaneRule { source_ports: Some(port..=port), ..LaneRule::default() },
                rank: ranks[at],
                queue_bytes_max: 100_000,
                ..LaneConfig::new(format!("{at}"), Strategy::xnc())
            }
        };
        let mut world = World::joined(plan_with(vec![lane(0), lane(1)], vec![link(4, 20)]));
        for number in 0..1500 {
            let mut packet = packet_up(number, 1200);
            packet[21] = [0x88, 0x89][number as usize % 2];
            world.send_up(&packet);
            world.run(ms(1));
        }
        let lanes = world.client_status().stats.lanes;
        lanes[0].sent.sent_packets as f64 / lanes[1].sent.sent_packets.max(1) as f64
    };
    let shares = [[0, 0], [0, 1], [1, 0]].map(share);
    let [equal, first, second] = shares;
    assert!((0.8..1.25).contains(&equal) && first > 3.0 && second < 0.33, "{shares:?}");
}

#[test]
fn a_narrow_path_that_joins_costs_no_packet() {
    for strategy in ["xnc", "minrtt", "redundant", "raven", "xlink", "ecf"] {
        // `redundant` repairs no loss.
        let share = if strategy == "redundant" { 0.0 } else { 0.02 };
        let links = vec![lossy(link(20, 20), share, 2.0), link(20, 30), link(5, 40)];
        let mut world = World::new(plan_with(vec![lane(strategy)], links));
        world.remove_uplink(2);
        let mut world = world.join();
        world.set_mtu(2, 1_200);
        // The link dies and returns while losses are repaired. Packets have the usual MTU.
        let sent = stream_of(&mut world, 240, 8, 1_360, |world, frame| match frame % 12 {
            3 => world.add_uplink(2),
            9 => world.remove_uplink(2),
            _ => {}
        });
        world.run(ms(3_000));
        let stats = world.client_status().stats.lanes.remove(0).sent;
        let too_large = [DropReason::SendFailed, DropReason::OversizedInner];
        let given_up: u64 = too_large.into_iter().map(|reason| stats.drops.get(reason)).sum();
        let missing = sent.len() - arrivals(&world.up).len();
        assert_eq!((missing, given_up, stats.recovery.abandoned), (0, 0, 0), "{strategy}");
    }
}
