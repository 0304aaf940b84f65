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
