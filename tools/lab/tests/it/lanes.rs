//! Lanes over simulated links: which packets they accept, and in what order these are delivered.

use crate::world::{Plan, World, arrivals, link, ms, number, packet_up, stream};
use roadweave_proto::{DropReason, Order};
use roadweave_tunnel::{LaneConfig, LaneRule, Strategy, default_lanes};

const BUFFER: Order = Order::Reorder { max_buffer: Order::DEFAULT_BUFFER };

fn lane(strategy: &str, order: Order) -> Vec<LaneConfig> {
    let strategy = strategy.parse::<Strategy>().expect("known");
    vec![LaneConfig { order, ..LaneConfig::new("default", strategy) }]
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
    let run = |strategy, order| {
        let links = [10, 60].map(|delay| link(12, delay).lossy(0.03, 3.0)).into();
        let lanes = lane(strategy, order);
        let mut world = Plan::new("xnc", links).build_with(lanes.clone(), lanes).join();
        let sent = stream(&mut world, 150, 15);
        (overtaken(&world), sent.len() - arrivals(&world.up).len(), world)
    };
    let (overtaken, missing, _) = run("xnc", Order::Pass);
    assert!(overtaken > 100 && missing < 20, "{overtaken} {missing}");
    let (overtaken, missing, world) = run("xnc", BUFFER);
    assert!(overtaken == 0 && missing < 20, "{overtaken} {missing}");
    let received = &world.inner.server_status()[0].stats.lanes[0].received;
    assert_eq!(received.order.order, "reorder");
    assert_eq!(received.order.held_packets, 0);
    assert!(received.order.waited_packets > 100, "{received:?}");

    let adaptive = Order::Adaptive { max_buffer: Order::DEFAULT_BUFFER };
    let (overtaken, missing, world) = run("xnc", adaptive);
    let received = &world.inner.server_status()[0].stats.lanes[0].received;
    assert!(overtaken < 20 && missing < 20, "{overtaken} {missing}");
    assert_eq!(received.order.order, "reorder-adaptive");
    assert_eq!(received.drops.get(DropReason::OutOfOrder), 0);
}

#[test]
fn without_configuration_each_flow_finds_its_lane() {
    let mut world = Plan::new("xnc", vec![link(20, 10), link(20, 30)])
        .build_with(default_lanes(), default_lanes())
        .join();
    let udp = |port: u8, payload: &[u8]| {
        let mut packet = packet_up(0, 28 + payload.len().max(8));
        packet[23] = port;
        packet.truncate(28);
        packet.extend(payload);
        packet
    };
    for sequence in 0..100_u16 {
        let mut rtp = vec![0x80, 96];
        rtp.extend(sequence.to_be_bytes());
        rtp.extend([0, 0, 0, 0, 0, 0, 0, 1]);
        rtp.extend([5; 900]);
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
    assert_eq!(packets.iter().sum::<u64>(), 800);
    assert_eq!(world.up.len(), 800);
    let order =
        |lane: usize| world.inner.server_status()[0].stats.lanes[lane].received.order.order.clone();
    let keeps = "reorder-adaptive";
    assert_eq!([0, 1, 2, 3].map(order), ["pass", keeps, keeps, keeps]);
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
        let lanes = vec![lane(0), lane(1)];
        let mut world = Plan::new("xnc", vec![link(4, 20)]).build_with(lanes.clone(), lanes).join();
        for number in 0..1500 {
            let mut packet = packet_up(number, 1200);
            packet[21] = [0x88, 0x89][number as usize % 2];
            world.send_up(&packet);
            world.run(ms(1));
        }
        let lanes = world.client_status().stats.lanes;
        lanes[0].sent.sent_packets as f64 / lanes[1].sent.sent_packets.max(1) as f64
    };
    assert!((0.8..1.25).contains(&share([0, 0])), "{}", share([0, 0]));
    assert!(share([0, 1]) > 3.0, "{}", share([0, 1]));
    assert!(share([1, 0]) < 0.33, "{}", share([1, 0]));
}
