//! All equations of a decoder, as blocks that share no missing packets, within bounds.
//!
//! ```text
//! packets   ... 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 ...
//! missing       x     x     x  x        x           x     x
//! blocks        [------]    [-----------]           [-----]
//! equation                  .     [-----------------]           joins two blocks into one
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::{DropReason, Instant, PacketId};

use super::block::{Block, NewEquation, Removed, SPAN_MAX, Span};
use super::outcome::DecoderStats;
use super::window::FullId;
use crate::kernel::Kernel;
use crate::pool::Pool;

#[derive(Debug)]
pub(super) struct Equations {
    kernel: Kernel,
    bytes_max: usize,
    bytes: usize,
    equations: usize,
    /// Ascending by the first missing packet. Blocks do not overlap, and none is empty.
    blocks: VecDeque<(FullId, Box<Block>)>,
    /// Empty blocks, kept for their memory.
    #[expect(clippy::vec_box, reason = "a box moves between here and the blocks")]
    spare: Vec<Box<Block>>,
    sweep_at: Instant,
    sweep_interval: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// The equation is kept or has determined packets.
    Used,
    Redundant,
    /// The equation and others contradict one another, and are dropped.
    Inconsistent,
}

impl Equations {
    pub(super) fn new(kernel: Kernel, age_max: Duration, bytes_max: usize) -> Self {
        Self {
            kernel,
            bytes_max,
            bytes: 0,
            equations: 0,
            blocks: VecDeque::new(),
            spare: Vec::new(),
            sweep_at: Instant::ZERO,
            sweep_interval: age_max / SWEEPS_PER_AGE,
        }
    }

    /// Sets the age limit, from which the interval of sweeps follows.
    pub(super) fn set_age_max(&mut self, age_max: Duration) {
        self.sweep_interval = age_max / SWEEPS_PER_AGE;
    }

    /// Adds an equation, and appends the packets that it determines to `solved`, ascending; each
    /// uses up one equation. Other removed equations are counted in `stats`. Equations from before
    /// `oldest` are not used. `known` has the packets that are not missing.
    pub(super) fn add(
        &mut self,
        oldest: Instant,
        new: NewEquation<'_>,
        known: &Pool,
        stats: &mut DecoderStats,
        solved: &mut Vec<(PacketId, Bytes)>,
    ) -> Added {
        let index = self.block_for(&new, stats);
        let added = self.update(index, |block| {
            stats.drops.add(DropReason::Late, block.expire(oldest));
            stats.drops.add(DropReason::ReceiveMemory, block.make_room(new.span));
            let is_new = block.insert(new, known);
            let contradicting = block.settle(solved);
            stats.drops.add(DropReason::Inconsistent, contradicting.count);
            match (is_new, contradicting.has_newest) {
                (false, _) => Added::Redundant,
                (true, false) => Added::Used,
                (true, true) => Added::Inconsistent,
            }
        });
        stats.redundant += u64::from(added == Added::Redundant);
        self.evict(stats);
        added
    }

    /// Uses a packet that became known, and appends what it determines like [`Self::add`].
    pub(super) fn learn(
        &mut self,
        oldest: Instant,
        full_id: FullId,
        symbol: &Bytes,
        stats: &mut DecoderStats,
        solved: &mut Vec<(PacketId, Bytes)>,
    ) {
        let Some(index) =
            self.last_from(full_id).filter(|index| self.blocks[*index].1.lacks(full_id))
        else {
            return;
        };
        self.update(index, |block| {
            stats.drops.add(DropReason::Late, block.expire(oldest));
            count(block.learn(full_id, symbol), stats);
            stats.drops.add(DropReason::Inconsistent, block.settle(solved).count);
        });
        self.evict(stats);
    }

    /// Replaces the bytes that the blocks know of the packet by `symbol`.
    pub(super) fn correct(&mut self, full_id: FullId, symbol: &Bytes, stats: &mut DecoderStats) {
        // A block over it has a missing packet less than the longest span away.
        let mut next = self.last_from(full_id + SPAN_MAX);
        while let Some(index) = next
            && self.blocks[index].1.reaches(full_id.saturating_sub(SPAN_MAX))
        {
            let inconsistent = self.update(index, |block| block.correct(full_id, symbol));
            stats.drops.add(DropReason::Inconsistent, inconsistent);
            next = index.checked_sub(1);
        }
        self.evict(stats);
    }

    /// Drops what is too old, at intervals; [`Self::add`] and [`Self::learn`] never use it anyway.
    pub(super) fn expire(&mut self, now: Instant, oldest: Instant, stats: &mut DecoderStats) {
        if now < self.sweep_at {
            return;
        }
        self.sweep_at = now + self.sweep_interval;
        for index in (0..self.blocks.len()).rev() {
            let late = self.update(index, |block| block.expire(oldest));
            stats.drops.add(DropReason::Late, late);
        }
    }

    /// Drops the blocks of the oldest packets until `bytes` bytes are freed or none is left.
    pub(super) fn shed(&mut self, bytes: usize, stats: &mut DecoderStats) {
        let target = self.bytes.saturating_sub(bytes);
        while self.bytes > target {
            let (_, block) = self.take(0);
            stats.drops.add(DropReason::MemoryShare, block.len() as u64);
            self.recycle(block);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.equations
    }

    /// Bytes held, with the allowances.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The last block whose first missing packet is not after `full_id`.
    fn last_from(&self, full_id: FullId) -> Option<usize> {
        if self.blocks.back().is_some_and(|(first, _)| *first <= full_id) {
            return Some(self.blocks.len() - 1);
        }
        self.blocks.partition_point(|(first, _)| *first <= full_id).checked_sub(1)
    }

    /// The block for an equation, possibly new and empty. Blocks that it connects become one.
    fn block_for(&mut self, new: &NewEquation<'_>, stats: &mut DecoderStats) -> usize {
        let missing = new.missing_span();
        let Some(last) = self.last_from(missing.last) else {
            return self.open(0, missing.first);
        };
        let (first, block) = &self.blocks[last];
        if !block.reaches(missing.first) {
            self.open(last + 1, missing.first)
        } else if *first <= missing.first {
            last
        } else {
            self.join(last, new.span, missing.first, stats)
        }
    }

    fn open(&mut self, index: usize, first: FullId) -> usize {
        let block = self.spare.pop().unwrap_or_else(|| Box::new(Block::new(self.kernel)));
        self.blocks.insert(index, (first, block));
        index
    }

    /// Merges the block at `index` with those before it that reach the packet `first`. If with an
    /// equation over `span` they exceed a block, equations over the oldest packets go.
    fn join(
        &mut self,
        mut index: usize,
        span: Span,
        mut first: FullId,
        stats: &mut DecoderStats,
    ) -> usize {
        let mut joined = vec![self.take(index)];
        while let Some(before) = index.checked_sub(1)
            && self.blocks[before].1.reaches(first)
        {
            index = before;
            joined.push(self.take(before));
        }
        let all = joined.iter().filter_map(|(_, block)| block.span()).fold(span, Span::join);
        let keepable = all.keepable(span);
        let mut merged: Option<Box<Block>> = None;
        for (key, mut block) in joined {
            first = first.min(key);
            stats.drops.add(DropReason::ReceiveMemory, block.keep_within(keepable));
            match &mut merged {
                None => merged = Some(block),
                Some(merged) => {
                    count(merged.merge(&mut block), stats);
                    self.recycle(block);
                }
            }
        }
        if let Some(merged) = merged {
            self.bytes += merged.bytes();
            self.equations += merged.len();
            self.blocks.insert(index, (first, merged));
        }
        index
    }

    /// Works on a block, and removes it if it is empty afterwards.
    fn update<R>(&mut self, index: usize, work: impl FnOnce(&mut Block) -> R) -> R {
        let block = &mut self.blocks[index].1;
        let (bytes, equations) = (block.bytes(), block.len());
        let result = work(block);
        self.bytes = self.bytes - bytes + block.bytes();
        self.equations = self.equations - equations + block.len();
        if block.is_empty() {
            let (_, block) = self.take(index);
            self.recycle(block);
        }
        result
    }

    /// Drops the blocks of the oldest packets until the others fit the memory.
    fn evict(&mut self, stats: &mut DecoderStats) {
        while self.bytes > self.bytes_max {
            let (_, block) = self.take(0);
            stats.drops.add(DropReason::ReceiveMemory, block.len() as u64);
            self.recycle(block);
        }
    }

    fn take(&mut self, index: usize) -> (FullId, Box<Block>) {
        let (first, block) = self.blocks.remove(index).expect("it was just found");
        self.bytes -= block.bytes();
        self.equations -= block.len();
        (first, block)
    }

    fn recycle(&mut self, mut block: Box<Block>) {
        if self.spare.len() < SPARE_BLOCKS_MAX && block.is_small() {
            block.clear();
            self.spare.push(block);
        }
    }
}

fn count(removed: Removed, stats: &mut DecoderStats) {
    stats.redundant += removed.redundant;
    stats.drops.add(DropReason::Inconsistent, removed.inconsistent);
}

const SWEEPS_PER_AGE: u32 = 16;

const SPARE_BLOCKS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::bits::Bits;
    use crate::test_support::{Noise, at};

    const AGE_MAX: Duration = Duration::from_millis(700);

    struct Fixture {
        equations: Equations,
        stats: DecoderStats,
        noise: Noise,
    }

    impl Fixture {
        fn new() -> Self {
            let equations = Equations::new(Kernel::fastest(), AGE_MAX, usize::MAX);
            Self { equations, stats: DecoderStats::default(), noise: Noise::new(1) }
        }

        fn add(&mut self, millis: u64, first: FullId, count: usize) {
            let coefficients: Vec<u8> = (0..count).map(|_| self.noise.next() as u8 | 1).collect();
            let new = NewEquation {
                at: at(millis),
                span: Span { first, last: first + count as u64 - 1 },
                coefficients: &coefficients,
                missing: Bits::run(0, count),
                payload: Bytes::from_static(&[1; 10]),
            };
            let mut solved = Vec::new();
            let known = Pool::new(0);
            let oldest = at(millis) - AGE_MAX;
            let added = self.equations.add(oldest, new, &known, &mut self.stats, &mut solved);
            assert_eq!(added, Added::Used);
            assert!(solved.is_empty());
        }

        fn expire(&mut self, millis: u64) {
            self.equations.expire(at(millis), at(millis) - AGE_MAX, &mut self.stats);
        }

        fn drops(&self, reason: DropReason) -> u64 {
            self.stats.drops.get(reason)
        }

        fn spans(&self) -> Vec<(FullId, FullId)> {
            let spans = self.equations.blocks.iter().filter_map(|(_, block)| block.span());
            spans.map(|span| (span.first, span.last)).collect()
        }
    }

    #[test]
    fn overlapping_equations_join_and_others_stay_apart() {
        let mut fixture = Fixture::new();
        fixture.add(0, 10, 5);
        fixture.add(0, 20, 5);
        fixture.add(0, 40, 5);
        assert_eq!(fixture.spans(), [(10, 14), (20, 24), (40, 44)]);
        fixture.add(0, 14, 7);
        assert_eq!(fixture.spans(), [(10, 24), (40, 44)]);
        assert_eq!(fixture.equations.len(), 4);
        fixture.add(0, 5, 64);
        assert_eq!(fixture.spans(), [(5, 68)]);
        assert_eq!((fixture.equations.len(), fixture.stats.drops.total()), (5, 0));
    }

    #[test]
    fn a_chain_of_overlaps_loses_its_oldest_equations() {
        let mut fixture = Fixture::new();
        for first in 0..2_000 {
            fixture.add(0, first * 10, 64);
            let (start, end) = fixture.spans()[0];
            assert!(end - start < 128, "{start}..={end}");
        }
        // 128 packets have room for the newest and for six that start 10 packets apart before it.
        assert_eq!((fixture.equations.blocks.len(), fixture.equations.len()), (1, 7));
        assert_eq!(fixture.drops(DropReason::ReceiveMemory), 2_000 - 7);
    }

    #[test]
    fn what_is_joined_keeps_its_newest_packets_and_the_range_that_joins() {
        let mut fixture = Fixture::new();
        fixture.add(0, 0, 10);
        fixture.add(0, 100, 10);
        fixture.add(0, 125, 10);
        fixture.add(0, 60, 64);
        assert_eq!(fixture.spans(), [(0, 9), (60, 123), (125, 134)]);
        fixture.add(0, 5, 64);
        assert_eq!(fixture.spans(), [(0, 123), (125, 134)]);
        fixture.add(0, 122, 10);
        assert_eq!(fixture.spans(), [(60, 134)], "packets 0 and 134 are too far apart");
        assert_eq!(fixture.drops(DropReason::ReceiveMemory), 2);
        fixture.add(0, 0, 61);
        assert_eq!(fixture.spans(), [(0, 123)], "an old range is kept when it comes");
        assert_eq!(fixture.equations.len(), 3);
    }

    #[test]
    fn an_old_equation_is_not_used_between_two_sweeps() {
        let mut fixture = Fixture::new();
        fixture.add(10, 0, 5);
        fixture.expire(700);
        fixture.expire(711);
        assert_eq!(fixture.equations.len(), 1);
        fixture.add(711, 3, 2);
        assert_eq!((fixture.equations.len(), fixture.drops(DropReason::Late)), (1, 1));
    }

    #[test]
    fn a_few_small_blocks_are_reused() {
        let mut fixture = Fixture::new();
        for round in 0..3 {
            for block in 0..20 {
                fixture.add(round * 1_000, block * 100, if block % 2 == 0 { 5 } else { 64 });
            }
            fixture.expire(round * 1_000 + 701);
            assert_eq!(fixture.equations.len(), 0);
            assert_eq!(fixture.equations.spare.len(), SPARE_BLOCKS_MAX);
            assert!(fixture.equations.spare.iter().all(|block| block.is_small()));
        }
    }

    #[test]
    fn expired_equations_leave_nothing_behind() {
        let mut fixture = Fixture::new();
        fixture.add(0, 0, 5);
        fixture.add(500, 3, 5);
        fixture.add(0, 100, 5);
        fixture.expire(800);
        assert_eq!(fixture.drops(DropReason::Late), 2);
        assert_eq!(fixture.spans(), [(3, 7)]);
        fixture.expire(1300);
        assert_eq!((fixture.spans().len(), fixture.equations.len()), (0, 0));
        assert_eq!(fixture.equations.bytes(), 0);
    }
}
