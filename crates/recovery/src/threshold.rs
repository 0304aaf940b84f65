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
//! The threshold is never below a round trip and its usual deviation: with a tighter deadline every
//! packet would count as lost and be sent twice.

use std::time::Duration;

use roadweave_proto::PathSnapshot;

/// The peer gathers acknowledgements for up to 2 ms, and a busy machine wakes late.
const SLACK_MIN: Duration = Duration::from_millis(5);
/// The least margin as a share of the round trip: a queue that begins to fill is no loss.
const SLACK_SHARE: u32 = 8;

/// The time after which a packet on `path` counts as lost: `max(min(threshold, PTO), answer)`.
///
/// `paths`: all of the session's. Source: CellFusion section 4.4.1; RFC 9002 section 6.2.1 (PTO).
pub fn loss_threshold<'a>(
    path: &PathSnapshot,
    paths: impl IntoIterator<Item = &'a PathSnapshot>,
    deadline: Duration,
) -> Duration {
    until_repair(path, paths, deadline).min(path.pto).max(answer(path))
}

/// As the paper, `min(threshold, PTO)`, knowing the round trip: `min(max(threshold, answer), PTO)`.
pub(crate) fn paper_threshold<'a>(
    path: &PathSnapshot,
    paths: impl IntoIterator<Item = &'a PathSnapshot>,
    deadline: Duration,
) -> Duration {
    until_repair(path, paths, deadline).max(answer(path)).min(path.pto)
}

fn until_repair<'a>(
    path: &PathSnapshot,
    paths: impl IntoIterator<Item = &'a PathSnapshot>,
    deadline: Duration,
) -> Duration {
    let usable = paths.into_iter().filter(|path| path.is_usable());
    let repair_flight = usable.map(|path| path.smoothed_rtt / 2).min();
    deadline.saturating_sub(repair_flight.unwrap_or(path.smoothed_rtt / 2))
}

fn answer(path: &PathSnapshot) -> Duration {
    let slack = (path.rtt_deviation * 2).max(SLACK_MIN).max(path.smoothed_rtt / SLACK_SHARE);
    path.smoothed_rtt + slack
}

/// The age at which a packet on `path` is so late that it is repaired, lost or merely slow; never
/// before an answer over an empty queue.
pub(crate) fn late_after(path: &PathSnapshot, deadline: Duration) -> Duration {
    let slack = SLACK_MIN.max(path.min_rtt / SLACK_SHARE);
    (deadline * LATE_PERCENT / 100).max(path.min_rtt + slack)
}

/// A frame later than twice the deadline is a stall, and its repair needs the rest of that time.
const LATE_PERCENT: u32 = 130;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;

    const MS: Duration = Duration::from_millis(1);

    fn check(rtt_ms: u32, pto_ms: u32, deadline_ms: u32, expected_ms: u32) {
        let slow = PathSnapshot { pto: MS * pto_ms, ..path(0, rtt_ms.into(), 10) };
        let paths = [slow.clone(), path(1, 40, 10)];
        assert_eq!(loss_threshold(&slow, &paths, MS * deadline_ms), MS * expected_ms);
    }

    #[test]
    fn the_deadline_leaves_time_for_the_repair() {
        check(60, 120, 100, 80);
        check(60, 72, 100, 72); // the probe timeout is shorter
    }

    #[test]
    fn a_route_that_has_become_longer_is_not_late_all_the_time() {
        let mut far = path(0, 200, 10);
        far.min_rtt = MS * 200;
        assert_eq!(late_after(&far, MS * 100), MS * 225);
        far.min_rtt = MS * 40;
        assert_eq!(late_after(&far, MS * 100), MS * 130);
    }

    #[test]
    fn as_the_paper_has_it_the_probe_timeout_is_the_longest() {
        let slow = PathSnapshot { pto: MS * 120, ..path(0, 80, 10) };
        let threshold = |deadline_ms: u32| {
            let paths = [slow.clone(), path(1, 40, 10)];
            paper_threshold(&slow, &paths, MS * deadline_ms)
        };
        assert_eq!(threshold(120), MS * 100, "a repair takes 20 ms");
        assert_eq!(threshold(50), MS * 90, "none can be answered sooner");
        assert_eq!(threshold(900), MS * 120, "the probe timeout");
        let hasty = PathSnapshot { pto: MS * 85, ..slow.clone() };
        let threshold = paper_threshold(&hasty, std::slice::from_ref(&hasty), MS * 50);
        assert_eq!(threshold, MS * 85);
    }

    #[test]
    fn no_packet_counts_as_lost_before_its_answer_can_be_there() {
        check(80, 120, 50, 90);
        check(80, 10, 100, 90);
        check(20, 10, 10, 25);
    }
}
