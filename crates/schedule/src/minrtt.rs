//! `minrtt`: the path with the lowest smoothed round-trip time that has room. `prompt`: the same by the
//! round-trip time that the packet is expected to have. `patient`: as `prompt`, but a path that is
//! far away is used only by what has waited for long.
//!
//! Source: CellFusion section 4.2, which takes min-RTT from multipath TCP's default scheduler. `prompt` is ours: the
//! smoothed round-trip time is that of packets which left long ago, and so the video follows a link into its
//! queue, and stays away from one whose queue has long been empty ([`PathSnapshot::expected_rtt`]).
//!
//! Two things the papers leave open:
//!
//! - A path that stopped answering keeps the low round-trip time of its good days, and would swallow
//!   a window of packets each time it looks free. So a path that is [`PathStatus::Suspect`] gets data
//!   only when no path answers at all.
//! - A video frame comes as a burst, and the pacer of a fast path lets it through within milliseconds.
//!   To send the rest on a path that is slower by a hundred would be absurd:
//!
//! ```text
//! now       the faster paths' pacers have passed the backlog      a packet sent now on the slow path
//!  |------------------------|-- round trip of the faster --|                     arrives |
//!                                                          '--- then waiting wins -------'
//! ```
//!
//! Round-trip times compare as arrival times do, since all acknowledgements return on one path.
//!
//! `patient` is for transfers whose packets keep their order, and so are as late as the slowest path that one
//! of them took. A transfer with a window of W bytes carries W by the round trip of the near path, and once packets of it
//! go the far way W by the round trip of that. So the far path adds something only if more waits than the near
//! path passes within its lead, the first inequality of ECF (Lim et al., CoNEXT 2017). Three things differ:
//!
//! - What the near path passes by then is more than its rate tells: a path that begins doubles its rate with each round
//!   trip, and so does the transfer; what is sent the far way in the meantime ends that.
//! - What has waited for one and a half leads goes the far way all the same: rates do not double for ever.
//! - A near path whose window is full is waited for only beside one that is more than [`FAR`] times as far. On recorded
//!   drives, where round trips are alike and rates change, a full window often is one that stays full.
//!
//! ```text
//! rate       near path now
//!  |      .-'|  2^(lead / round trip)
//!  |  _.-'   |  the area: what passes before a packet that goes the far way now would arrive.
//!  |''       |            Less waits: wait. More waits: send.
//!  '--lead---'
//! ```

use std::time::Duration;

use roadweave_types::{Instant, PathSnapshot, Rate};

use crate::{Decision, PacketInfo, PathSet, Scheduler, best_status};

/// The min-RTT scheduler.
#[derive(Debug, Default)]
pub struct MinRtt {
    by: RoundTrip,
    /// Whether packets wait before they go a far way.
    is_patient: bool,
}

/// Beside a path of so many times the round trip a full window is waited for. With `prompt` transfers of 20 MiB over 20 and 320 ms
/// and over 35 and 320 ms got 0.75 to 0.84 of what the better link alone gives, and 0.93 to 1.0 so; transfers of 10 s on the recorded drives
/// 003, 010, 017, 024, 031, 038, 045 and 052 67.4 and 67.2 Mbit/s in the mean, on 000, 015, 030 and 045 51.3 and 50.4, with 1 50.1.
const FAR: u32 = 2;
/// Nothing doubles for longer than for so many round trips.
const ROUNDS_MAX: f64 = 16.0;

/// Which round-trip time of a path counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RoundTrip {
    /// That of the packets acknowledged of late.
    #[default]
    Smoothed,
    /// That of a packet which leaves now.
    Expected,
}

impl MinRtt {
    /// The scheduler that goes by what is expected, `prompt`.
    pub fn prompt() -> Self {
        Self { by: RoundTrip::Expected, is_patient: false }
    }

    /// The scheduler for packets that keep their order, `patient`.
    pub fn patient() -> Self {
        Self { by: RoundTrip::Expected, is_patient: true }
    }

    fn rtt(&self, path: &PathSnapshot) -> Duration {
        match self.by {
            RoundTrip::Smoothed => path.smoothed_rtt,
            RoundTrip::Expected => path.expected_rtt,
        }
    }

    /// How long `backlog` bytes take over `paths`, pacing and round trip together; `None` without paths.
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
    fn select(&mut self, _now: Instant, packet: &PacketInfo, paths: &[PathSnapshot]) -> Decision {
        let status = best_status(paths);
        let bytes = packet.bytes as u64;
        let with_window =
            |path: &&PathSnapshot| Some(path.status) == status && path.window_room() >= bytes;
        let Some((position, fastest)) = paths
            .iter()
            .enumerate()
            .filter(|(_, path)| with_window(path) && path.pacing_budget >= bytes)
            .min_by_key(|(_, path)| (self.rtt(path), path.id))
        else {
            return Decision::Wait;
        };
        let rtt = self.rtt(fastest);
        if self.is_patient {
            let faster = paths.iter().filter(|path| {
                let is_open = path.window_room() >= bytes || rtt > self.rtt(path) * FAR;
                Some(path.status) == status && is_open && self.rtt(path) < rtt
            });
            let leads = faster.map(|path| (path, rtt - self.rtt(path)));
            let (passed, lead) =
                leads.fold((0.0, Duration::ZERO), |(passed, longest), (path, lead)| {
                    (passed + passed_within(path, lead), longest.max(lead))
                });
            let has_waited = packet.waited > lead + lead / 2;
            return match !has_waited && (packet.backlog_bytes as f64) < passed {
                true => Decision::Wait,
                false => Decision::Send(PathSet::one(position)),
            };
        }
        let faster = paths.iter().filter(with_window).filter(|path| self.rtt(path) < rtt);
        match self.time_to_arrive(faster, packet.backlog_bytes) {
            Some(time) if time < rtt => Decision::Wait,
            _ => Decision::Send(PathSet::one(position)),
        }
    }
}

/// The bytes that `path` passes within `lead` if its rate doubles with each round trip.
fn passed_within(path: &PathSnapshot, lead: Duration) -> f64 {
    let round = path.smoothed_rtt.min(path.expected_rtt).as_secs_f64().max(1e-3);
    let rate = match path.pacing_rate {
        Some(rate) => rate.as_bps() as f64 / 8.0,
        None => path.congestion_window as f64 / path.smoothed_rtt.as_secs_f64().max(1e-3),
    };
    let rounds = (lead.as_secs_f64() / round).min(ROUNDS_MAX);
    rate * round / std::f64::consts::LN_2 * (rounds.exp2() - 1.0)
}

#[cfg(test)]
mod tests {
    use roadweave_types::PathStatus;

    use super::*;
    use crate::testing;

    fn path(id: u32, rtt_ms: u64, room: u64, status: PathStatus) -> PathSnapshot {
        PathSnapshot { status, ..testing::path(id, rtt_ms, room) }
    }

    fn packet(backlog_bytes: u64) -> PacketInfo {
        PacketInfo { backlog_bytes, ..testing::packet(1200) }
    }

    fn check(paths: &[PathSnapshot], expected: Option<usize>) {
        let decision = MinRtt::default().select(Instant::ZERO, &packet(1200), paths);
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
    fn prompt_leaves_a_path_that_pauses_and_returns_to_one_that_has_recovered() {
        let expected = |id, smoothed_ms, expected_ms| PathSnapshot {
            expected_rtt: Duration::from_millis(expected_ms),
            ..path(id, smoothed_ms, 9000, PathStatus::Usable)
        };
        let paths = [expected(0, 40, 120), expected(1, 300, 60)];
        let decision =
            |mut scheduler: MinRtt| scheduler.select(Instant::ZERO, &packet(1200), &paths);
        assert_eq!(decision(MinRtt::prompt()), Decision::Send(PathSet::one(1)));
        assert_eq!(decision(MinRtt::default()), Decision::Send(PathSet::one(0)));
    }

    #[test]
    fn the_pacer_holds_a_packet_back_as_the_window_does() {
        let mut paced = path(0, 10, 9000, PathStatus::Usable);
        paced.pacing_budget = 100;
        check(&[paced], None);
    }

    #[test]
    fn a_burst_waits_for_the_pacer_of_a_fast_path_unless_a_slower_one_is_sooner() {
        let mut fast = path(0, 40, 900_000, PathStatus::Usable);
        fast.pacing_budget = 0;
        fast.pacing_rate = Some(Rate::from_kbps(100_000));
        let paths = [fast, path(1, 50, 9000, PathStatus::Usable)];
        let select = |backlog| MinRtt::default().select(Instant::ZERO, &packet(backlog), &paths);
        // At 100 Mbit/s, 9 ms pass 112,500 bytes.
        assert_eq!(select(100_000), Decision::Wait);
        assert_eq!(select(150_000), Decision::Send(PathSet::one(1)));
    }

    #[test]
    fn what_keeps_its_order_goes_a_far_way_only_when_more_waits_than_the_near_one_passes_by_then() {
        let select = |mut scheduler: MinRtt, far_ms, backlog| {
            // 12,000 bytes in each 40 ms, a full window.
            let mut near = path(0, 40, 12_000, PathStatus::Usable);
            near.bytes_in_flight = 12_000;
            let paths = [near, path(1, far_ms, 9000, PathStatus::Usable)];
            scheduler.select(Instant::ZERO, &packet(backlog), &paths)
        };
        let sent = Decision::Send(PathSet::one(1));
        // Twice more: 12,000, 24,000 in the rounds to come, by the integral 3 / ln 2 of the first.
        assert_eq!(select(MinRtt::patient(), 120, 51_000), Decision::Wait);
        assert_eq!(select(MinRtt::patient(), 120, 53_000), sent);
        assert_eq!(select(MinRtt::patient(), 80, 1200), sent, "not far");
        assert_eq!(select(MinRtt::prompt(), 120, 1200), sent);
    }
}
