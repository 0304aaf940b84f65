//! Whether a new configuration holds, found out by the box itself.
//!
//! ```text
//!            offer                 session and stream up for 90 s
//! settled ─────────► new in force ───────────────────────────────► settled (confirmed)
//!    ▲                │        ▲
//!    │   90 s without │        │ neither came up: a garage, an absent controller;
//!    │   one of them  ▼        │ the new one again, for twice as long
//!    │               former in force, 60 s
//!    │                │ what did not come up under the new one comes up under the former
//!    │                ▼
//!    └─ taken back ─ new in force once more, 45 s: again it does not come up
//! ```
//!
//! A configuration is taken back only on that proof. Without coverage nothing comes up under either
//! version, and nothing is undone; where coverage, or the controller, comes back while the former
//! one is in force, the new one shows that it works when it is tried once more.

use std::time::Duration;

use roadweave_types::Instant;
use serde::{Deserialize, Serialize};

/// For how long session and stream must have been up.
const HOLD: Duration = Duration::from_secs(90);
/// What is up so long after a change is up under the new version: what came up under the former one
/// takes some time to be found dead.
const SETTLE: Duration = Duration::from_secs(20);
/// For how long the former version is given to show that it would work.
const COMPARE: Duration = Duration::from_secs(60);
/// For how long the new version is tried once more, after the former has worked.
const RETRY: Duration = Duration::from_secs(45);
/// The longest time between two comparisons.
const HOLD_MAX: Duration = Duration::from_secs(3600);
/// Starts of the program under a version after which the former one is looked at at once: it may be
/// the version that ends the program.
const STARTS_MAX: u32 = 3;

/// What of a box works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Works {
    /// Its session with a proxy.
    pub session: bool,
    /// Its stream to the controller.
    pub stream: bool,
}

impl Works {
    fn all(self) -> bool {
        self.session && self.stream
    }

    fn or(self, other: Self) -> Self {
        Self { session: self.session || other.session, stream: self.stream || other.stream }
    }

    /// What of `other` is missing here, in words.
    fn missing_of(self, other: Self) -> Option<&'static str> {
        match (other.session && !self.session, other.stream && !self.stream) {
            (true, true) => Some("neither the session nor the stream to the controller came up"),
            (true, false) => Some("the session did not come up"),
            (false, true) => Some("the stream to the controller did not come up"),
            (false, false) => None,
        }
    }
}

/// What a trial comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The new version has held.
    Confirmed,
    /// The former version is to be in force, to see whether it would work.
    Compare,
    /// The new version is to be in force again: the former works no better.
    Again,
    /// The former version stays in force: it works, and the new one does not.
    TakenBack(&'static str),
}

/// A version that has not been confirmed yet, as it is kept on disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// How often the program has started under the new version.
    starts: u32,
    /// How often the former version has been looked at in vain.
    comparisons: u32,
    /// What came up under the former version and had not under the new one.
    #[serde(skip)]
    suspected: Option<&'static str>,
    #[serde(skip)]
    phase: Phase,
    #[serde(skip)]
    works: Works,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Phase {
    /// Not begun in this life of the program.
    #[default]
    Idle,
    /// The new version is in force.
    New {
        since: Instant,
        /// What has been up under it at some time.
        seen: Works,
        /// Since when all is up.
        all_since: Option<Instant>,
    },
    /// The former version is in force.
    Former { since: Instant, seen_under_new: Works },
}

impl Trial {
    /// The new version is in force from now on: at once, or because the program starts under it.
    pub fn begin(&mut self, now: Instant, works: Works) {
        self.starts = self.starts.saturating_add(1);
        self.works = works;
        self.enter_new(now, Works::default());
    }

    /// Whether the former version is in force, for comparison.
    pub fn compares(&self) -> bool {
        matches!(self.phase, Phase::Former { .. })
    }

    /// What works now.
    pub fn on_works(&mut self, now: Instant, works: Works) {
        self.note_seen(now);
        self.works = works;
        self.note_seen(now);
        if let Phase::New { all_since, .. } = &mut self.phase {
            *all_since = works.all().then(|| all_since.unwrap_or(now));
        }
    }

    /// Notes what is up under the new version.
    fn note_seen(&mut self, now: Instant) {
        if let Phase::New { since, seen, .. } = &mut self.phase
            && now >= *since + SETTLE
        {
            *seen = seen.or(self.works);
            // It lets the program live, and something works: no reason for haste.
            if *seen != Works::default() {
                self.starts = 0;
            }
        }
    }

    /// Looks at what has become of it; call it again until there is nothing.
    pub fn poll(&mut self, now: Instant) -> Option<Decision> {
        self.note_seen(now);
        match self.phase {
            Phase::Idle => None,
            Phase::New { all_since: Some(since), .. } if now >= since + HOLD => {
                self.phase = Phase::Idle;
                Some(Decision::Confirmed)
            }
            Phase::New { since, seen, .. } if now >= since + self.hold() && !self.works.all() => {
                // What worked some time and does not now is the network's doing.
                if seen.all() {
                    self.suspected = None;
                    self.enter_new(now, seen);
                    return None;
                }
                if let Some(missing) = self.suspected {
                    self.phase = Phase::Idle;
                    return Some(Decision::TakenBack(missing));
                }
                self.phase = Phase::Former { since: now, seen_under_new: seen };
                // What is up now was so under the new version.
                Some(Decision::Compare)
            }
            Phase::Former { since, seen_under_new } => {
                if now > since
                    && let Some(missing) = seen_under_new.missing_of(self.works)
                {
                    self.suspected = Some(missing);
                    // What works now does by the former version.
                    self.enter_new(now, Works::default());
                    return Some(Decision::Again);
                }
                if now < since + COMPARE {
                    return None;
                }
                self.comparisons = self.comparisons.saturating_add(1);
                self.starts = 0;
                self.enter_new(now, seen_under_new);
                Some(Decision::Again)
            }
            Phase::New { .. } => None,
        }
    }

    /// When [`Trial::poll`] may have something.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Idle => None,
            Phase::New { since, all_since, .. } => {
                Some(all_since.map_or(since + self.hold(), |all_since| all_since + HOLD))
            }
            Phase::Former { since, .. } => Some(since + COMPARE),
        }
    }

    fn enter_new(&mut self, now: Instant, seen: Works) {
        let all_since = self.works.all().then_some(now);
        self.phase = Phase::New { since: now, seen, all_since };
    }

    /// For how long the new version is in force before the former one is looked at.
    fn hold(&self) -> Duration {
        if self.suspected.is_some() {
            return RETRY;
        }
        if self.starts >= STARTS_MAX {
            return Duration::ZERO;
        }
        (HOLD * 2_u32.saturating_pow(self.comparisons.min(8))).min(HOLD_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Works = Works { session: false, stream: false };
    const ALL: Works = Works { session: true, stream: true };

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    /// The decisions of a trial that begins at 0, with what works as `works` says of the time and
    /// of whether the former version is in force.
    fn run(works: impl Fn(u64, bool) -> Works, until: u64) -> Vec<(u64, Decision)> {
        let mut trial = Trial::default();
        trial.begin(at(0), works(0, false));
        let mut decisions = Vec::new();
        for second in 0..until {
            trial.on_works(at(second), works(second, trial.compares()));
            while let Some(decision) = trial.poll(at(second)) {
                decisions.push((second, decision));
            }
        }
        decisions
    }

    #[test]
    fn what_holds_for_90_s_is_confirmed() {
        assert_eq!(run(|_, _| ALL, 300), [(90, Decision::Confirmed)]);
        let late = |second, _| if second < 40 { NOTHING } else { ALL };
        assert_eq!(run(late, 300), [(130, Decision::Confirmed)]);
    }

    fn taken_back(found: &[(u64, Decision)]) -> Option<(u64, &'static str)> {
        found.iter().find_map(|(at, decision)| match decision {
            Decision::TakenBack(why) => Some((*at, *why)),
            _ => None,
        })
    }

    #[test]
    fn a_version_that_kills_the_uplinks_is_taken_back() {
        let works = |_, former| if former { ALL } else { NOTHING };
        let found = run(works, 600);
        let decisions: Vec<(u64, Decision)> = found[..2].to_vec();
        assert_eq!(decisions, [(90, Decision::Compare), (91, Decision::Again)]);
        let (at, why) = taken_back(&found).expect("taken back");
        assert!(at <= 180 && why.contains("neither") && found.len() == 3, "{found:?}");
        // The session of the former version takes a while to be found dead.
        let works = |second, former| if former || second < 15 { ALL } else { NOTHING };
        assert!(taken_back(&run(works, 600)).is_some());
    }

    #[test]
    fn a_version_that_cuts_the_controller_off_is_taken_back() {
        let works = |_, former| Works { session: true, stream: former };
        let found = run(works, 600);
        assert!(taken_back(&found).is_some_and(|(_, why)| why.contains("stream")), "{found:?}");
    }

    #[test]
    fn what_comes_back_at_any_time_undoes_nothing() {
        for back in 0..1_000 {
            let garage = |second, _| if second < back { NOTHING } else { ALL };
            let absent = |second, _| Works { session: true, stream: second >= back };
            for found in [run(garage, 4_000), run(absent, 4_000)] {
                assert_eq!(taken_back(&found), None, "back after {back} s: {found:?}");
                assert_eq!(found.last().map(|last| last.1), Some(Decision::Confirmed));
            }
        }
    }

    #[test]
    fn a_garage_undoes_nothing() {
        let found = run(|_, _| NOTHING, 4 * 3600);
        assert!(!found.iter().any(|(_, d)| matches!(d, Decision::TakenBack(_))), "{found:?}");
        let again = found.iter().filter(|(_, decision)| *decision == Decision::Again).count();
        assert!((3..=8).contains(&again), "it is tried again, ever less often: {found:?}");
    }

    #[test]
    fn an_absent_controller_undoes_nothing() {
        let works = |_, _| Works { session: true, stream: false };
        let found = run(works, 4 * 3600);
        assert!(!found.iter().any(|(_, d)| matches!(d, Decision::TakenBack(_))), "{found:?}");
        let back = |second, _| Works { session: true, stream: second > 7_200 };
        assert_eq!(run(back, 4 * 3600).last().map(|last| last.1), Some(Decision::Confirmed));
    }

    #[test]
    fn a_tunnel_under_the_new_version_is_not_its_fault() {
        // It came up, and the network went.
        let works = |second, _| if second < 30 { ALL } else { NOTHING };
        assert_eq!(run(works, 3_000), []);
    }

    #[test]
    fn a_version_that_ends_the_program_is_taken_back() {
        let mut trial = Trial::default();
        for start in 1..=STARTS_MAX {
            trial.begin(at(0), NOTHING);
            let decision = trial.poll(at(1));
            assert_eq!(decision == Some(Decision::Compare), start == STARTS_MAX);
            let kept = serde_json::to_string(&trial).expect("JSON");
            if start < STARTS_MAX {
                trial = serde_json::from_str(&kept).expect("a trial");
            }
        }
        trial.on_works(at(2), ALL);
        assert_eq!(trial.poll(at(2)), Some(Decision::Again));
        trial.on_works(at(3), NOTHING);
        assert!(matches!(trial.poll(at(50)), Some(Decision::TakenBack(_))));
    }
}
