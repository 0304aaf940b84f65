//! Rounds: what the acknowledgements of one round-trip time show together.
//!
//! ```text
//! sent          |--- 1 2 3 4 5 ---|             rate = bytes acknowledged / the longer of the two spans
//! acknowledged        |----- 1  2  3  4  5 -----|   round-trip time = the mean over all packets
//! ```
//! A round lasts one base round-trip time by the clock. A round of the draft (section 5.5.1) lasts
//! until a packet sent in it is acknowledged, and so grows with the queue that it is to show.
//!
//! The draft samples the rate at each acknowledgement (section 4.1). The rate of a whole round
//! needs no memory of packets: both spans, of sending and acknowledging, bound it as in the draft.
//!
//! Base stations pause for hundreds of ms, then deliver. The rate is measured after such a silence.

use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Round {
    /// Bytes per second.
    pub(super) rate: f64,
    /// Mean over its packets, seconds.
    pub(super) rtt: f64,
    /// Standard error of that mean, seconds.
    pub(super) rtt_error: f64,
    /// Standard deviation, seconds.
    pub(super) rtt_spread: f64,
    /// Packets overtook each other as a rule: round-trip times scatter by luck, not by a queue.
    pub(super) overtaken: bool,
    /// Lost bytes as a share of all whose fate was learned, 0..=1.
    pub(super) loss: f64,
    /// Routers marked packets instead of dropping them (RFC 3168).
    pub(super) marked: bool,
    /// The sender left room unused, so that `rate` need not be what the path can carry.
    pub(super) app_limited: bool,
    pub(super) roomy: bool,
    pub(super) elapsed: Duration,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Collector {
    began: Option<Border>,
    latest: Option<Instant>,
    /// The longest gap between two batches of acknowledgements that is no silence.
    silence: Duration,
    resumed: Option<Resumed>,
    newest_sent: Option<Instant>,
    newest_before: Option<Instant>,
    overtaken: u32,
    packets: u32,
    bytes: u64,
    lost: u64,
    rtt_sum: f64,
    rtt_squares: f64,
    app_limited: bool,
    pub(super) marked: bool,
    pub(super) limited: bool,
}

/// An acknowledgement that begins or ends a round, and the sending of its newest packet.
#[derive(Clone, Copy, Debug)]
struct Border {
    acknowledged: Instant,
    sent: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Resumed {
    at: Border,
    packets: u32,
    bytes: u64,
}

impl Collector {
    pub(super) fn on_acknowledged(&mut self, now: Instant, sent: Instant, bytes: u64) {
        let rtt = now.saturating_duration_since(sent).as_secs_f64();
        let here = Border { acknowledged: now, sent };
        self.began.get_or_insert(here);
        let latest = self.latest.replace(now).unwrap_or(now);
        if now.saturating_duration_since(latest) > self.silence {
            self.resumed = Some(Resumed { at: here, packets: self.packets, bytes: self.bytes });
        }
        self.overtaken += u32::from(self.newest_before.is_some_and(|newest| sent < newest));
        self.newest_sent = self.newest_sent.max(Some(sent));
        self.packets += 1;
        self.bytes += bytes;
        self.rtt_sum += rtt;
        self.rtt_squares += rtt * rtt;
    }

    pub(super) fn on_lost(&mut self, bytes: u64) {
        self.lost += bytes;
    }

    /// Ends a batch of acknowledgements, and the round if it has lasted for `span` and has enough
    /// packets: more of them where they overtake each other.
    pub(super) fn on_batch_end(
        &mut self,
        now: Instant,
        app_limited: bool,
        span: Duration,
    ) -> Option<Round> {
        self.app_limited |= app_limited;
        self.limited |= !app_limited;
        self.newest_before = self.newest_sent;
        self.silence = span.max(SILENCE_MIN);
        let began = self.began?;
        let end = Border { acknowledged: now, sent: self.newest_sent?.max(began.sent) };
        let elapsed = end.acknowledged.saturating_duration_since(began.acknowledged);
        if elapsed < span || self.packets < PACKETS_MIN {
            return None;
        }
        let packets = f64::from(self.packets);
        let rtt = self.rtt_sum / packets;
        let variance = (self.rtt_squares / packets - rtt * rtt).max(0.0);
        let rtt_error = (variance / packets).sqrt();
        let overtaken = self.overtaken * OVERTAKEN_SHARE >= self.packets;
        if overtaken && rtt_error > rtt * ERROR_MAX && elapsed < span * UNSURE_MAX {
            return None;
        }
        let round = Round {
            rate: self.rate(began, end),
            rtt,
            rtt_error,
            rtt_spread: variance.sqrt(),
            overtaken,
            loss: self.lost as f64 / (self.lost + self.bytes).max(1) as f64,
            marked: self.marked,
            app_limited: self.app_limited,
            roomy: !self.limited,
            elapsed,
        };
        *self = Self {
            began: Some(end),
            latest: self.latest,
            silence: self.silence,
            newest_sent: Some(end.sent),
            newest_before: Some(end.sent),
            ..Self::default()
        };
        Some(round)
    }

    /// Bytes per second between two borders, or since the last silence if enough came after it.
    fn rate(&self, began: Border, end: Border) -> f64 {
        let span = |began: Border| {
            let acknowledging = end.acknowledged.saturating_duration_since(began.acknowledged);
            acknowledging.max(end.sent.saturating_duration_since(began.sent))
        };
        let (span, bytes) = match self.resumed {
            Some(resumed)
                if self.packets - resumed.packets >= PACKETS_MIN
                    && span(resumed.at) >= TIME_MIN =>
            {
                (span(resumed.at), self.bytes - resumed.bytes)
            }
            _ => (span(began), self.bytes),
        };
        bytes as f64 / span.max(TIME_MIN).as_secs_f64()
    }
}

/// With fewer packets, one late packet would pass for a queue.
const PACKETS_MIN: u32 = 4;
/// Packets overtake each other as a rule where one in this many was overtaken.
const OVERTAKEN_SHARE: u32 = 16;
/// Share of a round's mean that its error must be below for the round to end, where they do.
const ERROR_MAX: f64 = 0.1;
/// Round-trip times after which a round ends however uncertain its mean.
const UNSURE_MAX: u32 = 4;
/// Frames come each 33 ms; acknowledgements further apart than this, or a base round trip, pause.
const SILENCE_MIN: Duration = Duration::from_millis(50);
/// Shortest time for a rate: acknowledgements come in batches each millisecond, or after a silence.
const TIME_MIN: Duration = Duration::from_millis(10);

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    impl Round {
        /// A round of 50 ms, bytes per second and seconds, in which nothing else happened.
        pub(in crate::congestion::bbr) fn plain(rate: f64, rtt: f64) -> Self {
            Self {
                rate,
                rtt,
                rtt_error: 0.0,
                rtt_spread: 0.0,
                overtaken: false,
                loss: 0.0,
                marked: false,
                app_limited: false,
                roomy: false,
                elapsed: MS * 50,
            }
        }
    }

    fn round(packets: &[(u32, u32)]) -> Round {
        let start = Instant::now();
        let mut collector = Collector::default();
        let mut last = start;
        for (sent, acknowledged) in packets {
            last = start + MS * *acknowledged;
            collector.on_acknowledged(last, start + MS * *sent, 1000);
        }
        collector.on_batch_end(last, false, MS).expect("the round is over")
    }

    #[test]
    fn the_rate_is_that_of_acknowledging_or_of_sending_whichever_is_lower() {
        for (packets, rate) in [
            // A link that passes a packet each 4 ms; acknowledgements that were held up.
            ([(0, 50), (1, 54), (2, 58), (3, 62), (4, 66)], 5000.0 / 0.016),
            ([(0, 50), (4, 50), (8, 50), (12, 50), (16, 51)], 5000.0 / 0.016),
            // A few packets at once after a silence.
            ([(0, 50), (400, 450), (400, 450), (400, 450), (401, 451)], 5000.0 / 0.401),
        ] {
            assert_eq!(round(&packets).rate, rate);
        }
        let seldom = round(&[(0, 50), (200, 250), (400, 450), (600, 650), (601, 651), (601, 651)]);
        assert_eq!(seldom.rate, 6000.0 / 0.601);
    }

    #[test]
    fn the_error_of_the_mean_grows_with_jitter_alone() {
        let steady = round(&[(0, 50), (1, 51), (2, 52), (3, 53)]);
        assert_eq!((steady.rtt, steady.rtt_error), (0.05, 0.0));
        let jittery = round(&[(0, 40), (1, 61), (2, 42), (3, 63)]);
        assert!((jittery.rtt - 0.05).abs() < 1e-9);
        assert!((jittery.rtt_error - 0.005).abs() < 1e-9, "{jittery:?}");
    }

    #[test]
    fn a_pause_of_the_link_is_left_out_of_the_rate() {
        let start = Instant::now();
        let mut collector = Collector::default();
        let acknowledge = |collector: &mut Collector, at: u32, sent: u32| {
            collector.on_acknowledged(start + MS * at, start + MS * sent, 1000);
            collector.on_batch_end(start + MS * at, false, MS * 50)
        };
        assert_eq!(acknowledge(&mut collector, 50, 0), None);
        assert_eq!(acknowledge(&mut collector, 52, 2), None);
        for packet in 2..10 {
            // At once after half a second, sent each 2 ms.
            collector.on_acknowledged(start + MS * 550, start + MS * packet * 2, 1000);
        }
        let round = acknowledge(&mut collector, 550, 20).expect("it has lasted");
        assert_eq!(round.rate, 9000.0 / 0.016);
        let slow: Vec<_> = (1..5).map(|n| acknowledge(&mut collector, 550 + n * 100, 20)).collect();
        assert_eq!(slow[3].map(|round| round.rate), Some(4000.0 / 0.4));
    }

    #[test]
    fn few_packets_or_a_short_time_are_no_round() {
        let start = Instant::now();
        let mut collector = Collector::default();
        for packet in 0..4 {
            assert_eq!(collector.on_batch_end(start + MS * 99, false, MS * 20), None);
            collector.on_acknowledged(start + MS * packet, start + MS * packet, 1000);
        }
        assert_eq!(collector.on_batch_end(start + MS * 19, true, MS * 20), None);
        collector.on_lost(1000);
        let round = collector.on_batch_end(start + MS * 20, false, MS * 20).expect("it is over");
        assert_eq!((round.loss, round.app_limited), (0.2, true));
    }

    #[test]
    fn a_round_whose_mean_is_uncertain_goes_on_for_a_while() {
        let start = Instant::now();
        let mut collector = Collector::default();
        for packet in (0..5).rev() {
            collector.on_acknowledged(start + MS * 50, start + MS * packet * 10, 1000);
            assert_eq!(collector.on_batch_end(start + MS * 50, false, MS * 20), None);
        }
        assert_eq!(collector.on_batch_end(start + MS * 129, false, MS * 20), None);
        let round = collector.on_batch_end(start + MS * 130, false, MS * 20).expect("long enough");
        assert!(round.rtt_error > round.rtt * ERROR_MAX, "{round:?}");
    }
}
