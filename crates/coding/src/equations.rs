//! All equations of a decoder, as blocks that share no packets, within bounds.
//!
//! ```text
//! packets   ... 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 ...
//! blocks        [------]       [------------]       [---]
//! equation                        [-------------------]        joins two blocks into one
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_types::{DropCounters, DropReason, Instant};

use crate::COUNT_MAX;
use crate::block::Block;
use crate::kernel::Kernel;
use crate::window::Position;

/// The most missing packets that one block may have, which bounds the work per packet.
///
/// Twice the longest range, so that ranges may overlap. Where more would join, the oldest block goes.
pub(crate) const COLUMNS_MAX: usize = 2 * COUNT_MAX as usize;

/// The blocks, bounded in bytes and in age.
#[derive(Debug)]
pub(crate) struct Equations {
    kernel: Kernel,
    age_max: Duration,
    bytes_max: usize,
    bytes: usize,
    equations: usize,
    /// By first column. From its first to its last column, a block overlaps no other.
    blocks: BTreeMap<Position, Block>,
    swept_at: Instant,
}

impl Equations {
    pub(crate) fn new(kernel: Kernel, age_max: Duration, bytes_max: usize) -> Self {
        Self {
            kernel,
            age_max,
            bytes_max,
            bytes: 0,
            equations: 0,
            blocks: BTreeMap::new(),
            swept_at: Instant::ZERO,
        }
    }

    /// Takes out the block that an equation over `terms` belongs to, empty if there is none.
    ///
    /// `terms`: ascending, not empty. Blocks that the equation joins become one.
    pub(crate) fn take_for(
        &mut self,
        now: Instant,
        terms: &[(Position, u8)],
        drops: &mut DropCounters,
    ) -> Block {
        let (first, last) = (terms[0].0, terms[terms.len() - 1].0);
        let mut joined: Vec<Block> = Vec::new();
        while let Some((key, block)) = self.blocks.range(..=last).next_back() {
            if block.last_column().is_none_or(|column| column < first) {
                break;
            }
            let mut block = self.take(*key);
            drops.add(DropReason::Late, block.expire(now, self.age_max) as u64);
            joined.push(block);
        }
        let is_new = |position: &Position| !joined.iter().any(|block| block.has(*position));
        let mut columns = terms.iter().filter(|(position, _)| is_new(position)).count();
        let mut merged = Block::new(self.kernel);
        for block in joined {
            // The newest come first, so it is the oldest that finds no room.
            columns += block.columns();
            if columns > COLUMNS_MAX {
                drops.add(DropReason::ReceiveMemory, block.len() as u64);
            } else {
                merged.merge(block);
            }
        }
        merged
    }

    /// Takes out the block that `position` is missing in.
    pub(crate) fn take_with(
        &mut self,
        now: Instant,
        position: Position,
        drops: &mut DropCounters,
    ) -> Option<Block> {
        let (key, block) = self.blocks.range(..=position).next_back()?;
        if !block.has(position) {
            return None;
        }
        let mut block = self.take(*key);
        drops.add(DropReason::Late, block.expire(now, self.age_max) as u64);
        Some(block)
    }

    /// Puts a block back, and drops the blocks of the oldest packets while there is no memory.
    pub(crate) fn put(&mut self, block: Block, drops: &mut DropCounters) {
        let Some(key) = block.first_column() else { return };
        self.bytes += block.bytes();
        self.equations += block.len();
        self.blocks.insert(key, block);
        while self.bytes > self.bytes_max {
            let Some((key, _)) = self.blocks.first_key_value() else { break };
            let evicted = self.take(*key);
            drops.add(DropReason::ReceiveMemory, evicted.len() as u64);
        }
    }

    /// Drops what is too old, in intervals: until then it costs memory, but [`Self::take_for`] and
    /// [`Self::take_with`] never give it out.
    pub(crate) fn expire(&mut self, now: Instant, drops: &mut DropCounters) {
        if now.since(self.swept_at) < self.age_max / SWEEPS_PER_AGE {
            return;
        }
        self.swept_at = now;
        for mut block in std::mem::take(&mut self.blocks).into_values() {
            let before = (block.bytes(), block.len());
            drops.add(DropReason::Late, block.expire(now, self.age_max) as u64);
            self.bytes -= before.0 - block.bytes();
            self.equations -= before.1 - block.len();
            if let Some(key) = block.first_column() {
                self.blocks.insert(key, block);
            }
        }
    }

    /// Equations held.
    pub(crate) fn len(&self) -> usize {
        self.equations
    }

    /// Bytes held, with the allowance for each equation.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn take(&mut self, key: Position) -> Block {
        let block = self.blocks.remove(&key).expect("the key was just found");
        self.bytes -= block.bytes();
        self.equations -= block.len();
        block
    }
}

const SWEEPS_PER_AGE: u32 = 16;

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::test_support::Noise;

    const AGE_MAX: Duration = Duration::from_millis(700);

    fn equations() -> Equations {
        Equations::new(Kernel::fastest(), AGE_MAX, usize::MAX)
    }

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Inserts an equation over `count` packets and returns how many its block then covers.
    fn insert(
        equations: &mut Equations,
        millis: u64,
        first: Position,
        count: u64,
        noise: &mut Noise,
    ) -> usize {
        let terms: Vec<(Position, u8)> =
            (first..first + count).map(|position| (position, noise.next() as u8 | 1)).collect();
        let mut drops = DropCounters::default();
        let mut block = equations.take_for(at(millis), &terms, &mut drops);
        block.insert(at(millis), &terms, || BytesMut::from(&[1; 10][..]));
        let columns = block.columns();
        equations.put(block, &mut drops);
        columns
    }

    #[test]
    fn overlapping_equations_join_and_others_stay_apart() {
        let (mut equations, mut noise) = (equations(), Noise::new(1));
        assert_eq!(insert(&mut equations, 0, 10, 5, &mut noise), 5);
        assert_eq!(insert(&mut equations, 0, 20, 5, &mut noise), 5);
        assert_eq!(equations.blocks.len(), 2);
        assert_eq!(insert(&mut equations, 0, 14, 7, &mut noise), 15);
        assert_eq!(equations.blocks.len(), 1);
        assert_eq!(equations.len(), 3);
    }

    #[test]
    fn a_chain_of_overlaps_cannot_grow_a_block_without_bound() {
        let (mut equations, mut noise) = (equations(), Noise::new(2));
        for first in 0..2_000 {
            let columns = insert(&mut equations, 0, first * 10, 64, &mut noise);
            assert!(columns <= COLUMNS_MAX, "{columns} columns");
        }
    }

    #[test]
    fn an_old_equation_is_not_given_out_between_two_sweeps() {
        let (mut equations, mut noise) = (equations(), Noise::new(3));
        let mut drops = DropCounters::default();
        insert(&mut equations, 10, 0, 5, &mut noise);
        equations.expire(at(700), &mut drops);
        equations.expire(at(711), &mut drops);
        assert_eq!(equations.len(), 1);
        let block = equations.take_for(at(711), &[(3, 1)], &mut drops);
        assert_eq!((block.len(), equations.len()), (0, 0));
        assert_eq!(drops.get(DropReason::Late), 1);
    }

    #[test]
    fn expired_equations_leave_nothing_behind() {
        let (mut equations, mut noise) = (equations(), Noise::new(4));
        let mut drops = DropCounters::default();
        insert(&mut equations, 0, 0, 5, &mut noise);
        insert(&mut equations, 500, 3, 5, &mut noise);
        insert(&mut equations, 0, 100, 5, &mut noise);
        equations.expire(at(800), &mut drops);
        assert_eq!(drops.get(DropReason::Late), 2);
        assert_eq!(equations.blocks.keys().copied().collect::<Vec<_>>(), [3]);
        equations.expire(at(1300), &mut drops);
        assert_eq!((equations.blocks.len(), equations.len(), equations.bytes()), (0, 0, 0));
    }
}
