use super::*;

#[test]
fn a_link_is_what_its_profile_says() {
    let starlink = PROFILES.iter().find(|profile| profile.name == "lte_starlink").unwrap();
    let scenario = starlink.scenario(Over::B, &default_lanes(), Load::Transfer(1), 1);
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
fn the_better_link_has_the_greater_goodput_or_the_lower_delay() {
    let (a, b, both) = ([10.0, 30.0, 20.0], [40.0, 50.0, 60.0], [44.0, 50.0, 90.0]);
    let transfer = Load::Transfer(1).compare(&a, &b, &both);
    assert_eq!((transfer.better, transfer.a, transfer.b, transfer.both), ("b", 20.0, 50.0, 50.0));
    assert_eq!(transfer.ratio, Ratio { min: 1.0, median: 1.1, max: 1.5 });
    let paced = Load::Paced(Duration::ZERO).compare(&a, &b, &both);
    assert_eq!((paced.better, paced.ratio.median), ("a", 4.4));
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
