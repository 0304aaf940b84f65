//! Which path takes acknowledgements, feedback and control frames.

use roadweave_proto::{PathId, PathStatus, Priority, SplitMix64};

use super::Connection;
use crate::path::Path;

impl Connection {
    pub(super) fn best_path(&self) -> Option<PathId> {
        let with_status = |status| {
            let paths = self.paths.iter().filter(move |path| path.status() == status);
            paths.min_by_key(|path| path.smoothed_rtt()).map(|path| path.id)
        };
        let heard_last = || {
            let id = self.timing.last_path?;
            self.path(id)?.validated.then_some(id)
        };
        self.answering_paths()
            .min_by_key(|path| (is_backup(path), path.smoothed_rtt()))
            .map(|path| path.id)
            .or_else(heard_last)
            .or_else(|| with_status(PathStatus::Usable))
            .or_else(|| with_status(PathStatus::Suspect))
            .or_else(|| with_status(PathStatus::Standby))
    }

    /// The path for the next feedback: the best, and now and then another.
    ///
    /// A silent path becomes suspect only after its probe timeout; until then every fourth feedback
    /// takes the second best path, and each acknowledges all that came.
    ///
    /// Where the peer wants acknowledgements on all paths, one of two takes one of the others, by
    /// lot: a packet of the library holds only acknowledgements of paths that received something
    /// since the one before, and with even intervals a path might always have the same turn.
    pub(super) fn feedback_path(&self) -> Option<PathId> {
        let best = self.best_path()?;
        let count = self.timing.feedback_count;
        let may_rest = self.answering_paths().any(|path| path.id == best && !is_backup(path));
        let others = || {
            let others = self.answering_paths().filter(move |path| path.id != best);
            others.filter(move |path| !(may_rest && is_backup(path)))
        };
        let other = match self.acknowledges_on_all {
            true => drawn(count, others),
            false if count % FEEDBACK_TURNS != FEEDBACK_TURNS - 1 => None,
            false => others().min_by_key(|path| path.smoothed_rtt()),
        };
        Some(other.map_or(best, |path| path.id))
    }

    /// Usable paths that are not quiet while others are heard. A side that sends little suspects
    /// nothing soon, so a path that died in an outage would still look good to it.
    pub(super) fn answering_paths(&self) -> impl Iterator<Item = &Path> {
        let newest = self.paths.iter().map(|path| path.last_heard).max().unwrap_or_default();
        self.paths
            .iter()
            .filter(move |path| path.status() == PathStatus::Usable && !path.is_quiet(newest))
    }
}

fn drawn<'a, I: Iterator<Item = &'a Path>>(turn: u64, others: impl Fn() -> I) -> Option<&'a Path> {
    let pair = turn / 2;
    let is_others_turn = turn % 2 == SplitMix64::word(0, pair) % 2;
    let count = others().count() as u64;
    if count > 0 && is_others_turn { others().nth((pair % count) as usize) } else { None }
}

fn is_backup(path: &Path) -> bool {
    path.policy.priority == Priority::Backup
}

/// One in this many feedbacks takes the second fastest path.
const FEEDBACK_TURNS: u64 = 4;
