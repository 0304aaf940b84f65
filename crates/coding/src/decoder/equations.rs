//! All equations of a decoder, as blocks that share no missing packets, within bounds.
//!
//! ```text
//! packets   ... 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 ...
//! missing       x     x     x  x        x           x     x
//! blocks        [------]    [-----------]           [-----]
//! equation                  .     [-----------------]           joins two blocks into one
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use roadweave_types::{DropReason, Instant};

use super::DecoderStats;
use super::block::{Block, NewEquation, Removed, Span};
use super::window::Position;
use crate::kernel::Kernel;
use crate::pool::Pool;

/// The blocks, bounded in bytes and in age.
#[derive(Debug)]
pub(super) struct Equations {
    kernel: Kernel,
    age_max: Duration,
    bytes_max: usize,
    bytes: usize,
    equations: usize,
    /// None is empty. From its key to its last missing packet, a block overlaps no other.
    blocks: BTreeMap<Position, Box<Block>>,
    /// Empty blocks, for their memory.
    #[expect(clippy::vec_box, reason = "a box moves between here and the map")]
    spare: Vec<Box<Block>>,
    swept_at: Instant,
}

/// What became of an equation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// It is kept, or determined packets.
    Used,
    /// It follows from others.
    Redundant,
    /// It and others contradict one another, and are gone.
    Inconsistent,
}

impl Equations {
    pub(super) fn new(kernel: Kernel, age_max: Duration, bytes_max: usize) -> Self {
        Self {
            kernel,
            age_max,
            bytes_max,
            bytes: 0,
            equations: 0,
            blocks: BTreeMap::new(),
            spare: Vec::new(),
            swept_at: Instant::ZERO,
        }
    }

    /// Adds an equation, and appends the packets that it determines to `solved`, ascending; each uses
    /// up one equation. All others that go are counted in `stats`.
    ///
    /// `known`: has the packets that are not missing.
    pub(super) fn add(
        &mut self,
        new: NewEquation<'_>,
        known: &Pool,
        stats: &mut DecoderStats,
        solved: &mut Vec<(Position, Bytes)>,
    ) -> Added {
        let (now, age_max) = (new.at, self.age_max);
        let key = self.block_for(&new, stats);
        let added = self.update(key, |block| {
            stats.drops.add(DropReason::Late, block.expire(now, age_max));
            stats.drops.add(DropReason::ReceiveMemory, block.make_room(new.span));
            let is_new = block.insert(new, known);
            let inconsistent = block.settle(solved);
            stats.drops.add(DropReason::Inconsistent, inconsistent);
            match (is_new, inconsistent) {
                (false, _) => Added::Redundant,
                (true, 0) => Added::Used,
                (true, _) => Added::Inconsistent,
            }
        });
        stats.redundant += u64::from(added == Added::Redundant);
        self.evict(stats);
        added
    }

    /// Uses a packet that became known, and appends what it determines to `solved` as [`Self::add`]
    /// does.
    pub(super) fn learn(
        &mut self,
        now: Instant,
        position: Position,
        symbol: &Bytes,
        stats: &mut DecoderStats,
        solved: &mut Vec<(Position, Bytes)>,
    ) {
        let Some((key, block)) = self.blocks.range(..=position).next_back() else { return };
        if !block.lacks(position) {
            return;
        }
        let (key, age_max) = (*key, self.age_max);
        self.update(key, |block| {
            stats.drops.add(DropReason::Late, block.expire(now, age_max));
            block.learn(position, symbol).count(stats);
            stats.drops.add(DropReason::Inconsistent, block.settle(solved));
        });
        self.evict(stats);
    }

    /// Drops what is too old, in intervals: until then it costs memory, but [`Self::add`] and
    /// [`Self::learn`] never use it.
    pub(super) fn expire(&mut self, now: Instant, stats: &mut DecoderStats) {
        if now.since(self.swept_at) < self.age_max / SWEEPS_PER_AGE {
            return;
        }
        self.swept_at = now;
        let age_max = self.age_max;
        for key in self.blocks.keys().copied().collect::<Vec<_>>() {
            let late = self.update(key, |block| block.expire(now, age_max));
            stats.drops.add(DropReason::Late, late);
        }
    }

    /// Equations held.
    pub(super) fn len(&self) -> usize {
        self.equations
    }

    /// Bytes held, with the allowances.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The key of the block that an equation belongs to; it may be new and empty. Blocks that the
    /// equation joins become one.
    fn block_for(&mut self, new: &NewEquation<'_>, stats: &mut DecoderStats) -> Position {
        let missing = new.missing_span();
        let nearest = self.blocks.range(..=missing.last).next_back();
        if let Some((key, _)) = nearest.filter(|(_, block)| block.reaches(missing.first)) {
            if *key <= missing.first {
                return *key;
            }
            return self.join(new.span, missing, stats);
        }
        let block = self.spare.pop().unwrap_or_else(|| Box::new(Block::new(self.kernel)));
        self.blocks.insert(missing.first, block);
        missing.first
    }

    /// Makes one block of those that overlap `missing`, and returns its key.
    ///
    /// A block that has no room for all of them and an equation over `span` loses its equations over
    /// the oldest packets.
    fn join(&mut self, span: Span, missing: Span, stats: &mut DecoderStats) -> Position {
        let mut key = missing.first;
        let mut joined = Vec::new();
        while let Some((found, block)) = self.blocks.range(..=missing.last).next_back()
            && block.reaches(missing.first)
        {
            let found = *found;
            joined.push(self.take(found));
            key = key.min(found);
        }
        let all = joined.iter().filter_map(|block| block.span()).fold(span, Span::join);
        let keepable = all.keepable(span);
        let mut merged = self.spare.pop().unwrap_or_else(|| Box::new(Block::new(self.kernel)));
        for mut block in joined {
            stats.drops.add(DropReason::ReceiveMemory, block.keep_within(keepable));
            merged.merge(&mut block).count(stats);
            self.recycle(block);
        }
        self.bytes += merged.bytes();
        self.equations += merged.len();
        self.blocks.insert(key, merged);
        key
    }

    /// Works on a block, and takes it out if it is empty then.
    fn update<R>(&mut self, key: Position, work: impl FnOnce(&mut Block) -> R) -> R {
        let block = self.blocks.get_mut(&key).expect("the key was just found");
        let (bytes, equations) = (block.bytes(), block.len());
        let result = work(block);
        self.bytes = self.bytes - bytes + block.bytes();
        self.equations = self.equations - equations + block.len();
        if block.is_empty() {
            let block = self.take(key);
            self.recycle(block);
        }
        result
    }

    /// Drops the blocks of the oldest packets while there is no memory for all.
    fn evict(&mut self, stats: &mut DecoderStats) {
        while self.bytes > self.bytes_max {
            let Some((key, block)) = self.blocks.first_key_value() else { break };
            stats.drops.add(DropReason::ReceiveMemory, block.len() as u64);
            let block = self.take(*key);
            self.recycle(block);
        }
    }

    fn take(&mut self, key: Position) -> Box<Block> {
        let block = self.blocks.remove(&key).expect("the key was just found");
        self.bytes -= block.bytes();
        self.equations -= block.len();
        block
    }

    fn recycle(&mut self, mut block: Box<Block>) {
        if self.spare.len() < SPARE_BLOCKS_MAX && block.is_small() {
            block.clear();
            self.spare.push(block);
        }
    }
}

impl Removed {
    fn count(self, stats: &mut DecoderStats) {
        stats.redundant += self.redundant;
        stats.drops.add(DropReason::Inconsistent, self.inconsistent);
    }
}

const SWEEPS_PER_AGE: u32 = 16;

const SPARE_BLOCKS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::bits::Bits;
    use crate::test_support::Noise;

    const AGE_MAX: Duration = Duration::from_millis(700);

    /// Equations over packets of which none is known.
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

        fn add(&mut self, millis: u64, first: Position, count: usize) {
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
            assert_eq!(self.equations.add(new, &known, &mut self.stats, &mut solved), Added::Used);
            assert!(solved.is_empty());
        }

        fn drops(&self, reason: DropReason) -> u64 {
            self.stats.drops.get(reason)
        }

        fn spans(&self) -> Vec<(Position, Position)> {
            let spans = self.equations.blocks.values().filter_map(|block| block.span());
            spans.map(|span| (span.first, span.last)).collect()
        }
    }

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
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
        fixture.equations.expire(at(700), &mut fixture.stats);
        fixture.equations.expire(at(711), &mut fixture.stats);
        assert_eq!(fixture.equations.len(), 1);
        fixture.add(711, 3, 2);
        assert_eq!((fixture.equations.len(), fixture.drops(DropReason::Late)), (1, 1));
    }

    #[test]
    fn expired_equations_leave_nothing_behind() {
        let mut fixture = Fixture::new();
        fixture.add(0, 0, 5);
        fixture.add(500, 3, 5);
        fixture.add(0, 100, 5);
        fixture.equations.expire(at(800), &mut fixture.stats);
        assert_eq!(fixture.drops(DropReason::Late), 2);
        assert_eq!(fixture.spans(), [(3, 7)]);
        fixture.equations.expire(at(1300), &mut fixture.stats);
        assert_eq!((fixture.spans().len(), fixture.equations.len()), (0, 0));
        assert_eq!(fixture.equations.bytes(), 0);
    }
}
