//! Where repairs may go: what the policies of the paths leave for redundancy.
//!
//! ```text
//! paths ─► as a recovery sees them: backup ones without room while others are usable, secondary ones
//!          while a primary one has room, and no path with more room than its budget of redundancy
//! ```
//!
//! A recovery keeps seeing all paths, since it times its packets by them; one that may carry no
//! repair now looks full. When all usable paths have spent their budgets, there are none: a loss
//! that is not repaired costs more.

use roadweave_types::{PathSnapshot, PathStatus, Priority};

/// Whether all `paths` may be used as anybody likes.
pub(crate) fn is_free(paths: &[PathSnapshot]) -> bool {
    let first = paths.first().map(|path| path.policy.priority);
    paths
        .iter()
        .all(|path| Some(path.policy.priority) == first && path.policy.redundancy_percent.is_none())
}

/// Takes the room that repairs may not have off `paths`; `queued_bytes` of them count as spent.
pub(crate) fn limit_to_budgets(paths: &mut [PathSnapshot]) {
    if is_free(paths) {
        return;
    }
    let packet = |path: &PathSnapshot| u64::from(path.mtu);
    let left = |path: &PathSnapshot| path.redundancy_left.saturating_sub(path.queued_bytes);
    let usable = |last: Priority| {
        let within = move |path: &&PathSnapshot| path.is_usable() && path.policy.priority <= last;
        paths.iter().filter(within)
    };
    let has_budget = usable(Priority::Secondary).any(|path| left(path) >= packet(path));
    let first_has_room = |path: &PathSnapshot| {
        path.window_room() >= packet(path) && (left(path) >= packet(path) || !has_budget)
    };
    let last = if usable(Priority::Primary).any(first_has_room) {
        Priority::Primary
    } else if usable(Priority::Secondary).next().is_some() {
        Priority::Secondary
    } else {
        Priority::Backup
    };
    let counts = has_budget || usable(last).any(|path| left(path) >= packet(path));
    for path in paths {
        let budget = if counts { left(path) } else { u64::MAX };
        let room = if path.policy.priority > last { 0 } else { budget };
        let full = path.bytes_in_flight.saturating_add(room);
        path.congestion_window = path.congestion_window.min(full);
    }
}

/// Takes the paths away from a scheduler that may not carry a packet of `bytes` bytes once more, if
/// another path may that would be used as well.
pub(crate) fn keep_to_budgets(paths: &mut [PathSnapshot], bytes: usize) {
    let may = |path: &PathSnapshot| {
        path.redundancy_left.saturating_sub(path.queued_bytes) >= bytes as u64
    };
    let best = paths.iter().filter(|path| path.is_usable() && may(path));
    let Some(best) = best.map(|path| path.policy.priority).min() else { return };
    for path in paths {
        if !may(path) && (best <= Priority::Secondary || best <= path.policy.priority) {
            path.status = PathStatus::Standby;
        }
    }
}

#[cfg(test)]
mod tests {
    use roadweave_types::Policy;

    use super::*;
    use crate::lane::sender::tests::path as testing_path;

    fn path(priority: Priority, window: u64, left: Option<u64>) -> PathSnapshot {
        let redundancy_percent = left.map(|_| 5);
        let policy = Policy { priority, redundancy_percent, ..Policy::default() };
        PathSnapshot {
            policy,
            redundancy_left: left.unwrap_or(u64::MAX),
            ..testing_path(0, window)
        }
    }

    fn check(mut paths: Vec<PathSnapshot>, expected: &[u64]) {
        limit_to_budgets(&mut paths);
        let rooms: Vec<u64> = paths.iter().map(PathSnapshot::window_room).collect();
        assert_eq!(rooms, expected);
    }

    use Priority::{Backup, Primary, Secondary};

    #[test]
    fn repairs_go_to_the_paths_that_are_meant_for_them() {
        let free = |priority, window| path(priority, window, None);
        check(vec![free(Primary, 9000), free(Primary, 0)], &[9000, 0]);
        check(vec![free(Primary, 9000), free(Secondary, 9000), free(Backup, 9000)], &[9000, 0, 0]);
        check(vec![free(Primary, 100), free(Secondary, 9000), free(Backup, 9000)], &[100, 9000, 0]);
        let mut silent = free(Primary, 9000);
        silent.status = PathStatus::Suspect;
        check(vec![silent, free(Backup, 8000)], &[9000, 8000]);
    }

    #[test]
    fn what_is_sent_again_goes_where_there_is_a_budget() {
        let check = |mut paths: Vec<PathSnapshot>, expected: &[PathStatus]| {
            keep_to_budgets(&mut paths, 1200);
            assert_eq!(paths.iter().map(|path| path.status).collect::<Vec<_>>(), expected);
        };
        use PathStatus::{Standby, Usable};
        let spent = || path(Primary, 9000, Some(1199));
        check(vec![spent(), path(Secondary, 9000, None)], &[Standby, Usable]);
        check(vec![spent(), path(Backup, 9000, None)], &[Usable, Usable]);
        check(vec![spent(), spent()], &[Usable, Usable]);
    }

    #[test]
    fn budgets_bound_the_room_unless_there_is_no_other() {
        check(vec![path(Primary, 9000, Some(3000)), path(Primary, 7000, None)], &[3000, 7000]);
        check(vec![path(Primary, 9000, Some(100)), path(Secondary, 7000, None)], &[100, 7000]);
        check(vec![path(Primary, 9000, Some(0)), path(Backup, 7000, None)], &[9000, 0]);
        let mut queued = path(Primary, 9000, Some(4000));
        queued.queued_bytes = 1500;
        check(vec![queued, path(Primary, 0, None)], &[2500, 0]);
    }
}
