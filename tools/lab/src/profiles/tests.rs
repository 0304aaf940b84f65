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
    let compared = |load| Compared::new(load, &[&a, &b], &all);
    let expected = Compared { single: 50.0, all: 50.0, ratio: 1.1 };
    assert_eq!(compared(Load::Transfer(1)), expected);
    let expected = Compared { single: 20.0, all: 50.0, ratio: 4.4 };
    assert_eq!(compared(Load::Paced(Duration::ZERO)), expected);
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
