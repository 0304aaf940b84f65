//! Cross traffic: competing packets in a link's queue.

use std::time::Duration;

use roadweave_emulate::Direction;
use roadweave_proto::{Instant, Rate};

/// Competing packets at a constant rate, continuous or on and off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossTraffic {
    pub link: usize,
    pub direction: Direction,
    /// The rate in on periods, with headers.
    pub rate: Rate,
    /// The size of a packet, bytes with headers; at least 1.
    pub packet_bytes: usize,
    /// Start of the first on period, after the start of the stream.
    pub begin: Duration,
    /// End, after the start of the stream.
    pub end: Duration,
    /// Duration of an on period; irrelevant if `off` is zero.
    pub on: Duration,
    /// Duration of an off period.
    pub off: Duration,
}

#[derive(Clone, Debug)]
pub struct CrossSource {
    pub(crate) traffic: CrossTraffic,
    next: Duration,
    start: Instant,
}

impl CrossSource {
    pub fn new(traffic: CrossTraffic, start: Instant) -> Self {
        Self { traffic, next: traffic.begin, start }
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.next < self.traffic.end).then(|| self.start + self.next)
    }

    /// The size of a packet that is due at `now`, bytes; schedules the next one.
    pub fn poll(&mut self, now: Instant) -> Option<usize> {
        if self.poll_timeout()? > now {
            return None;
        }
        let bytes = self.traffic.packet_bytes.max(1);
        let interval = self.traffic.rate.time_for(bytes as u64).max(Duration::from_nanos(1));
        self.next = self.skip_pause(self.next.saturating_add(interval));
        Some(bytes)
    }

    fn skip_pause(&self, at: Duration) -> Duration {
        let CrossTraffic { begin, on, off, .. } = self.traffic;
        let period = (on + off).as_nanos();
        if off.is_zero() || period == 0 {
            return at;
        }
        let within = at.saturating_sub(begin).as_nanos() % period;
        match within < on.as_nanos() {
            true => at,
            false => at + Duration::from_nanos((period - within) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn packets_come_at_the_rate_while_it_is_on() {
        let traffic = CrossTraffic {
            link: 0,
            direction: Direction::Up,
            rate: Rate::from_kbps(8_000),
            packet_bytes: 1_000,
            begin: MS * 100,
            end: MS * 112,
            on: MS * 3,
            off: MS * 5,
        };
        let mut source = CrossSource::new(traffic, Instant::from_millis(1_000));
        let mut times = Vec::new();
        while let Some(due) = source.poll_timeout() {
            assert_eq!(source.poll(due - MS), None);
            assert_eq!(source.poll(due), Some(1_000));
            times.push(due.as_nanos() / 1_000_000);
        }
        assert_eq!(times, [1_100, 1_101, 1_102, 1_108, 1_109, 1_110]);
    }
}
