//! A connection to another server that takes over when the session's server is gone or drains.
//!
//! ```text
//! candidate of another site ─► attempts, an uplink after the other ─► hello, standby ─► welcomed:
//!     idle, a path on each uplink, a sign of life every 25 s
//!        │ no path of the session answers: both servers are asked, over all uplinks, every 100 ms;
//!        │ the standby ever less often, up to a second, while it answers nothing
//!        ├─ the other answers, and for 200 ms from then on the session's does not ─► take over
//!        ├─ neither answers ─► a tunnel: nothing moves
//!        └─ the session answers ─► nothing moves
//! ```
//!
//! A better candidate is asked while the present one stays, until it has welcomed.
//!
//! The 200 ms count from when the answered question was asked: both servers are asked at the same
//! moments over the same uplinks. So the end of a tunnel, where one of the two is heard first,
//! causes no move. A server that receives little finds a dead path only after its usual pause
//! between packets: then the 200 ms become up to 2.5 s.

mod paths;
mod question;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::wire::{Control, Reason, Welcome};
use roadweave_proto::{Instant, UplinkId, earliest};
use roadweave_quic::{CloseReason, ConnectionId, Endpoint, Event};

use self::paths::StandbyPaths;
use self::question::Question;
use super::current::{AcceptedConnection, InUse, View};
use super::notices::legible;
use super::pairs::{Pair, Pairs, Rejection};
use super::{Choice, MTU_MIN, Uplinks, connections};

#[derive(Debug, Default)]
pub(super) struct Standby {
    /// The candidate that waits, or that is asked to while none does.
    pub(super) target: Option<usize>,
    challenger: Option<usize>,
    began: Instant,
    attempts: BTreeMap<ConnectionId, Pair>,
    next_attempt: Instant,
    /// Counts attempts: the next goes over another uplink, and then to another address.
    turn: usize,
    pub(super) ready: Option<AcceptedConnection>,
    paths: StandbyPaths,
    goal: Option<Goal>,
    question: Option<Question>,
    takeovers: VecDeque<Instant>,
    rounds: u64,
}

#[derive(Clone, Debug)]
struct Goal {
    why: String,
    /// The candidate that it applies to; `None` for any.
    only: Option<usize>,
}

pub(super) struct Around<'a> {
    pub(super) now: Instant,
    pub(super) in_use: InUse,
    pub(super) last_heard: Instant,
    pub(super) uplinks: &'a Uplinks,
    pub(super) choice: &'a mut Choice,
    pub(super) pairs: &'a mut Pairs,
    pub(super) endpoint: &'a mut Endpoint,
}

/// The session is to move to the standby.
pub(super) struct Switch {
    pub(super) why: String,
    /// Whether the former server fell silent.
    pub(super) is_takeover: bool,
}

impl Switch {
    fn to(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_takeover: false }
    }
}

impl Standby {
    pub(super) fn tried(&self) -> Option<usize> {
        self.challenger.or(self.target.filter(|_| self.ready.is_none()))
    }

    pub(super) fn has_answered(&self) -> bool {
        self.question.is_some_and(|question| question.is_answered())
    }

    pub(super) fn on_candidates(&mut self, place: impl Fn(usize) -> Option<usize>) {
        self.target = self.target.and_then(&place);
        self.challenger = self.challenger.and_then(&place);
        self.goal.take_if(|goal| {
            let former = goal.only;
            goal.only = former.and_then(&place);
            former.is_some() && goal.only.is_none()
        });
    }

    pub(super) fn owns(&self, id: ConnectionId) -> bool {
        self.attempts.contains_key(&id) || self.ready.as_ref().is_some_and(|it| it.id == id)
    }

    pub(super) fn want_away(&mut self, why: &str) {
        self.goal = Some(Goal { why: why.to_owned(), only: None });
    }

    pub(super) fn forget_goal(&mut self) {
        self.goal = None;
    }

    pub(super) fn tend(&mut self, around: &mut Around<'_>) -> Option<Switch> {
        self.choose_target(around);
        if self.tried().is_some() {
            self.try_target(around);
        }
        let (now, ready) = (around.now, self.ready.as_ref()?);
        let uplinks = around.in_use.standby_uplinks(around.uplinks, around.endpoint);
        if let Some(connection) = around.endpoint.connection_mut(ready.id) {
            self.paths.reconcile(now, connection, ready.pair.1, &uplinks, around.uplinks);
        }
        if around.in_use.session.is_none() && self.question.is_none() {
            // There was no session when it was welcomed, or the session did not end in silence.
            let is_late = now >= around.choice.home_first_until;
            return is_late.then(|| Switch::to(NO_SESSION));
        }
        self.ask(around)
    }

    pub(super) fn poll_timeout(&self, view: &View<'_>) -> Option<Instant> {
        let View { in_use, uplinks, choice, endpoint, .. } = *view;
        let Self { target, ready, question, next_attempt, began, .. } = self;
        if target.is_none() {
            let may_begin = match in_use.session.is_some() {
                true => Instant::ZERO,
                false => choice.home_first_until,
            };
            let from = match in_use.is_without_server() {
                true => choice.refuge_timeout(),
                false => choice.standby_timeout(),
            };
            return from.map(|at| at.max(may_begin));
        }
        let tries = self.tried().map(|_| (*next_attempt).min(*began + TARGET_TIMEOUT));
        let Some(ready) = ready else { return tries };
        let is_alone = in_use.session.is_none() && question.is_none();
        let alone = is_alone.then_some(choice.home_first_until);
        let is_silent = in_use.session.is_some() && in_use.silent_since.is_some();
        let asks = question.map(|question| question.poll_timeout(is_silent));
        let takes = self.takeover_from(in_use, endpoint);
        let connection = endpoint.connection(ready.id)?;
        let uplinks = in_use.standby_uplinks(uplinks, endpoint);
        let paths = self.paths.poll_timeout(connection, &uplinks);
        earliest([asks, takes, paths, alone, tries])
    }

    fn choose_target(&mut self, around: &mut Around<'_>) {
        let (now, session) = (around.now, around.in_use.session);
        if session.is_none() && now < around.choice.home_first_until {
            return;
        }
        let wished = around.choice.wish(now).filter(|_| session.is_some());
        self.goal.take_if(|goal| goal.only.is_some() && goal.only != wished);
        if let Some(wished) = wished {
            self.want(wished, "another is better", around);
            if self.target == Some(wished) {
                let goal = || Goal { why: "it is nearer".to_owned(), only: Some(wished) };
                self.goal.get_or_insert_with(goal);
            }
        }
        let best = match self.target {
            None if around.in_use.is_without_server() => around.choice.refuge(now),
            _ => around.choice.standby(now),
        };
        match (self.target, best) {
            (None, Some(best)) => self.retarget(Some(best), "", around),
            (Some(target), Some(best))
                if self.rounds != around.choice.rounds
                    && self.goal.is_none()
                    && wished.is_none() =>
            {
                self.rounds = around.choice.rounds;
                if around.choice.waits_better(best, target) {
                    self.want(best, "another waits better", around);
                }
            }
            _ => {}
        }
    }

    fn want(&mut self, candidate: usize, reason: &str, around: &mut Around<'_>) {
        if [self.target, self.challenger].contains(&Some(candidate)) {
            return;
        }
        if self.ready.is_none() {
            return self.retarget(Some(candidate), reason, around);
        }
        self.drop_challenger(reason, around);
        self.challenger = Some(candidate);
        (self.began, self.next_attempt, self.turn) = (around.now, around.now, 0);
    }

    pub(super) fn drop_challenger(&mut self, reason: &str, around: &mut Around<'_>) {
        if self.challenger.take().is_some() {
            self.drop_attempts(reason, around);
        }
    }

    fn drop_attempts(&mut self, reason: &str, around: &mut Around<'_>) {
        for id in std::mem::take(&mut self.attempts).into_keys() {
            around.close(id, reason);
        }
    }

    pub(super) fn retarget(&mut self, to: Option<usize>, reason: &str, around: &mut Around<'_>) {
        self.drop_attempts(reason, around);
        let Self { ready, goal, takeovers, .. } = std::mem::take(self);
        if let Some(ready) = ready {
            around.close(ready.id, reason);
        }
        let (began, next_attempt, rounds) = (around.now, around.now, around.choice.rounds);
        *self =
            Self { target: to, began, next_attempt, goal, takeovers, rounds, ..Self::default() };
    }

    fn give_up_tried(&mut self, why: &str, silent_since: Option<Instant>, around: &mut Around<'_>) {
        match self.challenger {
            Some(challenger) => around.blame(challenger, why, silent_since),
            None => return self.give_up(why, silent_since, around),
        }
        self.drop_challenger("it is of no use", around);
    }

    fn give_up(&mut self, why: &str, silent_since: Option<Instant>, around: &mut Around<'_>) {
        let Some(target) = self.target else { return };
        around.blame(target, why, silent_since);
        self.goal.take_if(|goal| goal.only.is_some());
        self.retarget(None, "it is of no use", around);
        self.choose_target(around);
    }

    fn try_target(&mut self, around: &mut Around<'_>) {
        let now = around.now;
        let Some(target) = self.tried() else { return };
        if now >= self.began + TARGET_TIMEOUT {
            return self.give_up_tried("no answer", Some(self.began), around);
        }
        if now < self.next_attempt {
            return;
        }
        self.next_attempt = now + ATTEMPT_STAGGER;
        if self.attempts.len() >= ATTEMPTS_MAX {
            return;
        }
        let Around { in_use, uplinks, choice, pairs, endpoint, .. } = around;
        let candidates = &choice.candidates;
        let uplinks = in_use.standby_uplinks(uplinks, endpoint);
        let address = |place: usize, id: &UplinkId| {
            Some((*id, *candidates.addresses(target, *id).get(place)?))
        };
        let places = (0..ADDRESSES_MAX).flat_map(|place| uplinks.iter().map(move |id| (place, id)));
        let all: Vec<Pair> = places.filter_map(|(place, id)| address(place, id)).collect();
        let mut in_turn = (0..all.len()).map(|at| all[(self.turn + at) % all.len()]);
        let Some(pair) = in_turn.find(|pair| pairs.get(*pair).due() <= now) else { return };
        self.turn += 1;
        pairs.on_attempt(now, pair);
        match endpoint.connect(now, pair.0, pair.1, candidates.all[target].key) {
            Ok(id) => _ = self.attempts.insert(id, pair),
            Err(error) => pairs.note(pair, format!("cannot begin to connect: {error}")),
        }
    }

    pub(super) fn on_connected(&self, id: ConnectionId, pairs: &mut Pairs) {
        if let Some(pair) = self.attempts.get(&id) {
            pairs.on_answered(*pair);
        }
    }

    pub(super) fn on_event(&mut self, id: ConnectionId, event: Event, around: &mut Around<'_>) {
        let is_ready = self.ready.as_ref().is_some_and(|ready| ready.id == id);
        match event {
            Event::Message(message) => self.on_message(id, message, around),
            Event::Closed(reason) if is_ready => {
                self.ready = None;
                let is_silent = matches!(reason, CloseReason::TimedOut);
                let silent_since = is_silent.then_some(around.now - TARGET_TIMEOUT);
                self.give_up(&reason.to_string(), silent_since, around);
            }
            Event::Closed(reason) => {
                let Some(pair) = self.attempts.remove(&id) else { return };
                let why = reason.to_string();
                match reason {
                    // The server has proved its identity.
                    CloseReason::Refused(_) => self.give_up_tried(&why, None, around),
                    CloseReason::Local => {}
                    _ => {
                        _ = around.pairs.rest(around.now, pair, Rejection::Doubtful, legible(&why))
                    }
                }
            }
            _ => {}
        }
    }

    fn on_message(&mut self, id: ConnectionId, message: Bytes, around: &mut Around<'_>) {
        let why = match Control::parse(message) {
            Ok(Control::Welcome(welcome)) if welcome.mtu >= MTU_MIN => {
                return self.on_welcome(id, welcome, around);
            }
            Ok(Control::Welcome(_)) => "its MTU is too small".to_owned(),
            Ok(Control::Refuse { why: Reason::Drain, .. } | Control::Move { .. }) => {
                "it drains".to_owned()
            }
            Ok(Control::Refuse { reason, .. }) => format!("refused: {reason}"),
            _ => return,
        };
        match self.ready.as_ref().is_some_and(|ready| ready.id == id) {
            true => self.give_up(&why, None, around),
            false => self.give_up_tried(&why, None, around),
        }
    }

    fn on_welcome(&mut self, id: ConnectionId, welcome: Welcome, around: &mut Around<'_>) {
        let Some(pair) = self.attempts.remove(&id) else { return };
        self.drop_attempts("another connection was welcomed", around);
        if let Some(former) = self.ready.take() {
            around.close(former.id, "another waits better");
            self.target = self.challenger.take();
            (self.question, self.paths) = (None, StandbyPaths::default());
        }
        if let Some(connection) = around.endpoint.connection_mut(id) {
            connection.set_keep_alive(KEEP_ALIVE);
        }
        self.target.iter().for_each(|target| around.choice.on_success(*target));
        self.ready = Some(AcceptedConnection { id, pair, welcome, since: around.now });
    }

    fn ask(&mut self, around: &mut Around<'_>) -> Option<Switch> {
        let (now, InUse { session, silent_since }) = (around.now, around.in_use);
        let is_silent = silent_since.is_some();
        if !is_silent && self.goal.is_none() && session.is_some() {
            self.question = None;
            return None;
        }
        let id = self.ready.as_ref()?.id;
        let is_first = self.question.is_none();
        let asks = self.question.get_or_insert(Question::new(now)).ask(now, is_first);
        if let Some(connection) = around.endpoint.connection_mut(id) {
            if is_first {
                connection.suspect_all_paths(now);
            } else if asks.standby {
                connection.ask_paths(now);
            }
        }
        let session = session.filter(|_| is_silent && asks.session);
        if let Some(connection) = session.and_then(|id| around.endpoint.connection_mut(id)) {
            connection.ask_paths(now);
        }
        self.hear(id, around)
    }

    fn hear(&mut self, id: ConnectionId, around: &mut Around<'_>) -> Option<Switch> {
        let now = around.now;
        let paths = connections::paths(around.endpoint, Some(id)).iter();
        let answer = paths.filter(|path| path.is_usable()).map(|path| path.latest_rtt).min();
        let question = self.question.as_mut()?;
        question.on_answer(now, answer);
        if !question.is_answered() {
            let asked = question.first;
            if self.goal.is_some() && now >= asked + GOAL_TIMEOUT {
                self.give_up("it does not answer", Some(asked), around);
            }
            return None;
        }
        let InUse { session, silent_since } = around.in_use;
        if session.is_none() {
            let is_late = now >= around.choice.home_first_until;
            return is_late.then(|| Switch::to(NO_SESSION));
        }
        if self.takeover_from(around.in_use, around.endpoint).is_some_and(|at| at <= now) {
            if self.takeovers.len() >= TAKEOVERS_MAX {
                self.takeovers.pop_front();
            }
            self.takeovers.push_back(now);
            return Some(Switch { why: "the server fell silent".to_owned(), is_takeover: true });
        }
        let goal = self.goal.take_if(|_| silent_since.is_none())?;
        Some(Switch::to(goal.why))
    }

    fn takeover_from(&self, in_use: InUse, endpoint: &Endpoint) -> Option<Instant> {
        in_use.silent_since?;
        let is_full = self.takeovers.len() >= TAKEOVERS_MAX;
        let oldest = self.takeovers.front().filter(|_| is_full);
        let allowed = oldest.map_or(Instant::ZERO, |oldest| *oldest + TAKEOVERS_WITHIN);
        let gone_from = self.question?.gone_from(endpoint.connection(in_use.session?)?)?;
        Some(gone_from.max(allowed))
    }

    pub(super) fn on_silence(&mut self, around: &mut Around<'_>) {
        let Some(ready) = &self.ready else { return };
        self.question = Some(Question::new(around.now));
        if let Some(connection) = around.endpoint.connection_mut(ready.id) {
            connection.suspect_all_paths(around.now);
        }
    }

    pub(super) fn take(&mut self, around: &mut Around<'_>) -> Option<(usize, AcceptedConnection)> {
        let taken = (self.target?, self.ready.take()?);
        self.retarget(None, "", around);
        self.goal = None;
        Some(taken)
    }
}

impl Around<'_> {
    fn close(&mut self, id: ConnectionId, reason: &str) {
        connections::close(self.endpoint, self.now, id, reason);
    }

    /// `silent_since`: `None` if the candidate proved its identity, and refuses or is unusable.
    fn blame(&mut self, candidate: usize, why: &str, silent_since: Option<Instant>) {
        match silent_since {
            Some(since) if self.last_heard <= since => self.choice.on_silent_try(candidate),
            _ => self.choice.on_failure(self.now, candidate, &legible(why)),
        }
    }
}

const NO_SESSION: &str = "there was no session";
/// The keep-alive interval: address translators forget a binding after 30 s.
const KEEP_ALIVE: Duration = Duration::from_secs(25);
const TARGET_TIMEOUT: Duration = Duration::from_secs(10);
const ATTEMPT_STAGGER: Duration = Duration::from_millis(250);
const ATTEMPTS_MAX: usize = 8;
const ADDRESSES_MAX: usize = 8;
const GOAL_TIMEOUT: Duration = Duration::from_secs(2);
/// More take-overs within [`TAKEOVERS_WITHIN`] suggest that the networks are at fault.
const TAKEOVERS_MAX: usize = 3;
const TAKEOVERS_WITHIN: Duration = Duration::from_secs(300);
