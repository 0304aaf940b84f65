//! LoLa's figure 4: a change of the propagation delay, replayed to applications that send on and
//! off.
//!
//! ```text
//!  link       6 Mbit/s, 10 ms each way, from the second cycle on 30 ms
//!  Cellsim    delivery opportunities only: the change is one gap between two of them
//!  CellNem    opportunities, and the delay of each cycle
//!  sender     a burst of three full packets each 100 ms (360 kbit/s at ten frames per second)
//! ```

use super::*;

const RATE: Rate = Rate::from_kbps(6_000);
const BEFORE: Duration = Duration::from_millis(10);
const AFTER: Duration = Duration::from_millis(30);
/// When the delay changes in a replay of cycles that count 5 s each.
const CHANGE: Duration = Duration::from_secs(5);
const LENGTH: Duration = Duration::from_secs(10);

/// The recorded link, its delay changing between two cycles.
fn cellnem() -> Trace {
    let delays = steps(&[(0, BEFORE), (12, AFTER)]);
    let trace = Trace::constant(RATE, BEFORE).with_delay(delays);
    let [recording, _] = both_ways(&plan(20), &trace);
    assert_eq!(recording.trace.length(), Some(LENGTH));
    recording.trace
}

/// What Cellsim makes of the same link: the arrivals at the receiver as opportunities, with the
/// delay of the beginning. A longer delay is a time without arrivals.
fn cellsim(recording: &Trace) -> Trace {
    let arrivals = opportunities(recording).iter().map(|(at, bytes)| {
        let longer = if at < CHANGE { Duration::ZERO } else { AFTER - BEFORE };
        (at + longer, bytes)
    });
    let within = arrivals.filter(|(at, _)| *at <= LENGTH);
    let opportunities = Opportunities::with_bytes(within, LENGTH).unwrap();
    recording
        .with_capacity(Capacity::Opportunities(opportunities))
        .with_delay(Timeline::constant(BEFORE))
}

/// The one-way delay of each packet of a sender that sends `burst` packets each `pause`.
fn delays(replay: &Trace, burst: u32, pause: Duration) -> Vec<(Duration, Duration)> {
    let mut link = Link::new(LinkSettings::new(replay.clone(), 1));
    let mut delays = Vec::new();
    let mut now = Instant::ZERO;
    // The replay starts again at its end, with the short delay.
    while now.since(Instant::ZERO) < LENGTH - AFTER * 4 {
        (0..burst).for_each(|_| link.push(now, 1_500, now).unwrap());
        let next = now + pause;
        while let Some(at) = link.poll_timeout().filter(|&at| at <= next + SECOND) {
            let sent = link.poll(at).unwrap();
            delays.push((sent.since(Instant::ZERO), at.since(sent)));
        }
        now = next;
    }
    delays
}

/// The smallest delay of the packets sent within `from..to` of the replay, as an application would
/// measure it. A burst's first packet waits for the next opportunity, 2 ms at most.
fn least(delays: &[(Duration, Duration)], from: Duration, to: Duration) -> Duration {
    let within = delays.iter().filter(|(sent, _)| (from..to).contains(sent));
    within.map(|(_, delay)| *delay).min().unwrap()
}

fn near(measured: Duration, expected: Duration) -> bool {
    measured.abs_diff(expected) < Duration::from_millis(5)
}

#[test]
fn an_on_off_sender_feels_a_change_of_delay_for_as_long_as_it_lasts() {
    let replay = cellnem();
    let delays = delays(&replay, 3, MS * 100);
    assert!(near(least(&delays, Duration::ZERO, CHANGE), BEFORE));
    for begin in (0..45).map(|index| CHANGE + MS * 100 * index) {
        let felt = least(&delays, begin, begin + MS * 200);
        assert!(near(felt, AFTER), "{felt:?} at {begin:?}");
    }
}

#[test]
fn opportunities_alone_lose_a_change_of_delay_for_an_on_off_sender() {
    let replay = cellsim(&cellnem());
    let on_off = delays(&replay, 3, MS * 100);
    assert!(near(least(&on_off, Duration::ZERO, CHANGE), BEFORE));
    // At most the burst that meets the gap feels it; all later ones do not.
    for begin in (2..45).map(|index| CHANGE + MS * 100 * index) {
        let felt = least(&on_off, begin, begin + MS * 200);
        assert!(near(felt, BEFORE), "{felt:?} at {begin:?}");
    }
}

#[test]
fn at_full_throttle_both_show_the_change_to_its_end() {
    let cellnem = cellnem();
    for replay in [cellsim(&cellnem), cellnem] {
        // One packet per transmission time: what waits behind the gap waits behind it for ever.
        let full = delays(&replay, 1, RATE.time_for(1_500));
        let before = least(&full, SECOND, CHANGE - MS * 100);
        for begin in (1..45).map(|index| CHANGE + MS * 100 * index) {
            let risen = least(&full, begin, begin + MS * 200).saturating_sub(before);
            assert!(near(risen, AFTER - BEFORE), "{risen:?} at {begin:?}");
        }
    }
}
