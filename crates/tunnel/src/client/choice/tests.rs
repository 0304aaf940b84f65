//! Which server a client goes to, and that it does not oscillate.

use proptest::prelude::*;
use roadweave_identity::Identity;

use super::*;
use crate::client::candidates::admit;
use crate::testing::at_second as at;

fn candidate(number: u8, site: &str) -> Candidate {
    Candidate {
        key: Identity::from_seed([number; 32]).public_key(),
        name: format!("proxy-{number}"),
        site: site.to_owned(),
        addresses: Vec::new(),
        to_anchor: Duration::ZERO,
        last_resort: false,
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn two() -> Choice {
    Choice::new(vec![candidate(1, "a"), candidate(2, "b")])
}

/// Runs rounds until `end` with probes of `rtt`; makes the moves wished for, and returns when.
fn run(
    choice: &mut Choice,
    weights: &[u64],
    end: Instant,
    mut rtt: impl FnMut(Instant, usize, u32) -> Option<Duration>,
) -> Vec<(Instant, usize)> {
    let uplinks: BTreeMap<_, _> = (0..).map(UplinkId).zip(weights.iter().copied()).collect();
    let mut moves = Vec::new();
    while let Some(now) = choice.poll_timeout().filter(|now| *now <= end) {
        choice.handle_timeout(now, &uplinks);
        while let Some((candidate, uplink)) = choice.poll_probe(now) {
            choice.on_outcome(now, candidate, uplink, rtt(now, candidate, uplink.0));
        }
        if let Some(wished) = choice.wish(now) {
            choice.on_moved(now, wished);
            moves.push((now, wished));
        }
    }
    moves
}

fn hours(hours: u64) -> Instant {
    at(hours * 3600)
}

#[test]
fn five_are_admitted_and_two_sites_where_there_are_two() {
    let names = |sites: &[&str]| {
        let wanted = (1..).zip(sites).map(|(number, site)| candidate(number, site)).collect();
        let admitted = admit(wanted);
        admitted.into_iter().map(|it| it.name[6..].to_owned()).collect::<String>()
    };
    assert_eq!(names(&["a", "a"]), "12");
    assert_eq!(names(&["a", "b", "a", "b", "a", "c"]), "12345");
    assert_eq!(names(&["a", "a", "a", "a", "a", "a", "b", "c"]), "12347");
    assert_eq!(names(&["a", "a", "a", "a", "a", "a"]), "12345");
    let twice = admit(vec![candidate(1, "a"), candidate(1, "b"), candidate(2, "b")]);
    assert_eq!(twice.len(), 2, "a key counts once");
}

#[test]
fn one_candidate_is_never_asked() {
    let choice = Choice::new(vec![candidate(1, "a")]);
    assert_eq!((choice.poll_timeout(), choice.standby(hours(1))), (None, None));
}

#[test]
fn a_candidate_better_by_both_margins_is_moved_to_in_the_third_round() {
    let moves = |far: u64, near: u64| {
        run(&mut two(), &[1, 1], hours(3), |_, it, _| Some(ms([far, near][it])))
    };
    let moved = moves(90, 60);
    assert_eq!(moved.len(), 1, "{moved:?}");
    assert!((at(40)..at(60)).contains(&moved[0].0) && moved[0].1 == 1, "{moved:?}");
    assert_eq!(moves(90, 61), [], "a third is asked for");
    assert_eq!(moves(25, 16), [], "and 10 ms");
}

#[test]
fn the_way_from_server_to_anchor_counts() {
    let far = Candidate { to_anchor: ms(50), ..candidate(2, "b") };
    let mut choice = Choice::new(vec![candidate(1, "a"), far]);
    let rtt = |_, it, _| Some(ms(if it == 0 { 90 } else { 50 }));
    assert_eq!(run(&mut choice, &[1], hours(2), rtt), []);
    assert_eq!(choice.states[1].figure, Some(ms(100)));
}

#[test]
fn a_last_resort_is_used_only_when_no_other_server_is_left() {
    let full = Candidate { last_resort: true, ..candidate(2, "b") };
    let candidates = [candidate(1, "a"), full, candidate(3, "a")];
    let mut choice = Choice::new(candidates.to_vec());
    let rtt = |_, at: usize, _| Some(ms([100, 10, 100][at]));
    assert_eq!(run(&mut choice, &[1], hours(3), rtt), []);
    assert_eq!(choice.standby(hours(3)), Some(2));
    assert!(choice.waits_better(2, 1) && !choice.waits_better(1, 2));
    choice.on_failure(hours(3), 2, "refused");
    assert_eq!(choice.standby(hours(3)), Some(1));
    let candidates = [candidate(1, "a"), candidate(2, "b"), candidate(3, "a")];
    choice.set_candidates(hours(3), candidates.to_vec());
    assert_eq!(run(&mut choice, &[1], hours(6), rtt).len(), 1);
}

#[test]
fn measurements_over_one_uplink_move_no_client() {
    type Rtt = fn(usize, u32) -> Option<Duration>;
    let forged: Rtt = |it, uplink| {
        Some(ms(match (it, uplink) {
            (1, 0) => 1,
            (1, _) => 80,
            _ => 60,
        }))
    };
    // The second candidate is fast over one uplink only.
    let alone: Rtt = |it, uplink| match (it, uplink) {
        (1, 0) => Some(ms(10)),
        (1, _) => None,
        (_, 0) => Some(ms(20)),
        _ => Some(ms(90)),
    };
    let slow: Rtt = |it, uplink| Some(ms(if (it, uplink) == (0, 0) { 300 } else { 60 }));
    for (uplinks, rtt, figure) in
        [(3, forged, Some(80)), (2, forged, Some(80)), (3, alone, None), (2, slow, Some(60))]
    {
        let mut choice = two();
        let moves = run(&mut choice, &[5; 3][..uplinks], hours(2), |_, it, uplink| rtt(it, uplink));
        assert_eq!(moves, []);
        assert_eq!(choice.states[1].figure, figure.map(ms));
    }
}

#[test]
fn an_uplink_weighs_as_much_as_it_carries() {
    let figure = |weights: &[u64]| {
        let mut choice = two();
        run(&mut choice, weights, hours(1), |_, _, uplink| Some(ms([20, 50, 90][uplink as usize])));
        choice.states[1].figure
    };
    assert_eq!(figure(&[1, 1, 1]), Some(ms(50)));
    assert_eq!(figure(&[9, 1, 1]), Some(ms(20)));
    assert_eq!(figure(&[1, 1, 9]), Some(ms(90)));
    assert_eq!(figure(&[0, 0, 0]), Some(ms(50)), "of which nothing is known");
}

#[test]
fn who_fails_loses_its_place_longer_each_time_and_nothing_else() {
    let all = [candidate(1, "a"), candidate(2, "b"), candidate(3, "a")];
    let mut choice = Choice::new(all.to_vec());
    assert_eq!(choice.standby(at(0)), Some(1), "the other site");
    choice.on_failure(at(0), 1, "refused");
    assert_eq!(choice.standby(at(0)), Some(2), "the same site rather than none");
    choice.on_failure(at(1), 1, "refused");
    assert_eq!(choice.standby(at(10)), Some(1), "one rest at a time");
    choice.on_failure(at(10), 1, "refused");
    assert_eq!((choice.standby(at(29)), choice.standby(at(30))), (Some(2), Some(1)));
    choice.on_failure(at(30), 1, "refused");
    choice.on_success(1);
    assert_eq!(choice.standby(at(31)), Some(1));
    choice.on_moved(at(31), 1);
    assert_eq!(choice.standby(at(31)), Some(0));
}

#[test]
fn attempts_without_any_answer_are_no_failures_and_rotate() {
    let all = [candidate(1, "a"), candidate(2, "b"), candidate(3, "c"), candidate(4, "a")];
    let mut choice = Choice::new(all.to_vec());
    let now = Instant::ZERO;
    let tried: Vec<usize> = (0..6)
        .map(|_| {
            let target = choice.standby(now).expect("nobody rests");
            choice.on_silent_try(target);
            target
        })
        .collect();
    assert_eq!(tried, [1, 2, 3, 1, 2, 3]);
    choice.on_failure(now, 1, "refused");
    choice.on_success(3);
    assert_eq!(choice.standby(now), Some(3), "who answers comes first");
    choice.forget_rests();
    assert_eq!(choice.standby(now), Some(1));
}

#[test]
fn doubt_brings_the_next_round_nearer_and_ever_less_so() {
    let mut choice = two();
    let same = |_, _, _| Some(ms(50));
    run(&mut choice, &[1], hours(0), same);
    let mut rounds = Vec::new();
    let mut now = Instant::ZERO;
    while now < hours(6) {
        choice.on_doubt(now);
        let before = choice.rounds;
        run(&mut choice, &[1], now, same);
        rounds.extend((choice.rounds > before).then_some(now));
        now += ms(1_000);
    }
    assert!(rounds[0] <= Instant::from_millis(25_000), "{:?}", rounds[0]);
    assert!((12..30).contains(&rounds.len()), "{} rounds in 6 h", rounds.len());
}

#[test]
fn after_half_an_hour_without_doubt_the_next_one_counts_at_once() {
    let mut choice = two();
    let same = |_, _, _| Some(ms(50));
    // Doubt each minute for hours, and half an hour of none.
    let (mut now, doubted) = (at(0), at(4 * 3600));
    while now < doubted {
        choice.on_doubt(now);
        now += ms(60_000);
        run(&mut choice, &[1], now, same);
    }
    let again = doubted + Duration::from_secs(1900);
    run(&mut choice, &[1], again, same);
    let before = choice.rounds;
    choice.on_doubt(again);
    run(&mut choice, &[1], again + Duration::from_secs(30), same);
    assert_eq!(choice.rounds, before + 1);
}

#[test]
fn without_a_server_rests_are_short_and_resting_candidates_come_last() {
    let all = [candidate(1, "a"), candidate(2, "b"), candidate(3, "a")];
    let mut choice = Choice::new(all.to_vec());
    for failed in [0, 10, 30, 70] {
        choice.on_failure(at(failed), 1, "refused");
    }
    assert_eq!((choice.standby(at(90)), choice.refuge(at(90))), (Some(2), Some(2)));
    choice.on_failure(at(90), 2, "refused");
    assert_eq!((choice.standby(at(91)), choice.refuge(at(91))), (None, Some(1)));
    assert_eq!((choice.standby_timeout(), choice.refuge_timeout()), (Some(at(100)), Some(at(80))));
    // It fails again, and rests no longer for that, nor less than 10 s.
    choice.on_failure(at(91), 1, "refused");
    assert_eq!((choice.refuge(at(92)), choice.refuge(at(101))), (None, Some(2)));
    assert_eq!(choice.states[1].rests(at(92)), Some(at(150)));
}

#[test]
fn who_answers_probes_again_rests_no_more_and_who_always_did_rests_on() {
    let all = [candidate(1, "a"), candidate(2, "b"), candidate(3, "c")];
    let mut choice = Choice::new(all.to_vec());
    let rtt = |now, it, _| (it != 1 || now >= at(1_000)).then_some(ms(50));
    run(&mut choice, &[1], at(10), rtt);
    for doubling in 0..8 {
        choice.on_failure(at(10 << doubling), 1, "no answer");
        choice.on_failure(at(10 << doubling), 2, "refused");
    }
    let rests = |choice: &Choice, now| [1, 2].map(|it| choice.states[it].rests(now));
    assert_eq!(rests(&choice, at(1_700)), [Some(at(2_560)); 2]);
    run(&mut choice, &[1], at(1_900), rtt);
    assert_eq!(rests(&choice, at(1_900)), [None, Some(at(2_560))]);
}

proptest! {
    #[test]
    fn noise_does_not_move_a_client_back_and_forth(
        seed in any::<u64>(), base in 10u64..200, noise in 0u64..200, lost in 0u64..60,
    ) {
        let mut random = roadweave_proto::SplitMix64::new(seed);
        let all = [candidate(1, "a"), candidate(2, "b"), candidate(3, "c")];
        let mut choice = Choice::new(all.to_vec());
        let moves = run(&mut choice, &[30, 20, 10], hours(24), |_, _, _| {
            let (jump, luck) = (random.next_u64() % (noise + 1), random.next_u64() % 100);
            (luck >= lost).then_some(ms(base + jump * jump / 200))
        });
        prop_assert!(moves.len() <= 10, "{} moves", moves.len());
        for pair in moves.windows(2) {
            prop_assert!(pair[1].0.since(pair[0].0) >= MOVE_PAUSE);
        }
    }

    #[test]
    fn the_better_server_is_found_in_spite_of_noise(
        seed in any::<u64>(), base in 40u64..200, noise in 0u64..20,
    ) {
        let mut random = roadweave_proto::SplitMix64::new(seed);
        let mut choice = two();
        let moves = run(&mut choice, &[30, 20], hours(24), |now, it, _| {
            let far = if (it == 1) == (now < hours(2)) { base * 2 + 20 } else { base };
            Some(ms(far + random.next_u64() % (noise + 1)))
        });
        prop_assert_eq!(moves.len(), 1);
        prop_assert!(moves[0].0 < hours(2) + Duration::from_secs(2400), "{:?}", moves);
    }
}
