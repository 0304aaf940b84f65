//! How long an acknowledgement may take before its packet counts as lost.
//!
//! CellFusion section 4.4.1 takes the smaller of an application's threshold and the path's probe
//! timeout, and leaves the application's threshold open. Ours follows from the lane's deadline:
//!
//! ```text
//! sent ──────────── threshold ─────────┬── one way ──► deadline
//!                                      └ the repair leaves, on the fastest path
//! ```
//!
//! An acknowledgement cannot be expected before a round trip and its usual deviation are over, so
//! the threshold never falls below that: where a deadline is tighter than the network allows, every
//! packet would count as lost and be sent twice.

use std::time::Duration;

use roadweave_proto::PathSnapshot;

/// The least that is granted on top of the round-trip time: the peer gathers acknowledgements for
/// up to 2 ms, and a busy machine wakes late.
const SLACK_MIN: Duration = Duration::from_millis(5);
/// The share of the round-trip time that is granted at least: a queue that begins to fill is no
/// loss.
const SLACK_SHARE: u32 = 8;

/// The time after which a packet sent on `path` counts as lost, but never before the path could
/// have answered: `max(min(threshold, PTO), answer)`.
///
/// `paths`: all paths of the session, from which the repair's path will be taken.
/// Source: CellFusion section 4.4.1; RFC 9002 section 6.2.1 for the PTO.
pub fn loss_threshold<'a>(
    path: &PathSnapshot,
    paths: impl IntoIterator<Item = &'a PathSnapshot>,
    deadline: Duration,
) -> Duration {
    until_repair(path, paths, deadline).min(path.pto).max(answer(path))
}

/// The time after which a packet sent on `path` counts as lost as the paper has it, `min(threshold,
/// PTO)`, of an application that does not ask for an answer sooner than the path can give it:
/// `min(max(threshold, answer), PTO)`.
///
/// Source: CellFusion section 4.4.1, which leaves the threshold to the application.
pub(crate) fn paper_threshold<'a>(
    path: &PathSnapshot,
    paths: impl IntoIterator<Item = &'a PathSnapshot>,
    deadline: Duration,
) -> Duration {
    until_repair(path, paths, deadline).max(answer(path)).min(path.pto)
}

/// How long a repair can wait and come before the deadline.
fn until_repair<'a>(
    path: &PathSnapshot,
    paths: impl IntoIterator<Item = &'a PathSnapshot>,
    deadline: Duration,
) -> Duration {
    let usable = paths.into_iter().filter(|path| path.is_usable());
    let repair_flight = usable.map(|path| path.smoothed_rtt / 2).min();
    deadline.saturating_sub(repair_flight.unwrap_or(path.smoothed_rtt / 2))
}

/// How long an acknowledgement takes at most, if nothing happens: a round trip and its slack.
fn answer(path: &PathSnapshot) -> Duration {
    let slack = (path.rtt_deviation * 2).max(SLACK_MIN).max(path.smoothed_rtt / SLACK_SHARE);
    path.smoothed_rtt + slack
}

/// The age at which a packet on `path` has missed its deadline so clearly that it is worth a
/// repair, lost or merely slow; never before an answer could be there if the path had no queue.
pub(crate) fn late_after(path: &PathSnapshot, deadline: Duration) -> Duration {
    let slack = SLACK_MIN.max(path.min_rtt / SLACK_SHARE);
    (deadline * LATE_PERCENT / 100).max(path.min_rtt + slack)
}

/// The age of a packet that is clearly late, percent of the deadline: a frame later than twice the
/// deadline is a stall, and its repair needs the rest of that time.
const LATE_PERCENT: u32 = 130;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;

    fn check(rtt_ms: u64, pto_ms: u64, deadline_ms: u64, expected_ms: u64) {
        let mut slow = path(0, rtt_ms, 10);
        slow.pto = Duration::from_millis(pto_ms);
        let fast = path(1, 40, 10);
        let threshold =
            loss_threshold(&slow, &[slow.clone(), fast], Duration::from_millis(deadline_ms));
        assert_eq!(threshold, Duration::from_millis(expected_ms));
    }

    #[test]
    fn the_deadline_leaves_time_for_the_repair() {
        check(60, 120, 100, 80);
    }

    #[test]
    fn the_probe_timeout_counts_when_it_is_shorter() {
        check(60, 72, 100, 72);
    }

    #[test]
    fn a_route_that_has_become_longer_is_not_late_all_the_time() {
        let mut far = path(0, 200, 10);
        far.min_rtt = Duration::from_millis(200);
        assert_eq!(late_after(&far, Duration::from_millis(100)), Duration::from_millis(225));
        far.min_rtt = Duration::from_millis(40);
        assert_eq!(late_after(&far, Duration::from_millis(100)), Duration::from_millis(130));
    }

    #[test]
    fn as_the_paper_has_it_the_probe_timeout_is_the_longest() {
        let slow = PathSnapshot { pto: Duration::from_millis(120), ..path(0, 80, 10) };
        let threshold = |deadline_ms| {
            let paths = [slow.clone(), path(1, 40, 10)];
            paper_threshold(&slow, &paths, Duration::from_millis(deadline_ms))
        };
        assert_eq!(threshold(120), Duration::from_millis(100), "a repair takes 20 ms");
        assert_eq!(threshold(50), Duration::from_millis(90), "none can be answered sooner");
        assert_eq!(threshold(900), Duration::from_millis(120), "the probe timeout");
        let hasty = PathSnapshot { pto: Duration::from_millis(85), ..slow.clone() };
        let threshold =
            paper_threshold(&hasty, std::slice::from_ref(&hasty), Duration::from_millis(50));
        assert_eq!(threshold, Duration::from_millis(85));
    }

    #[test]
    fn no_packet_counts_as_lost_before_its_answer_can_be_there() {
        check(80, 120, 50, 90);
        check(80, 10, 100, 90);
        check(20, 10, 10, 25);
    }
}
