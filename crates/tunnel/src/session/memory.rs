//! The share of memory of a session, whatever the peer sends.
//!
//! ```text
//! lanes: [ decoder, reorder, fragments ] x 8, [ queue, sent packets ] x 8 ─► sum ─► more than the share?
//! parts of datagrams                     the largest holder drops its oldest ◄────────────────┘
//! ```
//!
//! Each part has its own bound, together some 200 MiB. Few sessions need a tenth.

use roadweave_proto::LaneId;

pub(super) enum Holder {
    Sender(usize),
    Receiver(LaneId),
    Parts,
}

#[derive(Debug)]
pub(super) struct MemoryShare {
    max: u64,
    /// Bytes that came in since memory was last summed up.
    unchecked: usize,
}

impl MemoryShare {
    pub(super) fn new(max: usize) -> Self {
        Self { max: max as u64, unchecked: 0 }
    }

    /// Returns whether memory must be summed up.
    pub(super) fn on_incoming(&mut self, bytes: usize) -> bool {
        self.unchecked += bytes + PACKET_OVERHEAD;
        self.unchecked > UNCHECKED_MAX
    }

    /// Memory was summed up. Returns to how many bytes it must shrink, if it is too much.
    pub(super) fn on_sum(&mut self, held: u64) -> Option<u64> {
        self.unchecked = 0;
        (held > self.max).then_some(self.max - self.max / SLACK)
    }
}

/// Bytes that may come in before memory is summed up again, which is costly.
const UNCHECKED_MAX: usize = 64 << 10;
const PACKET_OVERHEAD: usize = 640;
/// Beyond the share, one part in this many is freed, so that the next check is not due at once.
const SLACK: u64 = 16;
