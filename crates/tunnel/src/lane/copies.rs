//! Copies that wait for one path each.
//!
//! ```text
//! Send({A, B, C}) ─► A has room: leaves at once
//!                    B, C have none: ─► queue of B ─► leaves when B has room
//!                                       queue of C ─► acknowledged by way of A: withdrawn
//! ```
//!
//! A scheduler may send a packet on paths that are full. Its copies wait for these paths in the
//! order in which they came, and are withdrawn when no longer needed: RAVEN's cancel (section 4).

use std::collections::BTreeMap;

use roadweave_proto::{Instant, PacketId, PathId, Urgency};

use crate::lane::datagram::LaneDatagram;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceCopy {
    pub(crate) id: PacketId,
    pub(crate) datagram: LaneDatagram,
    pub(crate) ends_frame: bool,
    pub(crate) urgency: Urgency,
    pub(crate) queued: Instant,
    pub(crate) since: Instant,
    pub(crate) is_first: bool,
    /// Whether it counts against its path's budget: it left before, or leaves on a better path.
    pub(crate) is_redundant: bool,
}

impl SourceCopy {
    pub(crate) fn again(now: Instant, id: PacketId, datagram: LaneDatagram, came: Instant) -> Self {
        let (ends_frame, is_first, is_redundant) = (false, false, true);
        let (urgency, since, queued) = (Urgency::FIRST, now, came);
        Self { id, datagram, ends_frame, urgency, queued, since, is_first, is_redundant }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Copies {
    queues: BTreeMap<PathId, Queue>,
    packets: BTreeMap<u32, CopiedPacket>,
    count: u64,
}

#[derive(Debug, Default)]
struct Queue {
    bytes: u64,
    copies: BTreeMap<u64, SourceCopy>,
}

#[derive(Debug, Default)]
struct CopiedPacket {
    places: Vec<(PathId, u64)>,
    has_left: bool,
}

impl Copies {
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub(crate) fn paths(&self) -> Vec<PathId> {
        self.queues.keys().copied().collect()
    }

    pub(crate) fn bytes(&self, path: PathId) -> u64 {
        self.queues.get(&path).map_or(0, |queue| queue.bytes)
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.queues.values().map(|queue| queue.bytes).sum()
    }

    pub(crate) fn len(&self) -> usize {
        self.queues.values().map(|queue| queue.copies.len()).sum()
    }

    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.queues.values().filter_map(Queue::front).map(|(_, copy)| copy.since).min()
    }

    pub(crate) fn push(&mut self, path: PathId, copy: SourceCopy) {
        self.put_back(path, self.count, copy);
        self.count += 1;
    }

    pub(crate) fn pop(&mut self, path: PathId) -> Option<(u64, SourceCopy)> {
        let (place, _) = self.queues.get(&path)?.front()?;
        let mut copy = self.remove(path, place)?;
        if let Some(packet) = self.packets.get_mut(&copy.id.0) {
            copy.is_first = !packet.has_left;
            packet.places.retain(|other| *other != (path, place));
            if packet.places.is_empty() {
                self.packets.remove(&copy.id.0);
            }
        }
        Some((place, copy))
    }

    pub(crate) fn pop_oldest(&mut self) -> Option<(PathId, SourceCopy)> {
        let fronts = self.queues.iter().filter_map(|(path, queue)| Some((queue.front()?.0, *path)));
        let (_, path) = fronts.min()?;
        self.pop(path).map(|(_, copy)| (path, copy))
    }

    pub(crate) fn put_back(&mut self, path: PathId, place: u64, copy: SourceCopy) {
        let packet = self.packets.entry(copy.id.0).or_default();
        packet.places.push((path, place));
        packet.has_left |= !copy.is_first;
        let queue = self.queues.entry(path).or_default();
        queue.bytes += copy.datagram.len() as u64;
        queue.copies.insert(place, copy);
    }

    /// A copy has left, so those that still wait are duplicates.
    pub(crate) fn on_left(&mut self, id: PacketId) {
        if let Some(packet) = self.packets.get_mut(&id.0) {
            packet.has_left = true;
        }
    }

    pub(crate) fn cancel(&mut self, id: PacketId) -> u64 {
        let Some(packet) = self.packets.remove(&id.0) else { return 0 };
        let removed = packet.places.iter().filter_map(|(path, place)| self.remove(*path, *place));
        removed.count() as u64
    }

    fn remove(&mut self, path: PathId, place: u64) -> Option<SourceCopy> {
        let queue = self.queues.get_mut(&path)?;
        let copy = queue.copies.remove(&place)?;
        queue.bytes -= copy.datagram.len() as u64;
        if queue.copies.is_empty() {
            self.queues.remove(&path);
        }
        Some(copy)
    }
}

impl Queue {
    fn front(&self) -> Option<(u64, &SourceCopy)> {
        self.copies.first_key_value().map(|(place, copy)| (*place, copy))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use roadweave_proto::LaneId;

    use super::*;
    use crate::lane::datagram::DatagramContent;

    fn copy(id: u32, bytes: usize) -> SourceCopy {
        let content = DatagramContent::Source { id: PacketId(id), is_whole: true };
        let bytes = Bytes::from(vec![0; bytes]);
        let datagram = LaneDatagram { lane: LaneId(0), content, bytes };
        let since = Instant::from_millis(id.into());
        let copy = SourceCopy::again(since, PacketId(id), datagram, Instant::ZERO);
        SourceCopy { is_first: true, is_redundant: false, ..copy }
    }

    #[test]
    fn copies_leave_in_order_and_only_the_first_of_a_packet_is_its_first() {
        let mut copies = Copies::default();
        for id in [7, 3] {
            copies.push(PathId(0), copy(id, 100));
            copies.push(PathId(2), copy(id, 100));
        }
        assert_eq!((copies.bytes(PathId(0)), copies.bytes(PathId(1))), (200, 0));
        let (_, first) = copies.pop(PathId(0)).expect("it waits");
        assert_eq!((first.id, first.is_first), (PacketId(7), true));
        copies.on_left(PacketId(7));
        let (_, second) = copies.pop(PathId(2)).expect("it waits");
        assert_eq!((second.id, second.is_first), (PacketId(7), false));
        let (place, blocked) = copies.pop(PathId(2)).expect("it waits");
        assert_eq!(blocked.id, PacketId(3));
        copies.push(PathId(2), copy(9, 100));
        copies.put_back(PathId(2), place, blocked);
        assert_eq!(copies.pop(PathId(2)).expect("it waits").1.id, PacketId(3), "its place is kept");
    }

    #[test]
    fn a_packet_is_withdrawn_from_all_paths_and_leaves_nothing_behind() {
        let mut copies = Copies::default();
        copies.push(PathId(0), copy(1, 100));
        copies.push(PathId(1), copy(1, 100));
        copies.push(PathId(1), copy(2, 50));
        assert_eq!(copies.oldest(), Some(Instant::from_millis(1)));
        assert_eq!((copies.cancel(PacketId(1)), copies.cancel(PacketId(1))), (2, 0));
        assert_eq!((copies.paths(), copies.total_bytes()), (vec![PathId(1)], 50));
        assert_eq!(copies.cancel(PacketId(2)), 1);
        assert!(copies.is_empty() && copies.packets.is_empty());
    }
}
