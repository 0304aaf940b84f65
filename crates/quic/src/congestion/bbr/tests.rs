//! What the controller does on links that behave like those of vehicles.

mod bottleneck;

use bottleneck::{Bottleneck, PACKET, Traffic, World, check, link, ms};
use proptest::prelude::*;

use super::*;

fn bulk(mbps: f64, round_trip: Duration) -> World {
    World::new(link(mbps, round_trip), 1).with(Traffic::Bulk)
}

/// Bulk traffic on a changed link for `span` ms must exceed a rate, Mbit/s, below a delay, seconds.
fn check_steady(
    (mbps, round_trip): (f64, u64),
    change: impl Fn(&mut Bottleneck),
    span: u64,
    (least, longest): (f64, f64),
) {
    let mut world = bulk(mbps, ms(round_trip));
    change(&mut world.link);
    let seen = world.run_after(ms(2000), ms(span));
    assert!(seen.mbps[0] > least && seen.rtt_mean < longest, "{:?}: {seen:?}", world.link);
}

#[test]
fn a_link_is_full_within_a_few_round_trips() {
    let mut world = bulk(50.0, ms(40));
    let seen = world.run_after(ms(400), ms(200));
    assert!(seen.mbps[0] > 45.0, "{seen:?}");
}

#[test]
fn the_queue_of_a_full_link_stays_short() {
    for (mbps, round_trip) in [(50.0, 40), (20.0, 40), (5.0, 60), (100.0, 20), (2.0, 80)] {
        let bounds = (mbps * 0.93, round_trip as f64 * 1e-3 * 1.3);
        check_steady((mbps, round_trip), |_| {}, 20_000, bounds);
    }
}

#[test]
fn a_link_that_drops_to_a_quarter_is_followed_within_a_few_round_trips() {
    let mut world = bulk(40.0, ms(50));
    world.run(ms(3000));
    let before = world.flows[0].bbr.pacing_rate.unwrap();
    world.link.mbps = 10.0;
    world.run(ms(250));
    let after = world.flows[0].bbr.pacing_rate.unwrap();
    assert!(after * 2 < before, "{before} to {after}");
    let seen = world.run_after(ms(750), ms(5000));
    assert!(seen.rtt_mean < 0.070 && seen.mbps[0] > 9.0, "{seen:?}");
}

#[test]
fn a_link_that_becomes_four_times_as_fast_is_followed() {
    let mut world = bulk(10.0, ms(50));
    world.run(ms(5000));
    world.link.mbps = 40.0;
    let seen = world.run_after(ms(4000), ms(1000));
    assert!(seen.mbps[0] > 36.0, "{seen:?}");
}

#[test]
fn a_pause_of_the_link_is_soon_forgotten() {
    let mut world = bulk(30.0, ms(50));
    world.run(ms(5000));
    world.link.mbps = 0.0;
    world.run(ms(500));
    world.link.mbps = 30.0;
    let seen = world.run_after(ms(100), ms(500));
    assert!(seen.mbps[0] > 27.0, "{seen:?}");
    let later = world.run(ms(5000));
    assert!(later.rtt_mean < 0.065, "{later:?}");
}

#[test]
fn neither_jitter_nor_random_loss_nor_a_short_queue_is_congestion() {
    for jitter_ms in [2.0, 8.0, 20.0] {
        let bounds = (30.0 * 0.85, 0.105);
        check_steady((30.0, 70), |link| link.jitter_ms = jitter_ms, 20_000, bounds);
    }
    for loss in [0.02, 0.05] {
        let bounds = (30.0 * (1.0 - loss) * 0.9, 0.065);
        check_steady((30.0, 50), |link| link.loss = loss, 20_000, bounds);
    }
    let queue_max = 15 * PACKET;
    check_steady((30.0, 50), |link| link.queue_max = queue_max, 10_000, (25.0, f64::INFINITY));
}

#[test]
fn two_flows_share_a_link() {
    for seed in 1..=5 {
        let mut world = World::new(link(40.0, ms(50)), seed).with(Traffic::Bulk);
        world.run(ms(5000));
        world.add(Traffic::Bulk);
        let seen = world.run_after(ms(10_000), ms(30_000));
        let (one, other) = (seen.mbps[0], seen.mbps[1]);
        assert!(one.min(other) > one.max(other) * 0.7, "seed {seed}: {seen:?}");
        assert!(one + other > 36.0, "seed {seed}: {seen:?}");
    }
}

#[test]
fn a_video_is_never_held_back_on_a_link_with_room() {
    let mut world = World::new(link(40.0, ms(50)), 1).with(Traffic::Video { mbps: 8.0 });
    world.run(ms(3000));
    for _ in 0..10 {
        let seen = world.run(ms(3000));
        let frame = (8.0e6 / 8.0 / 30.0) as u64 / PACKET;
        assert!(seen.backlog_max <= frame, "a frame was gone before the next came: {seen:?}");
        assert!(seen.rtt_mean < 0.060, "{seen:?}");
        assert!(world.flows[0].bbr.model.rate() >= 0.95e6, "{:?}", world.flows[0].bbr.model);
    }
}

fn roomy_video() -> World {
    let mut world = World::new(link(40.0, ms(60)), 1).with(Traffic::Video { mbps: 5.0 });
    world.run(ms(3000));
    world
}

const FRAME: u64 = 5_000_000 / 8 / 30 / PACKET + 1;

#[test]
fn a_route_that_creeps_up_holds_no_video_back() {
    let mut world = roomy_video();
    for millis in 60..180 {
        world.link.round_trip = ms(millis);
        let seen = world.run(ms(33));
        assert!(seen.backlog_max <= FRAME, "{millis} ms: {seen:?}");
    }
}

/// Whether rounds at the base, each with this loss, are congestion, and what rate share is left.
fn after_losses(losses: &[f64]) -> Vec<(bool, f64)> {
    let mut world = bulk(20.0, ms(50));
    world.run(ms(3000));
    let mut model = world.flows[0].bbr.model.clone();
    let (rate, base) = (model.rate(), model.delay.base().unwrap());
    let after = (1..).zip(losses).map(|(number, loss)| {
        let after_loss = Round::plain(rate * (1.0 - loss), base);
        model.on_round(world.now + ms(50) * number, &Round { loss: *loss, ..after_loss }, 0);
        (model.lossy, model.rate() / rate)
    });
    after.collect()
}

#[test]
fn a_moment_in_which_much_is_lost_is_an_outage_and_more_is_congestion() {
    let outage = [vec![0.9; 11], vec![0.0; 12], vec![0.9]].concat();
    assert!(after_losses(&outage).iter().all(|after| *after == (false, 1.0)));
    assert_eq!(after_losses(&[0.5; 12]).last(), Some(&(true, 0.7)));
    let overflowing = [0.3, 0.0].repeat(7);
    assert_eq!(after_losses(&overflowing)[12], (true, 0.7), "every other round");
}

#[test]
fn a_video_comes_back_at_once_to_a_path_that_carried_little() {
    let mut world = roomy_video();
    world.flows[0].traffic = Traffic::Video { mbps: 0.3 };
    world.run(ms(20_000));
    world.flows[0].traffic = Traffic::Video { mbps: 5.0 };
    let seen = world.run(ms(1000));
    assert!(seen.backlog_max <= FRAME, "{seen:?}");
}

#[test]
fn a_link_that_sinks_slowly_below_a_video_gets_no_lasting_queue() {
    // The video needs 4.9 Mbit/s; the buffer is half a second, or one that is soon always full.
    for (mbps, queue_max) in [(4.8, 2_500_000), (4.6, 2_500_000), (4.3, 2_500_000), (4.6, 100_000)]
    {
        let mut world = roomy_video();
        world.link.queue_max = queue_max;
        while world.link.mbps > mbps {
            world.link.mbps -= 0.4;
            world.run(ms(100));
        }
        world.link.mbps = mbps;
        let seen = world.run_after(ms(20_000), ms(5000));
        assert!(seen.rtt_mean < 0.100 && seen.mbps[0] > mbps * 0.97, "{mbps}: {seen:?}");
    }
}

#[test]
fn an_idle_flow_keeps_its_estimate_and_comes_back_at_once() {
    let mut world = bulk(20.0, ms(50));
    world.run(ms(3000));
    world.flows[0].traffic = Traffic::Silent;
    world.run(ms(30_000));
    world.flows[0].traffic = Traffic::Bulk;
    let seen = world.run_after(ms(150), ms(500));
    assert!(seen.mbps[0] > 18.0 && seen.rtt_max < 0.150, "{seen:?}");
}

#[test]
fn a_longer_route_is_distinguished_from_a_queue() {
    for (from, to) in [(30, 90), (15, 60), (60, 25)] {
        let mut world = bulk(20.0, ms(from));
        world.run(ms(5000));
        world.link.round_trip = ms(to);
        let seen = world.run_after(ms(2000), ms(5000));
        assert!(seen.mbps[0] > 17.0, "{from} to {to} ms: {seen:?}");
        // While the rate is held, no more than this may be in the queue.
        let longest = to as f64 * 1e-3 * CRUISE_WINDOW;
        assert!(seen.rtt_mean < longest, "{from} to {to} ms: {seen:?}");
    }
}

#[test]
fn persistent_congestion_leaves_the_least_window() {
    let mut world = bulk(20.0, ms(50));
    world.run(ms(3000));
    let now = world.now;
    world.flows[0].bbr.on_congestion_event(now, now, true, false, PACKET, 1);
    assert_eq!(world.flows[0].bbr.window(), 4 * PACKET);
    let seen = world.run_after(ms(1000), ms(1000));
    assert!(seen.mbps[0] > 18.0, "{seen:?}");
}

proptest! {
    #[test]
    fn nothing_makes_the_window_vanish_or_explode(
        steps in proptest::collection::vec((0..5u8, 0..400u64, 0..70_000u64), 1..300),
    ) {
        #[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
        let start = Instant::now();
        let mut bbr = Bbr::new(PACKET as u16, SplitMix64::new(1));
        let mut now = start + ms(1000);
        for (kind, millis, bytes) in steps {
            match kind {
                0 => now += ms(millis),
                1 => bbr.on_acknowledged(now, start + ms(millis * 5), bytes),
                2 => bbr.on_batch_end(now, bytes, millis % 2 == 0),
                3 => bbr.on_lost(bytes),
                _ => bbr.on_congestion_event(now, now, millis % 3 == 0, millis % 2 == 0, bytes, 1),
            }
            check(&bbr);
        }
    }
}
