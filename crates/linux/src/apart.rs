//! Separates tenants: several anchors on one machine, whose inner addresses may be the same.
//!
//! ```text
//! in by the TUN ──► zone N for this direction, mark N ──► table of the anchor, or the machine's
//! answers ────────► zone 0, where source NAT makes them unique ─► their connection began in zone N:
//!                   mark N ──► rule ──► table of the anchor ──► the same TUN
//! ```
//!
//! Only the interface identifies a tenant, never an inner address:
//!
//! - **Connections**: packets from a TUN are looked up in its anchor's conntrack zone, so equal
//!   tuples of two tenants differ. The zone survives a change of mark and is set before reassembly.
//! - **Routes**: an anchor's prefixes are in its own table, which three rules select: by input TUN,
//!   by mark, and for sockets bound to the TUN. Each route has an unreachable route beside it that
//!   outlives a crash: no answer falls through to another's TUN.
//! - **Filters**: the TUNs of all anchors are in one interface group; nothing passes between them,
//!   and no answer enters a TUN that its connection did not begin in.
//!
//! One number, derived from the instance's name, identifies all three: connections survive a
//! restart. If it is taken, the anchor does not start. Its mark uses only [`Marks::above_mask`].

use roadweave_proto::Marks;

use crate::Instance;

/// The number of one anchor in marks, zones and rules.
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

    /// Its conntrack zone. Zero is the default zone.
    pub fn zone(self) -> u16 {
        self.number
    }

    /// Its mark and mask.
    pub fn mark(self) -> (u32, u32) {
        self.marks.anchor()
    }
}

/// The interface group of all anchors' TUNs (`ip link show group 183`).
pub(crate) const GROUP: u32 = 183;
