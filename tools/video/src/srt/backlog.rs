//! The backlog of an SRT connection: unacknowledged packets.
//!
//! The element counts packets sent and acknowledgements, but not its buffer. An acknowledgement
//! arrives each 10 ms while packets arrive (SRT draft, section 4.8.1), and covers the packets sent
//! up to a round trip before it:
//!
//! ```text
//! given ──────────► sent for the first time ──────────► sent a round trip before the last
//!        queued                              in flight    acknowledgement
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use super::steer::LinkReading;

#[derive(Clone, Copy, Debug)]
pub struct Counters {
    /// Packets given to the element.
    pub given: u64,
    /// Packets sent, repeats included.
    pub sent: u64,
    pub repeated: u64,
    /// Packets dropped because they were too late.
    pub dropped: u64,
    pub acknowledgements: u64,
    /// The round trip, in ms.
    pub rtt_ms: f64,
    /// The rate of sending, bit/s.
    pub sent_bps: f64,
}

#[derive(Debug)]
pub struct Backlog {
    /// Time and number of packets first sent by then, oldest first.
    sent: VecDeque<(Duration, u64)>,
    /// Packets given before the connection.
    unsent: u64,
    acknowledgements: u64,
    acknowledged: Option<Duration>,
}

impl Backlog {
    pub fn new() -> Self {
        Self { sent: VecDeque::new(), unsent: 0, acknowledgements: 0, acknowledged: None }
    }

    pub fn add(&mut self, now: Duration, counters: Counters) -> LinkReading {
        let Counters { given, sent, repeated, dropped, acknowledgements, .. } = counters;
        let first = sent.saturating_sub(repeated);
        if self.sent.is_empty() {
            self.unsent = given.saturating_sub(first);
        }
        if acknowledgements != self.acknowledgements || self.acknowledged.is_none() {
            self.acknowledgements = acknowledgements;
            self.acknowledged = Some(now);
        }
        self.sent.push_back((now, first));
        let rtt = Duration::try_from_secs_f64(counters.rtt_ms / 1e3).unwrap_or_default();
        let until = self.acknowledged.unwrap_or(now).saturating_sub(rtt);
        while self.sent.len() > TURNS_MOST || self.sent.get(1).is_some_and(|(at, _)| *at <= until) {
            self.sent.pop_front();
        }
        let acknowledged = self.sent.front().map_or(first, |(_, sent)| *sent);
        let waiting = given.saturating_sub(self.unsent).saturating_sub(first + dropped);
        // The round trip of a dead link cannot be measured: it is at least the silence.
        let silent_ms = self.silent(now).as_secs_f64() * 1e3;
        LinkReading {
            rtt_ms: counters.rtt_ms.max(silent_ms),
            unacknowledged: (waiting + first.saturating_sub(acknowledged)) as f64,
            sent_bps: counters.sent_bps,
            dropped,
        }
    }

    /// Time since the last acknowledgement, if anything was sent since.
    pub fn silent(&self, now: Duration) -> Duration {
        let (Some(acknowledged), Some((_, last))) = (self.acknowledged, self.sent.back()) else {
            return Duration::ZERO;
        };
        let mut after = self.sent.iter().filter(|(at, _)| *at >= acknowledged + ANSWER_MOST);
        let is_waiting = after.next().is_some_and(|(_, sent)| sent < last);
        if is_waiting { now.saturating_sub(acknowledged) } else { Duration::ZERO }
    }
}

/// Turns of 20 ms: beyond any relevant round trip.
const TURNS_MOST: usize = 1000;
/// Packets sent before may have been acknowledged with the last.
const ANSWER_MOST: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(turn: u64, unsent: u64) -> Counters {
        Counters {
            given: 100 + turn * 10,
            sent: turn * 12 - unsent,
            repeated: turn * 2,
            dropped: 0,
            acknowledgements: turn,
            rtt_ms: 60.0,
            sent_bps: 5e6,
        }
    }

    fn turn(backlog: &mut Backlog, turn: u64, unsent: u64) -> f64 {
        let at = Duration::from_millis(turn * 20);
        backlog.add(at, counters(turn, unsent)).unacknowledged
    }

    #[test]
    fn a_round_trip_is_on_its_way_and_what_waits_is_added() {
        let mut backlog = Backlog::new();
        let steady: Vec<f64> = (0..50).map(|it| turn(&mut backlog, it, 0)).collect();
        assert_eq!((steady[0], steady[1], steady[49]), (0.0, 10.0, 30.0));
        let waits = turn(&mut backlog, 50, 40);
        assert_eq!(waits, 40.0);
    }

    #[test]
    fn a_source_that_stops_is_no_receiver_that_is_silent() {
        let mut backlog = Backlog::new();
        (0..50).for_each(|it| _ = turn(&mut backlog, it, 0));
        let counters = Counters { sent_bps: 0.0, ..counters(49, 0) };
        for ms in (1000..9000).step_by(20) {
            let _ = backlog.add(Duration::from_millis(ms), counters);
        }
        assert_eq!(backlog.silent(Duration::from_secs(9)), Duration::ZERO);
    }

    #[test]
    fn without_acknowledgements_it_grows_and_is_bounded() {
        let mut backlog = Backlog::new();
        (0..50).for_each(|it| _ = turn(&mut backlog, it, 0));
        let grown = turn(&mut backlog, 50, 0);
        let (mut last, mut rtt_ms) = (0.0, 0.0);
        for it in 51..5000 {
            let sent = Counters { acknowledgements: 50, ..counters(it, 0) };
            let reading = backlog.add(Duration::from_millis(it * 20), sent);
            (last, rtt_ms) = (reading.unacknowledged, reading.rtt_ms);
            assert!(backlog.sent.len() <= TURNS_MOST);
        }
        assert_eq!((grown, last, rtt_ms), (30.0, 9990.0, 98_980.0));
        assert_eq!(backlog.silent(Duration::from_secs(100)), Duration::from_secs(99));
    }
}
