//! What is due at its time: suspicion, keep-alives, key updates, and the flush.

use std::time::Duration;

use roadweave_proto::{Instant, PathId, PathStatus, UplinkId, earliest};

use super::{Connection, ConnectionPhase, KEEP_ALIVE_OTHERS, Timing};
use crate::event::CloseReason;
use crate::path::Path;

impl Connection {
    /// When [`handle_timeout`](Connection::handle_timeout) wants to be called next. Where datagrams
    /// come one by one, feedback waits half a millisecond to share the turn of the next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let coalescing = self.coalescing();
        let library = self.quic.poll_timeout();
        let library =
            library.map(|at| self.signs.read_delay.put_off(self.epoch.of_std(at)) + coalescing);
        if self.phase == ConnectionPhase::Closed {
            return earliest([library, self.timing.flush]);
        }
        let handshake = match self.phase {
            ConnectionPhase::Handshake { until } => Some(until),
            _ => None,
        };
        let feedback = self.timing.feedback_owed.map(|since| since + FEEDBACK_DELAY + coalescing);
        let feedback = feedback.filter(|&due| due > self.timing.woken);
        let Timing { flush, acknowledge, measure, .. } = self.timing;
        let messages = self.messages.sender.poll_timeout();
        let own = earliest([flush, acknowledge, measure, feedback, messages, handshake]);
        earliest([library, own, self.path_timeouts()])
    }

    fn coalescing(&self) -> Duration {
        let is_sparse = self.timing.data_interval >= SPARSE;
        if is_sparse && self.timing.feedback_owed.is_some() { COALESCING } else { Duration::ZERO }
    }

    fn path_timeouts(&self) -> Option<Instant> {
        let best = if self.is_client { self.paths.best() } else { None };
        let read_delay = &self.signs.read_delay;
        self.paths.all.iter().fold(None, |due, path| {
            let probe = self.signs.probe_due(path, &self.paths.all);
            earliest([due, path.poll_timeout(read_delay), probe, self.keep_alive_due(path, best)])
        })
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.timing.woken = now;
        self.let_timers_fire(now);
        if self.messages.sender.poll_timeout().is_some_and(|at| at <= now) {
            self.want_flush(now);
        }
        self.paths.all.iter().for_each(|path| path.gate.detect_losses(now));
        self.process(now);
        match self.phase {
            ConnectionPhase::Closed => {}
            ConnectionPhase::Handshake { until } => {
                if until <= now {
                    self.give_up_handshake(now);
                }
            }
            ConnectionPhase::Rekeying { .. } | ConnectionPhase::Open => self.look_after_paths(now),
        }
        self.flush(now);
        self.take_snapshots(now);
        self.paths.all.iter_mut().for_each(|path| path.release(now));
    }

    /// The path on which feedback should leave now, if any is due.
    ///
    /// Feedback is due 1 ms after a datagram of the peer's [`send_on`](Connection::send_on)
    /// arrived, until it is sent: at most once in a millisecond. The path is the fastest that
    /// answers, or, if all are suspect, the one with the last packet. Acknowledgements leave with
    /// the feedback, or a little later without it.
    pub fn feedback_due(&self, now: Instant) -> Option<PathId> {
        let since = self.timing.feedback_owed?;
        if now < since + FEEDBACK_DELAY || !self.is_open() {
            return None;
        }
        self.paths.feedback(self.timing.feedback_count, self.acknowledges_on_all)
    }

    /// Spreads feedback over all answering paths by lot, or sends it mostly on the fastest one.
    pub fn acknowledge_on_all(&mut self, is_on: bool) {
        self.acknowledges_on_all = is_on;
    }

    pub(super) fn want_flush(&mut self, at: Instant) {
        let flush = &mut self.timing.flush;
        *flush = Some(flush.map_or(at, |already| already.min(at)));
    }

    /// Asks for a flush at `now + delay`, or later while datagrams take acknowledgements along.
    pub(super) fn want_control_flush(&mut self, now: Instant, delay: Duration) {
        let receiving = self.timing.acknowledge.is_some();
        let sending = now - self.timing.last_sent_data < FEEDBACK_DELAY;
        let delay = if receiving || sending { delay + BUSY_DELAY } else { delay };
        self.want_flush(now + delay);
    }

    /// Fires the library's timers, as late as packets are handed over, since these may stop them.
    pub(super) fn run_library_timers(&mut self, now: Instant) -> bool {
        let std_now = self.epoch.to_std(now - self.signs.read_delay.time(now));
        let due = self.quic.poll_timeout().is_some_and(|at| at <= std_now);
        if due {
            self.quic.handle_timeout(std_now);
            self.size_is_stale = true;
        }
        due
    }

    pub(super) fn let_timers_fire(&mut self, now: Instant) {
        if self.run_library_timers(now) {
            self.want_control_flush(now, Duration::ZERO);
        }
    }

    /// Makes every path suspect until it answers something that leaves from `now` on: this end was
    /// paused, and its knowledge of the networks is outdated.
    pub fn suspect_all_paths(&mut self, now: Instant) {
        self.paths.all.iter_mut().for_each(|path| path.set_suspect(now, now));
        self.handle_timeout(now);
    }

    /// Makes the path over `uplink` suspect until it answers something that leaves from `now` on:
    /// it may have moved into another network.
    pub fn suspect_path_on(&mut self, now: Instant, uplink: UplinkId) {
        let mut paths = self.paths.all.iter_mut();
        if let Some(path) = paths.find(|path| path.uplink == Some(uplink)) {
            path.set_suspect(now, now);
            self.handle_timeout(now);
        }
    }

    /// Probes every path now, suspect or not.
    pub fn ask_paths(&mut self, now: Instant) {
        for index in 0..self.paths.all.len() {
            if self.paths.all[index].validated {
                self.probe(now, index);
            }
        }
        self.handle_timeout(now);
    }

    /// Sets how often a silent client sends on each path: for a connection that only waits, where
    /// an unreachable peer need not be detected soon.
    pub fn set_keep_alive(&mut self, interval: Duration) {
        self.timing.keep_alive = [interval; 2];
    }

    /// Restores the keep-alives of the settings.
    pub fn restore_keep_alive(&mut self) {
        self.timing.keep_alive = [self.config.keep_alive, KEEP_ALIVE_OTHERS];
    }

    /// When a packet of the peer last came in, on any path.
    pub fn last_heard(&self) -> Instant {
        self.paths.all.iter().map(|path| path.arrivals.last).max().unwrap_or(self.timing.began)
    }

    /// When the last datagram of the peer's [`send_on`](Connection::send_on) came in; zero if none.
    pub fn last_data(&self) -> Instant {
        self.timing.last_data
    }

    /// The silence of the peer that is unusual on the path that is heard most: 60 ms to 2.5 s.
    pub fn quiet_after(&self) -> Duration {
        self.paths.all.iter().map(|path| path.arrivals.quiet_after()).min().unwrap_or_default()
    }

    fn give_up_handshake(&mut self, now: Instant) {
        let std_now = self.epoch.to_std(now);
        self.quic.close(std_now, noq_proto::VarInt::from_u32(0), bytes::Bytes::new());
        self.on_closed(CloseReason::HandshakeTimedOut);
        self.want_flush(now);
    }

    fn look_after_paths(&mut self, now: Instant) {
        let (best, read_delay) = (self.paths.best(), self.signs.read_delay);
        for index in 0..self.paths.all.len() {
            let path = &mut self.paths.all[index];
            if path.judge(now, &read_delay) {
                self.paths.snapshots[index].status = path.status();
                self.ask_idle_paths(now);
            }
            let path = &self.paths.all[index];
            let is_due = match path.suspect {
                Some(_) => self.signs.poll_probe(now, &mut self.paths.all, index),
                None => self.keep_alive_due(path, best).is_some_and(|due| due <= now),
            };
            if is_due {
                self.probe(now, index);
            }
        }
        self.measure_quiet_paths(now);
        self.close_unresponsive_paths(now);
        self.update_keys_when_quiet(now);
    }

    /// When one path falls silent, the path or the peer may have failed. A restarted peer answers
    /// with resets; the library recognises only the one for the path opened last.
    fn ask_idle_paths(&mut self, now: Instant) {
        let pause = self.signs.idle_pause(now);
        for index in 0..self.paths.all.len() {
            let path = &self.paths.all[index];
            let idle = now - path.last_asked >= pause;
            if idle && path.validated && path.suspect.is_none() {
                self.probe(now, index);
            }
        }
    }

    fn probe(&mut self, now: Instant, index: usize) {
        let path = &mut self.paths.all[index];
        path.on_probed(now);
        let _ = self.quic.ping_path(path.quic_id());
        self.want_flush(now);
    }

    /// Only clients keep silent paths alive: their networks forget bindings.
    fn keep_alive_due(&self, path: &Path, best: Option<PathId>) -> Option<Instant> {
        if !self.is_client || !path.validated || path.suspect.is_some() {
            return None;
        }
        let interval = match best == Some(path.id) {
            true => self.timing.keep_alive[0],
            false => self.timing.keep_alive[1],
        };
        // A side that only answers learns nothing of its own way.
        let unasked = path.last_asked + interval * ANSWERS_ONLY_MAX;
        Some((path.last_sent.max(path.last_asked) + interval).min(unasked))
    }

    /// Makes a packet of acknowledgements ask for one in return now and then, to find dead paths.
    pub(super) fn ask_with_acknowledgements(&mut self, now: Instant) {
        let receiving = now - self.timing.last_data < RECEIVING && self.is_open();
        let Some(best) = self.paths.best().filter(|_| receiving) else { return };
        let Some(index) = self.paths.index(best) else { return };
        let interval = (self.paths.snapshots[index].smoothed_rtt / 4).max(ASK_INTERVAL_MIN);
        if now - self.paths.all[index].last_asked >= interval {
            self.probe(now, index);
            self.timing.flush = None;
        }
        self.timing.measure.get_or_insert(now + MEASURE_INTERVAL);
    }

    /// Keeps all paths' round-trip times fresh while data flows: a bad sample must not last.
    fn measure_quiet_paths(&mut self, now: Instant) {
        if self.timing.measure.is_none_or(|at| at > now) {
            return;
        }
        let interval = match now - self.timing.last_sent_data < MEASURE_SENDING {
            true => MEASURE_SENDING,
            false => MEASURE_INTERVAL,
        };
        let flowing = now - self.timing.last_data.max(self.timing.last_sent_data) < interval;
        self.timing.measure = flowing.then_some(now + interval);
        for index in 0..self.paths.all.len() {
            let path = &self.paths.all[index];
            let stale = now - path.last_asked >= interval && path.suspect.is_none();
            if flowing && path.validated && stale {
                self.probe(now, index);
            }
        }
    }

    fn close_unresponsive_paths(&mut self, now: Instant) {
        let limit = self.config.unresponsive_timeout;
        let answering = self.paths.snapshots.iter().any(|path| path.status == PathStatus::Usable);
        let overdue = self.paths.all.iter().find(|path| {
            answering && path.suspect.is_some_and(|suspicion| now - suspicion.since > limit)
        });
        if let Some(id) = overdue.map(|path| path.id) {
            self.unresponsive = Some(id);
            let _ = self.close_path(now, id);
        }
    }

    /// Updates the keys before further paths open, so that no slower path carries the first keys.
    pub(super) fn start_rekeying(&mut self, now: Instant) {
        self.quic.force_key_update();
        self.timing.sent_under_key = 0;
        self.phase = ConnectionPhase::Rekeying { since: now };
        self.probe(now, 0);
    }

    pub(super) fn finish_rekeying(&mut self, now: Instant) {
        let ConnectionPhase::Rekeying { since } = self.phase else { return };
        let acknowledged = |at: Option<Instant>| at.is_some_and(|at| at >= since);
        if self.paths.all.iter().any(|path| acknowledged(path.gate.meter().acknowledged_up_to())) {
            self.phase = ConnectionPhase::Open;
            self.want_flush(now);
        }
    }

    /// Avoids the update that the cipher's limit would force at a time when it costs packets.
    fn update_keys_when_quiet(&mut self, now: Instant) {
        if self.timing.sent_under_key < KEY_LIFETIME || self.phase != ConnectionPhase::Open {
            return;
        }
        let slowest =
            self.paths.snapshots.iter().map(|path| path.smoothed_rtt).max().unwrap_or_default();
        let quiet = self.paths.snapshots.iter().all(|path| path.bytes_in_flight == 0)
            && self.paths.all.iter().all(|path| now - path.arrivals.last > slowest);
        if quiet {
            self.quic.force_key_update();
            self.timing.sent_under_key = 0;
        }
    }
}

pub(super) const FEEDBACK_DELAY: Duration = Duration::from_millis(1);
/// Sparser datagrams are worth a turn each. Uneven acknowledgements of denser ones fill queues.
const SPARSE: Duration = Duration::from_micros(700);
const COALESCING: Duration = Duration::from_micros(500);
const BUSY_DELAY: Duration = Duration::from_millis(5);
pub(super) const ACK_DELAY: Duration = Duration::from_millis(2);
const ASK_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Keep-alives that a side may leave out while it sends acknowledgements.
const ANSWERS_ONLY_MAX: u32 = 3;
const RECEIVING: Duration = Duration::from_millis(10);
pub(super) const MEASURE_SENDING: Duration = Duration::from_millis(200);
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);
/// Packets after which keys are updated when quiet; the library's own update comes near 2^23.
const KEY_LIFETIME: u64 = 1 << 22;
