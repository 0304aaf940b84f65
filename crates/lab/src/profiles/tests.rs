use super::*;

#[test]
fn a_link_is_what_its_profile_says() {
    let starlink = PROFILES.iter().find(|profile| profile.name == "lte_starlink").unwrap();
    let scenario = starlink.scenario(Over::One(1), &default_lanes(), Load::Transfer(1), 1);
    let [link] = &scenario.links[..] else { panic!("one link") };
    assert_eq!(link.name, "b");
    for way in [&link.up, &link.down] {
        assert_eq!(way.trace.delay().at(Duration::ZERO), Duration::from_millis(50));
        assert_eq!(way.trace.loss().at(Duration::ZERO), 0.01);
        assert_eq!(way.trace.capacity().mean_rate(), Rate::from_kbps(100_000));
        let jitter = Jitter { deviation: Duration::from_millis(25), reorders: true };
        assert_eq!(way.jitter, Some(jitter));
    }
}

#[test]
fn the_best_link_has_the_greatest_goodput_or_the_least_delay() {
    let (a, b, all) = ([10.0, 30.0, 20.0], [40.0, 50.0, 60.0], [44.0, 50.0, 90.0]);
    for load in [Load::Transfer(1), Load::Endless(Duration::ZERO)] {
        let transfer = Compared::new(load, &[&a, &b], &all);
        assert_eq!((transfer.best, transfer.single(), transfer.all), (1, 50.0, 50.0));
        assert_eq!(transfer.singles, [20.0, 50.0]);
        assert_eq!(transfer.ratio, Ratio { min: 1.0, median: 1.1, max: 1.5 });
    }
    let paced = Compared::new(Load::Paced(Duration::ZERO), &[&a, &b], &all);
    assert_eq!((paced.best, paced.ratio.median), (0, 4.4));
}

#[test]
fn each_link_of_a_drive_can_be_alone() {
    let link = |name: &str, kbps| {
        let trace = Trace::constant(Rate::from_kbps(kbps), Duration::from_millis(20));
        DriveLink::symmetric(name, trace)
    };
    let drive = Drive { links: vec![link("one", 9_000), link("two", 1_000)] };
    let names = |over| {
        let load = Load::Endless(Duration::from_secs(3));
        let scenario = scenario_of_drive(("d", &drive), over, &default_lanes(), load, 1);
        assert_eq!((scenario.seconds, scenario.name.as_str()), (3, "d"));
        scenario.links.into_iter().map(|link| link.name).collect::<Vec<_>>()
    };
    assert_eq!(names(Over::All), ["one", "two"]);
    assert_eq!(names(Over::One(1)), ["two"]);
}

#[test]
fn each_default_lane_can_be_alone() {
    for lane in default_lanes() {
        let [alone] = &lane_alone(&lane.name).unwrap()[..] else { panic!("one lane") };
        assert_eq!((&alone.name, &alone.strategy), (&lane.name, &lane.strategy));
        assert_eq!(alone.rule, LaneRule::default());
    }
    assert_eq!(lane_alone("none"), None);
}
