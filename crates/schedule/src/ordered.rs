//! `ordered`: the path that a packet passes soonest; a far path takes only long-waiting packets.
//!
//! It is for transfers whose packets keep their order, and so are as late as the slowest path that
//! one of them took. A transfer with a window of W bytes carries W per round trip of the near path,
//! and once packets go the far way W per round trip of that. So the far path adds something only if
//! more waits than the near path passes in its lead (ECF: Lim et al., CoNEXT 2017). Differences:
//!
//! - A path that begins doubles its rate with each round trip, and so does the transfer; packets
//!   that go the far way end that. So the near path passes more than its rate says.
//! - A packet that has waited for one and a half leads goes the far way: rates stop doubling.
//! - A near path whose window is full is waited for only beside one that is much farther: now
//!   ([`FAR`]), or by its route ([`FAR_ROUTE_PERCENT`]). With like round trips it may stay full.
//!
//! The queue of a transfer lengthens the round trips of the near path, and not its route. The
//! acknowledgements wait in that queue, so that the near path seems slow at the other end and has a
//! small window. A few of them that go the far way hold up all that follow.
//!
//! ```text
//! rate       near path now
//!  |      .-'|  2^(lead / round trip)
//!  |  _.-'   |  the area: what passes before a packet that goes the far way now would arrive.
//!  |''       |            Less waits: wait. More waits: send.
//!  '--lead---'
//! ```

use std::time::Duration;

use roadweave_proto::{Instant, PathOffer, PathSnapshot};

use crate::minrtt::fastest_with_room;
use crate::{Decision, PacketInfo, PathSet, Scheduler};

/// The scheduler for packets that keep their order.
#[derive(Debug)]
pub struct Ordered;

/// With this many times the round trip, the transfer would be as slow as the far path.
const FAR: u32 = 2;
/// Of the near path's recent minimum round trip, without queues. Not more: luck shortens minima.
const FAR_ROUTE_PERCENT: u32 = 150;
const ROUNDS_MAX: f64 = 16.0;

impl Scheduler for Ordered {
    fn select(&mut self, _now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
        let bytes = packet.bytes as u64;
        let Some((position, soonest)) = fastest_with_room(paths, bytes, |path| path.expected_rtt)
        else {
            return Decision::Wait;
        };
        let rtt = soonest.expected_rtt;
        let nearer = paths
            .iter()
            .filter(|path| path.has_status(soonest.status))
            .map(|path| path.snapshot)
            .filter(|path| path.expected_rtt < rtt)
            .filter_map(|path| Some((path, rate_beside(soonest, path, bytes)?)));
        let (passed, lead) =
            nearer.fold((0.0, Duration::ZERO), |(passed, longest), (path, rate)| {
                let lead = rtt - path.expected_rtt;
                (passed + passed_within(path, rate, lead), longest.max(lead))
            });
        let has_waited = packet.waited > lead + lead / 2;
        match !has_waited && (packet.backlog_bytes as f64) < passed {
            true => Decision::Wait,
            false => Decision::Send(PathSet::one(position)),
        }
    }
}

/// The rate at which `path` passes what waits, bytes per second, if it is waited for beside `far`.
fn rate_beside(far: &PathSnapshot, path: &PathSnapshot, bytes: u64) -> Option<f64> {
    let windows = path.congestion_window as f64 / path.smoothed_rtt.as_secs_f64().max(1e-3);
    let paced = path.pacing_rate.map_or(windows, |rate| rate.as_bps() as f64 / 8.0);
    if far.min_rtt > path.min_rtt * FAR_ROUTE_PERCENT / 100 {
        return Some(paced.max(windows));
    }
    let is_open = path.window_room() >= bytes || far.expected_rtt > path.expected_rtt * FAR;
    is_open.then_some(paced)
}

/// The bytes that `path` passes within `lead` if `rate`, bytes per second, doubles each round trip.
fn passed_within(path: &PathSnapshot, rate: f64, lead: Duration) -> f64 {
    let round = path.smoothed_rtt.min(path.expected_rtt).as_secs_f64().max(1e-3);
    let rounds = (lead.as_secs_f64() / round).min(ROUNDS_MAX);
    let passed = rate * round / std::f64::consts::LN_2 * (rounds.exp2() - 1.0);
    let most = path.policy.rate_max.map(|most| most.bytes_per_second() * lead.as_secs_f64());
    most.map_or(passed, |most| passed.min(most))
}

#[cfg(test)]
mod tests {
    use roadweave_proto::Rate;

    use super::*;
    use crate::MinRtt;
    use crate::testing::{Among, packet_of, path, to};

    #[test]
    fn what_keeps_its_order_goes_a_far_way_only_when_more_waits_than_the_near_one_passes_by_then() {
        let select = |mut scheduler: Box<dyn Scheduler>, far_ms, backlog| {
            let near = PathSnapshot { bytes_in_flight: 12_000, ..path(0, 40, 12_000) };
            let paths = [near, path(1, far_ms, 9000)];
            scheduler.select_among(Instant::ZERO, &packet_of(backlog), &paths)
        };
        assert_eq!(select(Box::new(Ordered), 120, 51_000), Decision::Wait);
        assert_eq!(select(Box::new(Ordered), 120, 53_000), to(1));
        assert_eq!(select(Box::new(Ordered), 60, 1200), to(1), "not far");
        assert_eq!(select(Box::new(MinRtt::expected_rtt()), 120, 1200), to(1));
    }

    #[test]
    fn a_queue_of_its_own_makes_the_near_path_no_farther() {
        // Of 40,000 bytes under way more pass at 400,000 bytes per second for 100 ms.
        let ms = Duration::from_millis;
        let near =
            PathSnapshot { bytes_in_flight: 40_000, min_rtt: ms(40), ..path(0, 100, 40_000) };
        let select = |near: &PathSnapshot, far: PathSnapshot, backlog| {
            Ordered.select_among(Instant::ZERO, &packet_of(backlog), &[near.clone(), far])
        };
        let far = || path(1, 190, 9000);
        assert_eq!(select(&near, far(), 40_000), Decision::Wait);
        assert_eq!(select(&near, far(), 80_000), to(1), "more than it passes");
        let queued = PathSnapshot { min_rtt: ms(60), ..far() };
        assert_eq!(select(&near, queued, 40_000), to(1), "their routes are alike");
        // Acknowledgements are paced by what they are, until they fill a window.
        let paced = PathSnapshot {
            bytes_in_flight: 0,
            pacing_budget: 0,
            pacing_rate: Some(Rate::from_kbps(8)),
            ..near
        };
        assert_eq!(select(&paced, far(), 40_000), Decision::Wait);
    }
}
