//! `single:<uplink>`: everything on one uplink, as if there were no other. A yardstick.

use roadweave_types::{Instant, PathSnapshot, PathStatus, UplinkId};

use crate::{Decision, PacketInfo, PathSet, Scheduler};

/// The scheduler of one uplink.
#[derive(Debug)]
pub struct Single {
    uplink: UplinkId,
}

impl Single {
    /// Uses the paths over `uplink` and no other.
    pub fn new(uplink: UplinkId) -> Self {
        Self { uplink }
    }
}

impl Scheduler for Single {
    fn select(&mut self, _now: Instant, packet: &PacketInfo, paths: &[PathSnapshot]) -> Decision {
        // With one link there is nothing to prefer to a suspect path.
        let may_carry = |path: &PathSnapshot| {
            path.uplink == Some(self.uplink)
                && matches!(path.status, PathStatus::Usable | PathStatus::Suspect)
                && path.room() >= packet.bytes as u64
        };
        paths
            .iter()
            .position(may_carry)
            .map_or(Decision::Wait, |position| Decision::Send(PathSet::one(position)))
    }
}
