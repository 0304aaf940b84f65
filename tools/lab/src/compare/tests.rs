use roadweave_emulate::DriveLink;

use super::*;

fn drive(links: &[&str]) -> Drive {
    let trace = Trace::constant(Rate::from_kbps(4_000), Duration::from_millis(20));
    let link = |name: &&str| DriveLink::symmetric(*name, trace.clone());
    Drive { links: links.iter().map(link).collect() }
}

fn setting(bitrate_bps: u64, seconds: u32) -> Setting {
    let (congestion, machine) = (CongestionControl::Bbr, Machine::default());
    let (loss, rivals_in_order) = (None, false);
    Setting { bitrate_bps, seconds, seed: 4, congestion, machine, loss, rivals_in_order }
}

fn measured(strategy: &str, stall_ratio: f64, p99: f64) -> Measured {
    let delay_ms = Percentiles { p99, ..Percentiles::default() };
    let figures = Figures {
        strategy: strategy.into(),
        stall_ratio,
        delay_ms,
        fps: 30.0,
        ..Figures::default()
    };
    let millis = p99 as u64;
    let delays = Histogram::new(&[Duration::from_millis(millis)]);
    let detail = Some(Box::new(RunDetail { delays, ..RunDetail::default() }));
    Measured { figures, detail, ..Measured::default() }
}

fn bound(p99: f64) -> (Bound, Curve) {
    let delay_ms = Percentiles { p99, ..Percentiles::default() };
    (Bound { delay_ms, ..Bound::default() }, vec![(p99, 0.99)])
}

fn names(strategies: &[Strategy]) -> Vec<&str> {
    strategies.iter().map(Strategy::as_str).collect()
}

#[test]
fn contestants_that_stand_for_others_are_expanded_and_run_once() {
    let contestants = Contestant::parse_all(["best-single", "xnc", "single:*", "xnc"]).unwrap();
    let strategies = Contestant::strategies(&contestants, &drive(&["b", "a"]));
    assert_eq!(names(&strategies), ["single:b", "single:a", "xnc"]);
    assert!(Contestant::parse_all(["xnc", "nonsense"]).is_err());
}

#[test]
fn the_best_single_link_stalls_least_and_of_equal_ones_has_the_shortest_tail() {
    let contestants = Contestant::parse_all(["best-single", "minrtt"]).unwrap();
    let drive = drive(&["a", "b", "c"]);
    let measured = [
        measured("single:a", 0.2, 50.0),
        measured("single:b", 0.1, 90.0),
        measured("single:c", 0.1, 80.0),
        measured("minrtt", 0.05, 60.0),
    ];
    let compared = Compared::new("d", Class::Tight, bound(40.0), &contestants, &drive, &measured);
    let [best, minrtt] = &compared.strategies[..] else { panic!("{compared:?}") };
    assert_eq!(best.measured.figures.strategy, "best-single");
    assert_eq!(best.link.as_deref(), Some("c"));
    assert_eq!(best.delay_p99_over_bound, Some(2.0));
    assert_eq!(best.stall_ratio_over_bound, None, "the bound does not stall");
    assert_eq!((best.delay_p99_over_first, best.stall_ratio_over_first), (Some(1.0), Some(1.0)));
    assert_eq!(minrtt.delay_p99_over_first, Some(0.75));
    assert_eq!(minrtt.stall_ratio_over_first, Some(0.5));
}

fn comparison(drives: &[(&str, Class, f64, f64)]) -> Comparison {
    let contestants = Contestant::parse_all(["minrtt", "xnc"]).unwrap();
    let compared = |&(name, class, minrtt, xnc): &(&str, Class, f64, f64)| {
        let measured = [measured("minrtt", minrtt, 100.0), measured("xnc", xnc, 50.0)];
        Compared::new(name, class, bound(40.0), &contestants, &drive(&["a"]), &measured)
    };
    let setting = setting(8_000_000, 3);
    Comparison::new("0.0.0", setting, drives.iter().map(compared).collect())
}

#[test]
fn a_drive_counts_once_whatever_the_number_of_its_seeds() {
    let drives = [("a", 0.1, 0.0), ("b", 0.3, 0.3), ("c", 0.2, 0.0)];
    let of_seed = |seed: u64, more: f64| {
        let drives = drives.map(|(name, minrtt, xnc)| (name, Class::Tight, minrtt + more, xnc));
        let of_seed = comparison(&drives).drives.into_iter();
        of_seed.map(move |drive| Compared { seed, ..drive })
    };
    let once = Comparison::new("", setting(8_000_000, 3), of_seed(1, 0.0).collect());
    let both = of_seed(2, 0.04).chain(of_seed(1, 0.0)).collect();
    let both = Comparison::new("", setting(8_000_000, 3), both);
    let order: Vec<_> = both.drives.iter().map(|drive| (&drive.name[..], drive.seed)).collect();
    assert_eq!(order, [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1), ("c", 2)]);
    let [minrtt, xnc] = &both.pooled[..] else { panic!("two strategies") };
    assert_eq!((minrtt.drives, xnc.drives, both.classes[0].drives), (3, 3, 3));
    assert!((minrtt.stall_ratio_mean - 0.22).abs() < 1e-12);
    // Six runs on three drives are as uncertain as three runs.
    let width = |pooled: &Pooled| {
        let [low, high] = pooled.intervals.stall_ratio_mean.unwrap();
        high - low
    };
    assert!((width(minrtt) - width(&once.pooled[0])).abs() < 1e-9);
    assert!((width(xnc) - width(&once.pooled[1])).abs() < 1e-9 && width(xnc) > 0.1);
    let by_first = xnc.intervals.stall_ratio_over_first.unwrap();
    assert!(by_first[0] < 0.4 && by_first[1] > 0.5, "{by_first:?}");
}

#[test]
fn pooled_figures_are_means_and_percentiles_over_drives() {
    let drives = [
        ("z", Class::Easy, 0.0, 0.0),
        ("b", Class::Tight, 0.1, 0.05),
        ("c", Class::Tight, 0.2, 0.1),
    ];
    let comparison = comparison(&drives);
    let order: Vec<&str> = comparison.drives.iter().map(|drive| drive.name.as_str()).collect();
    assert_eq!(order, ["b", "c", "z"]);
    let [minrtt, xnc] = &comparison.pooled[..] else { panic!("two strategies") };
    assert_eq!((minrtt.drives, minrtt.figures.fps), (3, 30.0));
    assert!((minrtt.stall_ratio_mean - 0.1).abs() < 1e-12);
    assert_eq!((minrtt.stall_ratio_p95, minrtt.stall_ratio_p99), (0.2, 0.2));
    assert_eq!(xnc.stall_ratio_over_first, Some(0.5));
    assert_eq!(xnc.delay_p99_over_bound, Some(1.25));
    assert_eq!(xnc.delay_p99_over_first, Some(0.5));
    assert!((50.0..50.3).contains(&xnc.figures.delay_ms.p50), "of the packets of all drives");
    let classes: Vec<_> = comparison.classes.iter().map(|pool| (pool.class, pool.drives)).collect();
    assert_eq!(classes, [(Class::Easy, 1), (Class::Tight, 2)]);
    assert!((comparison.classes[1].pooled[1].stall_ratio_mean - 0.075).abs() < 1e-12);
}

#[test]
fn rivals_deliver_in_order_and_links_lose_more_only_if_asked() {
    let length = Duration::from_secs(2);
    let drive = Drive::synthetic(1, &roadweave_emulate::Operator::ALL, length);
    let plain = setting(1_000_000, 2);
    let loss = Some(AddedLoss::Bursts { share: 0.1, packets: 4.0 });
    let harder = Setting { rivals_in_order: true, loss, ..plain.clone() };
    for (name, in_order) in
        [("minrtt", true), ("xlink", true), ("xnc", false), ("redundant", false)]
    {
        let scenario = |setting: &Setting| {
            let strategy = crate::strategies::strategy(name).expect("known");
            setting.scenario("drive", &drive, strategy, &setting.video())
        };
        let order = |scenario: &Scenario| scenario.lanes[0].order != Order::Pass;
        let lossy =
            |scenario: &Scenario| scenario.links.iter().all(|it| it.up.burst_loss.is_some());
        let (plain, harder) = (scenario(&plain), scenario(&harder));
        assert_eq!([order(&plain), order(&harder)], [false, in_order], "{name}");
        assert_eq!([lossy(&plain), lossy(&harder)], [false, true], "{name}");
    }
}
