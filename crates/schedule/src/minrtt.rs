//! `minrtt`: the path with the lowest smoothed round-trip time that has room. `expected-rtt`: the
//! path with room whose round-trip time is expected to be the lowest at worst, not in the mean.
//!
//! Source: CellFusion section 4.2, which takes min-RTT from multipath TCP's default scheduler.
//! `expected-rtt` is ours: the smoothed round-trip time is that of packets which left long ago, and
//! so the video follows a link into its queue, and stays away from one whose queue has long been
//! empty ([`PathSnapshot::expected_rtt`]). Half of the deviation counts as well.
//!
//! Two things the papers leave open:
//!
//! - A path that stopped answering keeps the low round trip of its good days, so a path that is
//!   [`PathStatus::Suspect`] gets data only when no path answers at all.
//! - A video frame comes as a burst, and the pacer of a fast path lets it through within
//!   milliseconds. Sending the rest on a path that is slower by a hundred would delay it:
//!
//! ```text
//! now       the faster paths' pacers have passed the backlog      a packet sent now on the slow path
//!  |------------------------|-- round trip of the faster --|                     arrives |
//!                                                          '--- then waiting wins -------'
//! ```
//!
//! Round-trip times compare as arrival times do, since all acknowledgements return on one path.

use std::time::Duration;

use roadweave_proto::{Instant, PathOffer, PathSnapshot, Rate};

use crate::{Decision, PacketInfo, PathSet, Scheduler, best_status};

/// The min-RTT scheduler.
#[derive(Debug, Default)]
pub struct MinRtt {
    by: RoundTrip,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RoundTrip {
    #[default]
    Smoothed,
    /// Of a packet that leaves now, with some of its uncertainty.
    Expected,
}

impl MinRtt {
    /// The scheduler `expected-rtt`.
    pub fn expected_rtt() -> Self {
        Self { by: RoundTrip::Expected }
    }

    fn rtt(&self, path: &PathSnapshot) -> Duration {
        match self.by {
            RoundTrip::Smoothed => path.smoothed_rtt,
            RoundTrip::Expected => path.expected_rtt.saturating_add(path.rtt_deviation / 2),
        }
    }

    /// The time until `backlog` bytes have arrived over `paths`; `None` without paths.
    fn time_to_arrive<'a>(
        &self,
        paths: impl Iterator<Item = &'a PathSnapshot>,
        backlog: u64,
    ) -> Option<Duration> {
        let mut rate = 0_u64;
        let mut slowest = None;
        for path in paths {
            rate = rate.saturating_add(path.pacing_rate.map_or(0, Rate::as_bps));
            slowest = slowest.max(Some(self.rtt(path)));
        }
        Some(slowest?.saturating_add(Rate::from_bps(rate).time_for(backlog)))
    }
}

impl Scheduler for MinRtt {
    fn select(&mut self, _now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
        let Some(status) = best_status(paths) else { return Decision::Wait };
        let bytes = packet.bytes as u64;
        let with_window = paths
            .iter()
            .filter(|path| path.has_status(status) && path.snapshot.window_room() >= bytes);
        let Some((position, fastest)) = fastest_with_room(paths, bytes, |path| self.rtt(path))
        else {
            return Decision::Wait;
        };
        let rtt = self.rtt(fastest);
        let faster = with_window.map(|path| path.snapshot).filter(|path| self.rtt(path) < rtt);
        match self.time_to_arrive(faster, packet.backlog_bytes) {
            Some(time) if time < rtt => Decision::Wait,
            _ => Decision::Send(PathSet::one(position)),
        }
    }
}

/// The path of the best status with room for `bytes` and the lowest round trip, and its position.
pub(crate) fn fastest_with_room<'a>(
    paths: &[PathOffer<'a>],
    bytes: u64,
    rtt: impl Fn(&PathSnapshot) -> Duration,
) -> Option<(usize, &'a PathSnapshot)> {
    let status = best_status(paths)?;
    let has_room = |path: &PathOffer<'a>| path.has_status(status) && path.snapshot.room() >= bytes;
    let with_room = paths.iter().enumerate().filter(|(_, path)| has_room(path));
    with_room.map(|(at, path)| (at, path.snapshot)).min_by_key(|(_, path)| (rtt(path), path.id))
}

#[cfg(test)]
mod tests {
    use roadweave_proto::PathStatus;

    use super::*;
    use crate::testing::{self, Among, packet_of, to};

    fn path(id: u32, rtt_ms: u64, room: u64, status: PathStatus) -> PathSnapshot {
        PathSnapshot { status, ..testing::path(id, rtt_ms, room) }
    }

    fn check(paths: &[PathSnapshot], expected: Option<usize>) {
        let expected = expected.map_or(Decision::Wait, to);
        assert_eq!(MinRtt::default().choose(paths), expected, "{paths:#?}");
    }

    #[test]
    fn the_fastest_path_with_room_wins() {
        use PathStatus::Usable;
        check(&[path(0, 60, 9000, Usable), path(1, 40, 9000, Usable)], Some(1));
        check(&[path(0, 60, 9000, Usable), path(1, 40, 1199, Usable)], Some(0));
        check(&[path(0, 60, 1199, Usable), path(1, 40, 0, Usable)], None);
        check(&[path(0, 40, 9000, Usable), path(1, 40, 9000, Usable)], Some(0));
        check(&[], None);
        let paced = PathSnapshot { pacing_budget: 100, ..path(0, 10, 9000, Usable) };
        check(&[paced], None);
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
    fn by_expected_rtt_it_leaves_a_path_that_pauses_and_returns_to_one_that_has_recovered() {
        let expected = |id, smoothed_ms, expected_ms| PathSnapshot {
            expected_rtt: Duration::from_millis(expected_ms),
            ..path(id, smoothed_ms, 9000, PathStatus::Usable)
        };
        let paths = [expected(0, 40, 120), expected(1, 300, 60)];
        assert_eq!(MinRtt::expected_rtt().choose(&paths), to(1));
        assert_eq!(MinRtt::default().choose(&paths), to(0));
    }

    #[test]
    fn by_expected_rtt_it_prefers_a_steady_path_to_one_that_is_a_little_faster_most_of_the_time() {
        let path = |id, rtt_ms: u64, deviation_ms| PathSnapshot {
            rtt_deviation: Duration::from_millis(deviation_ms),
            ..path(id, rtt_ms, 9000, PathStatus::Usable)
        };
        let select = |faster_by: u64| {
            MinRtt::expected_rtt().choose(&[path(0, 40, 4), path(1, 40 - faster_by, 20)])
        };
        assert_eq!(select(5), to(0));
        assert_eq!(select(12), to(1), "20 at worst, and 12 faster");
    }

    #[test]
    fn a_burst_waits_for_the_pacer_of_a_fast_path_unless_a_slower_one_is_sooner() {
        let fast = PathSnapshot {
            pacing_budget: 0,
            pacing_rate: Some(Rate::from_kbps(100_000)),
            ..path(0, 40, 900_000, PathStatus::Usable)
        };
        let paths = [fast, path(1, 50, 9000, PathStatus::Usable)];
        let select =
            |backlog| MinRtt::default().select_among(Instant::ZERO, &packet_of(backlog), &paths);
        assert_eq!(select(100_000), Decision::Wait);
        assert_eq!(select(150_000), to(1));
    }
}
