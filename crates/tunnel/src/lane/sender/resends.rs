//! What waits to leave again, or beside the first copy, until windows and pacers allow it.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::wire::Part;
use roadweave_proto::{Instant, LaneId, PacketId, PathId, PathOffer, PathSnapshot, earliest};

use crate::carrier::Carrier;
use crate::lane::copies::Copies;
use crate::lane::cuts::{Cut, Cuts};
use crate::lane::datagram::{DatagramContent, LaneDatagram};
use crate::lane::offers::limit_repairs;

#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetime {
    pub(super) since: Instant,
    pub(super) until: Instant,
}

#[derive(Debug)]
pub(super) struct QueuedRepair {
    pub(super) lifetime: Lifetime,
    pub(super) datagram: LaneDatagram,
    /// Bit i: the repair is for the i-th packet from its first one on, which is lost; 0 for parts.
    pub(super) lost: u64,
    pub(super) is_redundant: bool,
    pub(super) tried_others: bool,
}

#[derive(Debug)]
pub(super) struct Resends {
    lane: LaneId,
    pub(super) again: VecDeque<(Instant, PacketId)>,
    pub(super) repairs: BTreeMap<PathId, VecDeque<QueuedRepair>>,
    pub(super) copies: Copies,
    pub(super) cuts: Cuts,
}

impl Resends {
    pub(super) fn new(lane: LaneId) -> Self {
        let (again, repairs) = (VecDeque::new(), BTreeMap::new());
        Self { lane, again, repairs, copies: Copies::default(), cuts: Cuts::default() }
    }

    pub(super) fn clear(&mut self) {
        self.again.clear();
        self.repairs.clear();
        self.copies = Copies::default();
    }

    pub(super) fn offers<'a>(&self, paths: &'a [PathSnapshot]) -> Vec<PathOffer<'a>> {
        let nothing_waits = self.repairs.is_empty() && self.copies.is_empty();
        let offer = |snapshot: &'a PathSnapshot| {
            let queued_bytes = match nothing_waits {
                true => 0,
                false => self.copies.bytes(snapshot.id) + self.repair_bytes(snapshot.id),
            };
            PathOffer { queued_bytes, ..PathOffer::free(snapshot) }
        };
        paths.iter().map(offer).collect()
    }

    fn repair_bytes(&self, path: PathId) -> u64 {
        let repairs = self.repairs.get(&path).into_iter().flatten();
        repairs.map(|repair| repair.datagram.len() as u64).sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        let repairs = self.repairs.values().flatten().map(|repair| repair.datagram.len() as u64);
        repairs.sum::<u64>() + self.copies.total_bytes()
    }

    pub(super) fn poll_timeout(&self, age_max: Duration) -> Option<Instant> {
        let oldest = self.repairs.values().filter_map(VecDeque::front);
        let due = oldest.map(|repair| match repair.tried_others {
            true => repair.lifetime.until,
            false => repair.lifetime.until.min(repair.lifetime.since + REPAIR_WAIT_MAX),
        });
        earliest([due.min(), self.copies.oldest().map(|since| since + age_max)])
    }

    pub(super) fn queue_repair(
        &mut self,
        lifetime: Lifetime,
        path: PathId,
        (start, lost): (PacketId, u64),
        bytes: Bytes,
    ) {
        let content = match lost {
            1 => DatagramContent::Copy { id: start },
            _ => DatagramContent::Repair { start },
        };
        let datagram = LaneDatagram { lane: self.lane, content, bytes };
        let (is_redundant, tried_others) = (true, false);
        let repair = QueuedRepair { lifetime, datagram, lost, is_redundant, tried_others };
        self.repairs.entry(path).or_default().push_back(repair);
    }

    pub(super) fn repair(&self, start: PacketId, bytes: Bytes) -> LaneDatagram {
        LaneDatagram { lane: self.lane, content: DatagramContent::Repair { start }, bytes }
    }

    /// Cuts a datagram that is too large, and queues its parts first for its path; returns whether
    /// it could. `is_redundant`: its content has left before.
    pub(super) fn cut(
        &mut self,
        lifetime: Lifetime,
        cut: Cut,
        (datagram, is_redundant): (&[u8], bool),
        carrier: &impl Carrier,
    ) -> bool {
        // A peer that reports no fates does not reassemble parts.
        if !carrier.reports_fates() {
            return false;
        }
        let (number, size_max) = (self.cuts.next, carrier.max_datagram_size());
        let Some(parts) = Part::cut(self.lane, number, datagram, size_max) else { return false };
        self.cuts.on_cut(cut, parts.len());
        self.cuts.has_new_parts = true;
        let (lane, content) = (self.lane, DatagramContent::Part { number });
        let queue = self.repairs.entry(cut.path).or_default();
        for bytes in parts.into_iter().rev() {
            let datagram = LaneDatagram { lane, content, bytes };
            let (lost, tried_others) = (0, false);
            let part = QueuedRepair { lifetime, datagram, lost, is_redundant, tried_others };
            queue.push_front(part);
        }
        true
    }

    /// Cancels all that waits for these packets alone; returns how many copies and repairs it was.
    pub(super) fn cancel(&mut self, ids: &HashSet<PacketId>) -> u64 {
        self.again.retain(|(_, id)| !ids.contains(id));
        let mut cancelled: u64 = ids.iter().map(|id| self.copies.cancel(*id)).sum();
        for repairs in self.repairs.values_mut() {
            repairs.retain(|repair| {
                let mut lost = repair.datagram.content.id().of_mask(repair.lost);
                let goes = repair.lost != 0 && lost.all(|id| ids.contains(&id));
                cancelled += u64::from(goes);
                !goes
            });
        }
        self.repairs.retain(|_, repairs| !repairs.is_empty());
        cancelled
    }

    /// Takes the first repair of the path with the most repairs.
    pub(super) fn pop_repair(&mut self) -> Option<QueuedRepair> {
        let queue = self.repairs.values_mut().max_by_key(|queue| queue.len())?;
        let repair = queue.pop_front()?;
        self.repairs.retain(|_, queue| !queue.is_empty());
        Some(repair)
    }
}

pub(super) fn path_for(plan: PathId, wait: Duration, len: usize, paths: &[PathSnapshot]) -> PathId {
    let usable = paths.iter().any(|path| path.id == plan && path.is_usable());
    if usable && wait > Duration::ZERO {
        return plan;
    }
    let mut offers: Vec<_> = paths.iter().map(PathOffer::free).collect();
    limit_repairs(&mut offers);
    let room = |path: &PathOffer<'_>| path.repair_room().min(path.snapshot.pacing_budget);
    let with_room = offers.iter().filter(|path| path.is_usable() && room(path) >= len as u64);
    let nearest = with_room.min_by_key(|path| path.snapshot.expected_rtt);
    nearest.map_or(plan, |path| path.snapshot.id)
}

pub(super) const REPAIR_WAIT_MAX: Duration = Duration::from_millis(10);
