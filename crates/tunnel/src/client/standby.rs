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

mod switch;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::wire::{Control, Reason, Role};
use roadweave_proto::{Instant, PathSnapshot, UplinkId};
use roadweave_quic::{CloseReason, ConnectionId, Event};

use super::notices::legible;
use super::pairs::{Pair, Rejection};
use super::race::AcceptedConnection;
use super::{Client, MTU_MIN};

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
    next_path: BTreeMap<UplinkId, Instant>,
    pub(super) goal: Option<Goal>,
    question: Option<Question>,
    takeovers: VecDeque<Instant>,
    rounds: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Goal {
    why: String,
    /// The candidate that it applies to; `None` for any.
    only: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    first: Instant,
    asked_session: Instant,
    asked_standby: Instant,
    quiet_since: Instant,
    /// From when on the networks work for certain, once the standby has answered.
    alive_since: Option<Instant>,
}

impl Standby {
    pub(super) fn tried(&self) -> Option<usize> {
        self.challenger.or(self.target.filter(|_| self.ready.is_none()))
    }

    pub(super) fn has_answered(&self) -> bool {
        self.question.is_some_and(|question| question.alive_since.is_some())
    }

    pub(super) fn on_candidates(&mut self, place: impl Fn(usize) -> Option<usize>) {
        self.target = self.target.and_then(&place);
        self.challenger = self.challenger.and_then(&place);
        if let Some(Goal { only: Some(only), .. }) = &mut self.goal {
            match place(*only) {
                Some(now) => *only = now,
                None => self.goal = None,
            }
        }
    }

    pub(super) fn owns(&self, id: ConnectionId) -> bool {
        self.attempts.contains_key(&id) || self.ready.as_ref().is_some_and(|it| it.id == id)
    }
}

impl Client {
    pub(super) fn has_choice(&self) -> bool {
        self.config.candidates.len() > 1
    }

    pub(super) fn tend_standby(&mut self, now: Instant) {
        if !self.has_choice() {
            return;
        }
        self.choose_target(now);
        if self.standby.tried().is_some() {
            self.try_target(now);
        }
        if self.standby.ready.is_none() {
            return;
        }
        self.open_standby_paths(now);
        if self.current.is_none() && self.standby.question.is_none() {
            // There was no session when it was welcomed, or the session did not end in silence.
            if now >= self.choice.home_first_until {
                self.switch(now, "there was no session");
            }
            return;
        }
        self.ask_standby(now);
    }

    pub(super) fn standby_timeout(&self) -> Option<Instant> {
        if !self.has_choice() {
            return None;
        }
        let Standby { target, ready, question, next_attempt, began, .. } = &self.standby;
        let Some(_) = target else {
            let may_begin = match self.current.is_some() {
                true => Instant::ZERO,
                false => self.choice.home_first_until,
            };
            let from = match self.is_without_server() {
                true => self.choice.refuge_timeout(),
                false => self.choice.standby_timeout(),
            };
            return from.map(|at| at.max(may_begin));
        };
        let tried = self.standby.tried();
        let tries = tried.map(|_| (*next_attempt).min(*began + TARGET_TIMEOUT));
        let Some(ready) = ready else { return tries };
        let alone = self.current.is_none().then_some(self.choice.home_first_until);
        let is_silent = self.current.is_some() && self.silence.since.is_some();
        let asks = question.map(|question| question.poll_timeout(is_silent));
        let takes = question.and_then(|question| self.takeover_from(&question));
        let connection = self.endpoint.connection(ready.id)?;
        let with_path = |id: &UplinkId| connection.paths().iter().any(|it| it.uplink == Some(*id));
        let paths = self.standby_uplinks().into_iter().filter(|id| !with_path(id));
        let paths =
            paths.map(|id| self.standby.next_path.get(&id).copied().unwrap_or(Instant::ZERO));
        let alone = alone.filter(|_| question.is_none());
        asks.into_iter().chain(takes).chain(paths).chain(alone).chain(tries).min()
    }

    fn choose_target(&mut self, now: Instant) {
        if self.current.is_none() && now < self.choice.home_first_until {
            return;
        }
        let wished = self.choice.wish(now).filter(|_| self.current.is_some());
        self.standby.goal.take_if(|goal| goal.only.is_some() && goal.only != wished);
        if let Some(wished) = wished {
            self.want(now, wished, "another is better");
            if self.standby.target == Some(wished) {
                let goal = || Goal { why: "it is nearer".to_owned(), only: Some(wished) };
                self.standby.goal.get_or_insert_with(goal);
            }
        }
        let best = match self.standby.target {
            None if self.is_without_server() => self.choice.refuge(now),
            _ => self.choice.standby(now),
        };
        match (self.standby.target, best) {
            (None, Some(best)) => self.retarget(now, Some(best), ""),
            (Some(target), Some(best))
                if self.standby.rounds != self.choice.rounds
                    && self.standby.goal.is_none()
                    && wished.is_none() =>
            {
                self.standby.rounds = self.choice.rounds;
                if self.choice.waits_better(best, target) {
                    self.want(now, best, "another waits better");
                }
            }
            _ => {}
        }
    }

    fn is_without_server(&self) -> bool {
        self.current.is_none() || self.silence.since.is_some()
    }

    fn want(&mut self, now: Instant, candidate: usize, reason: &str) {
        let Standby { target, challenger, ready, .. } = &self.standby;
        if [*target, *challenger].contains(&Some(candidate)) {
            return;
        }
        if ready.is_none() {
            return self.retarget(now, Some(candidate), reason);
        }
        self.drop_challenger(now, reason);
        self.standby.challenger = Some(candidate);
        (self.standby.began, self.standby.next_attempt, self.standby.turn) = (now, now, 0);
    }

    pub(super) fn drop_challenger(&mut self, now: Instant, reason: &str) {
        if self.standby.challenger.take().is_some() {
            self.drop_standby_attempts(now, reason);
        }
    }

    fn drop_standby_attempts(&mut self, now: Instant, reason: &str) {
        for id in std::mem::take(&mut self.standby.attempts).into_keys() {
            self.close_connection(now, id, reason);
        }
    }

    pub(super) fn retarget(&mut self, now: Instant, target: Option<usize>, reason: &str) {
        self.drop_standby_attempts(now, reason);
        let Standby { ready, goal, takeovers, .. } = std::mem::take(&mut self.standby);
        if let Some(ready) = ready {
            self.close_connection(now, ready.id, reason);
        }
        self.standby = Standby {
            target,
            began: now,
            next_attempt: now,
            goal,
            takeovers,
            rounds: self.choice.rounds,
            ..Standby::default()
        };
    }

    fn give_up_tried(&mut self, now: Instant, why: &str, silent_since: Option<Instant>) {
        let Some(challenger) = self.standby.challenger else {
            return self.give_up_target(now, why, silent_since);
        };
        self.blame(now, challenger, why, silent_since);
        self.drop_challenger(now, "it is of no use");
    }

    /// `silent_since`: `None` if the candidate proved its identity, and refuses or is unusable.
    fn blame(&mut self, now: Instant, candidate: usize, why: &str, silent_since: Option<Instant>) {
        match silent_since {
            Some(since) if self.last_heard <= since => self.choice.on_silent_try(candidate),
            _ => self.choice.on_failure(now, candidate, &legible(why)),
        }
    }

    fn give_up_target(&mut self, now: Instant, why: &str, silent_since: Option<Instant>) {
        let Some(target) = self.standby.target else { return };
        self.blame(now, target, why, silent_since);
        self.standby.goal.take_if(|goal| goal.only.is_some());
        self.retarget(now, None, "it is of no use");
        self.choose_target(now);
    }

    fn try_target(&mut self, now: Instant) {
        let Some(target) = self.standby.tried() else { return };
        if now >= self.standby.began + TARGET_TIMEOUT {
            return self.give_up_tried(now, "no answer", Some(self.standby.began));
        }
        if now < self.standby.next_attempt {
            return;
        }
        self.standby.next_attempt = now + ATTEMPT_STAGGER;
        if self.standby.attempts.len() >= ATTEMPTS_MAX {
            return;
        }
        let uplinks = self.standby_uplinks();
        let mut pairs = Vec::new();
        for place in 0..ADDRESSES_MAX {
            let address = |id: &UplinkId| Some((*id, *self.addresses_of(target, *id).get(place)?));
            pairs.extend(uplinks.iter().filter_map(address));
        }
        let Some(count) = (!pairs.is_empty()).then_some(pairs.len()) else { return };
        let turn = self.standby.turn;
        let mut in_turn = (0..count).map(|at| pairs[(turn + at) % count]);
        let Some(pair) = in_turn.find(|pair| self.race.pairs.get(*pair).due() <= now) else {
            return;
        };
        self.standby.turn += 1;
        self.race.pairs.on_attempt(now, pair);
        let key = self.config.candidates[target].key;
        match self.endpoint.connect(now, pair.0, pair.1, key) {
            Ok(id) => _ = self.standby.attempts.insert(id, pair),
            Err(error) => self.race.pairs.note(pair, format!("cannot begin to connect: {error}")),
        }
    }

    pub(super) fn on_standby_event(&mut self, now: Instant, id: ConnectionId, event: Event) {
        let is_ready = self.standby.ready.as_ref().is_some_and(|ready| ready.id == id);
        match event {
            Event::Connected { .. } => {
                if let Some(pair) = self.standby.attempts.get(&id) {
                    self.race.pairs.on_answered(*pair);
                }
                let hello = self.hello(Role::Standby, id);
                self.send_control(id, &Control::Hello(hello));
            }
            Event::Message(message) => self.on_standby_message(now, id, message),
            Event::Closed(reason) if is_ready => {
                self.standby.ready = None;
                let is_silent = matches!(reason, CloseReason::TimedOut);
                let silent_since = is_silent.then_some(now - TARGET_TIMEOUT);
                self.give_up_target(now, &reason.to_string(), silent_since);
            }
            Event::Closed(reason) => {
                let Some(pair) = self.standby.attempts.remove(&id) else { return };
                match reason {
                    // The server has proved its identity.
                    CloseReason::Refused(_) => {
                        self.give_up_tried(now, &reason.to_string(), None);
                    }
                    CloseReason::Local => {}
                    other => {
                        let reason = other.to_string();
                        _ = self.race.pairs.rest(now, pair, Rejection::Doubtful, legible(&reason));
                    }
                }
            }
            _ => {}
        }
    }

    fn on_standby_message(&mut self, now: Instant, id: ConnectionId, message: Bytes) {
        let why = match Control::parse(message) {
            Ok(Control::Welcome(welcome)) if welcome.mtu >= MTU_MIN => {
                let Some(pair) = self.standby.attempts.remove(&id) else { return };
                self.drop_standby_attempts(now, "another connection was welcomed");
                if let Some(former) = self.standby.ready.take() {
                    self.close_connection(now, former.id, "another waits better");
                    self.standby.target = self.standby.challenger.take();
                    (self.standby.question, self.standby.next_path) = (None, BTreeMap::new());
                }
                if let Some(connection) = self.endpoint.connection_mut(id) {
                    connection.set_keep_alive(KEEP_ALIVE);
                }
                self.standby.target.iter().for_each(|target| self.choice.on_success(*target));
                self.standby.ready = Some(AcceptedConnection { id, pair, welcome, since: now });
                return;
            }
            Ok(Control::Welcome(_)) => "its MTU is too small".to_owned(),
            Ok(Control::Refuse { why: Reason::Drain, .. } | Control::Move { .. }) => {
                "it drains".to_owned()
            }
            Ok(Control::Refuse { reason, .. }) => format!("refused: {reason}"),
            _ => return,
        };
        match self.standby.ready.as_ref().is_some_and(|ready| ready.id == id) {
            true => self.give_up_target(now, &why, None),
            false => self.give_up_tried(now, &why, None),
        }
    }

    /// All while no server answers, since any of them may be the one that works.
    fn standby_uplinks(&self) -> Vec<UplinkId> {
        match self.is_without_server() {
            true => self.uplinks.open().map(|(id, _)| *id).collect(),
            false => self.frugal_uplinks(),
        }
    }

    pub(super) fn frugal_uplinks(&self) -> Vec<UplinkId> {
        let free = self.uplinks.unmetered();
        let mut usable = self.paths().iter().filter(|path| path.is_usable());
        let is_of_use = match self.is_without_server() {
            true => !free.is_empty(),
            false => usable.any(|path| path.uplink.is_some_and(|uplink| free.contains(&uplink))),
        };
        if is_of_use { free } else { self.uplinks.open().map(|(id, _)| *id).collect() }
    }

    fn open_standby_paths(&mut self, now: Instant) {
        let uplinks = self.standby_uplinks();
        let Some(AcceptedConnection { id, pair, .. }) = &self.standby.ready else { return };
        let Some(connection) = self.endpoint.connection_mut(*id) else { return };
        let is_kept = |path: &PathSnapshot| path.uplink.is_some_and(|it| uplinks.contains(&it));
        let carries = connection.paths().iter().any(|path| path.is_usable() && is_kept(path));
        let mut gone = Vec::new();
        for path in connection.paths() {
            let Some(uplink) = path.uplink else { continue };
            // A path that was needed recently may be needed again.
            let is_young = self.standby.next_path.get(&uplink).is_some_and(|until| *until > now);
            let is_spare = carries && !is_kept(path) && !is_young;
            if is_spare || !self.uplinks.all.contains_key(&uplink) {
                gone.push(path.id);
            }
        }
        for path in gone {
            // The last path stays until another uplink has one.
            let _ = connection.close_path(now, path);
        }
        for uplink in uplinks {
            let has_path = connection.paths().iter().any(|path| path.uplink == Some(uplink));
            let next = self.standby.next_path.entry(uplink).or_insert(now);
            if !has_path && *next <= now {
                *next = now + PATH_RETRY;
                let _ = connection.open_path(now, uplink, pair.1);
            }
        }
        connection.flush(now);
    }
}

/// The keep-alive interval: address translators forget a binding after 30 s.
const KEEP_ALIVE: Duration = Duration::from_secs(25);
const TARGET_TIMEOUT: Duration = Duration::from_secs(10);
const ATTEMPT_STAGGER: Duration = Duration::from_millis(250);
const ATTEMPTS_MAX: usize = 8;
const ADDRESSES_MAX: usize = 8;
const PATH_RETRY: Duration = Duration::from_secs(5);
