//! Lanes whose packets expire: nothing older comes out, whatever happened on the way. And what the
//! receiving side keeps for lanes whose packets may become older.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::world::{LinkPlan, Plan, World, arrivals, delays, link, ms, packet_up};
use roadweave_lab::strategies;
use roadweave_proto::{DropReason, Instant, Order};
use roadweave_tunnel::{FlowClass, LaneConfig, LaneRule, default_lanes};

/// A lane of `strategy` whose packets expire after so many milliseconds, if ever.
fn lane(strategy: &str, expire_after: Option<u64>) -> Vec<LaneConfig> {
    let strategy = strategies::strategy(strategy).expect("known");
    vec![LaneConfig { expire_after: expire_after.map(ms), ..LaneConfig::new("default", strategy) }]
}

/// A small packet each 10 ms for `time`.
fn steer(world: &mut World, first: u64, time: Duration) -> BTreeMap<u64, Instant> {
    let mut sent = BTreeMap::new();
    for at in 0..time.as_millis() as u64 / 10 {
        sent.insert(first + at, world.now);
        world.send_up(&packet_up(first + at, 120));
        world.run(ms(10));
    }
    sent
}

/// Six seconds of commands, of which the middle four fall into an outage of all links.
fn with_a_blackout(lanes: Vec<LaneConfig>, links: Vec<LinkPlan>) -> (World, Vec<f64>, usize) {
    let count = links.len();
    let mut world = Plan::new("xnc", links).build_with(lanes.clone(), lanes).join();
    let mut sent = steer(&mut world, 0, ms(1_000));
    (0..count).for_each(|index| world.set_dead(index, true));
    sent.append(&mut steer(&mut world, 1_000, ms(4_000)));
    (0..count).for_each(|index| world.set_dead(index, false));
    sent.append(&mut steer(&mut world, 2_000, ms(1_000)));
    world.run(ms(12_000));
    let delays = delays(&sent, &arrivals(&world.up));
    (world, delays, sent.len())
}

#[test]
fn after_a_blackout_nothing_older_than_the_expiry_arrives() {
    for strategy in ["raven", "minrtt", "ecf", "xlink", "xnc", "redundant", "pluribus"] {
        let links = || vec![link(20, 20), link(10, 40)];
        let (world, delays, sent) = with_a_blackout(lane(strategy, Some(300)), links());
        let latest = delays.last().expect("some arrived");
        // How long the quickest link takes does not count.
        assert!(*latest <= 300.0 + 25.0, "{strategy}: {latest} ms");
        assert!(delays.len() > 180 && delays.len() < sent - 300, "{strategy}: {}", delays.len());
        let status = world.client_status();
        let stats = &status.stats.lanes[0].sent;
        let given_up = stats.drops.get(DropReason::QueueExpired)
            + stats.drops.get(DropReason::RepairExpired)
            + stats.drops.get(DropReason::CopyUnsent);
        assert!(given_up > 0 || strategy == "redundant", "{strategy}: {stats:?}");
    }
}

#[test]
fn without_an_expiry_a_reliable_lane_brings_all_of_it() {
    for strategy in ["raven", "minrtt"] {
        let links = vec![link(20, 20), link(10, 40)];
        let (_, delays, sent) = with_a_blackout(lane(strategy, None), links);
        assert_eq!(delays.len(), sent, "{strategy}");
        assert!(delays.last().is_some_and(|latest| *latest > 3_900.0), "{strategy}");
    }
}

/// A link whose buffer takes four seconds to leave, as a modem's does.
fn bloated() -> LinkPlan {
    LinkPlan {
        settings: |mut settings| {
            settings.queue_bytes = 1 << 20;
            settings
        },
        ..link(1, 20)
    }
}

#[test]
fn what_a_network_held_back_is_dropped_and_counted_by_the_receiver() {
    for order in [Order::Pass, Order::Adaptive { max_buffer: ms(100) }] {
        let mut lanes = lane("redundant", Some(300));
        lanes[0].order = order;
        let mut plan = Plan::new("xnc", vec![bloated()]);
        plan.congestion = roadweave_quic::CongestionControl::Cubic;
        let mut world = plan.build_with(lanes.clone(), lanes).join();
        let mut sent = steer(&mut world, 0, ms(1_000));
        // Another lane's worth of packets fills the modem's buffer.
        for number in 0..700 {
            world.send_up(&packet_up(100_000 + number, 1200));
            if number % 3 == 0 {
                sent.insert(1_000 + number, world.now);
                world.send_up(&packet_up(1_000 + number, 120));
            }
            world.run(ms(5));
        }
        world.run(ms(6_000));
        sent.append(&mut steer(&mut world, 5_000, ms(1_000)));
        world.run(ms(1_000));
        let delays = delays(&sent, &arrivals(&world.up));
        let latest = delays.last().expect("some arrived");
        assert!(*latest <= 300.0 + 25.0, "{order}: {latest} ms");
        assert!(delays.len() >= 200, "{order}: {}", delays.len());
        let status = &world.inner.server_status()[0];
        let received = &status.stats.lanes[0].received;
        assert!(received.drops.get(DropReason::ArrivedExpired) > 50, "{order}: {received:?}");
    }
}

#[test]
fn small_flows_of_a_vehicle_without_configuration_expire_within_a_second() {
    let small = LaneRule::class(FlowClass::Interactive);
    let lanes = default_lanes();
    let expiries: Vec<bool> = lanes.iter().map(|lane| lane.expire_after.is_some()).collect();
    assert_eq!(expiries, [false, true, false, false], "transfers wait for what they need");
    assert_eq!(lanes[1].rule, small);
    let (world, delays, _) = with_a_blackout(lanes, vec![link(20, 20), link(10, 40)]);
    let latest = delays.last().expect("some arrived");
    assert!(*latest <= 1_000.0 + 25.0, "{latest} ms");
    let lane = &world.client_status().stats.lanes[1];
    assert_eq!((lane.name.as_str(), lane.sent.inner_packets), ("interactive", 600));
}

/// A fragment waits for its siblings as long as these may be sent again.
#[test]
fn a_reliable_lane_loses_no_fragment_in_an_outage() {
    for strategy in ["minrtt", "raven", "xlink"] {
        for fragments_left in 0..4 {
            let lanes = lane(strategy, None);
            let mut world =
                Plan::new("xnc", vec![link(1, 20)]).build_with(lanes.clone(), lanes).join();
            world.send_up(&packet_up(1, 3_000));
            world.run(ms(26 + 12 * fragments_left));
            world.set_dead(0, true);
            world.run(ms(3_000));
            world.set_dead(0, false);
            world.run(ms(8_000));
            assert_eq!(world.up.len(), 1, "{strategy}, dead after {fragments_left} fragments");
            let received = &world.inner.server_status()[0].stats.lanes[0].received;
            assert_eq!(received.drops.get(DropReason::IncompleteFragments), 0, "{strategy}");
        }
    }
}
