//! The purpose of each strategy, in the smallest world that shows it.

use crate::world::*;
use roadweave_proto::DropReason;

/// Delays of a stream in ms, ascending, infinite for lost packets; and the world at the end.
fn run(strategy: &'static str, links: Vec<LinkPlan>, mbps: u64) -> (Vec<f64>, World) {
    run_with(strategy, links, mbps, |_, _| {})
}

fn run_with(
    strategy: &'static str,
    links: Vec<LinkPlan>,
    mbps: u64,
    before_frame: impl FnMut(&mut World, u64),
) -> (Vec<f64>, World) {
    let mut world = Plan::new(strategy, links).build().join();
    // Until the windows are open, all strategies wait.
    stream_of(&mut world, 40, mbps, 1000, |_, _| {});
    // Small enough not to be fragmented.
    let sent = stream_of(&mut world, 200, mbps, 1000, before_frame);
    let mut delays = delays(&sent, &arrivals(&world.up));
    delays.resize(sent.len(), f64::INFINITY);
    (delays, world)
}

fn lost(delays: &[f64]) -> usize {
    delays.iter().filter(|delay| delay.is_infinite()).count()
}

fn redundancy(world: &World) -> f64 {
    world.client_status().stats.lanes[0].redundancy
}

#[test]
fn redundant_does_not_notice_that_a_link_dies() {
    let (delays, world) =
        run_with("redundant", vec![link(20, 20), link(20, 30)], 8, |world, frame| {
            if frame == 100 {
                world.set_dead(0, true);
            }
        });
    assert_eq!(lost(&delays), 0);
    // The delay of the other link, and the duration of a frame.
    assert!(percentile(&delays, 1.0) < 60.0, "{}", percentile(&delays, 1.0));
    assert!((0.4..1.2).contains(&redundancy(&world)), "{}", redundancy(&world));
}

#[test]
fn pluribus_brings_losses_back_before_anybody_could_have_asked_for_it() {
    let links = || [60, 60].map(|delay| link(20, delay).lossy(0.04, 1.2)).into();
    let (unrepaired, _) = run("minrtt-unreliable", links(), 8);
    let (delays, world) = run("pluribus", links(), 8);
    assert!(lost(&unrepaired) > 20, "{} of {}", lost(&unrepaired), unrepaired.len());
    let status = world.inner.server_status();
    let received = &status[0].stats.lanes[0].received;
    assert!(received.recovered > 150, "{received:?}");
    assert!(lost(&delays) * 5 < lost(&unrepaired), "{}, {}", lost(&delays), lost(&unrepaired));
    // Loss detection takes at least 120 ms, and a repair another 60 ms.
    assert!(percentile(&delays, 0.99) < 120.0, "{}", percentile(&delays, 0.99));
    assert!(redundancy(&world) > 0.1, "{}", redundancy(&world));
}

#[test]
fn xlink_copies_what_is_late_and_leaves_a_healthy_stream_alone() {
    let run = |strategy, silent_frames| {
        let links = vec![link(20, 25), link(20, 40)];
        let (delays, world) = run_with(strategy, links, 8, |world, frame| {
            world.set_dead(0, frame % 30 < silent_frames);
        });
        assert_eq!(lost(&delays), 0, "{strategy}");
        let recovery = world.client_status().stats.lanes[0].sent.recovery;
        (percentile(&delays, 0.999), recovery.repairs - recovery.repaired, redundancy(&world))
    };
    let (healthy, copies, _) = run("xlink", 0);
    // A frame that overflows to the slower path may look late for a moment.
    assert!(copies < 400 && healthy < 80.0, "{copies} copies, {healthy} ms");
    let ((plain, _, _), (late, copies, redundancy)) = (run("minrtt", 6), run("xlink", 6));
    assert!(copies > 20 && redundancy < 0.3, "{copies} copies, redundancy {redundancy}");
    assert!(late <= plain, "{late} ms, and {plain} ms without them");
}

#[test]
fn ecf_keeps_a_burst_off_a_path_that_would_hold_it_up() {
    let worst = |strategy| {
        let (delays, _) = run(strategy, vec![link(30, 10), link(2, 250)], 12);
        assert_eq!(lost(&delays), 0, "{strategy}");
        percentile(&delays, 0.99)
    };
    let (single, ecf) = (worst("single:wwan0"), worst("ecf"));
    assert!(ecf < single + 60.0, "{ecf} ms, and {single} ms on the fast link alone");
}

#[test]
fn a_strategy_that_changes_while_packets_are_lost_forgets_none_of_them() {
    let links = [20, 50, 30].map(|delay| link(12, delay).lossy(0.04, 5.0)).into();
    let names = ["xlink", "ecf", "minrtt"];
    let (delays, world) = run_with("minrtt", links, 12, |world, frame| {
        if frame % 25 == 12 {
            let name = names[frame as usize / 25 % names.len()];
            let (now, strategy) = (world.now, name.parse().expect("known"));
            let set = world.inner.ends_mut().0.set_strategy(now, "default", strategy);
            set.expect("the lane is there");
        }
    });
    assert_eq!(lost(&delays), 0);
    let lane = &world.client_status().stats.lanes[0];
    assert_eq!(lane.strategy, names[7 % names.len()]);
    assert!(lane.sent.recovery.lost > 50, "losses of all times are counted: {:?}", lane.sent);
    assert_eq!(lane.sent.drops.get(DropReason::RepairExpired), 0);
}
