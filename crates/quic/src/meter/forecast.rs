//! How long a packet would take if it left now.
//!
//! ```text
//!                   sent                 answered, or not yet
//! the route         |---- fresh ----|
//! what is ahead     |---- in flight / rate -------|                 Little's law
//! what is overdue   |---- the oldest answer owed --------------->   the link pauses
//!                                  expected: the longest of them
//! ```
//!
//! The smoothed round-trip time describes packets that left a round trip ago. With it alone a
//! scheduler would go on filling a paused link until a timeout, fill a fast link until its queue
//! shows, and never again try a link whose last packets were slow.
//!
//! An answer is owed only for packets newer than the newest acknowledged one: older ones are lost.

use std::time::Duration;

use roadweave_proto::{Instant, Pacing, Rate};

use super::Meter;

/// The initial round-trip time before the first sample.
pub(crate) fn expected_rtt(meter: &Meter, now: Instant, pacing: Pacing) -> Duration {
    if !meter.rtt.is_sampled() {
        return meter.rtt.smoothed();
    }
    // Where packets overtake each other, the recent minimum shows luck rather than the route.
    let route = match meter.is_overtaken() {
        true => meter.rtt.smoothed(),
        false => meter.rtt.fresh_min(),
    };
    route.max(time_to_drain(meter, now, pacing)).max(owed_for(meter, now))
}

/// The time that the path takes for the bytes in flight.
///
/// While it is fully used and its round-trip time has grown, its rate is what it delivered in
/// the last round trip, or passed in it if that was more. Otherwise it can do at least its
/// recent best, and without a queue twice as much, as in slow start.
///
/// A path that carried little has shown little. If it counted as that slow, the rest of a burst
/// would take another path, and a call's probes would measure the difference of the paths' delays.
///
/// Where a sender leaves room, longer round trips are others' queue, or one on the way back. A
/// stream leaves at the first sign; a transfer still doubles with a queue of acknowledgements.
fn time_to_drain(meter: &Meter, now: Instant, pacing: Pacing) -> Duration {
    let base = meter.rtt.recent_min();
    let queued = meter.rtt.latest() > base + base / QUEUE_SHARE + QUEUE_MIN;
    let rate = match (queued, meter.is_app_limited(now)) {
        (true, true) if pacing != Pacing::Rate => meter.delivery.best(),
        (true, false) => meter.delivery.newest().max(passed(meter, now)),
        _ => meter.delivery.best().max(passed(meter, now)) * 2,
    };
    let rate = if queued { rate } else { rate.max(at_first(meter, base)) };
    if rate == Rate::ZERO {
        return Duration::ZERO; // nothing is known
    }
    Duration::from_secs_f64((meter.in_flight() as f64 / rate.bytes_per_second()).min(DRAIN_MAX))
}

/// Zero if the last acknowledgement is old or the path not fully used: rates double meanwhile.
fn passed(meter: &Meter, now: Instant) -> Rate {
    let is_recent = |at| now.since(at) <= meter.rtt.smoothed();
    let passed = meter.passed.filter(|(at, _)| is_recent(*at) && !meter.is_app_limited(now));
    passed.map_or(Rate::ZERO, |(_, rate)| rate)
}

/// An initial window in each round trip (RFC 9002 section 7.2), or the window if that is smaller.
fn at_first(meter: &Meter, base: Duration) -> Rate {
    let window = meter.window.min(INITIAL_PACKETS * u64::from(meter.mtu));
    Rate::of(window, base.max(ROUND_MIN))
}

/// How long the peer has owed an answer to a packet newer than those it acknowledged.
fn owed_for(meter: &Meter, now: Instant) -> Duration {
    let owed = match meter.newest_acknowledged {
        Some((newest, _)) => meter.sent.oldest_after(newest),
        None => meter.sent.oldest(),
    };
    owed.map_or(Duration::ZERO, |packet| now.since(packet.at))
}

const QUEUE_SHARE: u32 = 4;
const QUEUE_MIN: Duration = Duration::from_millis(5);
const INITIAL_PACKETS: u64 = 10;
const ROUND_MIN: Duration = Duration::from_millis(1);
/// Seconds, at most.
const DRAIN_MAX: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A path that carried 1000 bytes each millisecond for 200 ms, acknowledged after 40.
    fn steady() -> (Meter, Instant) {
        let start = Instant::from_millis(1_000);
        let mut meter = Meter::new(MS * 100, 1452);
        meter.start_tracking();
        for at in 0..200_u32 {
            let now = start + MS * at;
            if let Some(sent) = at.checked_sub(40) {
                meter.on_acknowledged(now, start + MS * sent, 1000, u64::from(sent));
                meter.on_acks_end(now);
            }
            meter.on_sent(now, 1000, u64::from(at));
        }
        (meter, start)
    }

    #[test]
    fn even_streams_are_expected_to_go_on_and_pauses_to_last() {
        let (meter, start) = steady();
        let expected = expected_rtt(&meter, start + MS * 199, Pacing::Window);
        assert!((MS * 40..=MS * 42).contains(&expected), "{expected:?}");
        assert_eq!(expected_rtt(&meter, start + MS * 260, Pacing::Window), MS * 100);
    }

    #[test]
    fn a_path_that_carried_little_is_expected_to_pass_an_initial_window_in_a_round_trip() {
        let start = Instant::from_millis(1_000);
        let mut meter = Meter::new(MS * 100, 1452);
        (meter.window, _) = (14_520, meter.start_tracking());
        for at in 0..10_u32 {
            let sent = start + MS * 200 * at;
            meter.on_sent(sent, 100, u64::from(at));
            meter.on_acknowledged(sent + MS * 40, sent, 100, u64::from(at));
            meter.on_acks_end(sent + MS * 40);
        }
        let now = start + MS * 2_000;
        let mut after = |bytes, packet| {
            meter.on_sent(now, bytes, packet);
            expected_rtt(&meter, now, Pacing::Window)
        };
        assert_eq!(after(14_000, 10), MS * 40);
        assert!(after(14_000, 11) > MS * 70, "it is no more than that");
    }

    #[test]
    fn a_lost_packet_that_was_overtaken_is_no_pause() {
        let (mut meter, start) = steady();
        for sent in 161..200 {
            meter.on_acknowledged(start + MS * 240, start + MS * sent, 1000, u64::from(sent));
        }
        meter.on_acks_end(start + MS * 240);
        let expected = expected_rtt(&meter, start + MS * 260, Pacing::Window);
        assert!(expected < MS * 50, "packet 160 alone is missing: {expected:?}");
    }

    #[test]
    fn a_burst_waits_behind_itself() {
        let (mut meter, start) = steady();
        for pn in 200..360 {
            meter.on_sent(start + MS * 200, 1000, pn);
        }
        let expected = expected_rtt(&meter, start + MS * 200, Pacing::Window);
        assert!((MS * 95..=MS * 105).contains(&expected), "200 packets, two each ms: {expected:?}");
    }

    #[test]
    fn a_transfer_that_leaves_room_has_made_no_queue() {
        let (mut meter, start) = steady();
        // Answers take 20 ms longer now, and after 60 ms twice as much leaves.
        let mut pn = 200;
        for at in 200..320_u32 {
            let now = start + MS * at;
            if at >= 220 {
                meter.on_acknowledged(now, start + MS * (at - 60), 1000, u64::from(at - 60));
                meter.on_acks_end(now);
            }
            for _ in 0..1 + at / 260 {
                meter.on_sent(now, 1000, pn);
                pn += 1;
            }
        }
        let expected = |pacing| expected_rtt(&meter, start + MS * 319, pacing);
        let transfer = expected(Pacing::Rate);
        assert!((MS * 55..=MS * 62).contains(&transfer), "{transfer:?}");
        assert!(expected(Pacing::Window) >= MS * 110, "to a stream the queue may be its own");
    }

    #[test]
    fn a_transfer_that_begins_is_expected_to_go_on_doubling() {
        let (mut meter, start) = (Meter::new(MS * 100, 1452), Instant::from_millis(1_000));
        meter.start_tracking();
        let (mut pn, mut flights) = (0, Vec::new());
        for round in 0..8_u32 {
            let now = start + MS * 16 * round;
            for (sent, at) in std::mem::take(&mut flights) {
                meter.on_acknowledged(now, at, 1000, sent);
            }
            meter.on_acks_end(now);
            for _ in 0..10 << round {
                meter.on_sent(now, 1000, pn);
                flights.push((pn, now));
                pn += 1;
            }
            meter.on_limited(now, true, Duration::ZERO);
            let expected = expected_rtt(&meter, now, Pacing::Window);
            assert!(round == 0 || expected <= MS * 17, "round {round}: {expected:?}");
        }
    }

    #[test]
    fn nothing_is_expected_of_a_path_without_a_sample_but_the_initial_round_trip() {
        let meter = Meter::new(MS * 100, 1452);
        assert_eq!(expected_rtt(&meter, Instant::from_millis(1_000), Pacing::Window), MS * 100);
    }
}
