//! Trials of a box whose sessions and streams are found dead as late as real ones.

use super::*;
use crate::testing::at;

const NOTHING: Works = Works::NOTHING;
const ALL: Works = Works { session: true, stream: true };
const SESSION: Works = Works { session: true, stream: false };
const STREAM: Works = Works { session: false, stream: true };

const IDLE: u64 = 300;
const MUTE: u64 = 12;
const KEEP_ALIVE: u64 = 65;
const ANSWER: u64 = 15;

#[derive(Default)]
struct Known {
    works: Works,
    session_heard: u64,
    stream_heard: u64,
    asked: Option<u64>,
}

impl Known {
    fn observe(&mut self, second: u64, reached: Works) {
        if reached.session {
            (self.works.session, self.session_heard) = (true, second);
        }
        self.works.session &= second < self.session_heard + IDLE;
        if reached.stream {
            (self.works.stream, self.stream_heard) = (true, second);
        }
        let is_unanswered = self.asked.is_some_and(|asked| second >= asked + ANSWER);
        self.works.stream &= second < self.stream_heard + KEEP_ALIVE && !is_unanswered;
    }

    fn is_mute(&self, second: u64) -> bool {
        second >= self.session_heard + MUTE
    }

    fn answers(&mut self, reached: Works) -> bool {
        if !self.works.stream {
            self.asked = None;
        }
        reached.stream && self.asked.take().is_some()
    }
}

/// The decisions of a trial from 0. `reached`: what works at a time, by the former version or not.
fn run(reached: impl Fn(u64, bool) -> Works, until: u64) -> Vec<(u64, Decision)> {
    let (mut trial, mut known) = (Trial::default(), Known::default());
    known.observe(0, reached(0, true));
    trial.begin(at(0), known.works, false);
    let mut decisions = Vec::new();
    for second in 0..until {
        let reached = reached(second, trial.compares());
        known.observe(second, reached);
        trial.on_works(at(second), known.works, known.is_mute(second));
        if trial.poll_question() == Some(Question::Ask) {
            known.asked = Some(second);
        }
        if known.answers(reached) {
            trial.on_answer(at(second));
        }
        while let Some(decision) = trial.poll(at(second)) {
            decisions.push((second, decision));
        }
        assert!(trial.poll_timeout().is_none_or(|due| due > at(second)), "at {second} s");
    }
    decisions
}

fn taken_back(found: &[(u64, Decision)]) -> Option<(u64, &'static str)> {
    found.iter().find_map(|(at, decision)| match decision {
        Decision::TakenBack(why) => Some((*at, *why)),
        _ => None,
    })
}

#[test]
fn what_holds_for_90_s_is_confirmed() {
    assert_eq!(run(|_, _| ALL, 300), [(90, Decision::Confirmed)]);
    let late = |second, _| if second < 40 { NOTHING } else { ALL };
    assert_eq!(run(late, 300), [(130, Decision::Confirmed)]);
}

#[test]
fn a_version_that_kills_the_uplinks_is_taken_back() {
    let found = run(|_, former| if former { ALL } else { NOTHING }, 600);
    let [(90, Decision::Compare), (91, Decision::Again), (181, Decision::Compare), last] =
        found[..]
    else {
        panic!("{found:?}")
    };
    assert!(matches!(last, (182, Decision::TakenBack(why)) if why.contains("the session")));
}

#[test]
fn a_version_that_cuts_the_controller_off_is_taken_back() {
    let found = run(|_, former| Works { session: true, stream: former }, 600);
    assert!(taken_back(&found).is_some_and(|(_, why)| why.contains("stream")), "{found:?}");
}

#[test]
fn a_version_under_which_the_session_falls_silent_is_taken_back() {
    let found = run(|_, former| Works { session: former, stream: true }, 600);
    assert!(taken_back(&found).is_some_and(|(_, why)| why.contains("session")), "{found:?}");
}

#[test]
fn what_comes_back_at_any_time_undoes_nothing() {
    for back in 0..1_000 {
        for (before, after) in [
            (NOTHING, ALL),
            (SESSION, ALL),
            (STREAM, ALL),
            // A garage, and a controller that is away for long beyond it.
            (NOTHING, SESSION),
            (NOTHING, STREAM),
        ] {
            let found = run(|second, _| if second < back { before } else { after }, 4_000);
            assert_eq!(taken_back(&found), None, "{after:?} after {back} s: {found:?}");
            let is_confirmed = found.last().is_some_and(|last| last.1 == Decision::Confirmed);
            assert_eq!(is_confirmed, after == ALL, "{after:?} after {back} s: {found:?}");
        }
    }
}

#[test]
fn a_controller_that_flickers_undoes_nothing() {
    for holds in [1, 10, 29] {
        for rest in [30, 45, 60] {
            for phase in 0..holds + rest {
                let stream = |second: u64| (second + phase) % (holds + rest) < holds;
                let works = |second, _| Works { session: true, stream: stream(second) };
                let found = run(works, 4_000);
                assert_eq!(taken_back(&found), None, "{holds}, {rest}, {phase}: {found:?}");
            }
        }
    }
}

#[test]
fn a_garage_undoes_nothing() {
    let found = run(|_, _| NOTHING, 4 * 3600);
    assert_eq!(taken_back(&found), None);
    let again = found.iter().filter(|(_, decision)| *decision == Decision::Again).count();
    assert!((3..=8).contains(&again), "it is tried again, ever less often: {found:?}");
}

#[test]
fn an_absent_controller_undoes_nothing() {
    let found = run(|_, _| SESSION, 4 * 3600);
    assert_eq!(taken_back(&found), None);
    let back = |second, _| Works { session: true, stream: second > 7_200 };
    assert_eq!(run(back, 4 * 3600).last().map(|last| last.1), Some(Decision::Confirmed));
}

#[test]
fn a_tunnel_under_the_new_version_is_not_its_fault() {
    for until in [30, 60, 89] {
        let works = |second, _| if second < until { ALL } else { NOTHING };
        let found = run(works, 3_000);
        assert!(found.iter().all(|(_, decision)| *decision == Decision::Confirmed), "{found:?}");
    }
}

#[test]
fn a_stream_is_sought_once_for_each_version_however_often_it_fails() {
    let mut trial = Trial::default();
    trial.begin(at(0), NOTHING, false);
    let mut sought = Vec::new();
    for second in 0..300 {
        trial.on_works(at(second), NOTHING, false);
        let questions = std::iter::from_fn(|| trial.poll_question());
        sought.extend(questions.map(|question| (second, question)));
        while trial.poll(at(second)).is_some() {}
    }
    assert_eq!(sought, [20, 91, 170].map(|second| (second, Question::Seek)));
}

#[test]
fn a_version_that_ends_the_program_is_taken_back() {
    let mut disk = serde_json::to_string(&Trial::default()).expect("JSON");
    let mut ends = 0;
    loop {
        let mut trial: Trial = serde_json::from_str(&disk).expect("a trial");
        trial.begin(at(0), NOTHING, false);
        disk = serde_json::to_string(&trial).expect("JSON");
        let mut second = 0;
        let last = loop {
            let works = if trial.compares() { ALL } else { NOTHING };
            trial.on_works(at(second), works, false);
            if let Some(decision) = trial.poll(at(second)) {
                disk = serde_json::to_string(&trial).expect("JSON");
                match decision {
                    Decision::TakenBack(_) => break Some(decision),
                    Decision::Again => break None,
                    _ => {}
                }
            }
            if !trial.compares() {
                break None;
            }
            second += 1;
            assert!(second < 60, "{trial:?}");
        };
        if last.is_some() {
            break;
        }
        ends += 1;
        assert!(ends < 10, "it goes on for ever");
    }
    assert_eq!(ends, STARTS_MAX, "two starts, and one after the former one has worked");
}
