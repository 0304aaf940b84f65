//! Narrow paths that join: packets sent before are still repaired.

use crate::world::{LinkPlan, Plan, World, arrivals, link, ms, stream_of};
use roadweave_proto::DropReason;
use roadweave_tunnel::{LaneConfig, Strategy};

/// The largest UDP payload of a narrow link.
const NARROW: usize = 1200;
/// An inner packet of the device's usual MTU.
const FULL: usize = 1360;

fn world(strategy: &str, links: Vec<LinkPlan>) -> World {
    let strategy = strategy.parse::<Strategy>().expect("known");
    let lanes = vec![LaneConfig::new("default", strategy)];
    let mut world = Plan::new("xnc", links).build_with(lanes.clone(), lanes);
    world.inner.remove_uplink(2);
    world.join()
}

/// Packets that the sender gave up.
fn given_up(world: &World) -> u64 {
    let sent = &world.client_status().stats.lanes[0].sent;
    let reasons = [DropReason::SendFailed, DropReason::OversizedInner];
    let too_large: u64 = reasons.into_iter().map(|reason| sent.drops.get(reason)).sum();
    too_large + sent.recovery.abandoned
}

#[test]
fn a_narrow_path_that_joins_costs_no_packet() {
    for strategy in ["xnc", "minrtt", "redundant", "raven", "xlink", "ecf"] {
        // `redundant` repairs no loss.
        let first =
            if strategy == "redundant" { link(20, 20) } else { link(20, 20).lossy(0.02, 2.0) };
        let mut world = world(strategy, vec![first, link(20, 30), link(5, 40)]);
        world.inner.set_mtu(2, NARROW);
        // The link dies and returns while recent losses are repaired.
        let sent = stream_of(&mut world, 240, 8, FULL, |world, frame| match frame % 12 {
            3 => world.inner.add_uplink(2),
            9 => world.inner.remove_uplink(2),
            _ => {}
        });
        world.run(ms(3_000));
        let missing = sent.len() - arrivals(&world.up).len();
        assert_eq!((missing, given_up(&world)), (0, 0), "{strategy}: {:?}", world.client_status());
    }
}
