//! Which streams have something to do, so that no call walks through all streams.

use std::collections::BTreeSet;

use roadweave_proto::Instant;
use roadweave_proto::wire::StreamId;

use crate::priority::Rank;
use crate::stream::Listed;

#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) control: BTreeSet<StreamId>,
    /// With bytes that take no credit: losses, open, a fin alone.
    pub(crate) again: BTreeSet<Rank>,
    pub(crate) fresh: BTreeSet<Rank>,
    pub(crate) timers: BTreeSet<(Instant, StreamId)>,
    pub(crate) eventful: BTreeSet<StreamId>,
    pub(crate) want_room: BTreeSet<StreamId>,
    pub(crate) buffered: u64,
    /// New bytes within the streams' credit.
    pub(crate) unsent: u64,
    pub(crate) records: usize,
    pub(crate) held_ranges: usize,
}

impl Index {
    pub(crate) fn update(&mut self, id: StreamId, old: Listed, new: Listed) {
        if old == new {
            return;
        }
        flag(&mut self.control, id, old.has_control, new.has_control);
        flag(&mut self.eventful, id, old.has_events, new.has_events);
        flag(&mut self.want_room, id, old.wants_room, new.wants_room);
        replace(&mut self.again, old.again, new.again);
        replace(&mut self.fresh, old.fresh, new.fresh);
        let timer = |listed: Listed| listed.timer.map(|at| (at, id));
        replace(&mut self.timers, timer(old), timer(new));
        self.buffered = self.buffered - old.buffered + new.buffered;
        self.unsent = self.unsent - old.unsent + new.unsent;
        self.records = self.records - old.records + new.records;
        self.held_ranges = self.held_ranges - old.held_ranges + new.held_ranges;
    }
}

fn flag(set: &mut BTreeSet<StreamId>, id: StreamId, old: bool, new: bool) {
    replace(set, old.then_some(id), new.then_some(id));
}

fn replace<T: Ord>(set: &mut BTreeSet<T>, old: Option<T>, new: Option<T>) {
    if old != new {
        old.iter().for_each(|old| _ = set.remove(old));
        set.extend(new);
    }
}
