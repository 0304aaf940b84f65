//! The scheduler of `xnc-sigcomm23`: the path with the lowest smoothed round trip among those with
//! room in their windows. A packet held back by the pacer of that path waits.
//!
//! Source: CellFusion section 4.2.

use roadweave_proto::{Instant, PathOffer};
use roadweave_schedule::{Decision, PacketInfo, PathSet, Scheduler, best_status};

#[derive(Debug)]
pub(super) struct Window;

impl Scheduler for Window {
    fn select(&mut self, _now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
        let Some(status) = best_status(paths) else { return Decision::Wait };
        let has_window = |path: &PathOffer<'_>| {
            let waiting = path.queued_bytes.saturating_add(packet.bytes as u64);
            path.has_status(status) && path.snapshot.window_room() >= waiting
        };
        let fastest = paths
            .iter()
            .enumerate()
            .filter(|(_, path)| has_window(path))
            .min_by_key(|(_, path)| (path.snapshot.smoothed_rtt, path.snapshot.id));
        fastest.map_or(Decision::Wait, |(at, _)| Decision::Send(PathSet::one(at)))
    }
}
