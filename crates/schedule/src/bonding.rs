//! `bonding`: each flow on one uplink, chosen by a hash of its 5-tuple.
//!
//! Source: CellFusion section 8.1.2, whose BONDING hashes the 5-tuple to a cellular interface.
//!
//! What bonding routers do. It keeps a flow in order and gives a single flow no more than one link,
//! nor a way around it when it is bad: a bond knows which interfaces are up, not how they do. The
//! choice is by rendezvous (highest random weight), so that a path that comes or goes moves only
//! its own flows.

use roadweave_types::{Instant, PathOffer, PathSnapshot, SplitMix64};

use crate::{Decision, PacketInfo, PathSet, Scheduler};

/// The scheduler of flows.
#[derive(Debug, Default)]
pub struct Bonding;

impl Scheduler for Bonding {
    fn select(&mut self, _now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
        let chosen = paths
            .iter()
            .enumerate()
            .filter(|(_, path)| path.takes_data())
            .map(|(at, path)| (at, path.snapshot))
            .max_by_key(|(_, path)| (weight(packet.flow, path), path.id));
        match chosen {
            Some((at, path)) if path.room() >= packet.bytes as u64 => {
                Decision::Send(PathSet::one(at))
            }
            _ => Decision::Wait,
        }
    }

    fn keeps_flows(&self) -> bool {
        true
    }

    /// A video has one path, and nobody knows here which.
    fn share_of(&self, paths: &[PathOffer<'_>], rooms: &[f64]) -> f64 {
        let rooms = paths.iter().zip(rooms).filter(|(path, _)| path.is_usable());
        rooms.map(|(_, room)| *room).reduce(f64::min).unwrap_or_default()
    }
}

/// What a path weighs for a flow: the finalizer of SplitMix64 over both. The uplink counts where it
/// is known, so that a path which is opened anew gets its flows back.
fn weight(flow: u64, path: &PathSnapshot) -> u64 {
    let key = match path.uplink {
        Some(uplink) => u64::from(uplink.0) << 32 | 1,
        None => u64::from(path.id.0) << 32,
    };
    SplitMix64::mix(flow ^ key.wrapping_mul(SplitMix64::GAMMA))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Among, packet, path};

    fn choose(flow: u64, paths: &[PathSnapshot]) -> Option<u32> {
        let packet = PacketInfo { flow, ..packet(1200) };
        match Bonding.select_among(Instant::ZERO, &packet, paths) {
            Decision::Send(chosen) => chosen.iter().next().map(|at| paths[at].id.0),
            Decision::Wait => None,
        }
    }

    #[test]
    fn a_flow_stays_on_its_path_and_flows_share_all_paths() {
        let paths = [path(0, 20, 9000), path(1, 30, 9000), path(2, 90, 9000)];
        let mut counts = [0; 3];
        for flow in 0..300 {
            let chosen = choose(flow, &paths).expect("all have room");
            counts[chosen as usize] += 1;
            // The path is full: the flow waits for it, and does not move.
            let mut full = paths.clone();
            full[chosen as usize].bytes_in_flight = 9000;
            assert_eq!(choose(flow, &full), None);
        }
        assert!(counts.iter().all(|count| *count > 70), "{counts:?}");
    }

    #[test]
    fn a_path_that_goes_moves_only_its_own_flows() {
        let all = [path(0, 20, 9000), path(1, 30, 9000), path(2, 90, 9000)];
        for flow in 0..100 {
            let before = choose(flow, &all).expect("all have room");
            let after = choose(flow, &all[..2]).expect("both have room");
            assert!(before == 2 || before == after, "flow {flow}: {before}, then {after}");
        }
    }
}
