//! The receiver's counters.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::delays::{Clocks, FrameDelays, Percentiles};
use super::{ReportSpan, bps, rounded};
use crate::stamp::Stamp;

#[derive(Debug)]
pub struct Received {
    second: Count,
    whole: Count,
    /// When the last picture was shown, and whether it counts as a stall.
    shown: Option<(Duration, bool)>,
    number: Option<u16>,
    delay_us: Option<i64>,
}

#[derive(Clone, Debug, Default)]
pub struct Count {
    pub since: Duration,
    pub bytes: u64,
    pub packets: u64,
    pub packets_lost: u64,
    pub frames_shown: u64,
    pub frames_lost: u64,
    pub stalls: u64,
    pub stall_longest: Duration,
    pub key_frame_requests: u64,
    pub jumps: u64,
    pub packets_dropped: u64,
    pub delays: FrameDelays,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReceiverReport {
    pub span: ReportSpan,
    pub seconds: f64,
    pub frames_shown: u64,
    /// Pictures numbered but not shown.
    pub frames_lost: u64,
    /// Number of times that a picture stood longer than 200 ms.
    pub stalls: u64,
    /// The longest stall, in ms.
    pub stall_longest_ms: Option<f64>,
    /// From capture to display, in ms; `None` without stamps.
    pub glass_to_glass_ms: Option<Percentiles>,
    pub clocks: Clocks,
    pub bitrate_bps: u64,
    pub packets: u64,
    pub packets_lost: u64,
    pub key_frame_requests: u64,
    /// Resumptions with a key frame while earlier packets were missing.
    pub jumps: u64,
    /// Packets of strangers and RTCP beyond the budgets.
    pub packets_dropped: u64,
    /// The current wait for gaps, in ms.
    pub gap_wait_ms: u64,
}

impl Received {
    pub fn new(now: Duration) -> Self {
        let (second, whole) = (Count::new(now), Count::new(now));
        Self { second, whole, shown: None, number: None, delay_us: None }
    }

    pub fn on_packet(&mut self, bytes: usize) {
        self.each(|count| {
            count.bytes += bytes as u64;
            count.packets += 1;
        });
    }

    /// Counts a picture shown at `now`; `unix` is the same moment since the epoch.
    pub fn on_frame(&mut self, now: Duration, unix: Duration, stamp: Option<Stamp>) {
        self.look(now);
        if let Some((last, true)) = self.shown {
            let stall = now.saturating_sub(last);
            self.each(|count| count.stall_longest = count.stall_longest.max(stall));
        }
        self.shown = Some((now, false));
        self.each(|count| count.frames_shown += 1);
        let Some(Stamp { captured, number }) = stamp else { return };
        let delay = micros(unix).saturating_sub(micros(captured));
        if self.delay_us.replace(delay).is_some_and(|last| last.abs_diff(delay) > CLOCK_SET_US) {
            // A clock was set: delays before and after cannot be compared.
            self.each(|count| count.delays = FrameDelays::default());
        }
        self.each(|count| count.delays.add(delay));
        if let Some(last) = self.number.replace(number) {
            let missed = number.wrapping_sub(last).wrapping_sub(1);
            // Numbers that go back or leap are those of a restarted sender.
            if missed < LEAP {
                self.each(|count| count.frames_lost += u64::from(missed));
            }
        }
    }

    /// Handles the end of the sender: a standing picture is then not a stall.
    pub fn on_goodbye(&mut self) {
        self.shown = None;
    }

    /// Handles a new sender, whose numbers are unrelated.
    pub fn on_new_sender(&mut self) {
        self.number = None;
    }

    pub fn second(&mut self, now: Duration, gap_wait: Duration) -> ReceiverReport {
        self.look(now);
        let second = std::mem::replace(&mut self.second, Count::new(now));
        self.report(ReportSpan::Second, &second, now, gap_wait)
    }

    pub fn whole(&mut self, now: Duration, gap_wait: Duration) -> ReceiverReport {
        self.look(now);
        self.report(ReportSpan::Whole, &self.whole, now, gap_wait)
    }

    fn report(
        &self,
        span: ReportSpan,
        count: &Count,
        now: Duration,
        gap_wait: Duration,
    ) -> ReceiverReport {
        // The clocks are judged over the whole time.
        let clocks = self.whole.delays.clocks();
        let base = match clocks {
            Clocks::Shared => 0,
            Clocks::Relative => self.whole.delays.least_us().unwrap_or(0),
        };
        let seconds = now.saturating_sub(count.since).as_secs_f64();
        let standing = match self.shown {
            Some((last, true)) => now.saturating_sub(last),
            _ => Duration::ZERO,
        };
        let longest = count.stall_longest.max(standing);
        ReceiverReport {
            span,
            seconds: rounded(seconds),
            frames_shown: count.frames_shown,
            frames_lost: count.frames_lost,
            stalls: count.stalls,
            stall_longest_ms: (!longest.is_zero()).then(|| rounded(longest.as_secs_f64() * 1e3)),
            glass_to_glass_ms: count.delays.percentiles(base),
            clocks,
            bitrate_bps: bps(count.bytes, seconds),
            packets: count.packets,
            packets_lost: count.packets_lost,
            key_frame_requests: count.key_frame_requests,
            jumps: count.jumps,
            packets_dropped: count.packets_dropped,
            gap_wait_ms: u64::try_from(gap_wait.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Counts a stall once it has begun.
    fn look(&mut self, now: Duration) {
        if let Some((last, false)) = self.shown
            && now.saturating_sub(last) > STALL
        {
            self.shown = Some((last, true));
            self.each(|count| count.stalls += 1);
        }
    }

    pub fn each(&mut self, mut act: impl FnMut(&mut Count)) {
        act(&mut self.second);
        act(&mut self.whole);
    }
}

impl Count {
    fn new(since: Duration) -> Self {
        Self { since, ..Self::default() }
    }
}

impl fmt::Display for ReceiverReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frames_shown, frames_lost, stalls, packets_lost, key_frame_requests, .. } = self;
        if self.span == ReportSpan::Whole {
            write!(f, "in all {:.1} s: ", self.seconds)?;
        }
        write!(f, "{frames_shown} frames, {frames_lost} lost, {stalls} stalls")?;
        write!(f, ", {:.2} Mbit/s", self.bitrate_bps as f64 / 1e6)?;
        if let Some(Percentiles { p50, p95, p99, .. }) = self.glass_to_glass_ms {
            let beyond = match self.clocks {
                Clocks::Shared => "",
                Clocks::Relative => " beyond the least",
            };
            write!(f, ", glass to glass {p50:.0}/{p95:.0}/{p99:.0} ms{beyond}")?;
        }
        write!(f, ", {packets_lost} packets lost, {key_frame_requests} key frames asked for")
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// A picture that stands longer is a stall.
const STALL: Duration = Duration::from_millis(200);
/// A change of delay between two pictures that means that a clock was set.
const CLOCK_SET_US: u64 = 10_000_000;
/// More frames cannot be missing at once: half a minute of 60 frames a second.
const LEAP: u16 = 1800;

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn shown(frames: &[(u64, u16)]) -> Received {
        let mut received = Received::new(ms(0));
        for &(at, number) in frames {
            let captured = ms(1_000_000 + at - 40);
            received.on_frame(ms(at), ms(1_000_000 + at), Some(Stamp { captured, number }));
        }
        received
    }

    #[test]
    fn frames_between_numbers_are_lost() {
        let check = |numbers: &[u16], lost| {
            let frames: Vec<_> = numbers.iter().map(|number| (100, *number)).collect();
            let report = shown(&frames).whole(ms(100), ms(0));
            assert_eq!(report.frames_lost, lost, "{numbers:?}");
            assert_eq!(report.frames_shown, numbers.len() as u64);
        };
        check(&[], 0);
        check(&[5, 6, 7], 0);
        check(&[5, 8], 2);
        check(&[65_534, 1], 2);
        check(&[7, 6], 0);
        check(&[7, 7], 0);
        check(&[9_000, 0, 1], 0);
    }

    #[test]
    fn a_picture_that_stands_is_a_stall_once() {
        let mut received = shown(&[(100, 0), (300, 1), (501, 2), (540, 3)]);
        let report = received.second(ms(1000), ms(20));
        assert_eq!((report.stalls, report.stall_longest_ms), (2, Some(460.0)));
        let report = received.second(ms(2000), ms(20));
        assert_eq!((report.stalls, report.stall_longest_ms), (0, Some(1460.0)));
        received.on_frame(ms(2040), ms(2040), None);
        let report = received.whole(ms(2050), ms(20));
        assert_eq!((report.stalls, report.stall_longest_ms), (2, Some(1500.0)));
        assert_eq!((report.frames_shown, report.seconds), (5, 2.05));
    }

    #[test]
    fn after_a_goodbye_nothing_stalls() {
        let mut received = shown(&[(100, 0), (140, 1)]);
        received.on_goodbye();
        assert_eq!(received.whole(ms(5000), ms(20)).stalls, 0);
        received.on_frame(ms(5000), ms(5000), None);
        assert_eq!(received.whole(ms(5300), ms(20)).stalls, 1);
    }

    #[test]
    fn a_second_covers_itself_and_the_total_everything() {
        let mut received = shown(&[(100, 0)]);
        received.on_packet(1000);
        let first = received.second(ms(1000), ms(20));
        assert_eq!((first.packets, first.bitrate_bps, first.frames_shown), (1, 8000, 1));
        assert_eq!(first.glass_to_glass_ms.map(|delays| delays.p99), Some(40.0));
        received.each(|count| count.packets_lost += 3);
        received.each(|count| count.key_frame_requests += 1);
        let second = received.second(ms(2000), ms(20));
        assert_eq!((second.packets, second.packets_lost, second.key_frame_requests), (0, 3, 1));
        assert_eq!((second.glass_to_glass_ms, second.frames_shown), (None, 0));
        let whole = received.whole(ms(2000), ms(20));
        assert_eq!((whole.packets, whole.packets_lost, whole.bitrate_bps), (1, 3, 4000));
    }

    #[test]
    fn when_a_clock_is_set_delays_restart() {
        let mut received = shown(&[(100, 0), (140, 1)]);
        for (at, captured) in [(180, 0), (220, u64::MAX / 2_000), (260, 1_000_230)] {
            let stamp = Stamp { captured: ms(captured), number: 2 };
            received.on_frame(ms(at), ms(1_000_000 + at), Some(stamp));
        }
        let report = received.whole(ms(1000), ms(20));
        assert_eq!(report.clocks, Clocks::Shared);
        assert_eq!(report.glass_to_glass_ms.map(|delays| delays.max), Some(30.0));
        assert_eq!(report.frames_shown, 5);
    }

    #[test]
    fn clocks_that_differ_make_all_reports_relative() {
        let mut received = Received::new(ms(0));
        for (at, captured) in [(100, 1100), (140, 1120)] {
            let stamp = Stamp { captured: ms(captured), number: 0 };
            received.on_frame(ms(at), ms(at), Some(stamp));
        }
        let report = received.second(ms(1000), ms(20));
        assert_eq!(report.clocks, Clocks::Relative);
        assert_eq!(report.glass_to_glass_ms.map(|delays| delays.max), Some(20.0));
        assert!(report.to_string().contains("beyond the least"), "{report}");
    }
}
