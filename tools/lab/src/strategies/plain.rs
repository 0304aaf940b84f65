//! The scheduler of `minrtt-silent`: the path with the lowest smoothed round trip that has room, as
//! multipath TCP and multipath QUIC choose it, even if the path has stopped answering.

use roadweave_proto::{Instant, PathOffer};
use roadweave_schedule::{Decision, PacketInfo, PathSet, Scheduler};

#[derive(Debug)]
pub(super) struct Plain;

impl Scheduler for Plain {
    fn select(&mut self, _now: Instant, packet: &PacketInfo, paths: &[PathOffer<'_>]) -> Decision {
        let bytes = packet.bytes as u64;
        let paths = paths.iter().enumerate();
        let with_room = paths.filter(|(_, it)| it.takes_data() && it.snapshot.room() >= bytes);
        let fastest = with_room.min_by_key(|(_, it)| (it.snapshot.smoothed_rtt, it.snapshot.id));
        fastest.map_or(Decision::Wait, |(at, _)| Decision::Send(PathSet::one(at)))
    }
}
