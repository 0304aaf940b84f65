//! Which path takes acknowledgements, feedback and control frames.

use roadweave_types::{PathId, PathStatus, Priority};

use super::Connection;
use crate::path::Path;

impl Connection {
    /// The fastest path that answers; when all are suspect, the one that a packet came in on last.
    pub(super) fn best_path(&self) -> Option<PathId> {
        let with_status = |status| {
            let paths = self.paths.iter().filter(move |path| path.status() == status);
            paths.min_by_key(|path| path.smoothed_rtt()).map(|path| path.id)
        };
        let heard_last = || {
            let id = self.timing.last_path?;
            self.path(id)?.carries_data().then_some(id)
        };
        self.answering_paths()
            .min_by_key(|path| (is_backup(path), path.smoothed_rtt()))
            .map(|path| path.id)
            .or_else(heard_last)
            .or_else(|| with_status(PathStatus::Usable))
            .or_else(|| with_status(PathStatus::Suspect))
            .or_else(|| with_status(PathStatus::Standby))
    }

    /// The path for the next feedback: the best, and now and then the second best.
    ///
    /// A path that fell silent is not suspected before its probe timeout; until then every fourth
    /// feedback takes another way, and since each acknowledges all that came, none is missed for
    /// long.
    pub(super) fn feedback_path(&self) -> Option<PathId> {
        let best = self.best_path()?;
        if self.timing.feedback_count % FEEDBACK_TURNS != FEEDBACK_TURNS - 1 {
            return Some(best);
        }
        let may_rest = self.answering_paths().any(|path| path.id == best && !is_backup(path));
        let others =
            self.answering_paths().filter(|path| path.id != best && !(may_rest && is_backup(path)));
        others.min_by_key(|path| path.smoothed_rtt()).map(|path| path.id).or(Some(best))
    }

    /// Usable paths that are not quiet while others are heard of. A side that sends little suspects
    /// nothing soon: a path that died in an outage would look as good as ever to it.
    pub(super) fn answering_paths(&self) -> impl Iterator<Item = &Path> {
        let newest = self.paths.iter().map(|path| path.last_heard).max().unwrap_or_default();
        self.paths
            .iter()
            .filter(move |path| path.status() == PathStatus::Usable && !path.is_quiet(newest))
    }
}

/// Whether it is meant to carry nothing while others do.
fn is_backup(path: &Path) -> bool {
    path.policy.priority == Priority::Backup
}

/// Of so many feedbacks, one leaves on the second fastest path.
const FEEDBACK_TURNS: u64 = 4;
