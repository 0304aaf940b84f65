//! What happens when no path of the session answers.

use std::time::Duration;

use roadweave_proto::{Instant, PathSnapshot};

use super::Client;
use super::pairs::Rejection;
use super::race::{AcceptedConnection, After, STABLE_AFTER};
use crate::node::Node as _;

/// How long all paths may be silent before a connection is tried beside the session.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How long after a pause a connection is tried as soon as all paths are silent.
const FAST_FAILOVER: Duration = Duration::from_secs(10);
const TAKEOVER_AFTER: Duration = Duration::from_secs(2);
/// How long a session must answer to count as recovered: longer than a keep-alive takes to notice.
const STEADY: Duration = Duration::from_secs(3);
const REPLACEMENT_GRACE: Duration = Duration::from_millis(500);

/// A session that fell silent and has not answered for [`STEADY`] since: alive, but useless.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flapping {
    since: Instant,
    answers: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Silence {
    /// Since when no path of the session answers.
    pub(super) since: Option<Instant>,
    flapping: Option<Flapping>,
    fast_failover_until: Instant,
}

impl Silence {
    /// A session begins or ends.
    pub(super) fn clear(&mut self) {
        (self.since, self.flapping) = (None, None);
    }

    fn race_begins(&self, since: Instant) -> Instant {
        if since < self.fast_failover_until { since } else { since + SILENCE_MAX }
    }

    fn takeover(&self, replacement: &AcceptedConnection, silent_since: Instant) -> Instant {
        let takeover_after =
            if silent_since < self.fast_failover_until { Duration::ZERO } else { TAKEOVER_AFTER };
        (replacement.since + REPLACEMENT_GRACE).max(silent_since + takeover_after)
    }
}

impl Client {
    /// A dead path with a new address may never be validated, and a server's reset may not arrive.
    pub(super) fn is_racing(&self, now: Instant) -> bool {
        let is_over = |flapping: Flapping| now >= self.silence.race_begins(flapping.since);
        let silent = self.silence.since.is_some() && self.silence.flapping.is_some_and(is_over);
        self.current.is_none() || self.race.replacement.is_none() && (silent || self.race.renews)
    }

    /// This machine slept, or the process stood still, for `lasted` until `now`. Every path must
    /// answer again, since networks may have changed, and failover is immediate.
    pub fn on_pause(&mut self, now: Instant, lasted: Duration) {
        self.silence.fast_failover_until = now + FAST_FAILOVER;
        self.race.on_sign_of_life(now, None);
        self.choice.forget_rests();
        for uplink in self.uplinks.all.values_mut() {
            uplink.next_path = now;
        }
        let Some(id) = self.current.as_ref().map(|current| current.id) else { return };
        if lasted >= self.config.transport.idle_timeout {
            self.retarget(now, None, "this end was paused");
            self.leave(now, "the server has given the session up in that time", After::Silence);
        } else if let Some(connection) = self.endpoint.connection_mut(id) {
            connection.suspect_all_paths(now);
        }
        self.handle_timeout(now);
    }

    pub(super) fn watch_silence(&mut self, now: Instant) {
        if self.connection().is_none() || self.paths().iter().any(PathSnapshot::is_usable) {
            self.silence.since = None;
            return self.on_answers(now);
        }
        let silent_since = *self.silence.since.get_or_insert(now);
        let flapping = self.silence.flapping.get_or_insert(Flapping { since: now, answers: None });
        flapping.answers = None;
        if now >= flapping.since + SILENCE_MAX {
            self.doubt_young_session(now);
        }
        if self
            .race
            .replacement
            .as_ref()
            .is_some_and(|replacement| now >= self.silence.takeover(replacement, silent_since))
        {
            // `leave` joins the replacement.
            self.leave(now, "the session does not answer any more", After::Silence);
        }
    }

    fn on_answers(&mut self, now: Instant) {
        let Some(flapping) = &mut self.silence.flapping else { return };
        let answers = *flapping.answers.get_or_insert(now);
        if self.current.is_none() {
            self.silence.flapping = None;
        } else if now >= answers + STEADY {
            self.silence.flapping = None;
            self.race.attempt_backoff.on_sign_of_life();
            let reason = "the session answers again";
            self.drop_attempts(now, reason, |_| true);
            if let Some(replacement) = self.race.replacement.take() {
                self.close_connection(now, replacement.id, reason);
            }
        }
    }

    /// A network that lets a session begin and nothing more would win every race. Runs once.
    fn doubt_young_session(&mut self, now: Instant) {
        let Some(current) = &mut self.current else { return };
        if std::mem::replace(&mut current.doubted, true) {
            return;
        }
        self.race.on_sign_of_life(now, None);
        if now.since(current.since) < STABLE_AFTER + SILENCE_MAX {
            let pair = current.pair;
            let reason = "a session began over it and fell silent".to_owned();
            self.race.pairs.rest(now, pair, Rejection::Doubtful, reason);
        }
    }

    pub(super) fn silence_timeout(&self) -> Option<Instant> {
        let Flapping { since, answers } = self.silence.flapping?;
        if let Some(answers) = answers {
            return Some(answers + STEADY);
        }
        if let Some(replacement) = &self.race.replacement {
            return Some(self.silence.takeover(replacement, self.silence.since?));
        }
        let doubt = self.current.as_ref().is_some_and(|current| !current.doubted);
        let attempt = self.race_timeout().map(|at| at.max(self.silence.race_begins(since)));
        let doubt = doubt.then_some(since + SILENCE_MAX);
        attempt.into_iter().chain(doubt).min()
    }
}
