//! A path as a lane may use it: its state, and the limits of policies.

use crate::{PathSnapshot, PathStatus};

/// A path at one moment, as offered to a lane; policies' limits are the fields beside the snapshot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathOffer<'a> {
    /// The state of the path.
    pub snapshot: &'a PathSnapshot,
    /// Bytes of the lane that wait for this path alone.
    pub queued_bytes: u64,
    /// Whether policies allow the packet here.
    pub may_send: bool,
    /// Bytes of repairs that policies allow here now; `u64::MAX`: unlimited.
    pub redundancy_room: u64,
}

impl<'a> PathOffer<'a> {
    /// The path without restrictions or waiting packets.
    pub fn free(snapshot: &'a PathSnapshot) -> Self {
        Self { snapshot, queued_bytes: 0, may_send: true, redundancy_room: u64::MAX }
    }

    /// Whether the packet may go here, and the path has this status.
    pub fn has_status(&self, status: PathStatus) -> bool {
        self.may_send && self.snapshot.status == status
    }

    /// Whether the packet may go here, and the path answers.
    pub fn is_usable(&self) -> bool {
        self.has_status(PathStatus::Usable)
    }

    /// Whether the packet may go here, and the path takes data, even if it does not answer now.
    pub fn takes_data(&self) -> bool {
        self.is_usable() || self.has_status(PathStatus::Suspect)
    }

    /// Bytes of redundancy that its policy allows beyond the waiting ones.
    pub fn redundancy_left(&self) -> u64 {
        self.snapshot.redundancy_left.saturating_sub(self.queued_bytes)
    }

    /// Bytes of repairs that window and policy allow after the waiting bytes.
    pub fn repair_room(&self) -> u64 {
        self.window_for_repairs().saturating_sub(self.taken())
    }

    /// The part of the congestion window that is taken, or open to repairs.
    pub fn window_for_repairs(&self) -> u64 {
        let open = self.taken().saturating_add(self.redundancy_room);
        self.snapshot.congestion_window.min(open)
    }

    fn taken(&self) -> u64 {
        self.snapshot.bytes_in_flight.saturating_add(self.queued_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::PathId;

    fn path(status: PathStatus) -> PathSnapshot {
        let idle = PathSnapshot::idle(PathId(0), Duration::from_millis(40), 9_000);
        PathSnapshot { status, bytes_in_flight: 2_000, redundancy_left: 3_000, ..idle }
    }

    #[test]
    fn what_policy_forbids_is_no_property_of_the_path() {
        use PathStatus::{Standby, Suspect, Usable, Validating};
        for (status, usable, takes_data) in [
            (Usable, true, true),
            (Suspect, false, true),
            (Standby, false, false),
            (Validating, false, false),
        ] {
            let path = path(status);
            let free = PathOffer::free(&path);
            assert_eq!((free.is_usable(), free.takes_data()), (usable, takes_data));
            let forbidden = PathOffer { may_send: false, ..free };
            assert!(!forbidden.is_usable() && !forbidden.takes_data());
            assert!(free.has_status(status) && !forbidden.has_status(status));
            assert_eq!(forbidden.snapshot.status, status);
        }
    }

    #[test]
    fn repairs_have_the_room_that_window_and_policy_leave() {
        let path = path(PathStatus::Usable);
        let check = |queued_bytes, redundancy_room, room, window, left| {
            let free = PathOffer::free(&path);
            let offer = PathOffer { queued_bytes, redundancy_room, ..free };
            assert_eq!((offer.repair_room(), offer.window_for_repairs()), (room, window));
            assert_eq!(offer.redundancy_left(), left);
        };
        check(0, u64::MAX, 7_000, 9_000, 3_000);
        check(1_000, u64::MAX, 6_000, 9_000, 2_000);
        check(1_000, 500, 500, 3_500, 2_000);
        check(1_000, 0, 0, 3_000, 2_000);
        check(8_000, 500, 0, 9_000, 0);
    }
}
