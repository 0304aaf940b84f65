//! What happens when no path of the session answers.

use std::time::Duration;

use roadweave_proto::Instant;

/// How long all paths may be silent before a connection is tried beside the session.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How long after a pause a connection is tried as soon as all paths are silent.
const FAST_FAILOVER: Duration = Duration::from_secs(10);
const TAKEOVER_AFTER: Duration = Duration::from_secs(2);
/// How long a session must answer to count as recovered: longer than a keep-alive takes to notice.
const STEADY: Duration = Duration::from_secs(3);
const REPLACEMENT_GRACE: Duration = Duration::from_millis(500);

/// A session that fell silent and has not answered for [`STEADY`] since: alive, but useless.
#[derive(Clone, Copy, Debug)]
struct Flapping {
    since: Instant,
    answers: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Silence {
    pub(super) since: Option<Instant>,
    flapping: Option<Flapping>,
    fast_failover_until: Instant,
}

/// What follows from whether the session answers.
pub(super) enum Verdict {
    Wait,
    Recovered,
    Silent { since: Instant, is_long: bool },
}

impl Silence {
    pub(super) fn on_pause(&mut self, now: Instant) {
        self.fast_failover_until = now + FAST_FAILOVER;
    }

    pub(super) fn watch(&mut self, now: Instant, answers: bool, has_session: bool) -> Verdict {
        if answers {
            self.since = None;
            return self.on_answers(now, has_session);
        }
        let since = *self.since.get_or_insert(now);
        let flapping = self.flapping.get_or_insert(Flapping { since: now, answers: None });
        flapping.answers = None;
        Verdict::Silent { since, is_long: now >= flapping.since + SILENCE_MAX }
    }

    fn on_answers(&mut self, now: Instant, has_session: bool) -> Verdict {
        let Some(flapping) = &mut self.flapping else { return Verdict::Wait };
        let answers = *flapping.answers.get_or_insert(now);
        let has_recovered = has_session && now >= answers + STEADY;
        if has_recovered || !has_session {
            self.flapping = None;
        }
        if has_recovered { Verdict::Recovered } else { Verdict::Wait }
    }

    /// Whether a connection is tried beside the session: a dead path with a new address may never
    /// be validated, and a server's reset may not arrive.
    pub(super) fn needs_another(&self, now: Instant) -> bool {
        let is_over = |flapping: Flapping| now >= self.race_begins(flapping.since);
        self.since.is_some() && self.flapping.is_some_and(is_over)
    }

    /// `welcomed`: when the replacement was; `next_attempt`: of the race.
    pub(super) fn poll_timeout(
        &self,
        welcomed: Option<Instant>,
        doubted: bool,
        next_attempt: impl FnOnce() -> Option<Instant>,
    ) -> Option<Instant> {
        let Flapping { since, answers } = self.flapping?;
        if let Some(answers) = answers {
            return Some(answers + STEADY);
        }
        if let Some(welcomed) = welcomed {
            return Some(self.takeover(welcomed, self.since?));
        }
        let attempt = next_attempt().map(|at| at.max(self.race_begins(since)));
        let doubt = (!doubted).then_some(since + SILENCE_MAX);
        attempt.into_iter().chain(doubt).min()
    }

    pub(super) fn clear(&mut self) {
        (self.since, self.flapping) = (None, None);
    }

    fn race_begins(&self, since: Instant) -> Instant {
        if since < self.fast_failover_until { since } else { since + SILENCE_MAX }
    }

    pub(super) fn takeover(&self, welcomed: Instant, silent_since: Instant) -> Instant {
        let takeover_after =
            if silent_since < self.fast_failover_until { Duration::ZERO } else { TAKEOVER_AFTER };
        (welcomed + REPLACEMENT_GRACE).max(silent_since + takeover_after)
    }
}
