//! The scheduler of `pluribus`: the path with the earliest estimated arrival of the packet.
//!
//! Source: Pluribus (Mahajan et al., USENIX ATC 2012), for its source packets.
//!
//! ```text
//! estimate = what waits for the path / its rate  +  until its pacer lets the packet through  +  rtt / 2
//! ```
//!
//! A path with a full window has no estimate. If the best path is not ready, the packet waits.

use std::time::Duration;

use roadweave_proto::{Instant, PathOffer, Rate};
use roadweave_schedule::{Decision, PacketInfo, PathSet, Scheduler, best_status};

#[derive(Debug)]
pub(super) struct Earliest;

impl Scheduler for Earliest {
    fn select(&mut self, _now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
        let Some(status) = best_status(paths) else { return Decision::Wait };
        let bytes = packet.bytes as u64;
        let has_window =
            |path: &PathOffer<'_>| path.has_status(status) && !path.snapshot.is_full(bytes);
        let best = paths
            .iter()
            .enumerate()
            .filter(|(_, path)| has_window(path))
            .min_by_key(|(_, path)| (estimate(path, bytes), path.snapshot.id));
        match best {
            Some((at, path)) if path.snapshot.room() >= bytes => Decision::Send(PathSet::one(at)),
            _ => Decision::Wait,
        }
    }
}

fn estimate(offer: &PathOffer<'_>, bytes: u64) -> Duration {
    let path = offer.snapshot;
    let ahead = (offer.queued_bytes + bytes).saturating_sub(path.pacing_budget);
    let rate = path.pacing_rate.unwrap_or(Rate::from_bps(u64::MAX));
    path.smoothed_rtt / 2 + rate.time_for(ahead)
}
