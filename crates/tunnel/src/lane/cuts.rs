//! Datagrams that are cut into parts because the paths became narrower than their packets.
//!
//! ```text
//! source, coded ─► part 0, part 1 ~~~ network ~~~ Reassembly ─► source, coded
//!                         │       └─ lost: so is the datagram
//!                         └─ acknowledged, and all others: so is the datagram
//! ```
//!
//! IDs, recoveries and decoders are not affected.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_proto::wire::Part;
use roadweave_proto::{DropCounters, DropReason, Instant, LaneId, PacketId, PathId};

use crate::lane::datagram::TokenKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) kind: TokenKind,
    pub(crate) id: PacketId,
    pub(crate) path: PathId,
}

#[derive(Debug, Default)]
pub(crate) struct Cuts {
    pending: BTreeMap<u32, (Cut, usize)>,
    order: VecDeque<u32>,
    pub(crate) next: u32,
    pub(crate) has_new_parts: bool,
}

impl Cuts {
    pub(crate) fn on_cut(&mut self, cut: Cut, parts: usize) {
        // The fate of an evicted datagram stays unknown; the recovery's timer covers it.
        if self.order.len() >= CUTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.pending.remove(&oldest);
        }
        self.order.push_back(self.next);
        self.pending.insert(self.next, (cut, parts));
        self.next = self.next.wrapping_add(1);
    }

    pub(crate) fn on_acknowledged(&mut self, number: u32) -> Option<Cut> {
        let (cut, missing) = self.pending.get_mut(&number)?;
        *missing = missing.saturating_sub(1);
        let whole = (*missing == 0).then_some(*cut)?;
        self.remove(number);
        Some(whole)
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<Cut> {
        let (cut, _) = self.pending.remove(&number)?;
        while self.order.front().is_some_and(|oldest| !self.pending.contains_key(oldest)) {
            self.order.pop_front();
        }
        Some(cut)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    incomplete: BTreeMap<(LaneId, u32), Incomplete>,
    order: VecDeque<(Instant, LaneId, u32)>,
    pub(crate) bytes: usize,
}

#[derive(Debug)]
struct Incomplete {
    parts: Vec<Option<Bytes>>,
    bytes: usize,
}

impl Reassembly {
    pub(crate) fn insert(
        &mut self,
        now: Instant,
        part: Part,
        age_max: Duration,
        drops: &mut DropCounters,
    ) -> Option<Bytes> {
        while self.order.front().is_some_and(|(until, ..)| *until < now) {
            self.drop_oldest(drops, DropReason::IncompleteFragments);
        }
        let key = (part.lane, part.number);
        let count = usize::from(part.last) + 1;
        let whole = self.incomplete.entry(key).or_insert_with(|| {
            self.order.push_back((now + age_max, part.lane, part.number));
            let bytes = INCOMPLETE_BYTES + count * PLACE_BYTES;
            self.bytes += bytes;
            Incomplete { parts: vec![None; count], bytes }
        });
        if whole.parts.len() != count {
            drops.count(DropReason::Inconsistent);
            return None;
        }
        // There is a place for each part of the first announced count.
        let place = &mut whole.parts[usize::from(part.index)];
        if place.is_some() {
            drops.count(DropReason::Duplicate);
            return None;
        }
        whole.bytes += part.bytes.len();
        self.bytes += part.bytes.len();
        *place = Some(part.bytes);
        if whole.parts.iter().any(Option::is_none) {
            while self.order.len() > INCOMPLETE_MAX || self.bytes > BYTES_MAX {
                self.drop_oldest(drops, DropReason::ReceiveMemory);
            }
            return None;
        }
        let Incomplete { parts, bytes } = self.remove(key)?;
        let mut datagram = BytesMut::with_capacity(bytes);
        parts.iter().flatten().for_each(|part| datagram.extend_from_slice(part));
        Some(datagram.freeze())
    }

    pub(crate) fn shed(&mut self, bytes: usize, drops: &mut DropCounters) {
        let target = self.bytes.saturating_sub(bytes);
        while self.bytes > target && !self.order.is_empty() {
            self.drop_oldest(drops, DropReason::MemoryShare);
        }
    }

    fn remove(&mut self, key: (LaneId, u32)) -> Option<Incomplete> {
        let whole = self.incomplete.remove(&key)?;
        self.bytes -= whole.bytes;
        Some(whole)
    }

    fn drop_oldest(&mut self, drops: &mut DropCounters, reason: DropReason) {
        if let Some((_, lane, number)) = self.order.pop_front()
            && self.remove((lane, number)).is_some()
        {
            drops.count(reason);
        }
    }
}

const CUTS_MAX: usize = 8192;
const INCOMPLETE_MAX: usize = 4096;
const BYTES_MAX: usize = 1 << 20;
const INCOMPLETE_BYTES: usize = 64;
const PLACE_BYTES: usize = size_of::<Option<Bytes>>();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    const AGE: Duration = Duration::from_millis(700);

    fn parts(number: u32, length: usize) -> Vec<Part> {
        let datagram: Vec<u8> = (0..length).map(|at| at as u8).collect();
        let parts = Part::cut(LaneId(1), number, &datagram, 100).expect("it must be cut");
        let parse = |bytes| match roadweave_proto::wire::Datagram::parse(bytes) {
            Ok(roadweave_proto::wire::Datagram::Part(part)) => part,
            other => panic!("{other:?}"),
        };
        parts.into_iter().map(parse).collect()
    }

    #[test]
    fn parts_come_together_in_any_order_and_once() {
        let (mut table, mut drops) = (Reassembly::default(), DropCounters::default());
        let (first, second) = (parts(0, 250), parts(1, 150));
        let mut insert = |part: &Part| table.insert(at(0), part.clone(), AGE, &mut drops);
        assert_eq!(insert(&first[2]), None);
        assert_eq!(insert(&second[1]), None);
        assert_eq!(insert(&first[0]), None);
        assert_eq!(insert(&first[0]), None, "a copy");
        assert_eq!(insert(&second[0]).map(|whole| whole.len()), Some(150));
        let whole = insert(&first[1]).expect("that was the last");
        assert!(whole.iter().enumerate().all(|(at, byte)| *byte == at as u8));
        assert_eq!((whole.len(), drops.get(DropReason::Duplicate)), (250, 1));
        assert!(table.incomplete.is_empty() && table.bytes == 0);
    }

    #[test]
    fn memory_is_bounded_in_bytes_in_number_and_in_age() {
        let (mut table, mut drops) = (Reassembly::default(), DropCounters::default());
        for number in 0..10_000 {
            table.insert(at(0), parts(number, 150).remove(0), AGE, &mut drops);
        }
        assert_eq!((table.incomplete.len(), table.order.len()), (INCOMPLETE_MAX, INCOMPLETE_MAX));
        assert_eq!(drops.get(DropReason::ReceiveMemory), 10_000 - INCOMPLETE_MAX as u64);
        let large = Bytes::from(vec![0; 16_000]);
        for number in 20_000..20_100 {
            let part = Part { lane: LaneId(0), number, index: 0, last: 1, bytes: large.clone() };
            table.insert(at(0), part, AGE, &mut drops);
        }
        assert!(table.bytes <= BYTES_MAX && table.incomplete.len() < 100, "{}", table.bytes);
        let (before, count) = (table.bytes, table.incomplete.len());
        table.shed(16_000, &mut drops);
        assert_eq!((table.incomplete.len(), drops.get(DropReason::MemoryShare)), (count - 1, 1));
        assert!(before - table.bytes > 16_000, "the places count too");
        table.insert(at(701), parts(1, 150).remove(0), AGE, &mut drops);
        assert_eq!((table.incomplete.len(), table.order.len()), (1, 1));
    }

    #[test]
    fn a_count_that_changes_is_not_believed() {
        let (mut table, mut drops) = (Reassembly::default(), DropCounters::default());
        let [first, mut second] = <[Part; 2]>::try_from(parts(0, 150)).expect("two");
        table.insert(at(0), first, AGE, &mut drops);
        (second.index, second.last) = (9, 9);
        assert_eq!(table.insert(at(0), second, AGE, &mut drops), None);
        assert_eq!(drops.get(DropReason::Inconsistent), 1);
    }

    #[test]
    fn a_datagram_has_come_with_its_last_part_and_is_lost_with_its_first() {
        let mut cuts = Cuts::default();
        let cut = |id| Cut { kind: TokenKind::Source, id: PacketId(id), path: PathId(0) };
        (0..2).for_each(|id| cuts.on_cut(cut(id), 3));
        assert_eq!([0, 0].map(|number| cuts.on_acknowledged(number)), [None, None]);
        assert_eq!(cuts.on_acknowledged(1), None);
        assert_eq!(cuts.remove(1), Some(cut(1)));
        assert_eq!((cuts.remove(1), cuts.on_acknowledged(1)), (None, None));
        assert_eq!(cuts.on_acknowledged(0), Some(cut(0)));
        assert!(cuts.pending.is_empty() && cuts.order.is_empty());
        (0..CUTS_MAX as u32 + 9).for_each(|id| cuts.on_cut(cut(id), 2));
        assert_eq!((cuts.pending.len(), cuts.order.len()), (CUTS_MAX, CUTS_MAX));
    }
}
