//! Where late packets lose their time.
//!
//! ```text
//! in the lane's queue   first copy's way                          first copy
//! ├─ window_wait ───────┼─ propagation ─┬─ link_queue ────────────┤ arrives
//!                       ├─ detection ───┼─ recovery ──────────────┤ a repair arrives
//!                      sent        taken for lost
//! ```
//!
//! The parts of a packet's delay add up to the whole. `window_wait`: until the congestion window
//! and the pacer release it. If a transmission from before the repair delivered it: `propagation`,
//! the link's delay when it was sent, and `link_queue`, the rest of its time in the link. If a
//! repair delivered it (a copy, a retransmission, or coded packets): `detection`, until it was
//! considered lost, and `recovery`, from then until it arrived.

use serde::{Deserialize, Serialize};

use crate::world::{Arrival, Trail};

/// Where packets later than [`Causes::LATE_MS`] lost their time, except for lost packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Causes {
    pub late: u64,
    pub repaired: u64,
    pub window_wait: Cause,
    pub detection: Cause,
    pub recovery: Cause,
    pub link_queue: Cause,
    pub propagation: Cause,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cause {
    /// Late packets for which this cause took the largest part.
    pub packets: u64,
    /// Total time of this cause in all late packets.
    pub seconds: f64,
}

impl Causes {
    /// Packets that take longer count as late, ms: the default deadline of a lane.
    pub const LATE_MS: u64 = 100;

    pub fn merge(&mut self, other: &Self) {
        self.late += other.late;
        self.repaired += other.repaired;
        let mut other = other.clone();
        for (sum, cause) in self.parts().into_iter().zip(other.parts()) {
            sum.packets += cause.packets;
            sum.seconds += cause.seconds;
        }
    }

    pub(super) fn note(&mut self, arrival: &Arrival) {
        let Some(trail) = arrival.trail else { return };
        let delay = arrival.at.since(trail.queued);
        if delay.as_millis() < u128::from(Self::LATE_MS) {
            return;
        }
        self.late += 1;
        let window_wait = trail.sent.since(trail.queued);
        let rest = delay - window_wait;
        let mut parts =
            [window_wait, Default::default(), rest, Default::default(), Default::default()];
        if is_repaired(arrival, &trail) {
            self.repaired += 1;
            let detection = trail.lost.map_or(rest, |lost| lost.since(trail.sent)).min(rest);
            (parts[1], parts[2]) = (detection, rest - detection);
        } else if let Some(ride) = arrival.ride {
            let propagation = ride.propagation.min(rest);
            (parts[2], parts[3], parts[4]) = (Default::default(), rest - propagation, propagation);
        }
        let mut largest = 0;
        for (index, part) in parts.iter().enumerate() {
            self.parts()[index].seconds += part.as_secs_f64();
            if *part > parts[largest] {
                largest = index;
            }
        }
        self.parts()[largest].packets += 1;
    }

    fn parts(&mut self) -> [&mut Cause; 5] {
        let Self { window_wait, detection, recovery, link_queue, propagation, .. } = self;
        [window_wait, detection, recovery, link_queue, propagation]
    }
}

/// Whether a repair delivered the packet: it was decoded, or its carrier left after the request.
pub(super) fn is_repaired(arrival: &Arrival, trail: &Trail) -> bool {
    let later = |asked| arrival.ride.is_none_or(|ride| ride.boarded >= asked);
    trail.decoded || trail.repair_asked.is_some_and(later)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use roadweave_emulate::Direction;
    use roadweave_proto::Instant;

    use super::*;
    use crate::world::Transit;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    /// A packet that was queued at 0, left at 30 and arrived at 200 ms.
    fn arrival(boarded: u64, trail: Trail) -> Arrival {
        let propagation = Duration::from_millis(50);
        Arrival {
            at: at(200),
            direction: Direction::Up,
            packet: Bytes::new(),
            ride: Some(Transit { link: 0, boarded: at(boarded), propagation }),
            trail: Some(trail),
        }
    }

    fn trail(lost: Option<u64>, repair_asked: Option<u64>) -> Trail {
        Trail {
            queued: at(0),
            sent: at(30),
            lost: lost.map(at),
            repair_asked: repair_asked.map(at),
            decoded: false,
        }
    }

    /// `millis` of each cause; `largest` is the cause with the largest part.
    fn check(arrival: &Arrival, millis: [u64; 5], largest: usize) {
        let mut causes = Causes::default();
        causes.note(arrival);
        let mut found = [0; 5];
        for (index, found) in found.iter_mut().enumerate() {
            let cause = &causes.parts()[index];
            *found = (cause.seconds * 1e3).round() as u64;
            assert_eq!(cause.packets, u64::from(index == largest), "cause {index}");
        }
        assert_eq!((found, causes.late), (millis, 1));
    }

    #[test]
    fn the_parts_of_a_delay_add_up() {
        check(&arrival(30, trail(None, None)), [30, 0, 0, 120, 50], 3);
        check(&arrival(150, trail(Some(130), Some(135))), [30, 100, 70, 0, 0], 1);
        // The first copy arrives after all, although a repair was requested.
        check(&arrival(30, trail(Some(130), Some(135))), [30, 0, 0, 120, 50], 3);
        let decoded = Trail { decoded: true, ..trail(Some(60), Some(65)) };
        check(&arrival(70, decoded), [30, 30, 140, 0, 0], 2);
    }

    #[test]
    fn packets_in_time_are_left_alone() {
        let mut causes = Causes::default();
        causes.note(&Arrival { at: at(99), ..arrival(30, trail(None, None)) });
        assert_eq!(causes, Causes::default());
    }
}
