//! Lets what only acknowledges wait for the turn of the next packet of a stream.
//!
//! ```text
//! device ──────► packet ─► turn                packet ─► turn
//! sockets ─────────────────────── feedback ─► wakes the loop for a turn of its own
//! with patience: ──────────────── feedback ........... ─► the turn of the next packet
//! ```
//!
//! A stream that goes up alone is answered by feedback and nothing else. Where the next packet is
//! due within a millisecond or two, what comes from the network until then is read in its turn:
//! each end is spared a wake-up. No timer is put off, and all that has come is read before one
//! counts. Nothing waits once somebody behind the device is sent something, or as soon as what is
//! to be sent waits for acknowledgements itself.

use std::time::Duration;

use roadweave_proto::Instant;

/// Turns that come closer to each other share feedback anyway.
const GAP_MIN: Duration = Duration::from_micros(200);
/// Packets that come farther apart are not waited for.
const GAP_MAX: Duration = Duration::from_millis(2);
/// What comes from the network waits for so long at most.
const PATIENCE_MAX: Duration = Duration::from_millis(2);
/// A longer gap counts as one of so long: a stream that begins anew is soon known again.
const PAUSE: Duration = Duration::from_millis(10);
/// How long nothing but feedback must have come until it waits.
const ALONE_AFTER: Duration = Duration::from_millis(250);

/// How often the device has packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cadence {
    /// When it last had some.
    last: Instant,
    /// The time from one turn with packets to the next, averaged over some; at most [`PAUSE`].
    gap: Duration,
}

impl Default for Cadence {
    fn default() -> Self {
        Self { last: Instant::ZERO, gap: PAUSE }
    }
}

impl Cadence {
    /// The turn at `now` has packets of the device.
    pub(super) fn on_packets(&mut self, now: Instant) {
        let gap = now.since(self.last).min(PAUSE);
        self.gap = (self.gap * 7 + gap) / 8;
        self.last = now;
    }

    /// How long what comes from the network may wait at `now` for a packet of the device, where it
    /// has brought nothing but feedback since `alone`; zero for not at all.
    pub(super) fn patience(&self, now: Instant, alone: Instant) -> Duration {
        if !(GAP_MIN..=GAP_MAX).contains(&self.gap) || now.since(alone) < ALONE_AFTER {
            return Duration::ZERO;
        }
        (self.last + (self.gap * 2).min(PATIENCE_MAX)).since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_millis(10_000);
    const LONG_AGO: Instant = Instant::ZERO;

    /// One that has had a packet each `gap`, and when the last came.
    fn steady(gap: Duration) -> (Cadence, Instant) {
        let mut cadence = Cadence::default();
        let mut now = START;
        for _ in 0..100 {
            now += gap;
            cadence.on_packets(now);
        }
        (cadence, now)
    }

    #[test]
    fn feedback_waits_for_the_next_packet_and_not_much_longer() {
        for gap in [Duration::from_micros(300), Duration::from_micros(900)] {
            let (cadence, now) = steady(gap);
            let patience = cadence.patience(now, LONG_AGO);
            assert!((gap..gap * 21 / 10).contains(&patience), "{patience:?} of {gap:?}");
            assert_eq!(cadence.patience(now + gap * 3, LONG_AGO), Duration::ZERO, "it is late");
        }
        let (cadence, now) = steady(Duration::from_micros(1_900));
        assert_eq!(cadence.patience(now, LONG_AGO), PATIENCE_MAX);
    }

    #[test]
    fn nothing_waits_where_packets_are_dense_or_far_apart_or_have_not_come_for_long() {
        for gap in [Duration::from_micros(100), Duration::from_millis(3)] {
            let (cadence, now) = steady(gap);
            assert_eq!(cadence.patience(now, LONG_AGO), Duration::ZERO, "{gap:?}");
        }
        assert_eq!(Cadence::default().patience(START, LONG_AGO), Duration::ZERO);
        let (mut cadence, now) = steady(Duration::from_millis(1));
        // A frame each 33 ms, in packets that come one by one.
        let mut now = now + Duration::from_millis(33);
        cadence.on_packets(now);
        assert_eq!(cadence.patience(now, LONG_AGO), Duration::ZERO, "just after a pause");
        for _ in 0..10 {
            now += Duration::from_millis(1);
            cadence.on_packets(now);
        }
        assert!(cadence.patience(now, LONG_AGO) > Duration::from_millis(1));
    }

    #[test]
    fn nothing_waits_while_somebody_is_sent_something() {
        let (cadence, now) = steady(Duration::from_millis(1));
        assert_eq!(cadence.patience(now, now), Duration::ZERO);
        let before = now - ALONE_AFTER;
        assert!(cadence.patience(now, before) > Duration::ZERO);
        assert_eq!(cadence.patience(now, before + Duration::from_nanos(1)), Duration::ZERO);
    }
}
