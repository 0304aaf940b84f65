//! Speed tests over simulated links: results, limits, and how they end.

use std::time::Duration;

use crate::world::{World, WorldConfig, link, ms, name, plan};
use roadweave_emulate::{Direction, LinkSettings};
use roadweave_proto::DropReason;
use roadweave_tunnel::{
    Caps, LoadReport, SpeedtestError, SpeedtestLimits, SpeedtestPlan, SpeedtestReport,
    SpeedtestState, UplinkPolicy,
};

fn world(links: Vec<LinkSettings>) -> World {
    World::joined(WorldConfig { speedtest: Some(SpeedtestLimits::default()), ..plan("xnc", links) })
}

/// Three seconds in each direction over all unmetered uplinks.
fn usual() -> SpeedtestPlan {
    SpeedtestPlan {
        uplinks: Vec::new(),
        duration: Duration::from_secs(3),
        bytes_max: 1 << 30,
        metered: false,
    }
}

fn begin(world: &mut World, plan: &SpeedtestPlan) -> Result<(), SpeedtestError> {
    let now = world.now();
    world.ends_mut().0.begin_speedtest(now, plan)
}

fn report(world: &mut World) -> SpeedtestReport {
    let now = world.now();
    world.ends_mut().0.speedtest(now).expect("there was one")
}

fn finish(world: &mut World) -> SpeedtestReport {
    for _ in 0..10_000 {
        world.flush();
        world.run(ms(20));
        let report = report(world);
        if report.state != SpeedtestState::Running {
            return report;
        }
    }
    panic!("it never ends: {:?}", report(world));
}

fn measured(world: &mut World, plan: &SpeedtestPlan) -> SpeedtestReport {
    begin(world, plan).expect("it begins");
    finish(world)
}

fn mbps(load: Option<&LoadReport>) -> f64 {
    load.and_then(|load| load.bps).map_or(0.0, |bps| bps as f64 / 1e6)
}

fn carried(world: &World, link: usize) -> u64 {
    let bytes = |direction| world.link_stats(link, direction).delivered_bytes;
    bytes(Direction::Up) + bytes(Direction::Down)
}

#[test]
fn each_link_shows_its_rate_and_all_together_their_sum() {
    let links = vec![link(20, 20), link(6, 40)];
    let mut world = world(links);
    let report = measured(&mut world, &usual());
    assert_eq!((report.state, report.rows.len()), (SpeedtestState::Done, 3), "{report:#?}");
    // Acknowledgements return over the fastest path.
    for (row, (rate, rtt)) in report.rows.iter().zip([(20.0, 40.0), (6.0, 60.0), (26.0, 0.0)]) {
        for load in [row.down.as_ref(), row.up.as_ref()] {
            let share = mbps(load) / rate;
            // Headers take some percent of the link's capacity.
            assert!((0.88..=1.0).contains(&share), "{share} of {rate}: {row:#?}");
            let load = load.expect("measured");
            assert!(load.loss < Some(0.02) && !load.is_short, "{load:?}");
            let loaded = load.loaded_rtt_ms.expect("it is known");
            assert!(loaded >= rtt, "{loaded}");
        }
        if let Some(idle) = row.idle_rtt_ms {
            assert!((rtt..rtt + 8.0).contains(&idle), "{idle} of {rtt}");
        }
    }
    let client = world.client_status().stats;
    assert!(client.load.sent_bytes > 0 && client.load.received_bytes > 0);
    assert_eq!(client.drops.get(DropReason::UnaskedLoad), 0);
    assert_eq!(world.server_status()[0].stats.drops.get(DropReason::UnaskedLoad), 0);
    assert!(client.lanes.iter().all(|lane| lane.sent.source_datagrams == 0), "nothing in lanes");
}

#[test]
fn the_limit_holds_whatever_the_links_carry() {
    let mut world = world(vec![link(50, 10), link(50, 10)]);
    let before = carried(&world, 0) + carried(&world, 1);
    let limit = 3_000_000;
    let report = measured(&mut world, &SpeedtestPlan { bytes_max: limit, ..usual() });
    let taken = carried(&world, 0) + carried(&world, 1) - before;
    assert!(report.used_bytes <= limit && taken < limit * 11 / 10, "{taken}: {report:#?}");
    assert!(taken > limit * 8 / 10, "{taken}: it is used");
    let row = &report.rows[0];
    assert!(row.up.as_ref().is_some_and(|load| load.is_short), "{row:?}");
    assert!(mbps(row.down.as_ref()) > 20.0, "{row:?}");
    let little = begin(&mut world, &SpeedtestPlan { bytes_max: 1_000_000, ..usual() });
    assert_eq!(little, Err(SpeedtestError::Limit { least: 1_500_000 }));
}

#[test]
fn a_metered_uplink_is_left_out_unless_it_is_meant() {
    let caps = Caps { monthly_bytes: Some(1 << 40), ..Caps::default() };
    let policies = [(name(1), UplinkPolicy { caps, ..UplinkPolicy::default() })];
    let links = vec![link(10, 20), link(10, 20)];
    let speedtest = Some(SpeedtestLimits::default());
    let config = WorldConfig { policies: policies.into(), speedtest, ..plan("xnc", links) };
    let mut world = World::joined(config);
    let before = carried(&world, 1);
    let report = measured(&mut world, &usual());
    let [first, second] = &report.rows[..] else { panic!("{report:#?}") };
    assert!(mbps(first.up.as_ref()) > 8.0, "{first:?}");
    assert!(second.left_out.as_ref().is_some_and(|why| why.contains("--metered")), "{second:?}");
    assert!(second.up.is_none() && carried(&world, 1) - before < 200_000);
    let named = SpeedtestPlan { uplinks: vec![name(1)], ..usual() };
    let report = measured(&mut world, &named);
    assert!(report.rows.len() == 1 && mbps(report.rows[0].up.as_ref()) > 8.0, "{report:#?}");
    let all = measured(&mut world, &SpeedtestPlan { metered: true, ..usual() });
    assert_eq!(all.rows.len(), 3);
}

#[test]
fn a_test_ends_with_its_session_with_its_path_and_when_no_longer_polled() {
    let begun = |plan: SpeedtestPlan| {
        let mut world = world(vec![link(10, 20)]);
        begin(&mut world, &plan).expect("it begins");
        world.run(ms(1_000));
        world
    };
    let mut world = begun(usual());
    assert_eq!(begin(&mut world, &usual()), Err(SpeedtestError::UnderWay));
    world.restart_server().unwrap();
    let ended = finish(&mut world);
    assert!(ended.error.is_some_and(|why| why.contains("the session ended")));

    let mut world = begun(usual());
    world.set_dead(0, true);
    let began = world.now();
    let failed = finish(&mut world);
    assert!(failed.state == SpeedtestState::Failed && failed.error.is_some(), "{failed:?}");
    assert!(world.now().since(began) < Duration::from_secs(20), "{}", world.now());

    let mut world = begun(SpeedtestPlan { duration: Duration::from_secs(10), ..usual() });
    world.run(ms(4_500));
    let before = carried(&world, 0);
    world.run(ms(3_000));
    assert!(carried(&world, 0) - before < 100_000, "nobody asks, and nothing is sent");
    assert!(report(&mut world).error.is_some_and(|why| why.contains("no longer requested")));
    assert_eq!(measured(&mut world, &usual()).state, SpeedtestState::Done, "another can begin");
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_reason() {
    let mut world = World::new(plan("xnc", vec![link(10, 20)]));
    assert_eq!(begin(&mut world, &usual()), Err(SpeedtestError::NoSession));
    let mut world = world.join();
    // The server allows none.
    let began = world.now();
    let report = measured(&mut world, &usual());
    assert_eq!(report.state, SpeedtestState::Failed);
    assert!(report.error.is_some_and(|why| why.contains("enabled = true")));
    assert!(world.now().since(began) < ms(500));
    assert_eq!(world.ends_mut().1.refusals()["speedtest-off"], 1);
    let named = |name: &str| SpeedtestPlan { uplinks: vec![name.into()], ..usual() };
    let error = begin(&mut world, &named("wwan7")).expect_err("there is none").to_string();
    assert!(error.contains("wwan7") && error.contains("there are: wwan0"), "{error}");
    for seconds in [0, 11] {
        let plan = SpeedtestPlan { duration: Duration::from_secs(seconds), ..usual() };
        assert_eq!(begin(&mut world, &plan), Err(SpeedtestError::Duration));
    }
}
