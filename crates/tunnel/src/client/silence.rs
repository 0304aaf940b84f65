//! What is done when no path of the session answers.

use std::time::Duration;

use roadweave_types::{Instant, PathSnapshot};

use super::pairs::Answer;
use super::race::{After, LIVED_WELL};
use super::{Client, Current};

/// How long all paths may be silent before a new connection is tried beside the old one.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// For how long after a pause a new connection is tried as soon as all paths are silent.
const HURRY: Duration = Duration::from_secs(10);
/// How long a new connection lets the old one answer, before it takes over.
const SPARE_PATIENCE: Duration = Duration::from_millis(500);

impl Client {
    /// Whether attempts are due: without a session, or when nothing answers in it.
    ///
    /// A path whose address changed while it was dead may never be validated again, and a server may have
    /// lost the session without a reset that reaches us.
    pub(super) fn is_racing(&self, now: Instant) -> bool {
        let silent = self.silent_since.is_some_and(|since| now >= self.race_begins(since));
        self.current.is_none() || silent && self.spare.is_none()
    }

    /// This machine slept, or this program stood still, for `lasted` until `now`. The server may have
    /// forgotten the session, and the uplinks may be in other networks: every path has to answer anew, and
    /// nobody waits for one that does not.
    pub fn on_pause(&mut self, now: Instant, lasted: Duration) {
        self.hurry_until = now + HURRY;
        for uplink in self.uplinks.values_mut() {
            uplink.next_path = now;
        }
        let Some(id) = self.current.as_ref().map(|current| current.id) else { return };
        if lasted >= self.config.transport.idle_timeout {
            self.leave(now, "the server has given the session up in that time", After::Silence);
        } else if let Some(connection) = self.endpoint.connection_mut(id) {
            connection.doubt_paths(now);
        }
        self.service(now);
    }

    /// When attempts beside a session may begin that is silent since then.
    fn race_begins(&self, since: Instant) -> Instant {
        if since < self.hurry_until { since } else { since + SILENCE_MAX }
    }

    /// Keeps track of whether the session answers, and lets a welcomed connection take over if it does not.
    pub(super) fn watch_silence(&mut self, now: Instant) {
        let answers = |current: &Current| {
            let connection = self.endpoint.connection(current.id)?;
            Some(connection.paths().iter().any(PathSnapshot::is_usable))
        };
        if self.current.as_ref().and_then(answers) != Some(false) {
            if self.silent_since.take().is_some() && self.current.is_some() {
                let reason = "the session answers again";
                self.drop_attempts(now, reason, |_| true);
                if let Some(spare) = self.spare.take() {
                    self.close_connection(now, spare.id, reason);
                }
            }
            return;
        }
        let since = *self.silent_since.get_or_insert(now);
        if now >= since + SILENCE_MAX {
            self.doubt_young_session(now);
        }
        let takes_over = |since| now >= since + SPARE_PATIENCE;
        if self.spare.as_ref().is_some_and(|spare| takes_over(spare.since)) {
            // The spare follows by itself.
            self.leave(now, "the session does not answer any more", After::Silence);
        }
    }

    /// A network that lets a session begin and nothing more would win every race: the next attempt on it
    /// begins later. Asked once.
    fn doubt_young_session(&mut self, now: Instant) {
        let Some(current) = &mut self.current else { return };
        if std::mem::replace(&mut current.doubted, true) {
            return;
        }
        self.pairs.hurry(now, None);
        if now.since(current.since) < LIVED_WELL + SILENCE_MAX {
            let pair = current.pair;
            let reason = "a session began over it and fell silent".to_owned();
            self.pairs.rest(now, pair, Answer::Doubtful, reason);
        }
    }

    /// When the silence of the session asks for something.
    pub(super) fn silence_timeout(&self) -> Option<Instant> {
        let since = self.silent_since?;
        if let Some(spare) = &self.spare {
            return Some(spare.since + SPARE_PATIENCE);
        }
        let doubt = self.current.as_ref().is_some_and(|current| !current.doubted);
        let attempt = self.race_timeout().map(|at| at.max(self.race_begins(since)));
        let doubt = doubt.then_some(since + SILENCE_MAX);
        attempt.into_iter().chain(doubt).min()
    }
}
