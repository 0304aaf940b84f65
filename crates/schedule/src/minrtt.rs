//! `minrtt`: the path with the lowest smoothed round-trip time that has room.
//!
//! Source: CellFusion section 4.2, which takes it from multipath TCP's default scheduler.
//!
//! A path that stopped answering keeps the low round-trip time of its good days, and would swallow
//! a window of packets each time it looks free. So a path that is [`PathStatus::Suspect`] gets data
//! only when no path answers at all.

use roadweave_types::{Instant, PathSnapshot, PathStatus};

use crate::{Decision, PacketInfo, PathSet, Scheduler};

/// The min-RTT scheduler.
#[derive(Debug, Default)]
pub struct MinRtt;

impl Scheduler for MinRtt {
    fn select(&mut self, _now: Instant, packet: &PacketInfo, paths: &[PathSnapshot]) -> Decision {
        let status = best_status(paths);
        paths
            .iter()
            .enumerate()
            .filter(|(_, path)| Some(path.status) == status && path.room() >= packet.bytes as u64)
            .min_by_key(|(_, path)| (path.smoothed_rtt, path.id))
            .map_or(Decision::Wait, |(position, _)| Decision::Send(PathSet::one(position)))
    }
}

/// The status that data may use now: usable paths where there are any, otherwise suspect ones.
fn best_status(paths: &[PathSnapshot]) -> Option<PathStatus> {
    [PathStatus::Usable, PathStatus::Suspect]
        .into_iter()
        .find(|status| paths.iter().any(|path| path.status == *status))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use roadweave_types::PathId;

    use super::*;

    fn path(id: u32, rtt_ms: u64, room: u64, status: PathStatus) -> PathSnapshot {
        let rtt = Duration::from_millis(rtt_ms);
        PathSnapshot {
            id: PathId(id),
            uplink: None,
            status,
            congestion_window: room,
            bytes_in_flight: 0,
            pacing_budget: u64::MAX,
            pacing_rate: None,
            smoothed_rtt: rtt,
            min_rtt: rtt,
            latest_rtt: rtt,
            rtt_deviation: Duration::ZERO,
            pto: rtt,
            loss: 0.0,
            mtu: 1452,
            last_acknowledged: None,
        }
    }

    fn check(paths: &[PathSnapshot], expected: Option<usize>) {
        let decision = MinRtt.select(Instant::ZERO, &PacketInfo { bytes: 1200 }, paths);
        let expected = expected.map_or(Decision::Wait, |at| Decision::Send(PathSet::one(at)));
        assert_eq!(decision, expected, "{paths:#?}");
    }

    #[test]
    fn the_fastest_path_with_room_wins() {
        use PathStatus::Usable;
        check(&[path(0, 60, 9000, Usable), path(1, 40, 9000, Usable)], Some(1));
        check(&[path(0, 60, 9000, Usable), path(1, 40, 1199, Usable)], Some(0));
        check(&[path(0, 60, 1199, Usable), path(1, 40, 0, Usable)], None);
        check(&[path(0, 40, 9000, Usable), path(1, 40, 9000, Usable)], Some(0));
        check(&[], None);
    }

    #[test]
    fn a_suspect_path_gets_data_only_when_no_path_answers() {
        use PathStatus::{Standby, Suspect, Usable, Validating};
        check(&[path(0, 10, 9000, Suspect), path(1, 90, 9000, Usable)], Some(1));
        check(&[path(0, 10, 9000, Suspect), path(1, 90, 0, Usable)], None);
        check(&[path(0, 10, 9000, Suspect), path(1, 5, 9000, Validating)], Some(0));
        check(&[path(0, 10, 9000, Standby), path(1, 5, 9000, Validating)], None);
    }

    #[test]
    fn the_pacer_holds_a_packet_back_as_the_window_does() {
        let mut paced = path(0, 10, 9000, PathStatus::Usable);
        paced.pacing_budget = 100;
        check(&[paced], None);
    }
}
