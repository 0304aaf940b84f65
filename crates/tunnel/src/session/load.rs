//! The load of speed tests within a session, at the sending and at the receiving end.
//!
//! ```text
//! begin ─► send: what room lanes leave, on the paths named ═► handle ─► counted
//!            └─ time or bytes are over ─► "sent", with the mean round trip
//!                                 counted ◄─ quiet after "sent", or too late ─► poll_received
//! ```
//!
//! No load leaves while a lane has a backlog. Load is not repeated, is in no lane's counters, and
//! reaches no device. Load that was not agreed is counted as `UnaskedLoad`.

use std::time::Duration;

use roadweave_proto::wire::{
    Control, LOAD_HEADER, LOAD_OVERHEAD, Load, LoadCounts, Speedtest, TestId, TestWord,
};
use roadweave_proto::{Instant, LaneId, Pacing, PathId, earliest};
use serde::{Deserialize, Serialize};

use crate::carrier::Carrier;
use crate::lane::{DatagramContent, LaneDatagram};
use crate::rate::Limit;

/// How late load still counts for its test: queues of links are seconds long.
pub(crate) const LATE_MAX: Duration = Duration::from_secs(3);
/// Silence after the other end has sent all that ends a test.
const QUIET: Duration = Duration::from_millis(500);
const BATCH: usize = 1024;
const AGAIN: Duration = Duration::from_millis(100);

/// Traffic of a session for speed tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadStats {
    /// Datagrams sent.
    pub sent_datagrams: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Datagrams received.
    pub received_datagrams: u64,
    /// Their bytes.
    pub received_bytes: u64,
}

impl LoadStats {
    pub(super) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct LoadPlan {
    pub(crate) test: TestId,
    pub(crate) paths: Vec<PathId>,
    pub(crate) until: Instant,
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadExpected {
    pub(crate) test: TestId,
    pub(crate) duration: Duration,
    pub(crate) bytes: u64,
    pub(crate) until: Instant,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadReceived {
    pub(crate) test: TestId,
    pub(crate) counts: LoadCounts,
    pub(crate) sent: Option<LoadCounts>,
}

#[derive(Debug, Default)]
pub(crate) struct Loads {
    sending: Option<Sending>,
    sent: Option<(TestId, LoadCounts)>,
    receiving: Option<Receiving>,
    pub(super) stats: LoadStats,
}

#[derive(Debug, Default)]
struct Sending {
    plan: LoadPlan,
    waits_until: Option<Instant>,
    first: Option<Instant>,
    counts: LoadCounts,
    round_trips: Duration,
    answers: u32,
}

#[derive(Debug, Default)]
struct Receiving {
    expected: LoadExpected,
    first: Option<Instant>,
    last: Instant,
    steady_first: Option<Instant>,
    counts: LoadCounts,
    sent: Option<(Instant, LoadCounts)>,
}

impl Loads {
    pub(crate) fn begin(&mut self, plan: LoadPlan) {
        self.sent = None;
        self.sending = Some(Sending { plan, ..Sending::default() });
    }

    /// Ends `test` in both directions; the other end still gets the totals of the sent load.
    pub(crate) fn stop(&mut self, now: Instant, test: TestId) {
        self.receiving.take_if(|receiving| receiving.expected.test == test);
        let of_test = |sending: &&mut Sending| sending.plan.test == test;
        if let Some(sending) = self.sending.as_mut().filter(of_test) {
            sending.plan.until = now;
        }
    }

    pub(crate) fn expect(&mut self, now: Instant, expected: LoadExpected) {
        self.receiving = Some(Receiving { expected, last: now, ..Receiving::default() });
    }

    pub(crate) fn forget(&mut self) {
        let stats = self.stats;
        *self = Self { stats, ..Self::default() };
    }

    pub(super) fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.sending.is_some() || self.receiving.is_some()
    }

    pub(crate) fn on_sent(&mut self, now: Instant, test: TestId, counts: LoadCounts) {
        let of_test = |receiving: &&mut Receiving| receiving.expected.test == test;
        if let Some(receiving) = self.receiving.as_mut().filter(of_test) {
            receiving.sent.get_or_insert((now, counts));
        }
    }

    /// Returns whether the load was agreed.
    pub(super) fn handle(&mut self, now: Instant, load: &Load) -> bool {
        let bytes = load.len() as u64;
        let receiving = self.receiving.as_mut();
        let Some(receiving) = receiving.filter(|it| it.takes(now, load.test, bytes)) else {
            return false;
        };
        receiving.count(now, bytes);
        self.stats.received_datagrams += 1;
        self.stats.received_bytes += bytes;
        true
    }

    pub(super) fn on_acknowledged(&mut self, rtt: Duration) {
        if let Some(sending) = &mut self.sending {
            sending.round_trips += rtt;
            sending.answers += 1;
        }
    }

    /// Sends what the plan, `limit` and paths allow, unless `lanes_wait`.
    pub(super) fn send(
        &mut self,
        now: Instant,
        carrier: &mut impl Carrier,
        mut limit: Option<&mut Limit>,
        lanes_wait: bool,
    ) {
        let Some(sending) = &mut self.sending else { return };
        if !sending.is_over(now) && !sending.has_path(now, carrier) {
            sending.plan.until = now;
        }
        sending.waits_until = None;
        if !sending.is_over(now) {
            if lanes_wait {
                // The load wakes with the lane.
                return;
            }
            carrier.set_pacing(Pacing::Rate);
            let before = sending.counts;
            for at in 0..sending.plan.paths.len() {
                sending.fill(now, at, carrier, &mut limit);
            }
            self.stats.sent_datagrams += sending.counts.packets - before.packets;
            self.stats.sent_bytes += sending.counts.bytes - before.bytes;
            carrier.on_backlog(now);
        }
        if sending.is_over(now) {
            let (test, counts) = (sending.plan.test, sending.counts());
            let said = Control::Speedtest(Speedtest { test, word: TestWord::Sent(counts) });
            if !carrier.send_message(said.to_bytes()) {
                (sending.plan.bytes, sending.plan.until) = (0, now + AGAIN);
                return;
            }
            self.sending = None;
            self.sent = Some((test, counts));
        }
    }

    pub(crate) fn take_sent(&mut self) -> Option<(TestId, LoadCounts)> {
        self.sent.take()
    }

    pub(crate) fn poll_received(&mut self, now: Instant) -> Option<LoadReceived> {
        let receiving = self.receiving.take_if(|it| it.over_at() <= now || it.is_whole())?;
        let (test, counts) = (receiving.expected.test, receiving.counts);
        Some(LoadReceived { test, counts, sent: receiving.sent.map(|(_, counts)| counts) })
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let sending = self.sending.as_ref().map(Sending::due);
        earliest([sending, self.receiving.as_ref().map(Receiving::over_at)])
    }
}

impl Sending {
    fn is_over(&self, now: Instant) -> bool {
        now >= self.plan.until || self.plan.bytes < LOAD_OVERHEAD + LOAD_HEADER as u64
    }

    fn due(&self) -> Instant {
        self.waits_until.map_or(self.plan.until, |at| at.min(self.plan.until))
    }

    fn has_path(&self, now: Instant, carrier: &mut impl Carrier) -> bool {
        carrier.paths(now).iter().any(|path| self.plan.paths.contains(&path.id))
    }

    fn fill(
        &mut self,
        now: Instant,
        at: usize,
        carrier: &mut impl Carrier,
        limit: &mut Option<&mut Limit>,
    ) {
        for _ in 0..BATCH {
            let left = self.plan.bytes.saturating_sub(LOAD_OVERHEAD);
            let size = carrier.max_datagram_size().min(usize::try_from(left).unwrap_or(usize::MAX));
            if size < LOAD_HEADER {
                self.plan.bytes = 0;
                return;
            }
            let passes_at = limit.as_ref().map(|limit| limit.passes_at(size));
            if passes_at.is_some_and(|at| at > now) {
                return self.waits_until = passes_at;
            }
            let number = self.counts.packets as u32;
            let datagram = LaneDatagram {
                lane: LaneId(0),
                content: DatagramContent::Load { number },
                bytes: Load::datagram(self.plan.test, number, size),
            };
            if carrier.send_on(now, self.plan.paths[at], datagram).is_err() {
                return;
            }
            limit.iter_mut().for_each(|limit| _ = limit.allows(now, size));
            self.plan.bytes -= size as u64 + LOAD_OVERHEAD;
            self.counts.packets += 1;
            self.counts.bytes += size as u64;
            self.counts.micros = micros(now.since(*self.first.get_or_insert(now)));
        }
    }

    fn counts(&self) -> LoadCounts {
        let mean = self.round_trips.checked_div(self.answers).unwrap_or_default();
        LoadCounts { rtt_micros: micros(mean), ..self.counts }
    }
}

impl Receiving {
    fn takes(&self, now: Instant, test: TestId, bytes: u64) -> bool {
        let counted = bytes + LOAD_OVERHEAD;
        self.expected.test == test && now < self.until() && counted <= self.expected.bytes
    }

    fn count(&mut self, now: Instant, bytes: u64) {
        self.expected.bytes -= bytes + LOAD_OVERHEAD;
        let first = *self.first.get_or_insert(now);
        self.last = now;
        self.counts.packets += 1;
        self.counts.bytes += bytes;
        self.counts.micros = micros(now.since(first));
        if now >= first + self.expected.duration / 4 {
            match self.steady_first {
                None => self.steady_first = Some(now),
                Some(since) => {
                    self.counts.steady_bytes += bytes;
                    self.counts.steady_micros = micros(now.since(since));
                }
            }
        }
    }

    /// Load counts until then: the other end is done by then if it began with the first datagram.
    fn until(&self) -> Instant {
        let begun = self.first.map(|first| first + self.expected.duration + LATE_MAX);
        begun.map_or(self.expected.until, |until| until.min(self.expected.until))
    }

    fn is_whole(&self) -> bool {
        self.sent.is_some_and(|(_, sent)| self.counts.packets >= sent.packets)
    }

    fn over_at(&self) -> Instant {
        let quiet_at = self.sent.map(|(at, _)| self.last.max(at) + QUIET);
        quiet_at.map_or(self.until(), |at| at.min(self.until()))
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
