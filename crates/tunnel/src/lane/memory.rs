//! The memory that a lane holds.

use serde::{Deserialize, Serialize};

/// Bytes held, by use, with allowances for bookkeeping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStats {
    /// Received packets kept for decoding, and coded packets that are not solved.
    pub decoder_bytes: u64,
    /// Packets that wait for earlier ones.
    pub reorder_bytes: u64,
    /// Fragments of packets, and parts of datagrams.
    pub fragment_bytes: u64,
    /// Packets, copies and repairs that wait for a free window.
    pub queue_bytes: u64,
    /// Packets that were sent and may have to be repaired.
    pub encoder_bytes: u64,
    /// State of the flows.
    pub flow_bytes: u64,
}

impl MemoryStats {
    /// The sum.
    pub fn total(&self) -> u64 {
        self.decoder_bytes
            + self.reorder_bytes
            + self.fragment_bytes
            + self.queue_bytes
            + self.encoder_bytes
            + self.flow_bytes
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.decoder_bytes += other.decoder_bytes;
        self.reorder_bytes += other.reorder_bytes;
        self.fragment_bytes += other.fragment_bytes;
        self.queue_bytes += other.queue_bytes;
        self.encoder_bytes += other.encoder_bytes;
        self.flow_bytes += other.flow_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_added() {
        let one = MemoryStats {
            decoder_bytes: 1,
            reorder_bytes: 20,
            fragment_bytes: 300,
            queue_bytes: 4_000,
            encoder_bytes: 50_000,
            flow_bytes: 600_000,
        };
        let mut sum = one;
        sum.add(&one);
        assert_eq!((one.total(), sum.total()), (654_321, 2 * 654_321));
    }
}
