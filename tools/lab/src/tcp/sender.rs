//! The sending end.
//!
//! ```text
//! on_ack ─► Scoreboard, Rack: delivered and lost ─► Recovery ─► window ◄─ Congestion
//! poll ◄── repairs before new data, within window, pace and the receiver's window
//! timers:  pace │ RACK's reordering window │ tail loss probe or retransmission timeout
//! ```

use std::time::Duration;

use roadweave_proto::{Instant, earliest};
use roadweave_quic::CongestionControl;

use super::congestion::{Acked, Congestion, CongestionPhase, INITIAL_WINDOW, Window, controller};
use super::rack::{Circumstances, Rack};
use super::rate::RateEstimator;
use super::recovery::Recovery;
use super::rtt::{RoundTrips, TIMEOUT_MIN};
use super::scoreboard::{AckSummary, Scoreboard};
use super::segment::Segment;

#[derive(Debug)]
pub(super) struct Sender {
    mss: u32,
    una: u64,
    pub(super) nxt: u64,
    written: u64,
    pub(super) allowed: u64,
    board: Scoreboard,
    rack: Rack,
    rate: RateEstimator,
    pub(super) rtt: RoundTrips,
    window: Window,
    congestion: Box<dyn Congestion>,
    recovery: Recovery,
    usage: Usage,
    look_again: Option<Instant>,
    timer: Option<(Instant, Timer)>,
    backoffs: u32,
    probe: Option<Probe>,
    pace: Pace,
    pub(super) counts: SenderStats,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderStats {
    pub segments: u64,
    pub again: u64,
    /// Recoveries that began with a lost segment.
    pub recoveries: u64,
    pub timeouts: u64,
    pub probes: u64,
    /// Recoveries and timeouts that were spurious.
    pub undone: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    Probe,
    Timeout,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    end: u64,
    is_repair: bool,
    has_left: bool,
}

#[derive(Clone, Copy, Debug)]
enum Next {
    Repair,
    Probe,
    New(u32),
}

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    is_limited: bool,
    most_out: u32,
    end: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    next: Instant,
    burst_left: u32,
    credit: Duration,
}

impl Sender {
    /// `mss` is the data of a full segment, `packet` the size of its packet, bytes.
    pub(super) fn new(algorithm: CongestionControl, (mss, packet): (u32, u32), seed: u64) -> Self {
        Self {
            mss,
            una: 0,
            nxt: 0,
            written: 0,
            allowed: 0,
            board: Scoreboard::default(),
            rack: Rack::default(),
            rate: RateEstimator::default(),
            rtt: RoundTrips::new(),
            window: Window { cwnd: INITIAL_WINDOW, ssthresh: u32::MAX },
            congestion: controller(algorithm, (mss, packet), seed),
            recovery: Recovery::new(),
            usage: Usage::default(),
            look_again: None,
            timer: None,
            backoffs: 0,
            probe: None,
            pace: Pace::default(),
            counts: SenderStats::default(),
        }
    }

    pub(super) fn write(&mut self, bytes: u64) {
        self.written = self.written.saturating_add(bytes);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let pace = self.next().map(|_| self.pace.next);
        earliest([self.look_again, self.timer.map(|(at, _)| at), pace])
    }

    pub(super) fn on_ack(&mut self, now: Instant, ack: u64, segment: &Segment) {
        if ack > self.nxt || ack < self.una {
            return;
        }
        let advances = ack > self.una;
        self.allowed = self.allowed.max(ack + u64::from(segment.window));
        self.una = ack;
        let comes_twice = self.note_duplicate(&segment.sacks);
        let acks = (ack, &segment.sacks[..]);
        let summary = self.board.on_ack(now, acks, |sent| {
            self.rate.on_delivered(now, sent.mark, sent.at);
            self.rack.on_delivered(now, sent);
        });
        let by_echo = || Duration::from_millis(millis(now).wrapping_sub(segment.echo).into());
        if let Some(round_trip) =
            summary.round_trip.or((summary.delivered > 0 && advances).then(by_echo))
        {
            self.rtt.on_sample(now, round_trip);
            self.rack.least = self.rtt.least().unwrap_or_default();
        }
        if summary.is_reordered {
            self.rack.is_reordering = true;
        }
        if advances {
            self.backoffs = 0;
        }
        self.judge_probe(now, segment, advances, comes_twice);
        self.undo_if_spurious(segment.echo, advances, &summary);
        let lost = self.detect(now);
        self.settle(advances, comes_twice);
        let is_progress = advances && lost == 0;
        self.control(now, (summary, lost), is_progress);
        if advances || summary.delivered > 0 {
            self.rearm(now);
        }
    }

    /// Whether the first block reports a duplicate (RFC 2883 section 4).
    fn note_duplicate(&mut self, sacks: &[(u64, u64)]) -> bool {
        let Some(&(from, to)) = sacks.first() else { return false };
        let is_within = sacks.get(1).is_some_and(|second| from >= second.0 && to <= second.1);
        let comes_twice = to <= self.una || is_within;
        if comes_twice {
            self.rack.on_duplicate(self.una, self.nxt);
            self.recovery.on_duplicate();
        }
        comes_twice
    }

    /// Ends a probe: if it repaired a loss, there was congestion (RFC 8985 section 7.4.2).
    fn judge_probe(&mut self, now: Instant, ack: &Segment, advances: bool, comes_twice: bool) {
        let Some(probe) = self.probe else { return };
        if !probe.has_left || self.una < probe.end {
            return;
        }
        let answers_twice = !advances && self.una == probe.end && ack.sacks.is_empty();
        if !probe.is_repair
            || comes_twice
            || answers_twice
            || self.recovery.phase != CongestionPhase::Open
        {
            self.probe = None;
        } else if self.una > probe.end {
            self.probe = None;
            let ssthresh = self.congestion.on_congestion(now, CongestionPhase::Open, &self.window);
            if !self.congestion.rules_in_recovery() {
                self.window = Window { cwnd: ssthresh, ssthresh };
            }
        }
    }

    /// Undoes spurious recoveries (RFC 3522, RFC 5682 section 3).
    fn undo_if_spurious(&mut self, echo: u32, advances: bool, summary: &AckSummary) {
        if self.recovery.phase == CongestionPhase::Open {
            return;
        }
        let original_since = |at: Instant| summary.original.is_some_and(|sent| sent < at);
        let is_spurious = self.recovery.is_spurious(echo, advances)
            || self.recovery.phase == CongestionPhase::Loss
                && self.recovery.timeout_at.is_some_and(original_since);
        if is_spurious {
            let before = self.recovery.before;
            self.window.cwnd = self.congestion.undone(&self.window, before.cwnd);
            self.window.ssthresh = self.window.ssthresh.max(before.ssthresh);
            self.board.forget_losses();
            self.recovery.finish();
            self.counts.undone += 1;
        }
    }

    fn detect(&mut self, now: Instant) -> u32 {
        let at = Circumstances {
            is_recovering: self.recovery.phase != CongestionPhase::Open,
            smoothed: self.rtt.smoothed().unwrap_or_default(),
        };
        let (lost, look_again) = self.rack.detect(now, &mut self.board, at);
        self.look_again = look_again;
        if lost > 0 && self.recovery.phase == CongestionPhase::Open {
            self.counts.recoveries += 1;
            self.probe = None;
            let before = self.window;
            self.window.ssthresh =
                self.congestion.on_congestion(now, CongestionPhase::Open, &self.window);
            let repair = self.board.first_repair().map(millis);
            self.recovery.begin(CongestionPhase::Recovery, self.nxt, before, repair);
        }
        lost
    }

    fn settle(&mut self, advances: bool, comes_twice: bool) {
        if self.recovery.phase == CongestionPhase::Open || !advances && !comes_twice {
            return;
        }
        if self.una >= self.recovery.end {
            if self.recovery.phase == CongestionPhase::Recovery
                && !self.congestion.rules_in_recovery()
            {
                self.window.cwnd = self.window.ssthresh;
            }
            self.recovery.finish();
            self.rack.on_recovered();
        }
    }

    fn control(&mut self, now: Instant, (summary, lost): (AckSummary, u32), is_progress: bool) {
        let phase = self.recovery.phase;
        let acked = Acked {
            now,
            delivered: summary.delivered,
            lost,
            delivered_total: self.rate.delivered,
            in_flight: self.board.in_flight(),
            round_trip: summary.round_trip_last,
            smoothed: self.rtt.smoothed(),
            is_delayed: summary.delivered == 1 && self.board.sent.is_empty(),
            rate: self.rate.sample(self.rtt.least()),
            phase,
            is_cwnd_limited: self.is_cwnd_limited(),
            una: self.una,
            nxt: self.nxt,
        };
        self.congestion.on_ack(&acked, &mut self.window);
        if phase == CongestionPhase::Recovery && !self.congestion.rules_in_recovery() {
            let (in_flight, ssthresh) = (self.board.in_flight(), self.window.ssthresh);
            if summary.delivered > 0 || lost > 0 {
                let sends =
                    self.recovery.may_send(summary.delivered, in_flight, ssthresh, is_progress);
                self.window.cwnd = in_flight + sends;
            }
        }
    }

    /// In slow start a half-full window counts as used.
    fn is_cwnd_limited(&self) -> bool {
        let Window { cwnd, ssthresh } = self.window;
        self.usage.is_limited || cwnd < ssthresh && cwnd < 2 * self.usage.most_out
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.look_again.is_some_and(|at| at <= now) {
            let lost = self.detect(now);
            self.control(now, (AckSummary::default(), lost), false);
            self.rearm(now);
        }
        let Some((_, timer)) = self.timer.filter(|(at, _)| *at <= now) else { return };
        match timer {
            Timer::Probe => self.send_probe(now),
            Timer::Timeout => self.time_out(now),
        }
    }

    /// Sends new data beyond the window, or the last segment again (RFC 8985 section 7.3).
    fn send_probe(&mut self, now: Instant) {
        let is_repair = self.new_data().is_none();
        self.probe = Some(Probe { end: self.nxt, is_repair, has_left: false });
        self.counts.probes += 1;
        self.timer = Some((now + self.rtt.timeout(self.backoffs), Timer::Timeout));
    }

    /// Marks all segments older than a round trip as lost and restarts the window (RFC 5681 section
    /// 3.1, RFC 6298 section 5; RFC 8985 section 6.3).
    fn time_out(&mut self, now: Instant) {
        if self.board.sent.is_empty() {
            self.timer = None;
            return;
        }
        self.counts.timeouts += 1;
        self.probe = None;
        let first = self.board.sent.front().map_or(self.una, |first| first.seq);
        let recent = self.rtt.smoothed().unwrap_or_default();
        let before = self.window;
        let is_new = self.recovery.phase == CongestionPhase::Open
            || self.una >= self.recovery.end
            || self.recovery.phase == CongestionPhase::Loss && self.backoffs == 0;
        if is_new {
            let phase = self.recovery.phase;
            self.window.ssthresh = self.congestion.on_congestion(now, phase, &self.window);
            self.congestion.on_timeout();
            let repair = self.board.first_repair().map(millis);
            self.recovery.begin(CongestionPhase::Loss, self.nxt, before, repair);
            self.recovery.timeout_at = Some(now);
        } else {
            (self.recovery.phase, self.recovery.end) = (CongestionPhase::Loss, self.nxt);
        }
        self.board.mark_lost(|sent| sent.seq == first || now.since(sent.at) > recent);
        self.window.cwnd = self.board.in_flight() + 1;
        self.look_again = None;
        self.backoffs += 1;
        self.timer = Some((now + self.rtt.timeout(self.backoffs), Timer::Timeout));
        self.pace = Pace { next: now, ..Pace::default() };
    }

    /// Restarts the timer: for a probe outside of recovery, otherwise for a timeout.
    fn rearm(&mut self, now: Instant) {
        if self.board.sent.is_empty() {
            self.timer = None;
            return;
        }
        let timeout = self.rtt.timeout(self.backoffs);
        let probes = self.recovery.phase == CongestionPhase::Open
            && self.board.sacked == 0
            && self.probe.is_none()
            && self.backoffs == 0;
        let probe_wait = self.rtt.smoothed().map(|smoothed| {
            let alone = self.board.out() == 1;
            smoothed * 2 + if alone { TIMEOUT_MIN } else { PROBE_SLACK }
        });
        self.timer = Some(match probe_wait.filter(|_| probes) {
            Some(wait) => (now + wait.min(timeout), Timer::Probe),
            None => (now + timeout, Timer::Timeout),
        });
    }

    fn new_data(&self) -> Option<u32> {
        let room = self.allowed.min(self.una + SEND_BUFFER).saturating_sub(self.nxt);
        let len = (self.written - self.nxt).min(self.mss.into());
        (len > 0 && len <= room).then_some(len as u32)
    }

    fn next(&self) -> Option<Next> {
        if self.probe.is_some_and(|probe| !probe.has_left) && !self.board.sent.is_empty() {
            return Some(self.new_data().map_or(Next::Probe, Next::New));
        }
        if self.board.in_flight() >= self.window.cwnd {
            return None;
        }
        if self.board.lost > 0 && self.recovery.phase != CongestionPhase::Open {
            return Some(Next::Repair);
        }
        self.new_data().map(Next::New)
    }

    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<(u64, u32)> {
        let Some(next) = self.next() else {
            self.note_usage();
            return None;
        };
        if !self.paces(now) {
            return None;
        }
        let was_idle = self.board.sent.is_empty();
        let rate = &mut self.rate;
        let (seq, len) = match next {
            Next::New(len) => {
                let mark = rate.on_sent(now, was_idle);
                self.board.push(now, self.nxt, len, mark);
                self.nxt += u64::from(len);
                (self.nxt - u64::from(len), len)
            }
            Next::Repair | Next::Probe => {
                let probes = matches!(next, Next::Probe);
                let again = self.board.send_again(now, probes, || rate.on_sent(now, false))?;
                self.counts.again += 1;
                again
            }
        };
        let probe = self.probe.as_mut().filter(|probe| !probe.has_left);
        let probes = probe.is_some();
        if let Some(probe) = probe {
            (probe.has_left, probe.end) = (true, self.nxt);
        }
        self.counts.segments += 1;
        self.recovery.on_sent(!matches!(next, Next::New(_)), millis(now));
        if was_idle || !probes && self.timer.is_some_and(|(_, timer)| timer == Timer::Probe) {
            self.rearm(now);
        }
        self.pay(len);
        Some((seq, len))
    }

    fn note_usage(&mut self) {
        self.pace.burst_left = 0;
        let (out, in_flight) = (self.board.out(), self.board.in_flight());
        let is_limited = in_flight >= self.window.cwnd;
        if is_limited || self.una >= self.usage.end {
            self.usage = Usage { is_limited, most_out: out, end: self.nxt };
        }
        self.usage.most_out = self.usage.most_out.max(out);
        let is_all_sent = self.written - self.nxt < u64::from(self.mss) && self.board.lost == 0;
        if !is_limited && is_all_sent {
            self.rate.on_app_limited(in_flight);
        }
    }

    fn paces(&mut self, now: Instant) -> bool {
        if self.congestion.pacing_rate().is_none() || self.pace.burst_left > 0 {
            return true;
        }
        if self.pace.next > now {
            return false;
        }
        let credit = now.since(self.pace.next);
        self.pace = Pace { next: now, burst_left: self.congestion.burst().max(1), credit };
        true
    }

    /// Charges a segment to the pacer. A late sender catches up with half of a segment's time at
    /// most, as in Linux.
    fn pay(&mut self, len: u32) {
        let Some(rate) = self.congestion.pacing_rate() else { return };
        let takes = Duration::from_secs_f64(f64::from(len) / rate.max(1.0));
        let earned = self.pace.credit.min(takes / 2);
        self.pace.credit -= earned;
        self.pace.next += takes - earned;
        self.pace.burst_left = self.pace.burst_left.saturating_sub(1);
    }
}

pub(super) fn millis(now: Instant) -> u32 {
    (now.as_nanos() / 1_000_000) as u32
}

/// Linux's largest `tcp_wmem`.
const SEND_BUFFER: u64 = 4 << 20;
/// Two ticks at 1,000 Hz.
const PROBE_SLACK: Duration = Duration::from_millis(2);
