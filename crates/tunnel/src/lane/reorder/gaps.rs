//! The missing IDs of a lane: whether what a flow or a video lacks may still come.
//!
//! ```text
//! IDs of the lane     70  71  72  73  74         numbers of a video: 5 at 70, 7 at 74
//! there               x   x       x   x          6 may be in 72
//!                     x   x   x   x   x          6 never left, and is not waited for
//! ```
//!
//! Packets may be lost before the tunnel, and lanes give up frames before they get an ID.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::Instant;

use super::ExtendedId;

const GAPS_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Gaps {
    newest: ExtendedId,
    gaps: BTreeMap<ExtendedId, Gap>,
}

#[derive(Clone, Copy, Debug)]
struct Gap {
    last: ExtendedId,
    opened: Instant,
}

pub(super) enum Arrival {
    Ahead,
    InGap { opened: Instant },
    Nowhere,
}

impl Gaps {
    pub(super) fn new(begin: ExtendedId) -> Self {
        Self { newest: begin - 1, gaps: BTreeMap::new() }
    }

    pub(super) fn on_arrival(&mut self, now: Instant, from: ExtendedId, to: ExtendedId) -> Arrival {
        if from > self.newest + 1 {
            self.gaps.insert(self.newest + 1, Gap { last: from - 1, opened: now });
        }
        let is_newest = from > self.newest;
        self.newest = self.newest.max(to);
        if is_newest {
            return Arrival::Ahead;
        }
        // One packet lies in one gap: its fragments become known together.
        let Some((start, gap)) = self.gaps.range(..=from).next_back() else {
            return Arrival::Nowhere;
        };
        let (start, gap) = (*start, *gap);
        if gap.last < from {
            return Arrival::Nowhere;
        }
        self.gaps.remove(&start);
        if start < from {
            self.gaps.insert(start, Gap { last: from - 1, ..gap });
        }
        if gap.last > to {
            self.gaps.insert(to + 1, gap);
        }
        Arrival::InGap { opened: gap.opened }
    }

    /// Forgets the first gap if it is older than `age_max`, or if there are too many; returns it.
    pub(super) fn pop_old(
        &mut self,
        now: Instant,
        age_max: Duration,
    ) -> Option<(ExtendedId, ExtendedId)> {
        let (_, gap) = self.gaps.first_key_value()?;
        if now.since(gap.opened) <= age_max && self.gaps.len() <= GAPS_MAX {
            return None;
        }
        self.gaps.pop_first().map(|(first, gap)| (first, gap.last))
    }

    pub(super) fn opened(&self, position: ExtendedId) -> Option<Instant> {
        let (_, gap) = self.gaps.range(..=position).next_back()?;
        (gap.last >= position).then_some(gap.opened)
    }

    pub(super) fn is_any_between(&self, before: ExtendedId, behind: ExtendedId) -> bool {
        let gap = self.gaps.range(..behind).next_back();
        gap.is_some_and(|(_, gap)| gap.last > before)
    }

    pub(super) fn memory(&self) -> usize {
        64 * self.gaps.len()
    }
}
