//! Packets that a client sends before the anchor knows that it is here: kept for a moment.
//!
//! ```text
//! inner packet ─► attached? ─ yes ─► leg
//!                     └ no ─► held ─┬─ attached ─────────────────────► leg, in order
//!                                   └─ 300 ms, or more than fits ─► dropped, and counted
//! ```
//!
//! A client that moves here sends at once, before its binding is answered, and does not repeat it.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::Instant;

#[derive(Debug, Default)]
pub(super) struct Held {
    packets: VecDeque<(Instant, Bytes)>,
    pub(super) bytes: usize,
}

impl Held {
    pub(super) fn push(&mut self, now: Instant, packet: &[u8]) -> usize {
        self.bytes += packet.len() + OVERHEAD_BYTES;
        self.packets.push_back((now, Bytes::copy_from_slice(packet)));
        let before = self.packets.len();
        while self.bytes > BYTES_MAX && self.pop().is_some() {}
        before - self.packets.len()
    }

    pub(super) fn expire(&mut self, now: Instant) -> usize {
        let before = self.packets.len();
        while self.due().is_some_and(|due| due <= now) && self.pop().is_some() {}
        before - self.packets.len()
    }

    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let (_, packet) = self.packets.pop_front()?;
        self.bytes -= packet.len() + OVERHEAD_BYTES;
        Some(packet)
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.packets.front().map(|(since, _)| *since + AGE_MAX)
    }
}

/// How long a packet is kept: a lost binding is repeated by then.
const AGE_MAX: Duration = Duration::from_millis(300);
/// The most that one attachment may keep: 140 ms of 30 Mbit/s.
const BYTES_MAX: usize = 512 << 10;
const OVERHEAD_BYTES: usize = 64;
pub(super) const ALL_BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_in_bytes_and_in_age_and_goes_in_order() {
        let (mut held, packet) = (Held::default(), [7; 1_136]);
        let dropped: usize =
            (0..1_000).map(|ms| held.push(Instant::from_millis(ms), &packet)).sum();
        let fit = BYTES_MAX / 1_200;
        assert_eq!((dropped, held.bytes), (1_000 - fit, fit * 1_200));
        assert_eq!(held.due(), Some(Instant::from_millis(1_300 - fit as u64)));
        assert_eq!(held.expire(Instant::from_millis(1_289)), fit - 10);
        held.push(Instant::from_millis(1_289), &[9]);
        let rest: Vec<usize> =
            std::iter::from_fn(|| held.pop()).map(|packet| packet.len()).collect();
        assert_eq!((rest.len(), rest.last()), (11, Some(&1)));
        assert_eq!((held.bytes, held.due()), (0, None));
    }
}
