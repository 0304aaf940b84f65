//! When the packets of an uplink leave from another local port.
//!
//! ```text
//! a path is silent for 10 s ──────────────┐
//! a second attempt at a session is due ───┴─► the port is stale ─► the driver opens another socket
//! ```
//!
//! A network may keep an entry for a port that leads nowhere: a router that forwarded before it
//! translated addresses keeps the private one, and each further packet keeps that entry alive.

use std::time::Duration;

use roadweave_proto::Instant;

const SILENT_MAX: Duration = Duration::from_secs(10);
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
    is_stale: bool,
}

impl Port {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, heard: now, silent: None, unanswered: 0, is_stale: false }
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
        self.silent = is_silent.then(|| self.silent.unwrap_or(now));
        if is_silent && self.due() <= now {
            self.leave(now);
        }
    }

    fn leave(&mut self, now: Instant) {
        (self.since, self.is_stale) = (now, true);
    }

    /// Packets to a silent path's port do not keep it: the network may lose one direction only.
    pub(super) fn due(&self) -> Instant {
        self.since.max(self.silent.unwrap_or(self.heard)) + SILENT_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_whose_packets_are_lost_is_left_although_the_server_is_heard() {
        let at = Instant::from_millis;
        let mut port = Port { silent: Some(at(1_000)), ..Port::new(Instant::ZERO) };
        port.on_heard(at(9_000));
        assert_eq!(port.due(), at(11_000));
    }
}
