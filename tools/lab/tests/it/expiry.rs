//! Lanes with packet expiry, which deliver nothing older, and lanes without expiry.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::world::{LinkPlan, Plan, World, arrivals, delays, link, ms, packet_up};
use roadweave_lab::strategies;
use roadweave_proto::{DropReason, Instant};
use roadweave_tunnel::LaneConfig;

/// `expire_after` is in ms.
fn lane(strategy: &str, expire_after: Option<u64>) -> Vec<LaneConfig> {
    let strategy = strategies::strategy(strategy).expect("known");
    vec![LaneConfig { expire_after: expire_after.map(ms), ..LaneConfig::new("default", strategy) }]
}

fn steer(world: &mut World, first: u64, time: Duration) -> BTreeMap<u64, Instant> {
    let mut sent = BTreeMap::new();
    for at in 0..time.as_millis() as u64 / 10 {
        sent.insert(first + at, world.now);
        world.send_up(&packet_up(first + at, 120));
        world.run(ms(10));
    }
    sent
}

/// Six seconds of commands; all links are down for the middle four.
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
        // The delay of the fastest link does not count.
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

/// Fragments are kept as long as the others may be sent again.
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
