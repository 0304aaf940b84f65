//! `redundant`: every packet on every path that has window; the first copy to arrive wins.
//!
//! Source: the redundant framework (Networking'24) section III-A; RE of CellFusion section 8.3.
//!
//! A suspect path gets copies as its window allows. A packet waits only when no path has window.

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
    use crate::testing::{Among, packet, path, to, to_all};

    #[test]
    fn every_path_with_window_gets_a_copy() {
        let silent = PathSnapshot { status: PathStatus::Suspect, ..path(2, 90, 9000) };
        let idle = PathSnapshot { status: PathStatus::Standby, ..path(3, 10, 9000) };
        let paths = [path(0, 20, 9000), path(1, 30, 1199), silent, idle];
        assert_eq!(Redundant.choose(&paths), to_all(&[0, 2]));
        let paced = PathSnapshot { pacing_budget: 0, ..path(4, 20, 9000) };
        assert_eq!(Redundant.choose(std::slice::from_ref(&paced)), to(0), "it waits there");
        let queued = PathOffer { queued_bytes: 8000, ..PathOffer::free(&paced) };
        assert_eq!(Redundant.select(Instant::ZERO, &packet(1200), &[queued]), Decision::Wait);
        assert_eq!(Redundant.choose(&[path(0, 20, 0), path(1, 30, 0)]), Decision::Wait);
    }
}
