//! Where repairs may go: what the policies of the paths leave for redundancy.
//!
//! ```text
//! paths ─► as they are offered to repairs: backup ones without room while others are usable,
//!          secondary ones while a primary one has room, and no path with more room than its budget
//!          of redundancy
//! ```
//!
//! The recovery still sees all paths, to time packets. When all budgets are spent, none applies.

use roadweave_proto::{PathOffer, Priority};

fn is_free(paths: &[PathOffer<'_>]) -> bool {
    let mut policies = paths.iter().map(|path| path.snapshot.policy);
    let first = paths.first().map(|path| path.snapshot.policy.priority);
    policies.all(|policy| Some(policy.priority) == first && policy.redundancy_percent.is_none())
}

/// Sets the room for repairs on each path; what waits for a path counts as spent.
pub(crate) fn limit_repairs(paths: &mut [PathOffer<'_>]) {
    if is_free(paths) {
        return;
    }
    let packet = |path: &PathOffer<'_>| u64::from(path.snapshot.mtu);
    let has_left = |path: &PathOffer<'_>| path.redundancy_left() >= packet(path);
    let usable = |last: Priority| {
        let within = move |path: &&PathOffer<'_>| path.snapshot.policy.priority <= last;
        paths.iter().filter(|path| path.is_usable()).filter(within)
    };
    let has_budget = usable(Priority::Secondary).any(has_left);
    let first_has_room = |path: &PathOffer<'_>| {
        path.repair_room() >= packet(path) && (has_left(path) || !has_budget)
    };
    let last = if usable(Priority::Primary).any(first_has_room) {
        Priority::Primary
    } else if usable(Priority::Secondary).next().is_some() {
        Priority::Secondary
    } else {
        Priority::Backup
    };
    let counts = has_budget || usable(last).any(has_left);
    for path in paths {
        let budget = if counts { path.redundancy_left() } else { u64::MAX };
        path.redundancy_room = if path.snapshot.policy.priority > last { 0 } else { budget };
    }
}

pub(crate) fn keep_to_budgets(paths: &mut [PathOffer<'_>], bytes: usize) {
    if is_free(paths) {
        return;
    }
    let has_left = |path: &PathOffer<'_>| path.redundancy_left() >= bytes as u64;
    let best = paths.iter().filter(|path| path.is_usable() && has_left(path));
    let Some(best) = best.map(|path| path.snapshot.policy.priority).min() else { return };
    for path in paths {
        let is_replaced = best <= Priority::Secondary || best <= path.snapshot.policy.priority;
        path.may_send &= has_left(path) || !is_replaced;
    }
}

#[cfg(test)]
mod tests {
    use roadweave_proto::{PathSnapshot, PathStatus, Policy};

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

    fn check(paths: Vec<PathSnapshot>, expected: &[u64]) {
        check_queued(&paths, 0, expected);
    }

    fn check_queued(paths: &[PathSnapshot], queued_bytes: u64, expected: &[u64]) {
        let mut offers: Vec<_> = paths.iter().map(PathOffer::free).collect();
        offers[0].queued_bytes = queued_bytes;
        limit_repairs(&mut offers);
        let rooms: Vec<u64> = offers.iter().map(PathOffer::repair_room).collect();
        assert_eq!(rooms, expected);
        assert!(offers.iter().all(|path| path.may_send), "first transmissions stay free");
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
        let check = |paths: Vec<PathSnapshot>, expected: &[bool]| {
            let mut offers: Vec<_> = paths.iter().map(PathOffer::free).collect();
            keep_to_budgets(&mut offers, 1200);
            assert_eq!(offers.iter().map(|path| path.may_send).collect::<Vec<_>>(), expected);
        };
        let spent = || path(Primary, 9000, Some(1199));
        check(vec![spent(), path(Secondary, 9000, None)], &[false, true]);
        check(vec![spent(), path(Backup, 9000, None)], &[true, true]);
        check(vec![spent(), spent()], &[true, true]);
        let silent = PathSnapshot { status: PathStatus::Suspect, ..path(Secondary, 9000, None) };
        check(vec![spent(), silent], &[true, true]);
        check(vec![path(Backup, 9000, Some(0)), path(Backup, 9000, None)], &[false, true]);
    }

    #[test]
    fn budgets_bound_the_room_unless_there_is_no_other() {
        check(vec![path(Primary, 9000, Some(3000)), path(Primary, 7000, None)], &[3000, 7000]);
        check(vec![path(Primary, 9000, Some(100)), path(Secondary, 7000, None)], &[100, 7000]);
        check(vec![path(Primary, 9000, Some(0)), path(Backup, 7000, None)], &[9000, 0]);
        let full = || path(Primary, 0, None);
        check_queued(&[path(Primary, 9000, Some(4000)), full()], 1500, &[2500, 0]);
        check_queued(&[path(Primary, 3500, Some(4000)), full()], 1500, &[2000, 0]);
        let paths = [path(Primary, 3000, None), path(Secondary, 7000, None)];
        check_queued(&paths, 2000, &[1000, 7000]);
    }
}
