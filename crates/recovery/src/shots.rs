//! Repairs on their way, until enough of each has arrived.
//!
//! ```text
//!  fired ──► enough of its datagrams, or of its packets, acknowledged ──► done
//!    ▲  └──► their time over ──┬── in time for another ──► missed ─┐
//!    │                         └── too late ──► forgotten          │
//!    └─────────────────────────────────────────────────────────────┘
//! ```
//!
//! CellFusion's repairs are one shot (section 4.5.2): a packet whose repair is lost with the link
//! that was to carry it is never seen again, and one such packet makes a frame stand still. Coded
//! packets are as good as one another, so that it is enough to count those which have arrived: n of
//! them bring back n packets (theorem 4.1).

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_types::{Instant, PacketId};

use crate::xnc::Group;

/// A repair of some packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shot {
    /// The packets.
    pub(crate) group: Group,
    /// The longest datagram among them, bytes.
    pub(crate) bytes: u64,
    /// After this nothing is tried any more.
    pub(crate) until: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    shot: Shot,
    /// How many packets are still without a datagram of their own or of the repair.
    missing: u32,
    due: Instant,
}

/// The repairs of a lane that have not arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shots {
    /// Oldest first.
    open: VecDeque<Open>,
    /// What ended of late.
    ended: VecDeque<Group>,
}

impl Shots {
    /// A repair was fired; if it has not arrived after `patience`, it is missed.
    pub(crate) fn on_fired(&mut self, now: Instant, shot: Shot, patience: Duration) {
        if self.open.len() >= OPEN_MAX
            && let Some(oldest) = self.open.pop_front()
        {
            self.end(oldest.shot.group);
        }
        self.open.push_back(Open { shot, missing: shot.group.lost(), due: now + patience });
    }

    /// A datagram of the repair that begins with packet `start` has arrived.
    pub(crate) fn on_repair_acknowledged(&mut self, start: PacketId) {
        self.settle(|open| open.shot.group.start == start);
    }

    /// The packet `id` itself has arrived.
    pub(crate) fn on_acknowledged(&mut self, id: PacketId) {
        self.settle(|open| open.shot.group.has_lost(id));
    }

    /// Whether a repair spans `id`.
    pub(crate) fn covers(&self, id: PacketId) -> bool {
        self.open.iter().any(|open| open.shot.group.spans(id))
    }

    fn settle(&mut self, concerns: impl Fn(&Open) -> bool) {
        if self.open.is_empty() {
            return;
        }
        for open in self.open.iter_mut().filter(|open| concerns(open)) {
            open.missing = open.missing.saturating_sub(1);
        }
        self.end_unless(|open| open.missing > 0);
    }

    fn end_unless(&mut self, goes_on: impl Fn(&Open) -> bool) {
        let mut ended = Vec::new();
        self.open.retain(|open| {
            goes_on(open) || {
                ended.push(open.shot.group);
                false
            }
        });
        ended.into_iter().for_each(|group| self.end(group));
    }

    fn end(&mut self, group: Group) {
        if self.ended.len() >= OPEN_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(group);
    }

    /// A repair that has ended since the last call, arrived or not.
    pub(crate) fn poll_ended(&mut self) -> Option<Group> {
        self.ended.pop_front()
    }

    /// A repair whose time was over, and how many packets it still lacks. Whoever fires again says
    /// so with [`Shots::on_fired_again`]; until then it is asked about each `RETRY_PAUSE`.
    pub(crate) fn poll_missed(&mut self, now: Instant) -> Option<(Shot, u32)> {
        self.end_unless(|open| now < open.shot.until);
        let missed = self.open.iter_mut().find(|open| open.due <= now)?;
        missed.due = now + RETRY_PAUSE;
        Some((missed.shot, missed.missing))
    }

    /// The missed repair `shot` was fired again.
    pub(crate) fn on_fired_again(&mut self, now: Instant, shot: Shot, patience: Duration) {
        if let Some(open) = self.open.iter_mut().find(|open| open.shot == shot) {
            open.due = now + patience;
        }
    }

    /// When [`Shots::poll_missed`] has something to say.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.open.iter().map(|open| open.due).min()
    }

    /// Whether none is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

/// More repairs than this are never watched: the oldest is left to its luck.
const OPEN_MAX: usize = 256;
/// How long a missed repair that found no room waits.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(50);

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    fn shot(start: u32, count: u32) -> Shot {
        let mask = u64::MAX >> (64 - count);
        let group = Group { start: PacketId(start), mask };
        Shot { group, bytes: 1200, until: at(300) }
    }

    #[test]
    fn a_repair_is_missed_until_enough_of_it_has_arrived() {
        let mut shots = Shots::default();
        shots.on_fired(at(0), shot(u32::MAX, 3), PATIENCE);
        shots.on_repair_acknowledged(PacketId(u32::MAX));
        shots.on_acknowledged(PacketId(1)); // the third packet, across the wrap
        shots.on_acknowledged(PacketId(2)); // none of them
        assert_eq!(shots.poll_missed(at(49)), None);
        assert_eq!(shots.poll_timeout(), Some(at(50)));
        assert_eq!(shots.poll_missed(at(50)), Some((shot(u32::MAX, 3), 1)));
        shots.on_fired_again(at(50), shot(u32::MAX, 3), PATIENCE);
        assert_eq!(shots.poll_missed(at(99)), None);
        shots.on_repair_acknowledged(PacketId(u32::MAX));
        assert!(shots.is_empty());
    }

    #[test]
    fn what_finds_no_room_is_asked_about_again_and_forgotten_in_the_end() {
        let mut shots = Shots::default();
        shots.on_fired(at(0), shot(7, 1), PATIENCE);
        assert!(shots.poll_missed(at(50)).is_some());
        assert_eq!(shots.poll_missed(at(50)), None);
        assert!(shots.poll_missed(at(60)).is_some());
        assert_eq!(shots.poll_missed(at(300)), None);
        assert!(shots.is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let mut shots = Shots::default();
        (0..10_000).for_each(|id| shots.on_fired(at(0), shot(id, 1), PATIENCE));
        assert_eq!(shots.open.len(), OPEN_MAX);
    }
}
