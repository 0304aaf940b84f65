use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::plan::InvalidPlan;
use super::*;
use crate::name::Name;
use crate::testing::{at, name, numbered as key};

fn keys(count: u16) -> Vec<PublicKey> {
    (0..count).map(key).collect()
}

fn usual() -> Plan {
    Plan {
        waves: vec![Wave(1), Wave(5), Wave(25)],
        patience: Duration::from_secs(3_600),
        confirmed_min: 50,
        failed_percent_max: 2,
    }
}

fn rollout(count: u16, plan: Plan) -> Rollout {
    Rollout::new("7", plan, keys(count), at(0))
}

fn offered(rollout: &Rollout) -> impl Iterator<Item = PublicKey> {
    rollout.boxes().filter(|key| rollout.is_offered(key))
}

fn taken_back() -> Outcome {
    Outcome::TakenBack { why: "no session".into() }
}

fn begun(first: u8) -> (Rollout, Vec<PublicKey>) {
    let rollout = rollout(100, Plan { waves: vec![Wave(first)], ..usual() });
    let boxes = offered(&rollout).collect();
    (rollout, boxes)
}

fn say<'a>(
    rollout: &mut Rollout,
    boxes: impl IntoIterator<Item = &'a PublicKey>,
    outcome: &Outcome,
) {
    for key in boxes {
        rollout.on_outcome(key, outcome);
    }
}

fn all_say(rollout: &mut Rollout, outcome: &Outcome) {
    let open = |key: &PublicKey| {
        matches!(rollout.progress(key), Some(Progress::Offered | Progress::Reached))
    };
    let boxes: Vec<PublicKey> = offered(rollout).filter(open).collect();
    say(rollout, &boxes, outcome);
}

fn is_halted(rollout: &Rollout) -> bool {
    matches!(rollout.state(), RolloutState::Halted { .. })
}

#[test]
fn a_wave_follows_once_all_of_the_one_before_have_confirmed() {
    let mut rollout = rollout(200, usual());
    let mut sizes = Vec::new();
    while *rollout.state() == RolloutState::Running {
        sizes.push(offered(&rollout).count());
        assert!(!rollout.poll(at(1)), "before anybody has confirmed");
        all_say(&mut rollout, &Outcome::InForce);
        assert!(!rollout.poll(at(1)), "while it is on trial");
        all_say(&mut rollout, &Outcome::Confirmed);
        assert!(rollout.poll(at(91)));
    }
    assert_eq!(sizes, [2, 10, 50, 200]);
    assert_eq!(*rollout.state(), RolloutState::Done);
}

#[test]
fn who_is_not_heard_is_waited_for_only_so_long_and_never_taken_for_a_success() {
    let (mut rollout, first) = begun(10);
    say(&mut rollout, &first[..4], &Outcome::Confirmed);
    assert!(!rollout.poll(at(3_599)) && !rollout.poll(at(90_000)));
    say(&mut rollout, &first[4..5], &Outcome::Confirmed);
    assert!(rollout.poll(at(90_000)));
    assert_eq!(rollout.wave(), 2);
    assert!(first.iter().all(|key| rollout.is_offered(key)));
}

#[test]
fn one_failure_in_the_first_wave_halts() {
    let mut rollout = rollout(200, usual());
    let first = offered(&rollout).next().expect("the first wave");
    say(&mut rollout, [&first], &taken_back());
    assert!(is_halted(&rollout), "{:?}", rollout.state());
    assert!(!rollout.poll(at(1_000_000)));
    assert_eq!(rollout.begun(), 2);
}

#[test]
fn a_halt_keeps_it_from_those_who_have_not_got_it() {
    let (mut rollout, first) = begun(10);
    say(&mut rollout, &first[..1], &Outcome::Confirmed);
    say(&mut rollout, &first[1..2], &Outcome::InForce);
    rollout.halt("a person");
    let left: BTreeSet<PublicKey> = offered(&rollout).collect();
    assert_eq!(left, BTreeSet::from_iter(first[..2].to_vec()));
}

#[test]
fn a_resumed_rollout_halts_only_for_new_failures() {
    let (mut rollout, first) = begun(50);
    say(&mut rollout, &first[..2], &taken_back());
    assert!(is_halted(&rollout));
    rollout.resume(at(10));
    say(&mut rollout, &first[2..], &Outcome::Confirmed);
    assert!(rollout.poll(at(11)));
    assert_eq!(*rollout.state(), RolloutState::Running);
    let more: Vec<PublicKey> = offered(&rollout).filter(|key| !first.contains(key)).collect();
    say(&mut rollout, &more[..3], &taken_back());
    assert!(is_halted(&rollout));
}

#[test]
fn other_rollouts_begin_with_other_boxes() {
    let first = |id: u32| {
        let rollout = Rollout::new(&id.to_string(), usual(), keys(100), at(0));
        offered(&rollout).next()
    };
    let firsts: BTreeSet<_> = (0..20).map(first).collect();
    assert!(firsts.len() > 10, "{}", firsts.len());
}

#[test]
fn what_comes_of_boxes_that_were_not_given_it_counts_for_nothing() {
    let mut rollout = rollout(100, usual());
    let mut others = keys(100);
    others.retain(|key| !rollout.is_offered(key));
    say(&mut rollout, &others, &taken_back());
    rollout.on_outcome(&key(999), &taken_back());
    assert_eq!(*rollout.state(), RolloutState::Running);
    assert_eq!(rollout.begun(), 1);
}

#[test]
fn targets_and_waves_are_read_as_people_write_them() {
    let tags: BTreeSet<Name> = [name("bus")].into();
    for (target, covers) in [
        (Target::Tenant, true),
        (Target::Tag(name("bus")), true),
        (Target::Tag(name("tram")), false),
        (Target::Device(key(1)), true),
        (Target::Device(key(2)), false),
    ] {
        assert_eq!(target.covers(&key(1), &tags), covers, "{target:?}");
    }
    assert_eq!(Wave::try_from("5%".to_owned()), Ok(Wave(5)));
    for text in ["", "20", "0%", "101%", "-1%", "5 %", "half"] {
        assert_eq!(Wave::try_from(text.to_owned()), Err(InvalidPlan), "{text:?}");
    }
}

#[test]
fn a_rollout_that_was_stored_with_a_limit_in_boxes_goes_on() {
    let stored = r#"{"id": "7", "state": {"state": "running"}, "waves": 1, "since": 0,
        "pardoned": 0, "boxes": {}, "plan": {"waves": ["5%", "100%"], "confirmed_min": 50,
        "patience": {"secs": 600, "nanos": 0}, "failed_percent_max": 5, "failed_max": 4294967295}}"#;
    let rollout: Rollout = serde_json::from_str(stored).expect("readable");
    assert_eq!((rollout.wave(), rollout.plan.waves), (1, vec![Wave(5), Wave(100)]));
}

#[derive(Clone, Debug)]
enum Step {
    Says(u16, Outcome),
    Later(u64),
    Add(u16),
    Remove(u16),
    Halt,
    Resume,
    Restart,
}

fn any_step() -> impl Strategy<Value = Step> {
    let outcome = prop_oneof![
        4 => Just(Outcome::InForce),
        8 => Just(Outcome::Confirmed),
        1 => Just(taken_back()),
        1 => Just(Outcome::Refused { why: "a key".into() }),
    ];
    prop_oneof![
        12 => (0..60u16, outcome).prop_map(|(number, outcome)| Step::Says(number, outcome)),
        4 => (1..2_000u64).prop_map(Step::Later),
        1 => (40..60u16).prop_map(Step::Add),
        1 => (0..60u16).prop_map(Step::Remove),
        1 => Just(Step::Halt),
        2 => Just(Step::Resume),
        1 => Just(Step::Restart),
    ]
}

fn any_plan() -> impl Strategy<Value = Plan> {
    let wave = (1..100u8).prop_map(Wave);
    (prop::collection::vec(wave, 0..6), 0..100u8, 0..30u8).prop_map(
        |(waves, confirmed_min, failed_percent_max)| Plan {
            waves,
            patience: Duration::from_secs(600),
            confirmed_min,
            failed_percent_max,
        },
    )
}

proptest! {
    /// An offer holds while it runs, a halt offers it to no further box, and a stored rollout is
    /// the same.
    #[test]
    fn a_halt_offers_nothing_more(plan in any_plan(),
            steps in prop::collection::vec(any_step(), 1..200)) {
        let mut rollout = rollout(40, plan);
        let mut now = 0;
        for step in steps {
            let before: BTreeSet<PublicKey> = offered(&rollout).collect();
            let was_halted = is_halted(&rollout);
            let mut removed = None;
            let is_resume = matches!(step, Step::Resume);
            match step {
                Step::Says(number, outcome) => rollout.on_outcome(&key(number), &outcome),
                Step::Later(seconds) => now += seconds,
                Step::Add(number) => rollout.add(key(number)),
                Step::Remove(number) => {
                    removed = Some(key(number));
                    rollout.remove(&key(number));
                }
                Step::Halt => rollout.halt("a person"),
                Step::Resume => rollout.resume(at(now)),
                Step::Restart => {
                    let text = serde_json::to_string(&rollout).expect("plain data");
                    let read: Rollout = serde_json::from_str(&text).expect("the same");
                    prop_assert_eq!(&read, &rollout);
                    rollout = read;
                }
            }
            rollout.poll(at(now));
            let after: BTreeSet<PublicKey> = offered(&rollout).collect();
            if was_halted && !is_resume {
                let new = after.difference(&before).copied();
                for key in new {
                    prop_assert_ne!(rollout.progress(&key), Some(Progress::Offered));
                }
            }
            if *rollout.state() == RolloutState::Running {
                let lost = before.difference(&after).copied();
                prop_assert!(lost.into_iter().all(|key| Some(key) == removed));
            }
        }
    }

    #[test]
    fn no_box_is_skipped_and_none_comes_twice(plan in any_plan(), count in 0..60u16) {
        let mut rollout = rollout(count, plan);
        let mut seen = BTreeSet::new();
        let mut waves = 0;
        while *rollout.state() == RolloutState::Running {
            let offered: BTreeSet<PublicKey> = offered(&rollout).collect();
            prop_assert!(seen.is_subset(&offered));
            prop_assert!(offered.len() > seen.len() || count == 0, "an empty wave");
            seen = offered;
            all_say(&mut rollout, &Outcome::Confirmed);
            prop_assert!(rollout.poll(at(1)));
            waves += 1;
            prop_assert!(waves <= 8);
        }
        prop_assert_eq!(seen, keys(count).into_iter().collect::<BTreeSet<_>>());
    }
}
