//! Received packets of one direction, by cycle.

use std::collections::BTreeMap;

use crate::log::LogEntry;
use crate::plan::RecordPlan;

#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    cycles: BTreeMap<u16, CycleArrivals>,
}

#[derive(Debug, Default)]
pub(crate) struct CycleArrivals {
    /// ms since the receiver's start, bytes.
    pub deliveries: Vec<(u32, u32)>,
    pub probes: u32,
    /// Number of probes sent; 0 if no probe arrived.
    pub probes_sent: u16,
    /// The smallest difference between a probe's arrival by the receiver's clock and its departure
    /// by the sender's, us: the delay plus the offset of the clocks.
    pub difference_min: Option<i64>,
}

impl Arrivals {
    pub fn add(&mut self, plan: &RecordPlan, entry: LogEntry) {
        match entry {
            LogEntry::Delivery { cycle, at_ms, bytes } if cycle <= plan.cycles() => {
                let arrived = self.cycles.entry(cycle).or_default();
                if arrived.deliveries.len() < DELIVERIES_MAX {
                    arrived.deliveries.push((at_ms, bytes));
                }
            }
            LogEntry::Probe { cycle, sent_us, received_us, probes } if cycle <= plan.cycles() => {
                let arrived = self.cycles.entry(cycle).or_default();
                let difference = signed(received_us).saturating_sub(signed(sent_us));
                let least =
                    arrived.difference_min.map_or(difference, |least| least.min(difference));
                arrived.difference_min = Some(least);
                arrived.probes = arrived.probes.saturating_add(1);
                arrived.probes_sent = arrived.probes_sent.max(probes);
            }
            LogEntry::Delivery { .. } | LogEntry::Probe { .. } => {}
        }
    }

    pub fn cycle(&self, cycle: u16) -> Option<&CycleArrivals> {
        self.cycles.get(&cycle)
    }

    /// The smallest difference of `cycle`'s probes, or of the nearest earlier or else later cycle.
    pub fn difference(&self, cycle: u16) -> Option<i64> {
        let known = |entry: (&u16, &CycleArrivals)| entry.1.difference_min;
        let before = self.cycles.range(..=cycle).rev().find_map(known);
        before.or_else(|| self.cycles.range(cycle..).find_map(known))
    }
}

pub(crate) fn signed(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX)
}

/// A delivery in every millisecond of the longest plan, in one cycle.
const DELIVERIES_MAX: usize = 7_300_000;
