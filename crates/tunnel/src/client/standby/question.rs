//! The question whether a session or its standby answers, asked again and again.
//!
//! ```text
//! silent, asked to move, or nearer ─► the standby is asked ─► it answers ─► switch ─► hello, join
//! no session ─► the standby is asked ─► it answers ─► a second for the former server ─► switch
//! ```

use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_quic::Connection;

#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) first: Instant,
    asked_session: Instant,
    asked_standby: Instant,
    quiet_since: Instant,
    /// From when on the networks work for certain, once the standby has answered.
    alive_since: Option<Instant>,
}

pub(super) struct Asks {
    pub(super) session: bool,
    pub(super) standby: bool,
}

impl Question {
    pub(super) fn new(now: Instant) -> Self {
        let (asked_session, asked_standby, quiet_since) = (now, now, now);
        Self { first: now, asked_session, asked_standby, quiet_since, alive_since: None }
    }

    /// In silence an eighth of the silence so far, so that no more is lost at its end.
    fn pause(&self) -> Duration {
        match self.alive_since {
            Some(_) => ASK_INTERVAL,
            None => {
                let quiet = self.asked_standby.since(self.quiet_since);
                (quiet / PAUSE_SHARE).clamp(ASK_INTERVAL, ASK_INTERVAL_MAX)
            }
        }
    }

    pub(super) fn poll_timeout(&self, is_silent: bool) -> Instant {
        let standby = self.asked_standby + self.pause();
        match is_silent {
            true => standby.min(self.asked_session + ASK_INTERVAL),
            false => standby,
        }
    }

    /// Both are asked at the same moments: the delay of the silent server counts from the standby's
    /// answer.
    pub(super) fn ask(&mut self, now: Instant, is_first: bool) -> Asks {
        let standby = is_first || now >= self.asked_standby + self.pause();
        let session = standby || now >= self.asked_session + ASK_INTERVAL;
        if standby {
            self.asked_standby = now;
        }
        if session {
            self.asked_session = now;
        }
        Asks { session, standby }
    }

    /// `rtt`: the round trip of the standby's answer, if one of its paths answers.
    pub(super) fn on_answer(&mut self, now: Instant, rtt: Option<Duration>) {
        match rtt {
            Some(rtt) if self.alive_since.is_none() => {
                self.alive_since = Some((now - rtt).max(self.first));
            }
            // The networks are gone again.
            None if self.alive_since.is_some() => {
                (self.alive_since, self.quiet_since) = (None, now);
            }
            Some(_) | None => {}
        }
    }

    pub(super) fn is_answered(&self) -> bool {
        self.alive_since.is_some()
    }

    /// From when on the server of `session`, which is silent, counts as gone.
    pub(super) fn gone_from(&self, session: &Connection) -> Option<Instant> {
        let pto = session.paths().iter().map(|path| path.pto).min();
        let pto = pto.unwrap_or_default().min(SILENCE_MAX);
        // A server that receives little takes as long to notice that its answers go to a dead path.
        let quiet = Some(session.quiet_after()).filter(|quiet| *quiet > SILENCE_MIN);
        let silence_max = quiet.map_or(pto.max(SILENCE_MIN), |quiet| quiet + pto);
        Some(session.last_heard().max(self.alive_since?) + silence_max)
    }
}

const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// The longest pause between questions to the standby, as a dead path probes itself.
const ASK_INTERVAL_MAX: Duration = Duration::from_secs(1);
const PAUSE_SHARE: u32 = 8;
/// Bounds of how long the session's server must be silent while the networks work.
const SILENCE_MIN: Duration = Duration::from_millis(200);
const SILENCE_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(until: u64) -> Vec<u64> {
        let (start, mut asked) = (Instant::from_millis(5_000), Vec::new());
        let mut question = Question::new(start);
        loop {
            let next = question.poll_timeout(false);
            let after = next.since(start).as_millis() as u64;
            if after > until {
                return asked;
            }
            asked.push(after);
            question.asked_standby = next;
        }
    }

    #[test]
    fn in_a_tunnel_the_standby_is_asked_ever_less_often_and_never_much_too_late() {
        assert_eq!(asked(900), [100, 200, 300, 400, 500, 600, 700, 800, 900]);
        let asked = asked(180_000);
        assert!(asked.len() < 220, "{} times in 3 minutes", asked.len());
        for pair in asked.windows(2) {
            let pause = pair[1] - pair[0];
            assert!(pause <= (pair[0] / 8 + 2).max(100) && pause <= 1_000, "{pair:?}");
        }
    }

    #[test]
    fn the_session_is_asked_as_often_as_ever_and_who_answers_as_often_as_the_session() {
        let at = Instant::from_millis;
        let mut question = Question::new(at(1_000));
        (question.asked_standby, question.asked_session) = (at(61_000), at(61_500));
        assert_eq!(question.poll_timeout(true), at(61_600));
        assert_eq!(question.poll_timeout(false), at(62_000));
        question.alive_since = Some(at(61_000));
        assert_eq!(question.poll_timeout(false), at(61_100));
    }
}
