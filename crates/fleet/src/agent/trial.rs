//! Whether a new configuration works, as the box itself finds out.
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
//!    │               new in force once more, 90 s ─► it comes up: nothing was wrong
//!    │                │ again it does not come up
//!    │                ▼
//!    └─ taken back ─ former in force: it comes up again
//! ```
//!
//! A configuration is taken back only on that proof. Without coverage neither version comes up, and
//! nothing is undone; if coverage returns under the former one, the new one is retried.
//!
//! A broken session or stream shows late, so it must answer under a version before it counts.

use std::time::Duration;

use roadweave_proto::Instant;
use serde::{Deserialize, Serialize};

/// How long session and stream must be up before a version is confirmed.
const HOLD: Duration = Duration::from_secs(90);
/// An answer this long after a change is of the new version; a broken session is known by then.
const SETTLE: Duration = Duration::from_secs(20);
/// An answer this long after the return to the former version belongs to it.
const LOOK: Duration = Duration::from_secs(1);
const COMPARE: Duration = Duration::from_secs(60);
const HOLD_MAX: Duration = Duration::from_secs(3600);
/// Starts of the program under a version, which may end it, before the former one is compared.
const STARTS_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Works {
    pub session: bool,
    pub stream: bool,
}

impl Works {
    const NOTHING: Self = Self { session: false, stream: false };

    fn all(self) -> bool {
        self.session && self.stream
    }

    fn without(self, other: Self) -> Self {
        Self { session: self.session && !other.session, stream: self.stream && !other.stream }
    }

    fn and(self, other: Self) -> Self {
        Self { session: self.session && other.session, stream: self.stream && other.stream }
    }

    fn missing(self) -> &'static str {
        match (self.session, self.stream) {
            (true, true) => "neither the session nor the stream to the controller came up",
            (true, false) => "the session did not come up",
            (false, _) => "the stream to the controller did not come up",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Confirmed,
    Compare,
    /// The former version works no better, or must show it twice.
    Again,
    TakenBack(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether the stream answers: call [`Trial::on_answer`] then.
    Ask,
    Seek,
}

/// A version that is not confirmed yet, as kept on disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    starts: u32,
    comparisons: u32,
    /// What came up under the former version but not under the new one.
    suspected: Option<Works>,
    #[serde(skip)]
    phase: TrialPhase,
    #[serde(skip)]
    works: Works,
    #[serde(skip)]
    is_mute: bool,
    /// Whether answers belong to the version in force.
    #[serde(skip)]
    is_settled: bool,
    #[serde(skip)]
    is_asked: bool,
    #[serde(skip)]
    is_sought: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum TrialPhase {
    #[default]
    Idle,
    New {
        since: Instant,
        seen: Works,
        all_since: Option<Instant>,
    },
    Former {
        since: Instant,
        seen_under_new: Works,
        shown: Works,
    },
}

impl Trial {
    pub fn begin(&mut self, now: Instant, works: Works, is_mute: bool) {
        self.starts = self.starts.saturating_add(1);
        (self.works, self.is_mute) = (works, is_mute);
        self.enter_new(now, Works::NOTHING);
    }

    pub fn compares(&self) -> bool {
        matches!(self.phase, TrialPhase::Former { .. })
    }

    /// Reports what is up, as far as known, and whether the session is silent.
    pub fn on_works(&mut self, now: Instant, works: Works, is_mute: bool) {
        self.note(now);
        (self.works, self.is_mute) = (works, is_mute);
        self.note(now);
        self.is_asked &= works.stream;
        if let TrialPhase::New { all_since, .. } = &mut self.phase {
            *all_since = works.all().then(|| all_since.unwrap_or(now));
        }
    }

    pub fn on_answer(&mut self, now: Instant) {
        self.note(now);
        self.note_answer(Works { session: false, stream: self.is_settled });
    }

    fn note(&mut self, now: Instant) {
        let settles = match self.phase {
            TrialPhase::Idle => return,
            TrialPhase::New { since, .. } => since + SETTLE,
            TrialPhase::Former { since, .. } => since + LOOK,
        };
        self.is_settled |= now >= settles;
        let session = self.is_settled && self.works.session && !self.is_mute;
        self.note_answer(Works { session, stream: false });
    }

    fn note_answer(&mut self, answers: Works) {
        let (TrialPhase::New { seen: noted, .. } | TrialPhase::Former { shown: noted, .. }) =
            &mut self.phase
        else {
            return;
        };
        noted.session |= answers.session;
        noted.stream |= answers.stream;
        // The program lives and something works: there is no hurry.
        if answers != Works::NOTHING && !self.compares() {
            self.starts = 0;
        }
    }

    pub fn poll_question(&mut self) -> Option<Question> {
        let noted = match self.phase {
            TrialPhase::Idle => return None,
            TrialPhase::New { seen, .. } => seen,
            TrialPhase::Former { shown, .. } => shown,
        };
        if !self.is_settled || noted.stream {
            return None;
        }
        let (is_done, question) = match self.works.stream {
            true => (&mut self.is_asked, Question::Ask),
            false => (&mut self.is_sought, Question::Seek),
        };
        (!std::mem::replace(is_done, true)).then_some(question)
    }

    pub fn poll(&mut self, now: Instant) -> Option<Decision> {
        self.note(now);
        match self.phase {
            TrialPhase::Idle => None,
            TrialPhase::New { since, seen, all_since } => {
                match all_since.filter(|_| seen.session) {
                    Some(holds) if now >= holds + HOLD => {
                        self.phase = TrialPhase::Idle;
                        Some(Decision::Confirmed)
                    }
                    None if now >= since + self.hold() => self.doubt(now, seen),
                    _ => None,
                }
            }
            TrialPhase::Former { since, seen_under_new, shown } => {
                let better = shown.without(seen_under_new);
                if better != Works::NOTHING {
                    return Some(self.suspect(now, seen_under_new, better));
                }
                if now < since + COMPARE {
                    return None;
                }
                self.comparisons = self.comparisons.saturating_add(1);
                (self.starts, self.suspected) = (0, None);
                self.enter_new(now, seen_under_new);
                Some(Decision::Again)
            }
        }
    }

    /// `seen`: all that worked under the new version at some time.
    fn doubt(&mut self, now: Instant, seen: Works) -> Option<Decision> {
        let is_cleared =
            self.suspected.is_some_and(|suspected| suspected.without(seen) == Works::NOTHING);
        // It worked under the new version before, so the network is at fault now.
        if seen.all() || is_cleared {
            self.suspected = None;
            self.enter_new(now, seen);
            return None;
        }
        self.enter(TrialPhase::Former { since: now, seen_under_new: seen, shown: Works::NOTHING });
        Some(Decision::Compare)
    }

    /// `better` works under the former version. Once may be chance: coverage that came back.
    fn suspect(&mut self, now: Instant, seen_under_new: Works, better: Works) -> Decision {
        if self.suspected.is_some_and(|suspected| suspected.and(better) != Works::NOTHING) {
            self.phase = TrialPhase::Idle;
            return Decision::TakenBack(better.missing());
        }
        self.suspected = Some(better);
        self.starts = self.starts.min(STARTS_MAX - 1);
        self.enter_new(now, seen_under_new);
        Decision::Again
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        let (settles, ends) = match self.phase {
            TrialPhase::Idle => return None,
            TrialPhase::New { since, seen, all_since } => {
                let holds = all_since.filter(|_| seen.session);
                (since + SETTLE, holds.map_or(since + self.hold(), |holds| holds + HOLD))
            }
            TrialPhase::Former { since, .. } => (since + LOOK, since + COMPARE),
        };
        Some(if self.is_settled { ends } else { ends.min(settles) })
    }

    fn enter_new(&mut self, now: Instant, seen: Works) {
        let all_since = self.works.all().then_some(now);
        self.enter(TrialPhase::New { since: now, seen, all_since });
    }

    fn enter(&mut self, phase: TrialPhase) {
        self.phase = phase;
        (self.is_settled, self.is_asked, self.is_sought) = (false, false, false);
    }

    fn hold(&self) -> Duration {
        if self.starts >= STARTS_MAX {
            return Duration::ZERO;
        }
        if self.suspected.is_some() {
            return HOLD;
        }
        (HOLD * 2_u32.saturating_pow(self.comparisons.min(8))).min(HOLD_MAX)
    }
}

#[cfg(test)]
mod tests;
