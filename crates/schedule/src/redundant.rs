//! `redundant`: every packet on every path that has window; the first copy to arrive wins.
//!
//! Source: the redundant framework (Networking'24) section III-A; CellFusion section 8.3 calls it
//! RE.
//!
//! A path that stopped answering gets its copies as well, as far as its window reaches: here
//! nothing is lost by trying. Where a pacer holds a copy back, the copy waits for it, and is
//! withdrawn if another comes first. A path without window gets none; only when no path has window
//! does the packet wait.

use roadweave_proto::{Instant, PathOffer};

use crate::{Decision, PacketInfo, PathSet, Scheduler};

/// The scheduler that sends everything everywhere.
#[derive(Debug, Default)]
pub struct Redundant;

impl Scheduler for Redundant {
    fn select(&mut self, _now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
        let takes = |path: &PathOffer<'_>| {
            path.takes_data()
                && path.snapshot.window_room() >= path.queued_bytes + packet.bytes as u64
        };
        let chosen: PathSet = (0..paths.len()).filter(|at| takes(&paths[*at])).collect();
        if chosen.is_empty() { Decision::Wait } else { Decision::Send(chosen) }
    }

    /// The first copy counts.
    fn share_of(&self, _paths: &[PathOffer<'_>], rooms: &[f64]) -> f64 {
        rooms.iter().copied().fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use roadweave_proto::{PathSnapshot, PathStatus};

    use super::*;
    use crate::testing::{Among, packet, path};

    #[test]
    fn every_path_with_window_gets_a_copy() {
        let select =
            |paths: &[PathSnapshot]| Redundant.select_among(Instant::ZERO, &packet(1200), paths);
        let mut silent = path(2, 90, 9000);
        silent.status = PathStatus::Suspect;
        let mut idle = path(3, 10, 9000);
        idle.status = PathStatus::Standby;
        let paths = [path(0, 20, 9000), path(1, 30, 1199), silent, idle];
        assert_eq!(select(&paths), Decision::Send([0, 2].into_iter().collect()));
        let mut paced = path(4, 20, 9000);
        paced.pacing_budget = 0;
        assert_eq!(select(&[paced.clone()]), Decision::Send(PathSet::one(0)), "it waits there");
        let queued = PathOffer { queued_bytes: 8000, ..PathOffer::free(&paced) };
        let decision = Redundant.select(Instant::ZERO, &packet(1200), &[queued]);
        assert_eq!(decision, Decision::Wait);
        assert_eq!(select(&[path(0, 20, 0), path(1, 30, 0)]), Decision::Wait);
    }
}
