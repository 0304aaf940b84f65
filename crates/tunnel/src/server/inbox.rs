//! Packets from the tunnel that wait for the device: a batch, unless they are not taken.

use std::collections::VecDeque;

use bytes::Bytes;

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    packets: VecDeque<Bytes>,
    /// Of all packets, with [`OVERHEAD_BYTES`] each.
    pub(crate) bytes: usize,
}

impl Inbox {
    pub(crate) fn push(&mut self, packet: Bytes) -> bool {
        let bytes = packet.len() + OVERHEAD_BYTES;
        let has_room = self.bytes + bytes <= BYTES_MAX;
        if has_room {
            self.bytes += bytes;
            self.packets.push_back(packet);
        }
        has_room
    }

    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let packet = self.packets.pop_front()?;
        self.bytes -= packet.len() + OVERHEAD_BYTES;
        Some(packet)
    }
}

/// What may wait: a batch of input, and what it released.
const BYTES_MAX: usize = 16 << 20;
const OVERHEAD_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_takes_is_bounded() {
        let (mut inbox, packet) = (Inbox::default(), Bytes::from(vec![0; 1_000]));
        let taken = (0..100_000).filter(|_| inbox.push(packet.clone())).count();
        assert!(inbox.bytes <= BYTES_MAX && taken == BYTES_MAX / 1_064, "{taken}");
        assert_eq!(std::iter::from_fn(|| inbox.pop()).count(), taken);
        assert_eq!(inbox.bytes, 0);
        assert!(inbox.push(packet));
    }
}
