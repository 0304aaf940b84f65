//! When the packets of a lane came to it, for lanes whose packets expire.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::{Instant, PacketId};

#[derive(Debug)]
pub(crate) struct ArrivalTimes {
    pub(crate) expire_after: Duration,
    /// When expiry began: packets before the first one that is noted count as arrived then.
    began: Instant,
    first: PacketId,
    times: VecDeque<Instant>,
}

impl ArrivalTimes {
    pub(crate) fn new(now: Instant, expire_after: Duration) -> Self {
        Self { expire_after, began: now, first: PacketId(0), times: VecDeque::new() }
    }

    pub(crate) fn on_sent(&mut self, now: Instant, id: PacketId, arrived: Instant) {
        let has_expired = |arrived: &Instant| now.since(*arrived) >= self.expire_after;
        while self.times.front().is_some_and(has_expired) || self.times.len() >= TIMES_MAX {
            self.times.pop_front();
            self.first = self.first.next();
        }
        if self.times.is_empty() {
            self.first = id;
        }
        self.times.push_back(arrived);
    }

    /// When a sent packet may not leave any more; for an unknown one, as if it came at the start.
    pub(crate) fn expiry(&self, id: PacketId) -> Instant {
        let at = usize::try_from(id.distance(self.first)).ok();
        let arrived = at.and_then(|at| self.times.get(at));
        arrived.copied().unwrap_or(self.began) + self.expire_after
    }
}

const TIMES_MAX: usize = 1 << 17;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn packets_expire_by_when_they_came_and_not_by_when_they_left() {
        let mut arrival_times = ArrivalTimes::new(at(0), Duration::from_millis(300));
        let id = |number: u32| PacketId(u32::MAX).plus(number);
        arrival_times.on_sent(at(250), id(0), at(10));
        arrival_times.on_sent(at(260), id(1), at(200));
        assert_eq!([0, 1].map(|number| arrival_times.expiry(id(number))), [at(310), at(500)]);
        arrival_times.on_sent(at(310), id(2), at(300));
        assert_eq!([0, 1].map(|number| arrival_times.expiry(id(number))), [at(300), at(500)]);
        assert_eq!(arrival_times.times.len(), 2, "what has expired is forgotten");
        arrival_times.on_sent(at(900), id(3), at(880));
        assert_eq!((arrival_times.first, arrival_times.times.len()), (id(3), 1));
    }

    #[test]
    fn memory_is_bounded_whatever_leaves_at_once() {
        let mut arrival_times = ArrivalTimes::new(at(0), Duration::from_secs(10));
        (0..TIMES_MAX as u32 + 5).for_each(|id| arrival_times.on_sent(at(1), PacketId(id), at(1)));
        assert_eq!(arrival_times.times.len(), TIMES_MAX);
        assert_eq!(arrival_times.expiry(PacketId(4)), at(10_000));
        assert_eq!(arrival_times.expiry(PacketId(5)), at(10_001));
    }

    #[test]
    fn packets_from_before_expire_as_if_they_had_come_when_it_began() {
        let mut arrival_times = ArrivalTimes::new(at(1_000), Duration::from_millis(300));
        arrival_times.on_sent(at(1_100), PacketId(7), at(950));
        assert_eq!([6, 7].map(|id| arrival_times.expiry(PacketId(id))), [at(1_300), at(1_250)]);
        arrival_times.expire_after = Duration::from_secs(2);
        assert_eq!([6, 7].map(|id| arrival_times.expiry(PacketId(id))), [at(3_000), at(2_950)]);
    }
}
