//! Tenants apart: several anchors on one machine, whose inner addresses may be the same.
//!
//! ```text
//! in by the TUN ──► zone N for this direction, mark N ──► table of the anchor, or the machine's
//! answers ────────► zone 0, where source NAT makes them unique ─► their connection began in zone N:
//!                   mark N ──► rule ──► table of the anchor ──► the same TUN
//! ```
//!
//! What tells tenants apart is the interface alone, never an inner address:
//!
//! - **Connections**: equal tuples of two tenants are different connections, since what comes out
//!   of a TUN is looked up in the conntrack zone of its anchor. A zone stays with its connection
//!   whatever others do to its mark. It is set before fragments are gathered, so that those of two
//!   tenants never make one packet.
//! - **Routes**: an anchor's prefixes lie in a table of its own, which three rules lead to: what
//!   came in by its TUN, what bears its mark, and sockets bound to the TUN. Beside each lies a
//!   route that refuses, and outlives a crash: no answer falls through to another's TUN.
//! - **Filters**: the TUNs of all anchors are in one group of interfaces; nothing passes from one
//!   of them to another, and no answer enters a TUN that its connection did not begin in.
//!
//! One number stands for all three. It comes from the instance's name, so that connections survive
//! a restart; where others use it the anchor does not start (see [`crate::Routes::keep_apart`]).
//! Its mark has the bits of [`Marks::above_mask`]; all others stay what others have made them.

use roadweave_proto::Marks;

use crate::Instance;

/// What stands for one anchor in marks, zones and rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apart {
    number: u16,
    marks: Marks,
}

impl Apart {
    /// The number of an instance, and its mark.
    pub fn of(instance: &Instance) -> Self {
        Self { number: instance.number(), marks: instance.marks() }
    }

    /// Its conntrack zone. Zero is that of everybody else.
    pub fn zone(self) -> u16 {
        self.number
    }

    /// Its mark, with the mask.
    pub fn mark(self) -> (u32, u32) {
        self.marks.anchor()
    }
}

/// The group of the TUNs of all anchors (`ip link show group 183`).
pub(crate) const GROUP: u32 = 183;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_have_numbers_of_their_own() {
        let of = |name| Apart::of(&Instance::new(name).unwrap());
        assert_eq!(of("rwa"), of("rwa"));
        assert_ne!(of("rwa"), of("rwb"));
        let (mark, mask) = of("rwa").mark();
        assert_eq!((mark & !mask, mark >> 16), (0, u32::from(of("rwa").zone())));
    }
}
