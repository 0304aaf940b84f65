use roadweave_lab::downloads::Downloaded;

use super::super::results::ByTcp;
use super::*;

/// A run in which a stream got `stream`, and TCP `cubic` and `bbr`, Mbit/s.
fn run([stream, cubic, bbr]: [f64; 3]) -> Run {
    let by = |(congestion, goodput_mbps)| ByTcp { congestion, goodput_mbps };
    Run {
        stream: Downloaded {
            seconds: 10.0,
            goodput_mbps: stream,
            capacity_mbps: vec![100.0],
            pushed_mbps: vec![stream],
            lost: vec![0.0],
            queue_bytes_max: vec![0],
            redundant: 0.0,
        },
        tcp: [(Algorithm::Cubic, cubic), (Algorithm::Bbr, bbr)].map(by).to_vec(),
    }
}

/// A case of two links, with one seed.
fn case(name: &str, class: Kind, [a, b, all]: [[f64; 3]; 3]) -> Measured {
    Measured {
        name: name.into(),
        class,
        links: vec!["a".into(), "b".into()],
        alone: vec![vec![run(a)], vec![run(b)]],
        all: vec![run(all)],
    }
}

fn cases() -> [Measured; 3] {
    let easy = Kind::Drive(Class::Easy);
    [
        // By cubic the first link is the best one, by bbr the second.
        case("one", easy, [[9.0, 10.0, 1.0], [5.0, 2.0, 20.0], [40.0, 20.0, 50.0]]),
        case("two", easy, [[9.0, 10.0, 1.0], [5.0, 2.0, 20.0], [9.0, 36.0, 9.0]]),
        case("three", Kind::Drive(Class::Tight), [[0.0; 3], [0.0; 3], [6.0, 6.01, 0.0]]),
    ]
}

fn find(ratios: &[Ratio], rival: Rival, congestion: Algorithm, class: Kind) -> &Ratio {
    let is_it = |it: &&Ratio| (it.rival, it.congestion, it.class) == (rival, congestion, class);
    ratios.iter().find(is_it).unwrap()
}

#[test]
fn a_stream_is_held_against_the_best_link_the_tunnel_and_that_link_alone() {
    let cases = cases();
    let beside: Vec<_> = cases.iter().flat_map(Beside::all_of).collect();
    let ratios = Ratio::all_of(&beside);
    let easy = Kind::Drive(Class::Easy);
    let check = |rival, congestion, [one, two]: [f64; 2], below_one| {
        let ratio = find(&ratios, rival, congestion, easy);
        assert_eq!((ratio.cases, ratio.below_one), (2, below_one), "{ratio:?}");
        assert!((ratio.mean - (one * two).sqrt()).abs() < 1e-9, "{ratio:?}");
        assert!((ratio.least - one.min(two)).abs() < 1e-9, "{ratio:?}");
        assert_eq!(ratio.least_at, if one <= two { "one" } else { "two" }, "{ratio:?}");
    };
    check(Rival::BestLink, Algorithm::Cubic, [4.0, 0.9], 1);
    check(Rival::BestLink, Algorithm::Bbr, [2.0, 0.45], 1);
    check(Rival::Tunnel, Algorithm::Cubic, [2.0, 0.25], 1);
    check(Rival::Tunnel, Algorithm::Bbr, [0.8, 1.0], 1);
    check(Rival::LinkAlone, Algorithm::Cubic, [0.9, 0.9], 2);
    check(Rival::LinkAlone, Algorithm::Bbr, [0.25, 0.25], 2);
}

#[test]
fn several_kinds_have_a_ratio_for_all_and_what_is_one_when_rounded_is_not_below() {
    let cases = cases();
    let beside: Vec<_> = cases.iter().flat_map(Beside::all_of).collect();
    let ratios = Ratio::all_of(&beside);
    assert_eq!(ratios.len(), 3 * 2 * 3, "rivals, controls, kinds with all");
    let tight = find(&ratios, Rival::Tunnel, Algorithm::Cubic, Kind::Drive(Class::Tight));
    assert!(tight.least < 1.0 && tight.below_one == 0, "{tight:?}");
    let all = find(&ratios, Rival::Tunnel, Algorithm::Cubic, Kind::All);
    assert_eq!((all.cases, all.below_one, &*all.least_at), (3, 1, "two"));
    let one_kind: Vec<_> = cases[..2].iter().flat_map(Beside::all_of).collect();
    assert!(Ratio::all_of(&one_kind).iter().all(|ratio| ratio.class != Kind::All));
    let nothing = find(&ratios, Rival::BestLink, Algorithm::Bbr, Kind::Drive(Class::Tight));
    assert!(nothing.mean.is_finite(), "where TCP got nothing: {nothing:?}");
}
