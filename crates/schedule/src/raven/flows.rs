//! Which flows of a lane are large transfers, and what each has under way.
//!
//! RAVEN's mode is a connection's (section 4.5). The table is bounded: a flow that sends nothing
//! for [`FLOW_AGE`] is forgotten, beyond [`FLOWS_MAX`] the idlest. It begins again with copies.

use std::collections::BTreeMap;
use std::time::Duration;

use roadweave_proto::{Instant, PathId};

#[derive(Debug, Default)]
pub(super) struct Flows(BTreeMap<u64, Flow>);

#[derive(Debug)]
pub(super) struct Flow {
    pub(super) mode: Mode,
    /// Bytes of packets since the last transfer ended.
    pub(super) busy_bytes: u64,
    pub(super) sent_at: Option<Instant>,
    seen: Instant,
    flying: BTreeMap<PathId, Flying>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Copies where intervals overlap.
    Redundant,
    /// No copies: a large transfer.
    Striping,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flying {
    count: u64,
    bytes: u64,
}

impl Flows {
    pub(super) fn flow(&mut self, now: Instant, hash: u64) -> &mut Flow {
        if !self.0.contains_key(&hash) {
            self.0.retain(|_, flow| now.since(flow.seen) < FLOW_AGE);
            let longest = self.0.iter().min_by_key(|(_, flow)| flow.seen).map(|(hash, _)| *hash);
            if let Some(longest) = longest.filter(|_| self.0.len() >= FLOWS_MAX) {
                self.0.remove(&longest);
            }
        }
        let flow = self.0.entry(hash).or_insert_with(|| Flow::new(now));
        flow.seen = now;
        flow
    }

    pub(super) fn busy_bytes(&self, hash: u64) -> u64 {
        self.0.get(&hash).map_or(0, |flow| flow.busy_bytes)
    }

    pub(super) fn flying_bytes(&self, hash: u64, path: PathId) -> u64 {
        let flying = self.0.get(&hash).and_then(|flow| flow.flying.get(&path));
        flying.map_or(0, |flying| flying.bytes)
    }

    pub(super) fn on_sent(&mut self, now: Instant, hash: u64, path: PathId, bytes: u64) {
        if let Some(flow) = self.0.get_mut(&hash) {
            flow.sent_at = Some(now);
            let flying = flow.flying.entry(path).or_default();
            (flying.count, flying.bytes) = (flying.count + 1, flying.bytes + bytes);
        }
    }

    pub(super) fn on_landed(&mut self, hash: u64, path: PathId) {
        let Some(flow) = self.0.get_mut(&hash) else { return };
        let Some(flying) = flow.flying.get_mut(&path) else { return };
        flying.bytes -= flying.bytes.checked_div(flying.count).unwrap_or(0);
        flying.count = flying.count.saturating_sub(1);
        if flying.count == 0 {
            flow.flying.remove(&path);
        }
    }

    pub(super) fn clear(&mut self, path: PathId) {
        self.0.values_mut().for_each(|flow| _ = flow.flying.remove(&path));
    }
}

impl Flow {
    fn new(now: Instant) -> Self {
        let (mode, flying) = (Mode::Redundant, BTreeMap::new());
        Self { mode, busy_bytes: 0, sent_at: None, seen: now, flying }
    }
}

const FLOWS_MAX: usize = 64;
const FLOW_AGE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn what_a_flow_has_under_way_is_its_own() {
        let (mut flows, path) = (Flows::default(), PathId(0));
        for flow in [7, 8] {
            flows.flow(at(0), flow);
            flows.on_sent(at(0), flow, path, 1000);
            flows.on_sent(at(0), flow, path, 500);
        }
        flows.on_landed(7, path);
        flows.on_sent(at(0), 9, path, 1000); // a repair of no flow
        let flying = |flows: &Flows| [7, 8, 9].map(|flow| flows.flying_bytes(flow, path));
        assert_eq!(flying(&flows), [750, 1500, 0]);
        flows.clear(path);
        assert_eq!(flying(&flows), [0, 0, 0]);
    }

    #[test]
    fn memory_is_bounded_by_count_and_age_and_flows_that_send_stay() {
        let mut flows = Flows::default();
        for number in 0..1_000_u64 {
            let now = at(number);
            flows.flow(now, 7).mode = Mode::Striping;
            flows.flow(now, 100 + number);
        }
        assert_eq!((flows.0.len(), flows.flow(at(1_000), 7).mode), (FLOWS_MAX, Mode::Striping));
        flows.flow(at(1_000) + FLOW_AGE, 8);
        assert_eq!(flows.0.len(), 1, "the others were silent");
    }
}
