//! The paths of a connection: snapshots for schedulers, the best one, and the open gate.

use std::net::IpAddr;

use roadweave_proto::{
    Instant, Pacing, PathId, PathSnapshot, PathStatus, Priority, SplitMix64, UplinkId,
};

use crate::gate::GateState;
use crate::path::Path;
use crate::source::{Local, Source};
use crate::virtual_address;

#[derive(Default)]
pub(super) struct Paths {
    /// Ascending.
    pub(super) all: Vec<Path>,
    pub(super) snapshots: Vec<PathSnapshot>,
    /// When snapshots were taken; cleared by what makes them stale.
    pub(super) taken: Option<Instant>,
    pub(super) pacing: Pacing,
    pub(super) only_open: Option<PathId>,
    pub(super) last_path: Option<PathId>,
}

impl Paths {
    pub(super) fn index(&self, id: PathId) -> Option<usize> {
        self.all.binary_search_by_key(&id, |path| path.id).ok()
    }

    pub(super) fn get(&self, id: PathId) -> Option<&Path> {
        Some(&self.all[self.index(id)?])
    }

    pub(super) fn by_quic(&mut self, id: noq_proto::PathId) -> Option<&mut Path> {
        self.all.iter_mut().find(|path| path.quic_id() == id)
    }

    pub(super) fn uplink_of(&self, local: Option<IpAddr>) -> Option<UplinkId> {
        local.and_then(virtual_address::uplink).or(self.all.first()?.uplink)
    }

    pub(super) fn of_source(&self, source: &Source) -> Option<PathId> {
        let newest_first = || self.all.iter().rev();
        let path = match source.local {
            Local::Uplink(uplink) => newest_first().find(|path| path.uplink == Some(uplink)),
            Local::Address(_) => newest_first().find(|path| path.remote == source.remote),
        };
        path.map(|path| path.id)
    }

    pub(super) fn insert(&mut self, path: Path) {
        let index = self.all.partition_point(|other| other.id < path.id);
        self.all.insert(index, path);
        self.only_open = None;
    }

    pub(super) fn take_snapshots(&mut self, now: Instant) {
        self.taken = Some(now);
        self.snapshots.clear();
        let pacing = self.pacing;
        self.snapshots.extend(self.all.iter_mut().map(|path| path.snapshot(now, pacing)));
    }

    pub(super) fn after_sending(&mut self, now: Instant, index: usize) {
        let path = &mut self.all[index];
        path.last_asked = now;
        let snapshot = path.snapshot(now, self.pacing);
        if snapshot.room() < u64::from(snapshot.mtu) {
            path.on_limited(now, &snapshot, self.pacing);
        }
        self.snapshots[index] = snapshot;
    }

    pub(super) fn open_only(&mut self, id: PathId) {
        if self.only_open == Some(id) {
            return;
        }
        for path in &self.all {
            path.gate.set(if path.id == id { GateState::Open } else { GateState::Sealed });
            path.gate.meter().disclaim();
        }
        self.only_open = Some(id);
    }

    pub(super) fn set_all_gates(&mut self, state: GateState) {
        self.all.iter().for_each(|path| path.gate.set(state));
        self.only_open = None;
    }

    pub(super) fn best(&self) -> Option<PathId> {
        let with_status = |status| {
            let paths = self.all.iter().filter(move |path| path.status() == status);
            paths.min_by_key(|path| path.smoothed_rtt()).map(|path| path.id)
        };
        let heard_last = || {
            let id = self.last_path?;
            self.get(id)?.validated.then_some(id)
        };
        self.answering()
            .min_by_key(|path| (is_backup(path), path.smoothed_rtt()))
            .map(|path| path.id)
            .or_else(heard_last)
            .or_else(|| with_status(PathStatus::Usable))
            .or_else(|| with_status(PathStatus::Suspect))
            .or_else(|| with_status(PathStatus::Standby))
    }

    /// The path for feedback number `turn`: the best, and now and then another.
    ///
    /// A silent path becomes suspect only after its probe timeout; until then every fourth feedback
    /// takes the second best path, and each acknowledges all that came.
    ///
    /// Where the peer wants acknowledgements on all paths, one of two takes one of the others, by
    /// lot: a packet of the library holds only acknowledgements of paths that received something
    /// since the one before, and with even intervals a path might always have the same turn.
    pub(super) fn feedback(&self, turn: u64, is_on_all: bool) -> Option<PathId> {
        let best = self.best()?;
        let may_rest = self.answering().any(|path| path.id == best && !is_backup(path));
        let others = || {
            let others = self.answering().filter(move |path| path.id != best);
            others.filter(move |path| !(may_rest && is_backup(path)))
        };
        let other = match is_on_all {
            true => drawn(turn, others),
            false if turn % FEEDBACK_TURNS != FEEDBACK_TURNS - 1 => None,
            false => others().min_by_key(|path| path.smoothed_rtt()),
        };
        Some(other.map_or(best, |path| path.id))
    }

    /// Usable paths that are not quiet while others are heard. A side that sends little suspects
    /// nothing soon, so a path that died in an outage would still look good to it.
    fn answering(&self) -> impl Iterator<Item = &Path> {
        let newest = self.all.iter().map(|path| path.arrivals.last).max().unwrap_or_default();
        self.all
            .iter()
            .filter(move |path| path.status() == PathStatus::Usable && !path.is_quiet(newest))
    }

    /// The path whose peer moved and was heard last: behind a closed gate its challenge does not
    /// leave beside other frames. The library sends at most three times what came from there.
    pub(super) fn moved(&self) -> Option<PathId> {
        let moved = self.all.iter().filter(|path| path.answers_before.is_some());
        moved.max_by_key(|path| path.arrivals.last).map(|path| path.id)
    }
}

fn drawn<'a, I: Iterator<Item = &'a Path>>(turn: u64, others: impl Fn() -> I) -> Option<&'a Path> {
    let pair = turn / 2;
    let is_others_turn = turn % 2 == SplitMix64::word(0, pair) % 2;
    let count = others().count() as u64;
    if count > 0 && is_others_turn { others().nth((pair % count) as usize) } else { None }
}

fn is_backup(path: &Path) -> bool {
    path.policy.priority == Priority::Backup
}

/// One in this many feedbacks takes the second fastest path.
const FEEDBACK_TURNS: u64 = 4;
