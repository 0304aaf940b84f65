//! ACK coalescing: delays reading of feedback until the turn for the stream's next packet. A stream
//! that flows only upwards receives only feedback, and each such packet would wake the loop. If the
//! next packet of the stream is due within a millisecond or two, network packets are read in that
//! turn. Timers are not delayed; all received packets are read before a timer counts. The delay
//! ends when packets for hosts behind the device arrive, or sending waits for acknowledgements.

use std::time::Duration;

use roadweave_proto::Instant;

const GAP_MIN: Duration = Duration::from_micros(200);
/// At larger gaps, feedback does not wait for the next packet.
const GAP_MAX: Duration = Duration::from_millis(2);
const DELAY_MAX: Duration = Duration::from_millis(2);
/// Cap of a measured gap, so that the average of a restarted stream converges soon.
const PAUSE: Duration = Duration::from_millis(10);
/// How long only feedback must have arrived before it is delayed.
const ALONE_AFTER: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug)]
pub(super) struct AckCoalescing {
    last: Instant,
    gap: Duration,
}

impl Default for AckCoalescing {
    fn default() -> Self {
        Self { last: Instant::ZERO, gap: PAUSE }
    }
}

impl AckCoalescing {
    pub(super) fn on_packets(&mut self, now: Instant) {
        let gap = now.since(self.last).min(PAUSE);
        self.gap = (self.gap * 7 + gap) / 8;
        self.last = now;
    }

    /// How long sockets may wait for a packet of the device, if only feedback came since `alone`.
    pub(super) fn delay(&self, now: Instant, alone: Instant) -> Duration {
        if !(GAP_MIN..=GAP_MAX).contains(&self.gap) || now.since(alone) < ALONE_AFTER {
            return Duration::ZERO;
        }
        (self.last + (self.gap * 2).min(DELAY_MAX)).since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_millis(10_000);
    const LONG_AGO: Instant = Instant::ZERO;

    fn steady(gap: Duration) -> (AckCoalescing, Instant) {
        let mut ack_coalescing = AckCoalescing::default();
        let mut now = START;
        for _ in 0..100 {
            now += gap;
            ack_coalescing.on_packets(now);
        }
        (ack_coalescing, now)
    }

    #[test]
    fn feedback_waits_for_the_next_packet_unless_packets_are_dense_or_far_apart() {
        for (gap, least, most) in
            [(100, 0, 0), (300, 300, 630), (900, 900, 1_890), (1_900, 2_000, 2_000), (3_000, 0, 0)]
        {
            let (ack_coalescing, now) = steady(Duration::from_micros(gap));
            let delay = ack_coalescing.delay(now, LONG_AGO).as_micros();
            assert!((least..=most).contains(&delay), "{delay} of {gap}");
            let late = now + Duration::from_micros(gap * 3);
            assert_eq!(ack_coalescing.delay(late, LONG_AGO), Duration::ZERO, "{gap}");
        }
    }

    #[test]
    fn nothing_waits_where_packets_have_not_come_for_long() {
        assert_eq!(AckCoalescing::default().delay(START, LONG_AGO), Duration::ZERO);
        let (mut ack_coalescing, now) = steady(Duration::from_millis(1));
        let mut now = now + Duration::from_millis(33);
        ack_coalescing.on_packets(now);
        assert_eq!(ack_coalescing.delay(now, LONG_AGO), Duration::ZERO, "just after a pause");
        for _ in 0..10 {
            now += Duration::from_millis(1);
            ack_coalescing.on_packets(now);
        }
        assert!(ack_coalescing.delay(now, LONG_AGO) > Duration::from_millis(1));
    }

    #[test]
    fn nothing_waits_while_packets_arrive_for_hosts_behind_the_device() {
        let (ack_coalescing, now) = steady(Duration::from_millis(1));
        assert_eq!(ack_coalescing.delay(now, now), Duration::ZERO);
        let before = now - ALONE_AFTER;
        assert!(ack_coalescing.delay(now, before) > Duration::ZERO);
        assert_eq!(ack_coalescing.delay(now, before + Duration::from_nanos(1)), Duration::ZERO);
    }
}
