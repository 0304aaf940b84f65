//! What time brings: suspicion, keep-alives, key updates, and the flush.

use std::time::Duration;

use roadweave_proto::{Instant, PathId, PathStatus, UplinkId, earliest};

use super::{Connection, Phase, Timing};
use crate::event::CloseReason;
use crate::path::Path;

impl Connection {
    /// When [`handle_timeout`](Connection::handle_timeout) wants to be called next. Where datagrams
    /// come in one by one, feedback waits half a millisecond to share the turn of the next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let patience = self.patience();
        let library = self.quic.poll_timeout();
        let library =
            library.map(|at| self.timing.unread.put_off(self.epoch.of_std(at)) + patience);
        if self.phase == Phase::Closed {
            return earliest([library, self.timing.flush]);
        }
        let handshake = match self.phase {
            Phase::Handshake { until } => Some(until),
            _ => None,
        };
        let feedback = self.timing.feedback_owed.map(|since| since + FEEDBACK_DELAY + patience);
        // Once told, the user need not be woken for it again.
        let feedback = feedback.filter(|&due| due > self.timing.woken);
        let Timing { flush, acknowledge, measure, .. } = self.timing;
        let messages = self.messages_out.poll_timeout();
        let own = earliest([flush, acknowledge, measure, feedback, messages, handshake]);
        earliest([library, own, self.path_timeouts()])
    }

    /// How much longer than due feedback, and the library's timer for the acknowledgements that go
    /// with it, wait for the turn of another datagram.
    fn patience(&self) -> Duration {
        let is_sparse = self.timing.data_interval >= SPARSE;
        if is_sparse && self.timing.feedback_owed.is_some() { PATIENCE } else { Duration::ZERO }
    }

    fn path_timeouts(&self) -> Option<Instant> {
        let best = if self.is_client { self.best_path() } else { None };
        let unread = &self.timing.unread;
        self.paths.iter().fold(None, |due, path| {
            let (timeout, probe) = (path.poll_timeout(unread), self.probe_due(path));
            earliest([due, timeout, probe, self.keep_alive_due(path, best)])
        })
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.timing.woken = now;
        self.let_timers_fire(now);
        if self.messages_out.poll_timeout().is_some_and(|at| at <= now) {
            self.want_flush(now);
        }
        self.paths.iter().for_each(|path| path.gate.detect_losses(now));
        self.process(now);
        match self.phase {
            Phase::Closed => {}
            Phase::Handshake { until } => {
                if until <= now {
                    self.give_up_handshake(now);
                }
            }
            Phase::Rekeying { .. } | Phase::Open => self.look_after_paths(now),
        }
        self.flush(now);
        self.take_snapshots(now);
        self.paths.iter_mut().for_each(|path| path.release(now));
    }

    /// The path on which feedback should leave now, if any is due.
    ///
    /// Feedback is due 1 ms after a datagram of the peer's [`send_on`](Connection::send_on) came
    /// in, until it is sent: at most once in a millisecond, however many came. The path is the
    /// fastest that answers, or, if all are suspect, the one that a packet came in on last.
    /// Acknowledgements leave with the feedback, or a little later without it.
    pub fn feedback_due(&self, now: Instant) -> Option<PathId> {
        let since = self.timing.feedback_owed?;
        if now < since + FEEDBACK_DELAY || !self.is_open() {
            return None;
        }
        self.feedback_path()
    }

    /// Feedback takes all answering paths by lot from now on, or mostly the fastest one.
    pub fn acknowledge_on_all(&mut self, is_on: bool) {
        self.acknowledges_on_all = is_on;
    }

    pub(super) fn want_flush(&mut self, at: Instant) {
        let flush = &mut self.timing.flush;
        *flush = Some(flush.map_or(at, |already| already.min(at)));
    }

    /// Wants a flush at `now`, or a little later, for the library's sake. While datagrams come in
    /// and are acknowledged anyway, or leave and take acknowledgements along, it can wait: most
    /// often the library wants no more than to acknowledge.
    pub(super) fn want_control_flush(&mut self, now: Instant, delay: Duration) {
        let receiving = self.timing.acknowledge.is_some();
        let sending = now - self.timing.last_sent_data < FEEDBACK_DELAY;
        let delay = if receiving || sending { delay + BUSY_DELAY } else { delay };
        self.want_flush(now + delay);
    }

    /// Lets the library's timers fire: delayed acknowledgements, loss detection, challenges. They
    /// are as late as the packets that are handed over: what would stop them may lie here.
    pub(super) fn run_library_timers(&mut self, now: Instant) -> bool {
        let std_now = self.epoch.to_std(now - self.timing.unread.time(now));
        let due = self.quic.poll_timeout().is_some_and(|at| at <= std_now);
        if due {
            self.quic.handle_timeout(std_now);
        }
        due
    }

    /// Lets the library's timers fire, and soon sends what they want sent.
    pub(super) fn let_timers_fire(&mut self, now: Instant) {
        if self.run_library_timers(now) {
            self.want_control_flush(now, Duration::ZERO);
        }
    }

    /// Takes every path for suspect until it answers something that leaves from `now` on: this end
    /// was paused, and knows nothing of the networks any more.
    pub fn suspect_all_paths(&mut self, now: Instant) {
        self.paths.iter_mut().for_each(|path| path.set_suspect(now, now));
        self.handle_timeout(now);
    }

    /// Takes the path over `uplink` for suspect until it answers something that leaves from `now`
    /// on: it may have come into another network.
    pub fn suspect_path_on(&mut self, now: Instant, uplink: UplinkId) {
        let mut paths = self.paths.iter_mut();
        if let Some(path) = paths.find(|path| path.uplink == Some(uplink)) {
            path.set_suspect(now, now);
            self.handle_timeout(now);
        }
    }

    /// Asks every path for a sign of life now, whether it is suspect or not.
    pub fn ask_paths(&mut self, now: Instant) {
        for index in 0..self.paths.len() {
            if self.paths[index].validated {
                self.probe(now, index);
            }
        }
        self.handle_timeout(now);
    }

    /// From now on an otherwise silent client says something on each path as often: for a
    /// connection that only waits, which need not find out soon that nobody is there.
    pub fn set_keep_alive(&mut self, interval: Duration) {
        self.keep_alive = [interval; 2];
    }

    /// From now on an otherwise silent client says something as often as the settings have it.
    pub fn restore_keep_alive(&mut self) {
        self.keep_alive = [self.config.keep_alive, self.config.keep_alive_others];
    }

    /// When something last came in from the peer, on whichever path.
    pub fn last_heard(&self) -> Instant {
        self.paths.iter().map(|path| path.last_heard).max().unwrap_or(self.timing.began)
    }

    /// When the last datagram of the peer's [`send_on`](Connection::send_on) came in; zero before
    /// the first.
    pub fn last_data(&self) -> Instant {
        self.timing.last_data
    }

    /// After how long without a packet from the peer that is unusual, on the path that is heard
    /// most: 60 ms to 2.5 s.
    pub fn quiet_after(&self) -> Duration {
        self.paths.iter().map(Path::quiet_after).min().unwrap_or_default()
    }

    fn give_up_handshake(&mut self, now: Instant) {
        let std_now = self.epoch.to_std(now);
        self.quic.close(std_now, noq_proto::VarInt::from_u32(0), bytes::Bytes::new());
        self.on_closed(CloseReason::HandshakeTimedOut);
        self.want_flush(now);
    }

    fn look_after_paths(&mut self, now: Instant) {
        let (best, unread) = (self.best_path(), self.timing.unread);
        for index in 0..self.paths.len() {
            let path = &mut self.paths[index];
            if path.judge(now, &unread) {
                self.snapshots[index].status = path.status();
                self.ask_idle_paths(now);
            }
            let path = &self.paths[index];
            if path.suspect.is_some() {
                self.ask_suspect(now, index);
            } else if self.keep_alive_due(path, best).is_some_and(|due| due <= now) {
                self.probe(now, index);
            }
        }
        self.measure_quiet_paths(now);
        self.close_unresponsive_paths(now);
        self.update_keys_when_quiet(now);
    }

    /// Only clients keep silent paths alive: it is their networks that forget bindings.
    fn keep_alive_due(&self, path: &Path, best: Option<PathId>) -> Option<Instant> {
        if !self.is_client || !path.validated || path.suspect.is_some() {
            return None;
        }
        let interval = match best == Some(path.id) {
            true => self.keep_alive[0],
            false => self.keep_alive[1],
        };
        // Whoever only answers learns nothing of its own way.
        let unasked = path.last_asked + interval * ANSWERS_ONLY_MAX;
        Some((path.last_sent.max(path.last_asked) + interval).min(unasked))
    }

    /// Makes a packet of acknowledgements ask for one in return, now and then: without that, a side
    /// that only receives would never learn that the path for its acknowledgements is dead.
    pub(super) fn ask_with_acknowledgements(&mut self, now: Instant) {
        let receiving = now - self.timing.last_data < RECEIVING && self.is_open();
        let Some(best) = self.best_path().filter(|_| receiving) else { return };
        let Some(index) = self.index(best) else { return };
        let interval = (self.snapshots[index].smoothed_rtt / 4).max(ASK_INTERVAL_MIN);
        if now - self.paths[index].last_asked >= interval {
            self.probe(now, index);
            self.timing.flush = None;
        }
        self.timing.measure.get_or_insert(now + MEASURE_INTERVAL);
    }

    /// Keeps the round-trip times of all paths fresh while data flows: a scheduler would never
    /// again choose a path whose last sample was a bad one, and feedback wants the fastest.
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
        for index in 0..self.paths.len() {
            let path = &self.paths[index];
            let stale = now - path.last_asked >= interval && path.suspect.is_none();
            if flowing && path.validated && stale {
                self.probe(now, index);
            }
        }
    }

    fn close_unresponsive_paths(&mut self, now: Instant) {
        let limit = self.config.unresponsive_timeout;
        let answering = self.snapshots.iter().any(|path| path.status == PathStatus::Usable);
        let overdue = self.paths.iter().find(|path| {
            answering && path.suspect.is_some_and(|suspicion| now - suspicion.since > limit)
        });
        if let Some(id) = overdue.map(|path| path.id) {
            self.unresponsive = Some(id);
            // Another path answers, so that this one is not the last.
            let _ = self.close_path(now, id);
        }
    }

    /// Updates the keys before further paths are opened, so that no packet under the first keys can
    /// be on its way on a slower path.
    pub(super) fn start_rekeying(&mut self, now: Instant) {
        self.quic.force_key_update();
        self.stats.key_updates += 1;
        self.timing.sent_under_key = 0;
        self.phase = Phase::Rekeying { since: now };
        self.probe(now, 0);
    }

    pub(super) fn finish_rekeying(&mut self, now: Instant) {
        let Phase::Rekeying { since } = self.phase else { return };
        let acknowledged = |at: Option<Instant>| at.is_some_and(|at| at >= since);
        if self.paths.iter().any(|path| acknowledged(path.gate.meter().acknowledged_up_to())) {
            self.phase = Phase::Open;
            self.want_flush(now);
        }
    }

    /// Updates the keys while nothing is on its way, long before the cipher's limit would force an
    /// update at a time when it costs packets.
    fn update_keys_when_quiet(&mut self, now: Instant) {
        if self.timing.sent_under_key < KEY_LIFETIME || self.phase != Phase::Open {
            return;
        }
        let slowest = self.snapshots.iter().map(|path| path.smoothed_rtt).max().unwrap_or_default();
        let quiet = self.snapshots.iter().all(|path| path.bytes_in_flight == 0)
            && self.paths.iter().all(|path| now - path.last_heard > slowest);
        if quiet {
            self.quic.force_key_update();
            self.stats.key_updates += 1;
            self.timing.sent_under_key = 0;
        }
    }
}

/// How long after a datagram feedback is due.
pub(super) const FEEDBACK_DELAY: Duration = Duration::from_millis(1);
/// Datagrams that come in so far from each other are worth a turn each. Denser ones share turns
/// anyway, and to acknowledge these unevenly makes the sender's measured rate too high, which fills
/// the queues of saturated links.
const SPARSE: Duration = Duration::from_micros(700);
/// How long feedback for sparse datagrams waits beyond the time when it is due.
const PATIENCE: Duration = Duration::from_micros(500);
/// How long other frames wait while datagrams come in and are answered anyway.
const BUSY_DELAY: Duration = Duration::from_millis(5);
/// How long after a datagram its acknowledgement leaves at the latest.
pub(super) const ACK_DELAY: Duration = Duration::from_millis(2);
/// How often acknowledgements ask for an acknowledgement in return, at most.
const ASK_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Keep-alives that a side may leave out as it sends acknowledgements.
const ANSWERS_ONLY_MAX: u32 = 3;
/// For how long after a datagram this side counts as receiving.
const RECEIVING: Duration = Duration::from_millis(10);
/// How often a side that sends measures the paths that it does not use.
pub(super) const MEASURE_SENDING: Duration = Duration::from_millis(200);
/// How often a side that only receives measures its paths.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);
/// After how many packets keys are updated at the next occasion. The library's own update comes
/// near 2^23.
const KEY_LIFETIME: u64 = 1 << 22;
