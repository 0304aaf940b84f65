//! When and how the session moves to the standby.
//!
//! ```text
//! silent, asked to move, or nearer ─► the standby is asked ─► it answers ─► switch ─► hello, join
//! no session ─► the standby is asked ─► it answers ─► a second for the former server ─► switch
//! ```

use std::time::Duration;

use roadweave_proto::wire::{Control, Reason, Role};
use roadweave_proto::{Instant, PathSnapshot};
use roadweave_quic::ConnectionId;

use super::{Goal, Question};
use crate::client::Client;
use crate::client::notices::legible;
use crate::client::race::PREFERRED_SERVER_DELAY;

impl Client {
    pub(super) fn ask_standby(&mut self, now: Instant) {
        let is_silent = self.silence.since.is_some();
        if !is_silent && self.standby.goal.is_none() && self.current.is_some() {
            self.standby.question = None;
            return;
        }
        let Some(id) = self.standby.ready.as_ref().map(|ready| ready.id) else { return };
        let first_time = self.standby.question.is_none();
        let question = self.standby.question.get_or_insert(Question::new(now));
        let asks_standby = first_time || now >= question.asked_standby + question.pause();
        // At the same moments: the delay of the silent server counts from the standby's answer.
        let asks_session = asks_standby || now >= question.asked_session + ASK_INTERVAL;
        if asks_standby {
            question.asked_standby = now;
        }
        if asks_session {
            question.asked_session = now;
        }
        let session = self.current.as_ref().map(|current| current.id).filter(|_| is_silent);
        if let Some(connection) = self.endpoint.connection_mut(id) {
            if first_time {
                connection.suspect_all_paths(now);
            } else if asks_standby {
                connection.ask_paths(now);
            }
        }
        if let Some(connection) = session.and_then(|id| self.endpoint.connection_mut(id))
            && asks_session
        {
            connection.ask_paths(now);
        }
        self.hear_standby(now, id);
    }

    fn hear_standby(&mut self, now: Instant, id: ConnectionId) {
        let answer = self.endpoint.connection(id).and_then(|connection| {
            let usable = connection.paths().iter().filter(|path| path.is_usable());
            usable.map(|path| path.latest_rtt).min()
        });
        let Some(question) = &mut self.standby.question else { return };
        match answer {
            Some(rtt) if question.alive_since.is_none() => {
                question.alive_since = Some((now - rtt).max(question.first));
            }
            // The networks are gone again.
            None if question.alive_since.is_some() => {
                (question.alive_since, question.quiet_since) = (None, now);
            }
            Some(_) | None => {}
        }
        let question = *question;
        if question.alive_since.is_none() {
            if self.standby.goal.is_some() && now >= question.first + GOAL_TIMEOUT {
                self.give_up_target(now, "it does not answer", Some(question.first));
            }
            return;
        }
        if self.current.is_none() {
            if now >= self.choice.home_first_until {
                self.switch(now, "there was no session");
            }
            return;
        }
        if self.takeover_from(&question).is_some_and(|at| at <= now) {
            self.take_over(now);
        } else if let Some(goal) = self.standby.goal.take_if(|_| self.silence.since.is_none()) {
            self.switch(now, &goal.why);
        }
    }

    /// The last server may answer first, since it knows the client's flows and another may not.
    pub(in crate::client) fn on_coverage_back(&mut self, now: Instant) {
        self.race.pairs.hurry(now, None);
        self.race.attempt_backoff.on_sign_of_life();
        for uplink in self.uplinks.all.values_mut() {
            uplink.next_attempt = uplink.next_attempt.min(now);
        }
        if self.choice.states[self.choice.current].rests(now).is_none() {
            self.choice.home_first_until =
                self.choice.home_first_until.max(now + PREFERRED_SERVER_DELAY);
        }
    }

    pub(super) fn takeover_from(&self, question: &Question) -> Option<Instant> {
        let alive_since = question.alive_since?;
        self.silence.since?;
        let is_full = self.standby.takeovers.len() >= TAKEOVERS_MAX;
        let oldest = self.standby.takeovers.front().filter(|_| is_full);
        let allowed = oldest.map_or(Instant::ZERO, |oldest| *oldest + TAKEOVERS_WITHIN);
        let connection = self.connection()?;
        let pto = connection.paths().iter().map(|path: &PathSnapshot| path.pto).min();
        let pto = pto.unwrap_or_default().min(SILENCE_MAX);
        // A server that receives little takes as long to notice that its answers go to a dead path.
        let quiet = Some(connection.quiet_after()).filter(|quiet| *quiet > SILENCE_MIN);
        let silence_max = quiet.map_or(pto.max(SILENCE_MIN), |quiet| quiet + pto);
        Some((connection.last_heard().max(alive_since) + silence_max).max(allowed))
    }

    fn take_over(&mut self, now: Instant) {
        let home = self.choice.current;
        if self.standby.takeovers.len() >= TAKEOVERS_MAX {
            self.standby.takeovers.pop_front();
        }
        self.standby.takeovers.push_back(now);
        self.switch(now, "the server fell silent");
        self.choice.on_failure(now, home, "it fell silent");
    }

    pub(in crate::client) fn on_move(&mut self, now: Instant, why: Reason) {
        if !self.has_choice() {
            return self.stay(now, why == Reason::Drain);
        }
        let why = match why {
            Reason::Drain => "the server drains",
            Reason::Other | Reason::Superseded => "the server asked for it",
        };
        self.choice.on_failure(now, self.choice.current, why);
        self.standby.goal = Some(Goal { why: why.to_owned(), only: None });
        self.tend_standby(now);
    }

    pub(in crate::client) fn doubt_standby(&mut self, now: Instant) {
        let Some(ready) = self.standby.ready.as_ref().map(|ready| ready.id) else { return };
        self.standby.question = Some(Question::new(now));
        if let Some(connection) = self.endpoint.connection_mut(ready) {
            connection.suspect_all_paths(now);
        }
    }

    pub(in crate::client) fn switch(&mut self, now: Instant, why: &str) {
        let Some(target) = self.standby.target else { return };
        let Some(accepted) = self.standby.ready.take() else { return };
        self.retarget(now, None, "");
        self.standby.goal = None;
        self.set_aside_session(now);
        self.drop_attempts(now, "another server is used", |_| true);
        if let Some(replacement) = self.race.replacement.take() {
            self.close_connection(now, replacement.id, "another server is used");
        }
        self.choice.on_moved(now, target);
        for uplink in self.uplinks.all.values_mut() {
            (uplink.path_failures, uplink.next_path, uplink.path_deadline) = (0, now, now);
        }
        let hello = self.hello(Role::Join, accepted.id);
        self.send_control(accepted.id, &Control::Hello(hello));
        if let Some(connection) = self.endpoint.connection_mut(accepted.id) {
            connection.restore_keep_alive();
        }
        self.join(now, accepted, Some(legible(why)));
        self.send_on_set_aside();
    }
}

const GOAL_TIMEOUT: Duration = Duration::from_secs(2);
impl Question {
    fn new(now: Instant) -> Self {
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
}

const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// The longest pause between questions to the standby, as a dead path probes itself.
const ASK_INTERVAL_MAX: Duration = Duration::from_secs(1);
const PAUSE_SHARE: u32 = 8;
/// Bounds of how long the session's server must be silent while the networks work.
const SILENCE_MIN: Duration = Duration::from_millis(200);
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// More take-overs within [`TAKEOVERS_WITHIN`] suggest that the networks are at fault.
const TAKEOVERS_MAX: usize = 3;
const TAKEOVERS_WITHIN: Duration = Duration::from_secs(300);

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
