//! Follows packets from one end to the other: joins what the sending side tells of a packet with
//! what the receiving side tells.

use std::collections::{HashMap, VecDeque};

use roadweave_emulate::Direction;
use roadweave_proto::Instant;
use roadweave_tunnel::{PacketEvent, PacketStep};

use super::Arrival;

/// What happened to an inner packet before it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trail {
    /// When the packet came into the tunnel.
    pub queued: Instant,
    /// When the packet left for the first time.
    pub sent: Instant,
    /// When the packet was first taken for lost, if it was.
    pub lost: Option<Instant>,
    /// When a repair of the packet was first asked for, if one was.
    pub repair_asked: Option<Instant>,
    /// Whether the packet was computed from coded packets in the end.
    pub decoded: bool,
}

/// A packet: its direction, lane and number.
type Key = (Direction, u8, u32);

/// The packets of both directions that may yet arrive.
#[derive(Debug, Default)]
pub(super) struct Trails {
    /// Never iterated: its order is of no consequence.
    known: HashMap<Key, Trail>,
    /// In the order of sending.
    ages: VecDeque<Key>,
}

/// More packets than this are never followed; that many leave in half a minute at 50 Mbit/s.
const FOLLOWED_MAX: usize = 1 << 17;

impl Trails {
    /// Takes what an end that sends along `sending` tells, and gives each of `arrived`, the inner
    /// packets that it has just put out, its trail.
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

    /// The sessions are new, and count from zero.
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
