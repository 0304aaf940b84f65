//! How many bytes can arrive within a deadline in any schedule.
//!
//! A packet released at `r` can use a slot's byte at `t` if `r <= t` and `t + delay <= r +
//! deadline`: each byte of capacity serves the packets released in one interval, `t + delay -
//! deadline <= r <= t`. For such interval graphs (convex bipartite graphs) a greedy rule finds the
//! greatest matching: go through the packets by release and give each the usable bytes that expire
//! first.
//!
//! Source: F. Glover, "Maximum matching in a convex bipartite graph", Naval Research Logistics
//! Quarterly 14 (1967), for bytes in place of vertices.

use std::collections::BTreeSet;

use super::slots::{Budget, Slot, budget_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    /// ns since the links' origin.
    pub released: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Matching<'a> {
    slots: &'a [Slot],
    by_arrival: Vec<usize>,
    /// Ascending by release, with distinct releases.
    batches: Vec<Batch>,
    end: u64,
}

struct Sweep<'a> {
    slots: &'a [Slot],
    /// Slots usable now or later, by cursor: capacity before the cursor is used.
    active: BTreeSet<(u64, usize)>,
    group: Vec<(u64, usize)>,
    spent: Vec<(u64, usize)>,
}

impl<'a> Matching<'a> {
    pub fn new(slots: &'a [Slot], mut batches: Vec<Batch>, end: u64) -> Self {
        let mut by_arrival: Vec<usize> = (0..slots.len()).collect();
        by_arrival.sort_by_key(|&index| slots[index].arrival(slots[index].from));
        batches.sort_unstable_by_key(|batch| batch.released);
        batches.dedup_by(|later, earlier| {
            let same = later.released == earlier.released;
            earlier.bytes += if same { later.bytes } else { 0 };
            same
        });
        Self { slots, by_arrival, batches, end }
    }

    /// Bytes that cannot arrive within `deadline` ns of their release in any schedule.
    pub fn missing_bytes(&self, deadline: u64) -> u64 {
        let mut sweep = Sweep {
            slots: self.slots,
            active: BTreeSet::new(),
            group: Vec::new(),
            spent: Vec::new(),
        };
        let mut next = 0;
        let mut missing: Budget = 0;
        for batch in &self.batches {
            let latest = batch.released.saturating_add(deadline).min(self.end);
            while let Some(&index) = self.by_arrival.get(next)
                && self.slots[index].arrival(self.slots[index].from) <= latest
            {
                sweep.active.insert((self.slots[index].from, index));
                next += 1;
            }
            missing += sweep.serve(batch, latest);
        }
        // A rest below a byte comes from rounding nanoseconds.
        u64::try_from(missing / budget_of(1)).unwrap_or(u64::MAX)
    }
}

impl Sweep<'_> {
    /// Gives the batch the earliest capacity that arrives by `latest`; returns the missing rest.
    fn serve(&mut self, batch: &Batch, latest: u64) -> Budget {
        let mut need = budget_of(batch.bytes);
        while need > 0 {
            let Some(until) = self.gather(batch.released, latest) else { break };
            let at = self.group[0].0.max(batch.released);
            let slots = self.slots;
            let rate: Budget = self.group.iter().map(|&(_, i)| Budget::from(slots[i].bps)).sum();
            let available = Budget::from(until - at) * rate;
            let used_until = if need < available {
                // Rounded down: optimistic by less than the bytes of a nanosecond.
                at + u64::try_from(need / rate).unwrap_or(u64::MAX)
            } else {
                until
            };
            need = need.saturating_sub(available);
            for &(cursor, index) in &self.group {
                self.active.remove(&(cursor, index));
                if used_until < slots[index].to {
                    self.active.insert((used_until, index));
                }
            }
        }
        need
    }

    /// Fills `group` with the slots that are usable at the earliest possible moment; returns until
    /// when all of them are, or `None` without any.
    fn gather(&mut self, released: u64, latest: u64) -> Option<u64> {
        self.group.clear();
        self.spent.clear();
        let mut at = 0;
        let mut until = u64::MAX;
        for &(cursor, index) in &self.active {
            let slot = &self.slots[index];
            let start = cursor.max(released);
            if start >= until {
                break;
            }
            if start >= slot.to {
                self.spent.push((cursor, index));
                continue;
            }
            let limit = slot.to.min(slot.departure(latest));
            if start >= limit {
                continue;
            }
            if self.group.is_empty() {
                at = start;
            } else if start > at {
                until = until.min(start);
                break;
            }
            until = until.min(limit);
            self.group.push((cursor, index));
        }
        for spent in &self.spent {
            self.active.remove(spent);
        }
        (!self.group.is_empty()).then_some(until)
    }
}
