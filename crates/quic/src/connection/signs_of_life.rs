//! Probes: of paths that owe an answer, and of others beside them.
//!
//! ```text
//! suspect ─► asked at once ─┬─ the connection is used ─► each 200 ms, after minutes each second;
//!                           │                            each 100 ms while no path answers
//!                           └─ it is idle ─► after 0.2, 0.4, 0.8 .. s, all of its paths together
//!                                            once a second in the end, and all connections of the
//!                                            endpoint in turn
//! heard, or used again ─► asked at once
//! ```
//!
//! A used connection's path should return soon. Probes of thousands of idle ones keep ends late.

use std::time::Duration;

use roadweave_proto::Instant;

use super::Connection;
use crate::path::Path;

impl Connection {
    pub(super) fn note_read_delay(&mut self, now: Instant, time: Duration) {
        self.timing.read_delay.note(now, time);
        if self.is_used(now) {
            self.timing.read_delay.on_used(now);
        }
    }

    pub(super) fn note_demand(&mut self, now: Instant) {
        self.timing.demand = now;
        self.timing.read_delay.on_used(now);
    }

    /// When one path falls silent, the path or the peer may have failed. A restarted peer answers
    /// with resets; the library recognises only the one for the path opened last.
    pub(super) fn ask_idle_paths(&mut self, now: Instant) {
        let pause = match self.is_used(now) {
            true => self.config.probe_interval,
            false => self.config.probe_interval.max(self.config.keep_alive),
        };
        for index in 0..self.paths.len() {
            let path = &self.paths[index];
            let idle = now - path.last_asked >= pause;
            if idle && path.validated && path.suspect.is_none() {
                self.probe(now, index);
            }
        }
    }

    pub(super) fn ask_suspect(&mut self, now: Instant, index: usize) {
        if self.probe_due(&self.paths[index]).is_none_or(|due| due > now) {
            return;
        }
        let is_used = self.is_used(now);
        let Some(suspicion) = &mut self.paths[index].suspect else { return };
        if is_used || suspicion.asked.is_none() {
            return self.probe(now, index);
        }
        let turn = *suspicion.turn.get_or_insert_with(|| self.idle_probes.turn(now));
        if turn <= now {
            suspicion.idle_questions += 1;
            self.probe(now, index);
        }
    }

    pub(super) fn probe_due(&self, path: &Path) -> Option<Instant> {
        let suspicion = path.suspect?;
        let Some(asked) = suspicion.asked else { return Some(suspicion.since) };
        let interval = self.config.probe_interval;
        let lasts = asked.since(suspicion.since) > SLOW_PROBES_AFTER;
        let mut known = self.paths.iter().filter(|path| path.validated);
        let is_cut_off = known.all(|path| path.suspect.is_some());
        let soon = asked
            + match (lasts, is_cut_off) {
                (true, _) => interval * 5,
                (false, true) => interval / 2,
                (false, false) => interval,
            };
        // A peer that sends on it can answer as well.
        let is_heard = path.arrivals.last > asked;
        if is_heard || soon < self.timing.demand + USED {
            return Some(soon);
        }
        if let Some(turn) = suspicion.turn {
            return Some(turn);
        }
        // Paths that fell silent together are probed apart.
        let (count, apart) = (self.paths.len() as u32, interval * path.id.0.min(15));
        let slowest = self.config.keep_alive.max(interval) * count + apart;
        Some(asked + (interval * (1 << suspicion.idle_questions.min(10))).min(slowest))
    }

    pub(super) fn probe(&mut self, now: Instant, index: usize) {
        let path = &mut self.paths[index];
        path.last_asked = now;
        path.stats.probes_sent += 1;
        if let Some(suspicion) = &mut path.suspect {
            (suspicion.asked, suspicion.turn) = (Some(now), None);
        }
        let quic_id = path.quic_id();
        let _ = self.quic.ping_path(quic_id);
        self.want_flush(now);
    }

    fn is_used(&self, now: Instant) -> bool {
        now < self.timing.demand + USED
    }
}

const USED: Duration = Duration::from_secs(1);
/// Time until a dead path is probed less often although others are used.
const SLOW_PROBES_AFTER: Duration = Duration::from_secs(300);
