//! The packets of a lane that are not settled, and the timer that finds the lost ones.
//!
//! ```text
//!                        ┌── acknowledged ──────────────► settled
//! waiting ─ sent ─► in flight ── threshold or QUIC ─► lost ─► settled
//!                        ▲                              │
//!                        └────────── sent again ────────┘
//! ```
//!
//! A packet may have copies on several paths, some waiting for theirs. It is in flight as long as
//! one of them is, and lost when all are; a copy that waits is not overdue.
//!
//! IDs ascend: a gapless queue with constant-time look-up. The timer's heap is checked in front.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use roadweave_proto::{Instant, PacketId, PathId, PathOffer, PathSnapshot};

/// The most packets that are watched: more than a second's worth at 1 Gbit/s.
const CAPACITY: usize = 1 << 17;

const NEWLY_LOST_MAX: usize = 1 << 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketState {
    Waiting,
    InFlight { path: PathId, sent: Instant },
    Lost { path: PathId, sent: Instant },
    Settled,
}

#[derive(Clone, Copy, Debug)]
struct Slot<T> {
    state: PacketState,
    transmissions: u32,
    tag: T,
}

#[derive(Clone, Copy, Debug)]
struct Further {
    path: PathId,
    sent: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct Flight<T> {
    first: PacketId,
    next: Option<PacketId>,
    slots: VecDeque<Slot<T>>,
    /// By sequence number: copies beyond the first.
    further: BTreeMap<u64, Vec<Further>>,
    timer: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    /// Packets that left the front: orders IDs across their wrap.
    gone: u64,
    newly_lost: VecDeque<PacketId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overdue<T> {
    pub(crate) id: PacketId,
    pub(crate) tag: T,
    pub(crate) transmissions: u32,
}

impl<T: Copy> Flight<T> {
    pub(crate) fn new() -> Self {
        Self {
            first: PacketId(0),
            next: None,
            slots: VecDeque::new(),
            further: BTreeMap::new(),
            timer: BinaryHeap::new(),
            gone: 0,
            newly_lost: VecDeque::new(),
        }
    }

    pub(crate) fn is_new(&self, id: PacketId) -> bool {
        self.next.is_none_or(|next| next == id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// A copy on `path`, lost after `loss_delay`. Returns the tag of a packet that is evicted.
    pub(crate) fn on_sent(
        &mut self,
        now: Instant,
        id: PacketId,
        path: PathId,
        loss_delay: Duration,
        tag: T,
    ) -> Option<T> {
        let evicted = self.introduce(id, tag);
        let Some(index) = self.index(id) else { return evicted };
        let sequence = self.gone + index as u64;
        let waited = self.take_further(sequence, path);
        let slot = &mut self.slots[index];
        match slot.state {
            PacketState::Settled => return evicted,
            PacketState::InFlight { .. } => {
                self.further.entry(sequence).or_default().push(Further { path, sent: Some(now) });
                if !waited {
                    return evicted; // the timer runs, and will ask for all copies
                }
            }
            PacketState::Waiting | PacketState::Lost { .. } => {
                slot.state = PacketState::InFlight { path, sent: now };
                slot.transmissions += 1;
            }
        }
        self.timer.push(Reverse((now + loss_delay, sequence, self.slots[index].transmissions)));
        evicted
    }

    /// Notes a copy that waits for `path`. Returns the tag of a packet that is evicted.
    pub(crate) fn on_waiting(&mut self, id: PacketId, path: PathId, tag: T) -> Option<T> {
        let evicted = self.introduce(id, tag);
        let Some(index) = self.index(id) else { return evicted };
        let slot = &mut self.slots[index];
        if slot.state == PacketState::Settled {
            return evicted;
        }
        if matches!(slot.state, PacketState::Lost { .. }) {
            slot.state = PacketState::Waiting;
        }
        let copies = self.further.entry(self.gone + index as u64).or_default();
        copies.push(Further { path, sent: None });
        evicted
    }

    fn introduce(&mut self, id: PacketId, tag: T) -> Option<T> {
        if !self.is_new(id) {
            return None;
        }
        if self.slots.is_empty() {
            self.first = id;
        }
        self.next = Some(id.next());
        self.slots.push_back(Slot { state: PacketState::Waiting, transmissions: 0, tag });
        if self.slots.len() <= CAPACITY {
            return None;
        }
        let slot = self.pop_front()?;
        (slot.state != PacketState::Settled).then_some(slot.tag)
    }

    fn pop_front(&mut self) -> Option<Slot<T>> {
        let slot = self.slots.pop_front()?;
        self.further.remove(&self.gone);
        self.first = self.first.next();
        self.gone += 1;
        Some(slot)
    }

    fn take_further(&mut self, sequence: u64, path: PathId) -> bool {
        let Some(copies) = self.further.get_mut(&sequence) else { return false };
        let found = copies.iter().position(|copy| copy.path == path && copy.sent.is_none());
        if let Some(at) = found {
            copies.remove(at);
        }
        if copies.is_empty() {
            self.further.remove(&sequence);
        }
        found.is_some()
    }

    pub(crate) fn tag(&self, id: PacketId) -> Option<T> {
        self.index(id).map(|index| self.slots[index].tag)
    }

    pub(crate) fn has_further(&self, id: PacketId) -> bool {
        let sequence = self.index(id).map(|index| self.gone + index as u64);
        sequence.is_some_and(|sequence| self.further.contains_key(&sequence))
    }

    pub(crate) fn state(&self, id: PacketId) -> Option<PacketState> {
        self.index(id).map(|index| self.slots[index].state)
    }

    pub(crate) fn set(&mut self, id: PacketId, state: PacketState) -> Option<(PacketState, T)> {
        let index = self.index(id)?;
        let slot = &mut self.slots[index];
        let before = std::mem::replace(&mut slot.state, state);
        let tag = slot.tag;
        self.further.remove(&(self.gone + index as u64));
        if matches!(state, PacketState::Lost { .. }) {
            self.note_lost(id);
        }
        while self.slots.front().is_some_and(|slot| slot.state == PacketState::Settled) {
            self.pop_front();
        }
        self.trim_timer();
        Some((before, tag))
    }

    /// A copy on `path` is lost or cannot leave. Returns the tag if it was the last one.
    pub(crate) fn on_lost(&mut self, now: Instant, id: PacketId, path: PathId) -> Option<T> {
        let index = self.index(id)?;
        let sequence = self.gone + index as u64;
        let copies = self.further.get_mut(&sequence);
        let at =
            copies.as_ref().and_then(|copies| copies.iter().position(|copy| copy.path == path));
        let lost = match self.slots[index].state {
            PacketState::InFlight { path: on, sent } if on == path => {
                let left = copies.and_then(take_left);
                self.slots[index].state = match left {
                    Some((path, sent)) => PacketState::InFlight { path, sent },
                    None if self.further.contains_key(&sequence) => PacketState::Waiting,
                    None => {
                        return self.set(id, PacketState::Lost { path, sent }).map(|(_, tag)| tag);
                    }
                };
                sent
            }
            PacketState::InFlight { .. } | PacketState::Waiting => {
                copies?.remove(at?);
                now
            }
            PacketState::Lost { .. } | PacketState::Settled => return None,
        };
        if self.further.get(&sequence).is_some_and(Vec::is_empty) {
            self.further.remove(&sequence);
            if self.slots[index].state == PacketState::Waiting {
                return self.set(id, PacketState::Lost { path, sent: lost }).map(|(_, tag)| tag);
            }
        }
        // The timer skips packets with a waiting copy: look at this one again.
        self.timer.push(Reverse((now, sequence, self.slots[index].transmissions)));
        None
    }

    pub(crate) fn poll_lost(&mut self) -> Option<PacketId> {
        self.newly_lost.pop_front()
    }

    fn note_lost(&mut self, id: PacketId) {
        if self.newly_lost.len() >= NEWLY_LOST_MAX {
            self.newly_lost.pop_front();
        }
        self.newly_lost.push_back(id);
    }

    /// Drops expired entries at the front of the timer: each that stays wakes the sender in vain.
    fn trim_timer(&mut self) {
        while let Some(Reverse((_, sequence, transmission))) = self.timer.peek().copied() {
            let index = sequence.checked_sub(self.gone).map(|index| index as usize);
            let slot = index.and_then(|index| self.slots.get(index));
            let waits = |slot: &Slot<T>| {
                slot.transmissions == transmission
                    && matches!(slot.state, PacketState::InFlight { .. })
            };
            if slot.is_some_and(waits) {
                return;
            }
            self.timer.pop();
        }
    }

    /// The next packet that is overdue; it is lost now. `loss_delay` is evaluated with the current
    /// path and the number of transmissions.
    pub(crate) fn poll_overdue(
        &mut self,
        now: Instant,
        paths: &[PathOffer<'_>],
        loss_delay: impl Fn(&PathSnapshot, u32) -> Duration,
    ) -> Option<Overdue<T>> {
        while let Some(&Reverse((due, sequence, transmission))) = self.timer.peek() {
            if due > now {
                return None;
            }
            self.timer.pop();
            let Some(index) = sequence.checked_sub(self.gone).map(|index| index as usize) else {
                continue;
            };
            let Some(slot) = self.slots.get_mut(index) else { continue };
            let PacketState::InFlight { path, sent } = slot.state else { continue };
            if slot.transmissions != transmission {
                continue;
            }
            let due_on = |path: PathId, sent: Instant| {
                let known = paths.iter().find(|known| known.snapshot.id == path)?;
                Some(sent + loss_delay(known.snapshot, transmission))
            };
            let mut last = due_on(path, sent);
            if let Some(copies) = self.further.get(&sequence) {
                if copies.iter().any(|copy| copy.sent.is_none()) {
                    continue;
                }
                last = copies
                    .iter()
                    .filter_map(|copy| due_on(copy.path, copy.sent?))
                    .chain(last)
                    .max();
            }
            if let Some(due) = last
                && due > now
            {
                self.timer.push(Reverse((due, sequence, transmission)));
                continue;
            }
            self.further.remove(&sequence);
            slot.state = PacketState::Lost { path, sent };
            let tag = slot.tag;
            let id = self.first.plus(index as u32);
            self.note_lost(id);
            return Some(Overdue { id, tag, transmissions: transmission });
        }
        None
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.timer.peek().map(|Reverse((due, _, _))| *due)
    }

    fn index(&self, id: PacketId) -> Option<usize> {
        let index = usize::try_from(id.distance(self.first)).ok()?;
        (index < self.slots.len()).then_some(index)
    }
}

fn take_left(copies: &mut Vec<Further>) -> Option<(PathId, Instant)> {
    let at = copies.iter().position(|copy| copy.sent.is_some())?;
    let Further { path, sent } = copies.remove(at);
    Some((path, sent?))
}

#[cfg(test)]
mod tests;
