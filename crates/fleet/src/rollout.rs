//! A version of a configuration on its way to many boxes, wave by wave.
//!
//! ```text
//!            all of the wave settled            last wave settled
//!  Running ────────► next wave ────────► ... ────────────────────► Done
//!    │  ▲
//!    │  └─ resume ─┐
//!    └─ too many failed, or a person: Halted
//! ```
//!
//! The order of the boxes goes by digests: every rollout begins with other boxes, and all replicas
//! agree on the waves. The owner of the rollout knows the version. The state is plain data.
//!
//! `now` may be any clock that is the same for all calls. A jump ends a wait early or late.

pub(crate) mod plan;

use std::collections::BTreeMap;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;
use serde::{Deserialize, Serialize};

pub use self::plan::{Plan, Target, Wave};
use crate::digest::Digest;
use crate::frame::Outcome;

/// One rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rollout {
    /// Decides which boxes come first.
    id: String,
    plan: Plan,
    state: RolloutState,
    waves: u32,
    since: Instant,
    /// Failures before the last resume.
    pardoned: u32,
    boxes: BTreeMap<PublicKey, Progress>,
}

/// The progress of one box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Progress {
    /// Its wave has not begun.
    Waiting,
    /// Its wave has begun, and it was not heard since.
    Offered,
    /// It has the version on trial.
    Reached,
    /// The version works there.
    Confirmed,
    /// It has gone back to the former version, or refused this one.
    Failed,
}

/// The state of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum RolloutState {
    /// Boxes get the version as their waves come.
    Running,
    /// No further box gets it.
    Halted {
        /// Why, for people.
        why: String,
    },
    /// All boxes get the version.
    Done,
}

impl Rollout {
    /// A rollout to `boxes`; its first wave begins now.
    pub fn new(
        id: &str,
        plan: Plan,
        boxes: impl IntoIterator<Item = PublicKey>,
        now: Instant,
    ) -> Self {
        let mut rollout = Self {
            id: id.to_owned(),
            plan,
            state: RolloutState::Running,
            waves: 0,
            since: now,
            pardoned: 0,
            boxes: boxes.into_iter().map(|key| (key, Progress::Waiting)).collect(),
        };
        rollout.begin_wave(now);
        rollout
    }

    /// Its state.
    pub fn state(&self) -> &RolloutState {
        &self.state
    }

    /// The current wave, from 1.
    pub fn wave(&self) -> u32 {
        self.waves
    }

    /// The progress of a box.
    pub fn progress(&self, key: &PublicKey) -> Option<Progress> {
        self.boxes.get(key).copied()
    }

    /// Whether a box is to have the version now, rather than the former one.
    pub fn is_offered(&self, key: &PublicKey) -> bool {
        let Some(progress) = self.boxes.get(key) else { return false };
        match self.state {
            RolloutState::Running => *progress != Progress::Waiting,
            // Taking a version back where it works is a person's choice.
            RolloutState::Halted { .. } => {
                !matches!(progress, Progress::Waiting | Progress::Offered)
            }
            RolloutState::Done => true,
        }
    }

    /// All boxes, by key.
    pub fn boxes(&self) -> impl Iterator<Item = PublicKey> {
        self.boxes.keys().copied()
    }

    fn count(&self, progress: Progress) -> u32 {
        self.boxes.values().filter(|it| **it == progress).count() as u32
    }

    fn begun(&self) -> u32 {
        self.boxes.len() as u32 - self.count(Progress::Waiting)
    }

    /// Takes the outcome at a box; ignored if the box was not sent the version.
    pub fn on_outcome(&mut self, key: &PublicKey, outcome: &Outcome) {
        let Some(progress) = self.boxes.get_mut(key) else { return };
        if *progress == Progress::Waiting {
            return;
        }
        *progress = match outcome {
            // A restarted box tries again what it had confirmed.
            Outcome::InForce if *progress == Progress::Confirmed => Progress::Confirmed,
            Outcome::InForce => Progress::Reached,
            Outcome::Confirmed => Progress::Confirmed,
            Outcome::TakenBack { .. } | Outcome::Refused { .. } => Progress::Failed,
        };
        if *progress == Progress::Failed {
            self.halt_if_too_many_failed();
        }
    }

    /// Adds a box to the target, in the last wave.
    pub fn add(&mut self, key: PublicKey) {
        self.boxes.entry(key).or_insert(Progress::Waiting);
    }

    /// Removes a box from the target.
    pub fn remove(&mut self, key: &PublicKey) {
        self.boxes.remove(key);
    }

    /// Advances: returns whether another wave has begun, or the last one has ended. It looks at
    /// every box: call it after outcomes, and every minute for waits.
    pub fn poll(&mut self, now: Instant) -> bool {
        if self.state != RolloutState::Running || !self.is_wave_settled(now) {
            return false;
        }
        match self.count(Progress::Waiting) {
            0 => self.state = RolloutState::Done,
            _ => self.begin_wave(now),
        }
        true
    }

    /// A person stops it.
    pub fn halt(&mut self, why: &str) {
        if self.state == RolloutState::Running {
            self.state = RolloutState::Halted { why: why.to_owned() };
        }
    }

    /// A person resumes it: failures until now do not halt it again.
    pub fn resume(&mut self, now: Instant) {
        if matches!(self.state, RolloutState::Halted { .. }) {
            (self.pardoned, self.since) = (self.count(Progress::Failed), now);
            self.state = RolloutState::Running;
        }
    }

    fn begin_wave(&mut self, now: Instant) {
        let begun = self.begun() as usize;
        let size = self.plan.boxes_until(self.waves, self.boxes.len());
        let mut order: Vec<_> = self
            .boxes
            .iter_mut()
            .filter(|(_, progress)| **progress == Progress::Waiting)
            .map(|(key, progress)| (Digest::of([self.id.as_bytes(), key.as_bytes()]), progress))
            .collect();
        order.sort_unstable_by_key(|(digest, _)| *digest);
        // At least one box, although boxes left or joined since the last wave.
        for (_, progress) in order.into_iter().take(size.saturating_sub(begun).max(1)) {
            *progress = Progress::Offered;
        }
        self.waves += 1;
        self.since = now;
    }

    fn is_wave_settled(&self, now: Instant) -> bool {
        let is_over = now.since(self.since) >= self.plan.patience;
        let awaited = self.count(Progress::Offered) + self.count(Progress::Reached);
        // Silence proves nothing: boxes in garages, or boxes that the version has silenced.
        let confirmed_min = self.begun() * u32::from(self.plan.confirmed_min);
        (is_over || awaited == 0) && self.count(Progress::Confirmed) * 100 >= confirmed_min
    }

    fn halt_if_too_many_failed(&mut self) {
        let failed = self.count(Progress::Failed).saturating_sub(self.pardoned);
        let begun = self.begun();
        let tolerated = self.plan.tolerated(begun);
        if failed > tolerated {
            self.halt(&format!(
                "{failed} of {begun} boxes refused the version or rolled it back; at most \
                 {tolerated} may"
            ));
        }
    }
}

#[cfg(test)]
mod tests;
