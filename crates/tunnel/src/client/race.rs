//! How a session comes about, and how it ends.
//!
//! ```text
//! attempts, on each uplink ─► the first that answers ─► join ─► session ─► leave ─► rest ─┐
//!    ▲                                                             │ silent              │
//!    └────────── attempts beside it ─► spare, which takes over ◄───┘                     │
//!    ▲                                  unless the session answers first                 │
//!    └───────────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use roadweave_quic::{CloseReason, ConnectionId, Event};
use roadweave_types::{Instant, PathSnapshot, UplinkId};
use roadweave_wire::{Control, Hello};

use super::{Client, ClientEvent, Current};
use crate::learned::keep_learned;
use crate::session::{Session, SessionConfig};

/// How often a new attempt begins on each uplink while none has answered.
const RACE_INTERVAL: Duration = Duration::from_secs(1);
/// How much later the next uplink begins: often the first one answers before.
pub(super) const RACE_STAGGER: Duration = Duration::from_millis(100);
/// Attempts under way per uplink: an answer may take as many seconds.
const ATTEMPTS_PER_UPLINK: usize = 4;
/// How long a server may take to welcome.
pub(super) const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long all paths may be silent before a new connection is tried beside the old one.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How long a new connection lets the old one answer, before it takes over.
const SPARE_PATIENCE: Duration = Duration::from_millis(500);
pub(super) const REST_MIN: Duration = Duration::from_secs(10);
const REST_MAX: Duration = Duration::from_secs(60);
/// A session that lived this long was a good one: what went wrong before it counts no more.
const LIVED_WELL: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Attempt {
    uplink: UplinkId,
    server: SocketAddr,
}

/// A connection that takes over unless the silent session answers first.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) id: ConnectionId,
    server: SocketAddr,
    since: Instant,
}

/// What kind of end it was, and so how soon to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The server restarted or fell silent: at once.
    Silence,
    /// The server ended it: at once the first time, then ever later. Two boxes with one key would
    /// drive each other out without end.
    Setback,
    /// Asking again soon would get the same answer.
    Refusal,
}

impl Client {
    /// Whether attempts are due: without a session, or when nothing answers in it.
    ///
    /// A path whose address changed while it was dead may never be validated again, and a server may have
    /// lost the session without a reset that reaches us.
    pub(super) fn is_racing(&self, now: Instant) -> bool {
        let silent = self.silent_since.is_some_and(|since| now >= since + SILENCE_MAX);
        self.current.is_none() || silent && self.spare.is_none()
    }

    /// Begins the attempts that are due.
    pub(super) fn race(&mut self, now: Instant) {
        if now < self.resting_until {
            return;
        }
        let due: Vec<UplinkId> = self
            .uplinks
            .iter()
            .filter(|(id, uplink)| uplink.next_attempt <= now && !self.servers_of(**id).is_empty())
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.drop_oldest_attempt(now, id);
            let tried = self.uplinks.get(&id).map_or(0, |uplink| uplink.attempts);
            // Each uplink goes through all servers: it may reach those of one family only.
            let servers = self.servers_of(id);
            let server = servers[tried % servers.len()];
            let Some(uplink) = self.uplinks.get_mut(&id) else { continue };
            uplink.attempts += 1;
            uplink.next_attempt = now + RACE_INTERVAL;
            match self.endpoint.connect(now, id, server) {
                Ok(connection) => {
                    self.attempts.insert(connection, Attempt { uplink: id, server });
                }
                Err(error) => tracing::warn!(%server, %error, "cannot begin to connect"),
            }
        }
    }

    fn drop_oldest_attempt(&mut self, now: Instant, uplink: UplinkId) {
        let mut on_uplink =
            self.attempts.iter().filter(|(_, attempt)| attempt.uplink == uplink).map(|(id, _)| *id);
        let oldest = on_uplink.next();
        if on_uplink.count() + 1 >= ATTEMPTS_PER_UPLINK
            && let Some(id) = oldest
        {
            self.attempts.remove(&id);
            self.close_connection(now, id, "no answer");
        }
    }

    pub(super) fn on_attempt_event(&mut self, now: Instant, id: ConnectionId, event: Event) {
        match event {
            Event::Connected { .. } => {
                let Some(attempt) = self.attempts.remove(&id) else { return };
                for other in std::mem::take(&mut self.attempts).into_keys() {
                    self.close_connection(now, other, "another uplink was faster");
                }
                if self.current.is_some() {
                    self.spare = Some(Spare { id, server: attempt.server, since: now });
                } else {
                    self.join(now, id, attempt.server);
                }
            }
            Event::Closed(reason) => {
                self.attempts.remove(&id);
                if after(&reason) == After::Refusal && self.current.is_none() {
                    self.leave(now, reason.to_string(), After::Refusal);
                }
            }
            _ => {}
        }
    }

    fn join(&mut self, now: Instant, id: ConnectionId, server: SocketAddr) {
        let seed =
            self.config.transport.rng_seed.first_chunk().map_or(0, |c| u64::from_le_bytes(*c));
        let config = SessionConfig {
            lanes: self.config.lanes.clone(),
            peer_sources: None,
            seed: seed ^ id.0,
        };
        let uplinks = &self.uplinks;
        let by_name =
            |name: &str| uplinks.iter().find(|(_, uplink)| uplink.name == name).map(|(id, _)| *id);
        let mut session = match Session::new(config, by_name) {
            Ok(session) => session,
            Err(error) => return self.leave(now, error.to_string(), After::Refusal),
        };
        session.observe_packets(self.observes);
        if let Some(learned) = self.learned.get(&self.config.server_key.to_string()) {
            session.restore(learned);
        }
        self.current = Some(Current { id, server, session, since: now, welcome: None });
        self.path_policies.clear();
        self.send_control(id, &Control::Hello(Hello { name: self.config.name.clone() }));
        self.name_paths(id);
        self.apply_policies();
    }

    pub(super) fn joining_takes_too_long(&self, now: Instant) -> bool {
        self.current
            .as_ref()
            .is_some_and(|current| current.welcome.is_none() && now >= current.since + JOIN_TIMEOUT)
    }

    /// Ends the session and all attempts, and tries again after the rest that `after` asks for.
    pub(super) fn leave(&mut self, now: Instant, reason: String, after: After) {
        if let Some(current) = self.current.take() {
            keep_learned(&mut self.learned, &self.config.server_key, &current.session);
            if current.welcome.is_some() && now.since(current.since) >= LIVED_WELL {
                (self.rest, self.setback) = (REST_MIN, Duration::ZERO);
            }
            self.close_connection(now, current.id, "the session is over");
        }
        let spare = self.spare.take().map(|spare| spare.id);
        for id in std::mem::take(&mut self.attempts).into_keys().chain(spare) {
            self.close_connection(now, id, "the session is over");
        }
        self.silent_since = None;
        let grown = |rest: Duration| (rest * 2).clamp(Duration::from_secs(1), REST_MAX);
        let rest = match after {
            After::Silence => Duration::ZERO,
            After::Setback => {
                let grown = grown(self.setback);
                std::mem::replace(&mut self.setback, grown)
            }
            After::Refusal => {
                let grown = grown(self.rest);
                std::mem::replace(&mut self.rest, grown)
            }
        };
        self.resting_until = now + rest;
        for (position, uplink) in (0_u32..).zip(self.uplinks.values_mut()) {
            uplink.next_attempt = now + RACE_STAGGER * position;
        }
        self.events.push_back(ClientEvent::Left { reason, rest });
    }

    /// Keeps track of whether the session answers, and lets a spare connection take over if it does not.
    pub(super) fn watch_silence(&mut self, now: Instant) {
        let answers = |current: &Current| {
            let connection = self.endpoint.connection(current.id)?;
            Some(connection.paths().iter().any(PathSnapshot::is_usable))
        };
        let silent = self
            .current
            .as_ref()
            .is_some_and(|current| current.welcome.is_some() && answers(current) == Some(false));
        if !silent {
            if self.silent_since.take().is_some() && self.current.is_some() {
                let spare = self.spare.take().map(|spare| spare.id);
                for id in std::mem::take(&mut self.attempts).into_keys().chain(spare) {
                    self.close_connection(now, id, "the session answers again");
                }
            }
            return;
        }
        self.silent_since.get_or_insert(now);
        if self.spare.as_ref().is_some_and(|spare| now >= spare.since + SPARE_PATIENCE)
            && let Some(Spare { id, server, .. }) = self.spare.take()
        {
            self.leave(now, "the session does not answer any more".into(), After::Silence);
            self.join(now, id, server);
        }
    }

    /// When the silence of the session asks for something.
    pub(super) fn silence_timeout(&self) -> Option<Instant> {
        let since = self.silent_since?;
        if let Some(spare) = &self.spare {
            return Some(spare.since + SPARE_PATIENCE);
        }
        let attempt = self
            .uplinks
            .iter()
            .filter(|(id, _)| !self.servers_of(**id).is_empty())
            .map(|(_, uplink)| uplink.next_attempt)
            .min()?;
        Some(attempt.max(since + SILENCE_MAX))
    }
}

pub(super) fn after(reason: &CloseReason) -> After {
    match reason {
        CloseReason::Refused(_)
        | CloseReason::WrongServerKey { .. }
        | CloseReason::VersionMismatch => After::Refusal,
        CloseReason::ByPeer { .. } | CloseReason::Protocol(_) | CloseReason::Busy => After::Setback,
        _ => After::Silence,
    }
}
