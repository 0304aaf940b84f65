//! When the packets of an uplink are to leave from another local port.
//!
//! ```text
//! a path is silent for 10 s ──────────────┐
//! a second attempt at a session is due ───┴─► the port is stale ─► the driver opens another socket
//! ```
//!
//! A network may keep an entry for a port that leads nowhere: a router that forwarded before it
//! translated addresses keeps the private one, and each further packet keeps that entry alive. Only
//! a packet from another port gets a new entry.

use std::time::Duration;

use roadweave_proto::{Instant, PathStatus, UplinkId};

use super::{Client, Uplink};

/// After so long without an answer the port of a path changes.
const SILENT_MAX: Duration = Duration::from_secs(10);
/// No port is left sooner: an answer may take as long.
const PORT_AGE_MIN: Duration = Duration::from_secs(1);
/// How long an attempt waits for the other port.
pub(super) const PORT_CHANGE: Duration = Duration::from_millis(1);

/// The local port of an uplink's packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    since: Instant,
    heard: Instant,
    /// When its path was found not to answer, if it does not: an idle one is asked seldom.
    silent: Option<Instant>,
    /// Attempts at a session since the last answer.
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

    /// Whether the next attempt waits for another port: each second one does. The path of a session
    /// keeps its port for as long as it may come back by itself.
    pub(super) fn gives_way(&mut self, now: Instant, has_session: bool) -> bool {
        let is_tried = self.unanswered % 2 == 1 && now >= self.since + PORT_AGE_MIN;
        let gives_way = is_tried && (!has_session || now >= self.due());
        if gives_way {
            self.leave(now);
        }
        gives_way
    }

    fn leave(&mut self, now: Instant) {
        (self.since, self.is_stale) = (now, true);
    }

    /// When the port of a path that does not answer changes.
    fn due(&self) -> Instant {
        self.since.max(self.heard).max(self.silent.unwrap_or(self.heard)) + SILENT_MAX
    }
}

impl Client {
    /// An uplink whose packets should leave from another local port from now on. What comes for the
    /// former port is still to be handed over until the next change: it may be a late answer.
    pub fn take_stale_port(&mut self) -> Option<UplinkId> {
        let mut uplinks = self.uplinks.iter_mut();
        let (id, uplink) = uplinks.find(|(_, uplink)| uplink.port.is_stale)?;
        uplink.port.is_stale = false;
        Some(*id)
    }

    /// Uplinks whose path does not answer.
    fn silent_uplinks(&self) -> impl Iterator<Item = UplinkId> {
        let connection = self.current.as_ref().and_then(|it| self.endpoint.connection(it.id));
        let paths = connection.map_or(&[][..], |connection| connection.paths());
        let is_silent = |status| matches!(status, PathStatus::Suspect | PathStatus::Validating);
        paths.iter().filter(move |path| is_silent(path.status)).filter_map(|path| path.uplink)
    }

    /// Changes the ports of paths that have been silent for too long.
    pub(super) fn watch_ports(&mut self, now: Instant) {
        let silent: Vec<UplinkId> = self.silent_uplinks().collect();
        for (id, Uplink { port, .. }) in &mut self.uplinks {
            port.silent = silent.contains(id).then(|| port.silent.unwrap_or(now));
            if port.silent.is_some() && port.due() <= now {
                port.leave(now);
            }
        }
    }

    /// When [`Client::watch_ports`] has something to do.
    pub(super) fn port_timeout(&self) -> Option<Instant> {
        self.silent_uplinks().filter_map(|id| Some(self.uplinks.get(&id)?.port.due())).min()
    }
}
