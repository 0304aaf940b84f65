//! Reassembles the fragments of inner packets.
//!
//! Fragments of a packet have consecutive IDs, the first and the last are marked, and they come in
//! any order. Incomplete packets are dropped by age or for lack of memory, and counted.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_proto::wire::FragmentPosition;
use roadweave_proto::{DropCounters, DropReason, Instant, PacketId};

/// Waiting fragments, at most: some 700 kB.
const FRAGMENTS_MAX: usize = 512;
const OVERHEAD_BYTES: usize = 128;
/// Fragments of one packet, at most: an IP packet has 65,535 bytes, a datagram at least 1,100.
const PIECES_MAX: u32 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) first: PacketId,
    pub(crate) last: PacketId,
    pub(crate) body: Bytes,
}

#[derive(Debug, Default)]
pub(crate) struct Fragments {
    pieces: BTreeMap<u32, (FragmentPosition, Bytes)>,
    arrivals: VecDeque<(Instant, PacketId)>,
    pub(crate) bytes: usize,
    pub(crate) age_max: Duration,
    pub(crate) drops: DropCounters,
}

impl Fragments {
    pub(crate) fn new(age_max: Duration) -> Self {
        Self { age_max, ..Self::default() }
    }

    pub(crate) fn shed(&mut self, bytes: usize) {
        let target = self.bytes.saturating_sub(bytes);
        while self.bytes > target && !self.arrivals.is_empty() {
            self.drop_oldest(DropReason::MemoryShare);
        }
    }

    pub(crate) fn insert(
        &mut self,
        now: Instant,
        id: PacketId,
        position: FragmentPosition,
        body: Bytes,
    ) -> Option<Joined> {
        while self.arrivals.front().is_some_and(|(since, _)| now.since(*since) > self.age_max) {
            self.drop_oldest(DropReason::IncompleteFragments);
        }
        if self.arrivals.len() >= FRAGMENTS_MAX {
            self.drop_oldest(DropReason::ReceiveMemory);
        }
        self.bytes += body.len() + OVERHEAD_BYTES;
        if let Some((_, before)) = self.pieces.insert(id.0, (position, body)) {
            self.bytes -= before.len() + OVERHEAD_BYTES;
        }
        self.arrivals.push_back((now, id));
        let first = self.boundary(id, FragmentPosition::First, u32::MAX)?;
        let last = self.boundary(id, FragmentPosition::Last, 1)?;
        let count = last.0.wrapping_sub(first.0).wrapping_add(1);
        if count > PIECES_MAX {
            return None;
        }
        let mut packet = BytesMut::new();
        for offset in 0..count {
            let (_, body) = self.pieces.remove(&first.plus(offset).0)?;
            self.bytes -= body.len() + OVERHEAD_BYTES;
            packet.extend_from_slice(&body);
        }
        self.arrivals.retain(|(_, id)| self.pieces.contains_key(&id.0));
        Some(Joined { first, last, body: packet.freeze() })
    }

    fn boundary(&self, id: PacketId, wanted: FragmentPosition, step: u32) -> Option<PacketId> {
        let mut at = id;
        for _ in 0..PIECES_MAX {
            match self.pieces.get(&at.0)?.0 {
                position if position == wanted => return Some(at),
                FragmentPosition::Middle => {}
                // The fragment itself may be the opposite end; beyond it lies another packet.
                _ if at == id => {}
                _ => return None,
            }
            at = at.plus(step);
        }
        None
    }

    fn drop_oldest(&mut self, reason: DropReason) {
        if let Some((_, id)) = self.arrivals.pop_front()
            && let Some((_, body)) = self.pieces.remove(&id.0)
        {
            self.bytes -= body.len() + OVERHEAD_BYTES;
            self.drops.count(reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AGE_MAX: Duration = Duration::from_millis(700);

    fn insert(
        fragments: &mut Fragments,
        ms: u64,
        id: u32,
        position: FragmentPosition,
        body: &'static [u8],
    ) -> Option<Joined> {
        let body = Bytes::from_static(body);
        fragments.insert(Instant::from_millis(ms), PacketId(id), position, body)
    }

    fn pieces(start: u32, sizes: &[usize]) -> Vec<(PacketId, FragmentPosition, Bytes)> {
        let mut id = PacketId(start);
        let mut all = Vec::new();
        for (packet, size) in sizes.iter().enumerate() {
            for at in 0..*size {
                let position = match at {
                    _ if at + 1 == *size => FragmentPosition::Last,
                    0 => FragmentPosition::First,
                    _ => FragmentPosition::Middle,
                };
                all.push((id, position, Bytes::from(vec![b'a' + packet as u8])));
                id = id.next();
            }
        }
        all
    }

    proptest! {
        #[test]
        fn packets_come_together_in_any_order(
            sizes in proptest::collection::vec(2..7_usize, 1..8),
            start in prop_oneof![Just(0_u32), Just(u32::MAX - 5)],
            seed in any::<u64>(),
        ) {
            let mut shuffled = pieces(start, &sizes);
            shuffled.sort_by_key(|(id, _, _)| u64::from(id.0).wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut fragments = Fragments::new(AGE_MAX);
            let mut whole: Vec<Bytes> = shuffled
                .into_iter()
                .filter_map(|(id, position, body)| fragments.insert(Instant::ZERO, id, position, body))
                .inspect(|joined| assert_eq!(joined.last, joined.first.plus(joined.body.len() as u32 - 1)))
                .map(|joined| joined.body)
                .collect();
            whole.sort();
            let expected: Vec<Bytes> = sizes
                .iter()
                .enumerate()
                .map(|(packet, size)| Bytes::from(vec![b'a' + packet as u8; *size]))
                .collect();
            prop_assert_eq!(whole, expected);
            prop_assert!(fragments.pieces.is_empty() && fragments.arrivals.is_empty());
            prop_assert_eq!(fragments.bytes, 0);
        }
    }

    #[test]
    fn what_stays_incomplete_leaves_by_age_and_is_counted() {
        let mut fragments = Fragments::new(AGE_MAX);
        insert(&mut fragments, 0, 0, FragmentPosition::First, b"a");
        assert_eq!(insert(&mut fragments, 701, 1, FragmentPosition::Last, b"a"), None);
        assert_eq!(fragments.drops.get(DropReason::IncompleteFragments), 1);
    }

    #[test]
    fn a_fragment_that_comes_twice_counts_once() {
        let mut fragments = Fragments::new(AGE_MAX);
        let mut insert = |id, position, body: &'static [u8]| {
            let whole = insert(&mut fragments, 0, id, position, body);
            (whole.map(|joined| joined.body), fragments.bytes)
        };
        assert_eq!(insert(0, FragmentPosition::First, b"aaa"), (None, 3 + OVERHEAD_BYTES));
        assert_eq!(insert(0, FragmentPosition::First, b"bb"), (None, 2 + OVERHEAD_BYTES));
        let whole = insert(1, FragmentPosition::Last, b"c");
        assert_eq!(whole, (Some(Bytes::from_static(b"bbc")), 0));
    }

    #[test]
    fn memory_is_bounded_against_a_flood_of_firsts() {
        let mut fragments = Fragments::new(AGE_MAX);
        for id in 0..10_000 {
            insert(&mut fragments, 0, id, FragmentPosition::First, b"a");
        }
        assert_eq!(fragments.pieces.len(), FRAGMENTS_MAX);
        assert_eq!(fragments.bytes, FRAGMENTS_MAX * (1 + OVERHEAD_BYTES));
        fragments.shed(2 * (1 + OVERHEAD_BYTES));
        assert_eq!(fragments.drops.get(DropReason::MemoryShare), 2);
        assert_eq!(fragments.pieces.first_key_value().map(|(id, _)| *id), Some(10_000 - 510));
        assert_eq!(fragments.drops.get(DropReason::ReceiveMemory), 10_000 - FRAGMENTS_MAX as u64);
    }
}
