//! `bonding`: each flow on one uplink, chosen by a hash of its 5-tuple.
//!
//! Source: CellFusion section 8.1.2, whose BONDING hashes the 5-tuple to a cellular interface.
//!
//! Like a bonding router, it keeps a flow in order on one link even if that link is bad, since a
//! bond knows which interfaces are up and not how they perform. The choice is by rendezvous hashing
//! (highest random weight), so that a path that appears or disappears moves only its own flows.

use roadweave_proto::{Instant, PathOffer, PathSnapshot, SplitMix64};
use roadweave_schedule::{Decision, PacketInfo, PathSet, Scheduler};

#[derive(Debug)]
pub(super) struct Bonding;

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

    /// The path of a video is not known here.
    fn share_of(&self, paths: &[PathOffer<'_>], rooms: &[f64]) -> f64 {
        let rooms = paths.iter().zip(rooms).filter(|(path, _)| path.is_usable());
        rooms.map(|(_, room)| *room).reduce(f64::min).unwrap_or_default()
    }
}

/// The weight of a path for a flow: the finalizer of SplitMix64 over both. The uplink is used if it
/// is known, so that a reopened path gets its flows back.
fn weight(flow: u64, path: &PathSnapshot) -> u64 {
    let key = match path.uplink {
        Some(uplink) => u64::from(uplink.0) << 32 | 1,
        None => u64::from(path.id.0) << 32,
    };
    SplitMix64::mix(flow ^ key.wrapping_mul(SplitMix64::GAMMA))
}
