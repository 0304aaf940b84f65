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

use std::sync::Arc;
use std::time::Duration;

use roadweave_proto::Instant;

use crate::config::TransportConfig;
use crate::idle_probes::IdleProbes;
use crate::path::Path;
use crate::read_delay::ReadDelay;

/// When to probe, and how late packets are read: that also delays suspicion and library timers.
pub(super) struct SignsOfLife {
    config: Arc<TransportConfig>,
    idle_probes: Arc<IdleProbes>,
    /// When the connection was last used.
    demand: Instant,
    pub(super) read_delay: ReadDelay,
}

impl SignsOfLife {
    pub(super) fn new(config: Arc<TransportConfig>, idle_probes: Arc<IdleProbes>) -> Self {
        Self { config, idle_probes, demand: Instant::ZERO, read_delay: ReadDelay::default() }
    }

    pub(super) fn on_read_delay(&mut self, now: Instant, time: Duration) {
        self.read_delay.note(now, time);
        if self.is_used(now) {
            self.read_delay.on_used(now);
        }
    }

    pub(super) fn on_demand(&mut self, now: Instant) {
        self.demand = now;
        self.read_delay.on_used(now);
    }

    /// How long a path that is not suspect may go unasked when another falls silent.
    pub(super) fn idle_pause(&self, now: Instant) -> Duration {
        match self.is_used(now) {
            true => self.config.probe_interval,
            false => self.config.probe_interval.max(self.config.keep_alive),
        }
    }

    /// Whether a suspect path of `paths` is to be probed now.
    pub(super) fn poll_probe(&self, now: Instant, paths: &mut [Path], index: usize) -> bool {
        if self.probe_due(&paths[index], paths).is_none_or(|due| due > now) {
            return false;
        }
        let Some(suspicion) = &mut paths[index].suspect else { return false };
        if self.is_used(now) || suspicion.asked.is_none() {
            return true;
        }
        let turn = *suspicion.turn.get_or_insert_with(|| self.idle_probes.turn(now));
        let is_due = turn <= now;
        suspicion.idle_questions += u32::from(is_due);
        is_due
    }

    pub(super) fn probe_due(&self, path: &Path, paths: &[Path]) -> Option<Instant> {
        let suspicion = path.suspect?;
        let Some(asked) = suspicion.asked else { return Some(suspicion.since) };
        let interval = self.config.probe_interval;
        let lasts = asked.since(suspicion.since) > SLOW_PROBES_AFTER;
        let mut known = paths.iter().filter(|path| path.validated);
        let is_cut_off = known.all(|path| path.suspect.is_some());
        let soon = asked
            + match (lasts, is_cut_off) {
                (true, _) => interval * 5,
                (false, true) => interval / 2,
                (false, false) => interval,
            };
        // A peer that sends on it can answer as well.
        let is_heard = path.arrivals.last > asked;
        if is_heard || soon < self.demand + USED {
            return Some(soon);
        }
        if let Some(turn) = suspicion.turn {
            return Some(turn);
        }
        // Paths that fell silent together are probed apart.
        let (count, apart) = (paths.len() as u32, interval * path.id.0.min(15));
        let slowest = self.config.keep_alive.max(interval) * count + apart;
        Some(asked + (interval * (1 << suspicion.idle_questions.min(10))).min(slowest))
    }

    fn is_used(&self, now: Instant) -> bool {
        now < self.demand + USED
    }
}

const USED: Duration = Duration::from_secs(1);
/// Time until a dead path is probed less often although others are used.
const SLOW_PROBES_AFTER: Duration = Duration::from_secs(300);
