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
//!    │               new in force once more, 90 s ─► it comes up: nothing was wrong
//!    │                │ again it does not come up
//!    │                ▼
//!    └─ taken back ─ former in force: it comes up again
//! ```
//!
//! A configuration is taken back only on that proof. Without coverage nothing comes up under either
//! version, and nothing is undone; where coverage, or the controller, comes back while the former
//! one is in force, the new one shows that it works when it is tried once more.
//!
//! A session or a stream that is cut off is found dead much later. So what came up under one
//! version counts under the next only once it has answered there: the stream is asked.

use std::time::Duration;

use roadweave_proto::Instant;
use serde::{Deserialize, Serialize};

/// For how long session and stream must have been up before a version is confirmed.
const HOLD: Duration = Duration::from_secs(90);
/// What answers so long after a change answers under the new version: it is in force by then, and
/// a session that it has cut off is known to be silent.
const SETTLE: Duration = Duration::from_secs(20);
/// What answers so long after the return to the former version answers under that: it is looked for
/// what had not answered before.
const LOOK: Duration = Duration::from_secs(1);
/// For how long the former version is given to show that it would work.
const COMPARE: Duration = Duration::from_secs(60);
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

    /// That this did not come up, in words.
    fn missing(self) -> &'static str {
        match (self.session, self.stream) {
            (true, true) => "neither the session nor the stream to the controller came up",
            (true, false) => "the session did not come up",
            (false, _) => "the stream to the controller did not come up",
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
    /// The new version is to be in force again: the former works no better, or is to show it twice.
    Again,
    /// The former version stays in force: it works, and the new one does not.
    TakenBack(&'static str),
}

/// What is to be found out now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether the stream answers: then call [`Trial::on_answer`].
    Ask,
    /// Whether there can be a stream.
    Seek,
}

/// A version that has not been confirmed yet, as it is kept on disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// How often the program has started under the new version.
    starts: u32,
    /// How often the former version has been looked at in vain.
    comparisons: u32,
    /// What came up under the former version and had not under the new one.
    #[serde(default)]
    suspected: Option<Works>,
    #[serde(skip)]
    phase: Phase,
    #[serde(skip)]
    works: Works,
    /// Whether nothing comes through the session.
    #[serde(skip)]
    is_mute: bool,
    /// Whether the version has been in force for long enough that what answers does so under it.
    #[serde(skip)]
    is_settled: bool,
    /// Whether the stream was asked since.
    #[serde(skip)]
    is_asked: bool,
    /// Whether one was sought since.
    #[serde(skip)]
    is_sought: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Phase {
    /// Not begun in this life of the program.
    #[default]
    Idle,
    /// The new version is in force.
    New {
        since: Instant,
        /// What has answered under it at some time.
        seen: Works,
        /// Since when all is up.
        all_since: Option<Instant>,
    },
    /// The former version is in force.
    Former {
        since: Instant,
        seen_under_new: Works,
        /// What has answered under the former one.
        shown: Works,
    },
}

impl Trial {
    /// The new version is in force from now on: at once, or because the program starts under it.
    pub fn begin(&mut self, now: Instant, works: Works, is_mute: bool) {
        self.starts = self.starts.saturating_add(1);
        (self.works, self.is_mute) = (works, is_mute);
        self.enter_new(now, Works::NOTHING);
    }

    /// Whether the former version is in force, for comparison.
    pub fn compares(&self) -> bool {
        matches!(self.phase, Phase::Former { .. })
    }

    /// What is up now, as far as that is known, and whether nothing comes through the session.
    pub fn on_works(&mut self, now: Instant, works: Works, is_mute: bool) {
        self.note(now);
        (self.works, self.is_mute) = (works, is_mute);
        self.note(now);
        // Another stream has to be asked anew.
        self.is_asked &= works.stream;
        if let Phase::New { all_since, .. } = &mut self.phase {
            *all_since = works.all().then(|| all_since.unwrap_or(now));
        }
    }

    /// The controller has answered over the stream.
    pub fn on_answer(&mut self, now: Instant) {
        self.note(now);
        self.note_answer(Works { session: false, stream: self.is_settled });
    }

    /// Notes what answers under the version in force.
    fn note(&mut self, now: Instant) {
        let settles = match self.phase {
            Phase::Idle => return,
            Phase::New { since, .. } => since + SETTLE,
            Phase::Former { since, .. } => since + LOOK,
        };
        self.is_settled |= now >= settles;
        let session = self.is_settled && self.works.session && !self.is_mute;
        self.note_answer(Works { session, stream: false });
    }

    fn note_answer(&mut self, answers: Works) {
        let (Phase::New { seen: noted, .. } | Phase::Former { shown: noted, .. }) = &mut self.phase
        else {
            return;
        };
        noted.session |= answers.session;
        noted.stream |= answers.stream;
        // It lets the program live, and something works: no reason for haste.
        if answers != Works::NOTHING && !self.compares() {
            self.starts = 0;
        }
    }

    /// What is to be found out, once for each.
    pub fn poll_question(&mut self) -> Option<Question> {
        let noted = match self.phase {
            Phase::Idle => return None,
            Phase::New { seen, .. } => seen,
            Phase::Former { shown, .. } => shown,
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

    /// Looks at what has become of it; call it again until there is nothing.
    pub fn poll(&mut self, now: Instant) -> Option<Decision> {
        self.note(now);
        match self.phase {
            Phase::Idle => None,
            Phase::New { since, seen, all_since } => match all_since.filter(|_| seen.session) {
                Some(holds) if now >= holds + HOLD => {
                    self.phase = Phase::Idle;
                    Some(Decision::Confirmed)
                }
                None if now >= since + self.hold() => self.doubt(now, seen),
                _ => None,
            },
            Phase::Former { since, seen_under_new, shown } => {
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

    /// Of what should be up something is not, and `seen` was at some time.
    fn doubt(&mut self, now: Instant, seen: Works) -> Option<Decision> {
        let is_cleared =
            self.suspected.is_some_and(|suspected| suspected.without(seen) == Works::NOTHING);
        // What worked some time and does not now is the network's doing.
        if seen.all() || is_cleared {
            self.suspected = None;
            self.enter_new(now, seen);
            return None;
        }
        self.enter(Phase::Former { since: now, seen_under_new: seen, shown: Works::NOTHING });
        Some(Decision::Compare)
    }

    /// The former version works `better`: once may be chance, coverage that came back just then.
    fn suspect(&mut self, now: Instant, seen_under_new: Works, better: Works) -> Decision {
        if self.suspected.is_some_and(|suspected| suspected.and(better) != Works::NOTHING) {
            self.phase = Phase::Idle;
            return Decision::TakenBack(better.missing());
        }
        self.suspected = Some(better);
        // Should it end the program once more, that says enough.
        self.starts = self.starts.min(STARTS_MAX - 1);
        self.enter_new(now, seen_under_new);
        Decision::Again
    }

    /// When [`Trial::poll`] or [`Trial::poll_question`] may have something.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (settles, ends) = match self.phase {
            Phase::Idle => return None,
            Phase::New { since, seen, all_since } => {
                let holds = all_since.filter(|_| seen.session);
                (since + SETTLE, holds.map_or(since + self.hold(), |holds| holds + HOLD))
            }
            Phase::Former { since, .. } => (since + LOOK, since + COMPARE),
        };
        Some(if self.is_settled { ends } else { ends.min(settles) })
    }

    fn enter_new(&mut self, now: Instant, seen: Works) {
        let all_since = self.works.all().then_some(now);
        self.enter(Phase::New { since: now, seen, all_since });
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        (self.is_settled, self.is_asked, self.is_sought) = (false, false, false);
    }

    /// For how long the new version is in force before the former one is looked at.
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
