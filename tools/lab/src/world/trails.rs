//! Follows packets end to end: joins observations of the sending side and the receiving side.

use std::collections::{HashMap, VecDeque};

use roadweave_emulate::Direction;
use roadweave_proto::Instant;
use roadweave_tunnel::{PacketEvent, PacketStep};

use super::Arrival;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trail {
    pub queued: Instant,
    pub sent: Instant,
    /// When it was first considered lost, if it was.
    pub lost: Option<Instant>,
    /// When a repair was first requested, if one was.
    pub repair_asked: Option<Instant>,
    pub decoded: bool,
}

/// Direction, lane and number.
type Key = (Direction, u8, u32);

#[derive(Debug, Default)]
pub(super) struct Trails {
    /// Never iterated, so its order does not matter.
    known: HashMap<Key, Trail>,
    ages: VecDeque<Key>,
}

/// Limit of followed packets: half a minute at 50 Mbit/s.
const FOLLOWED_MAX: usize = 1 << 17;

impl Trails {
    /// Applies the observations of the end that sends along `sending`, and sets the trails of
    /// `arrived`, the packets it has just delivered.
    pub(super) fn follow<'a>(
        &mut self,
        sending: Direction,
        events: impl Iterator<Item = PacketEvent>,
        mut arrived: impl Iterator<Item = &'a mut Arrival>,
    ) {
        let receiving = sending.opposite();
        for PacketEvent { at, lane, id, what } in events {
            let key = |direction| (direction, lane.0, id.0);
            match what {
                PacketStep::Sent { queued, .. } => self.begin(key(sending), queued, at),
                PacketStep::Lost => {
                    self.change(&key(sending), |trail| _ = trail.lost.get_or_insert(at));
                }
                PacketStep::RepairAsked => {
                    self.change(&key(sending), |trail| _ = trail.repair_asked.get_or_insert(at));
                }
                PacketStep::Delivered { decoded } => {
                    let trail = self.known.remove(&key(receiving));
                    if let Some(arrival) = arrived.next() {
                        arrival.trail = trail.map(|trail| Trail { decoded, ..trail });
                    }
                }
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.known.clear();
        self.ages.clear();
    }

    fn begin(&mut self, key: Key, queued: Instant, sent: Instant) {
        let trail = Trail { queued, sent, lost: None, repair_asked: None, decoded: false };
        self.known.insert(key, trail);
        self.ages.push_back(key);
        if self.ages.len() > FOLLOWED_MAX
            && let Some(oldest) = self.ages.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    fn change(&mut self, key: &Key, change: impl FnOnce(&mut Trail)) {
        if let Some(trail) = self.known.get_mut(key) {
            change(trail);
        }
    }
}
