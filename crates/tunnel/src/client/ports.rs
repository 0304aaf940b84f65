//! When the packets of an uplink leave from another local port.
//!
//! ```text
//! a path is silent for 10 s ───────────────┐
//! one with a new port: for 1, 2, 4 .. 10 s ┤
//! a second attempt at a session is due ────┴─► the port is stale ─► the driver opens another socket
//! ```
//!
//! A network may keep an entry for a port that leads nowhere: a router that forwarded before it
//! translated addresses keeps the private one, and each further packet keeps that entry alive.
//!
//! A server validates a new address before it sends more there. The QUIC library gives the answer
//! three PTOs (RFC 9000 section 8.2.4 asks for a second at least) and then challenges that address
//! no more, so a path whose answer was late works again only from another port.

use std::time::Duration;

use roadweave_proto::Instant;

const SILENT_MAX: Duration = Duration::from_secs(10);
/// A path that falls silent within this time after its port changed may not have been validated.
const NEW: Duration = Duration::from_secs(3);
/// A port is kept at least this long: an answer may take as long.
const PORT_AGE_MIN: Duration = Duration::from_secs(1);
pub(super) const PORT_CHANGE: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    since: Instant,
    heard: Instant,
    /// Since when its path does not answer, if so: an idle path is probed rarely.
    silent: Option<Instant>,
    unanswered: u32,
    /// Changes since its path fell silent.
    changes: u32,
    is_stale: bool,
}

impl Port {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, heard: now, silent: None, unanswered: 0, changes: 0, is_stale: false }
    }

    pub(super) fn on_heard(&mut self, now: Instant) {
        (self.heard, self.unanswered) = (now, 0);
    }

    pub(super) fn on_attempt(&mut self) {
        self.unanswered = self.unanswered.wrapping_add(1);
    }

    /// Every second attempt waits for another port, unless the path of a session may recover.
    pub(super) fn gives_way(&mut self, now: Instant, has_session: bool) -> bool {
        let is_tried = self.unanswered % 2 == 1 && now >= self.since + PORT_AGE_MIN;
        let gives_way = is_tried && (!has_session || now >= self.due());
        if gives_way {
            self.leave(now);
        }
        gives_way
    }

    pub(super) fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.is_stale)
    }

    pub(super) fn watch(&mut self, now: Instant, is_silent: bool) {
        if !is_silent {
            (self.silent, self.changes) = (None, 0);
            return;
        }
        self.silent.get_or_insert(now);
        if self.due() <= now {
            self.leave(now);
        }
    }

    fn leave(&mut self, now: Instant) {
        (self.since, self.is_stale) = (now, true);
        self.changes = self.changes.saturating_add(1);
    }

    /// Packets to a silent path's port do not keep it: the network may lose one direction only.
    pub(super) fn due(&self) -> Instant {
        let silent = self.silent.unwrap_or(self.heard);
        let wait = match self.silent.is_some() && silent < self.since + NEW {
            true => SILENT_MAX.min(PORT_AGE_MIN * (1 << self.changes.min(4))),
            false => SILENT_MAX,
        };
        self.since.max(silent) + wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_whose_packets_are_lost_is_left_although_the_server_is_heard() {
        let at = Instant::from_millis;
        let mut port = Port { silent: Some(at(5_000)), ..Port::new(Instant::ZERO) };
        port.on_heard(at(9_000));
        assert_eq!(port.due(), at(15_000));
    }

    #[test]
    fn a_new_port_that_falls_silent_is_left_sooner_and_each_time_later() {
        let at = Instant::from_millis;
        let mut port = Port::new(Instant::ZERO);
        let mut changes = Vec::new();
        for now in (100..40_000).step_by(100) {
            port.watch(at(now), true);
            if std::mem::take(&mut port.is_stale) {
                changes.push(now);
            }
        }
        assert_eq!(changes, [1_100, 3_100, 7_100, 15_100, 25_100, 35_100]);
        port.watch(at(40_000), false);
        port.watch(at(50_000), true);
        assert_eq!(port.due(), at(60_000), "it worked for longer than a validation takes");
    }
}
