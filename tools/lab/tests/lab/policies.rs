//! Policies of uplinks over simulated links: priorities, rate limits, caps and budgets.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::world::*;
use roadweave_emulate::{Direction, LinkSettings};
use roadweave_proto::{Instant, PathStatus, Policy, Priority, Rate};
use roadweave_tunnel::{Caps, PathStatusReport, UplinkPolicy};

fn with(policy: Policy) -> UplinkPolicy {
    UplinkPolicy { policy, ..UplinkPolicy::default() }
}

fn limited(rate: Rate) -> UplinkPolicy {
    with(Policy { rate_max: Some(rate), ..Policy::default() })
}

fn joined(strategy: &str, links: Vec<LinkSettings>, policies: &[UplinkPolicy]) -> World {
    let policies = policies.iter().enumerate().map(|(index, policy)| (name(index), *policy));
    World::joined(WorldConfig { policies: policies.collect(), ..plan(strategy, links) })
}

fn paths(world: &World) -> [BTreeMap<String, PathStatusReport>; 2] {
    let by_name = |paths: Vec<PathStatusReport>| {
        paths.into_iter().map(|path| (path.uplink.clone().expect("it is named"), path)).collect()
    };
    let server = world.server_status().remove(0).paths;
    [by_name(world.client_status().paths), by_name(server)]
}

/// Datagrams and feedback sent on an uplink so far, up and down.
fn datagrams(world: &World, uplink: &str) -> [u64; 2] {
    paths(world).map(|paths| {
        let counters = paths[uplink].counters;
        counters.datagrams_sent + counters.feedback_sent
    })
}

#[test]
fn a_backup_carries_nothing_until_the_others_die_and_then_takes_over_at_once() {
    let strategies = ["xnc", "minrtt", "raven", "ecf", "pluribus", "redundant"];
    for (strategy, budget) in strategies.iter().flat_map(|it| [(*it, None), (*it, Some(0))]) {
        let links = vec![link(20, 40), link(20, 50), link(20, 5)];
        let mut policies = [Priority::Primary, Priority::Secondary, Priority::Backup]
            .map(|priority| with(Policy { priority, weight: 1, ..Policy::default() }));
        policies[2].policy.redundancy_percent = budget;
        let mut world = joined(strategy, links, &policies);
        let before = datagrams(&world, "wwan2");
        let mut outage = Instant::ZERO;
        let sent = stream_with(&mut world, 180, 4, |world, frame| {
            world.send(Direction::Down, &packet_down(1_000_000 + frame, 1000));
            if frame == 90 {
                assert_eq!(datagrams(world, "wwan2"), before, "{strategy}: the backup is used");
                (0..2).for_each(|link| world.set_dead(link, true));
                outage = world.now();
            }
        });
        let soon = outage + ms(500);
        let after: BTreeMap<_, _> = sent.into_iter().filter(|(_, at)| *at > soon).collect();
        let delays = delays(&after, &arrivals(&world.up));
        assert_eq!(delays.len(), after.len(), "{strategy}: all arrives after half a second");
        assert!(percentile(&delays, 1.0) <= 100.0, "{strategy}: in time");
        let came_down = world.down.iter().filter(|arrival| arrival.at > soon).count();
        assert!(came_down >= 70, "{strategy}: the way back as well, {came_down} of 75");
    }
}

#[test]
fn a_rate_limit_holds_both_ways_and_the_others_carry_what_is_beyond_it() {
    let limit = Rate::from_kbps(2_000);
    let limited = limited(limit);
    let bytes = |world: &World| paths(world).map(|paths| paths["wwan0"].counters.bytes_sent as f64);
    let allowed = |time: Duration| limit.bytes_per_second() * time.as_secs_f64();
    for strategy in ["xnc", "minrtt", "ecf", "raven", "pluribus", "redundant"] {
        // Without the limit the first link would be preferred.
        let links = vec![link(20, 20), link(20, 40)];
        let mut world = joined(strategy, links, &[limited]);
        let down = |world: &mut World, frame: u64| {
            (0..20).for_each(|part| {
                world.send(Direction::Down, &packet_down(frame * 20 + part, 1000))
            });
        };
        stream_with(&mut world, 60, 5, down); // the windows grow
        world.up.clear();
        world.down.clear();
        let (before, began) = (bytes(&world), world.now());
        let sent = stream_with(&mut world, 300, 5, down);
        let may = allowed(world.now().since(began));
        let after = bytes(&world);
        for (after, before) in after.into_iter().zip(before) {
            let share = (after - before) / may;
            assert!((0.4..1.05).contains(&share), "{strategy}: {share} of what it may carry");
        }
        let delays = delays(&sent, &arrivals(&world.up));
        let arrived = (delays.len(), world.down.len());
        assert_eq!(arrived, (sent.len(), 300 * 20), "{strategy}: all of it arrives");
        let p99 = percentile(&delays, 0.99);
        assert!(p99 < 100.0, "{strategy}: {p99} ms");
        for paths in paths(&world) {
            let limits = ["wwan0", "wwan1"].map(|uplink| paths[uplink].rate_limit_bps);
            assert_eq!(limits, [Some(limit.as_bps()), None]);
        }
        // The only uplink is used up to the limit.
        let mut world = joined(strategy, vec![link(20, 20)], &[limited]);
        stream(&mut world, 60, 5);
        let (before, began) = (bytes(&world), world.now());
        stream(&mut world, 300, 5);
        let share = (bytes(&world)[0] - before[0]) / allowed(world.now().since(began));
        assert!((0.9..1.05).contains(&share), "{strategy}, alone: {share}");
    }
}

#[test]
fn a_near_link_with_a_small_limit_delays_nothing() {
    for strategy in ["xnc", "xnc-patient", "minrtt", "ecf", "raven", "pluribus", "lola", "xlink"] {
        for (near, far) in [(2, 22), (5, 60), (20, 40)] {
            for limit in [Policy::RATE_KBPS_MIN, 1_000].map(Rate::from_kbps) {
                let links = vec![link(20, near), link(20, far)];
                let mut world = joined(strategy, links, &[limited(limit)]);
                stream(&mut world, 60, 4);
                world.up.clear();
                let sent = stream(&mut world, 90, 4);
                let delays = delays(&sent, &arrivals(&world.up));
                let median = percentile(&delays, 0.5);
                let case = format!("{strategy}, {near} and {far} ms, {limit}");
                let arrived = delays.len() * 100 / sent.len();
                // LoLa drops packets that would be late.
                let least = if strategy == "lola" { 95 } else { 100 };
                assert!(arrived >= least, "{case}: {arrived} % arrive");
                assert!(median < far as f64 + 40.0, "{case}: {median} ms");
            }
        }
    }
}

#[test]
fn an_encoder_target_never_exceeds_a_rate_limit() {
    for kilobits in [100, 200, 500, 2_000] {
        let limit = Rate::from_kbps(kilobits);
        let mut world = joined("xnc", vec![link(20, 10)], &[limited(limit)]);
        let mut most = Rate::ZERO;
        stream_with(&mut world, 150, 2, |world, _| {
            most = most.max(world.encoder_target(Direction::Up).bitrate);
        });
        assert!((limit.as_bps() / 2..=limit.as_bps()).contains(&most.as_bps()), "{limit}: {most}");
    }
}

#[test]
fn redundancy_stays_within_the_budget_of_a_metered_uplink() {
    for strategy in ["xnc", "xnc-sigcomm23", "pluribus", "redundant", "xlink"] {
        let metered = with(Policy { redundancy_percent: Some(2), ..Policy::default() });
        // The budget does not apply if only the metered uplink works.
        let links = vec![lossy(link(20, 20), 0.05, 1.5), link(20, 30)];
        let mut world = joined(strategy, links, &[metered]);
        let sent = stream(&mut world, 180, 6);
        let arrived = arrivals(&world.up).len();
        assert!(arrived * 100 > sent.len() * 97, "{strategy}: {arrived} of {}", sent.len());
        for paths in paths(&world) {
            let PathStatusReport { counters, redundancy_left_bytes, .. } = &paths["wwan0"];
            let (source, redundant) = (counters.source_bytes, counters.redundant_bytes);
            assert!(redundant * 50 <= source, "{strategy}: {redundant} of {source}");
            assert_eq!(*redundancy_left_bytes, Some(source / 50 - redundant));
            assert_eq!(paths["wwan1"].redundancy_left_bytes, None);
        }
        let [client, _] = paths(&world);
        let carried = client["wwan1"].counters.redundant_bytes;
        assert!(carried > 10_000, "{strategy}: the other repairs");
    }
}

#[test]
fn beyond_its_cap_an_uplink_is_a_backup_until_the_month_is_over() {
    let caps = Caps { monthly_bytes: Some(1_500_000), ..Caps::default() };
    let capped = UplinkPolicy { caps, ..UplinkPolicy::default() };
    let mut world = joined("xnc", vec![link(20, 10), link(20, 30)], &[capped]);
    stream(&mut world, 150, 4);
    let [client, server] = paths(&world);
    let capped = &client["wwan0"];
    assert_eq!(capped.monthly_cap_bytes, Some(1_500_000));
    // Keep-alives continue.
    let carried = capped.month_bytes.expect("it is metered");
    assert!((1_500_000..1_560_000).contains(&carried), "{carried}");
    let on_link = world.link_stats(0, Direction::Up).pushed_bytes
        + world.link_stats(0, Direction::Down).delivered_bytes;
    assert_eq!(carried, on_link, "both ways, with IP headers");
    assert_eq!((capped.priority, server["wwan0"].priority), (Priority::Backup, Priority::Backup));
    assert_eq!(client["wwan1"].month_bytes, None);
    let before = datagrams(&world, "wwan0");
    stream(&mut world, 30, 4);
    assert_eq!(datagrams(&world, "wwan0"), before);
    // A day later it is still the same month.
    world.ends_mut().0.on_time_of_day(1_800_000_000 + 86_400, true);
    stream(&mut world, 30, 4);
    assert_eq!(datagrams(&world, "wwan0"), before);
    assert!(paths(&world)[0]["wwan0"].day_bytes < Some(100_000));
    // The month has ended.
    let usage = world.ends_mut().0.usage().clone();
    assert_eq!(usage.of("wwan1", 1).month_bytes, 0);
    world.ends_mut().0.on_time_of_day(1_800_000_000 + 31 * 86_400, true);
    stream(&mut world, 30, 4);
    assert!(datagrams(&world, "wwan0")[0] > before[0] + 100);
    assert_eq!(paths(&world)[1]["wwan0"].priority, Priority::Primary);
    // Persisted usage counts after a restart.
    world.ends_mut().0.restore_usage(usage);
    world.flush();
    world.run(ms(200));
    let paths = paths(&world);
    assert_eq!(paths[1]["wwan0"].priority, Priority::Backup);
    assert!(paths.iter().all(|paths| paths["wwan0"].status == PathStatus::Usable));
}
