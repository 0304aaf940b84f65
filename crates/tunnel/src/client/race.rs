//! How a session comes about, and how it ends.
//!
//! ```text
//! attempts, on each pair of uplink and server ─► hello ─► the first that is welcomed ─► session ─► leave
//!    ▲        │ refused, forged, not welcomed: the pair rests,                             │ silent │
//!    │        └ the others go on                                                           ▼        │
//!    ├────────────────── attempts beside it ─► a replacement, which takes over unless the session   │
//!    │                                         answers first                                        │
//!    └──────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A handshake proves who answers, but not that the network lets further packets through. So each
//! attempt that passes it says hello, and all stay open until one is welcomed. The server makes a
//! session of a welcomed connection only when it is used, so attempts do not displace each other.
//!
//! After a session thousands of clients may return to a server at once. So the second uplink begins
//! shortly after the first, each further one twice as late, and once a packet arrives on one of
//! them the others wait for its result: one handshake per client. Before the first session the
//! fastest wins, and faster technologies begin sooner (XLINK section 5.3,
//! [`set_rank`](super::Client::set_rank)). Without an answer attempts become rarer
//! ([`attempt_backoff`](super::attempt_backoff)).

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::wire::{Control, Welcome};
use roadweave_proto::{DropReason, Instant, UplinkId};
use roadweave_quic::{CloseReason, ConnectionId, Endpoint};

use super::attempt_backoff::AttemptBackoff;
use super::current::{AcceptedConnection, View};
use super::notices::legible;
use super::pairs::{Pair, Pairs, Rejection};
use super::ports::PORT_CHANGE;
use super::uplinks::{HELD_BACK_RETRY, Uplink};
use super::{Choice, Current, EventQueue, MTU_MIN, Notice, Uplinks, connections};
use crate::server::UNUSED;

pub(super) const PREFERRED_SERVER_DELAY: Duration = Duration::from_secs(1);
/// How much later the second uplink begins: often the first is answered before.
pub(super) const RACE_STAGGER: Duration = Duration::from_millis(100);
/// Other uplinks wait this long: the one that heard a restarted server works; the server is busy.
const RESTART_WAIT: Duration = Duration::from_secs(1);
/// Others wait for the welcome this many times the first answer's round trip: three follow at most.
const WELCOME_ROUNDS: u32 = 3;
const OTHERS_WAIT_MIN: Duration = RACE_STAGGER;
const OTHERS_WAIT_MAX: Duration = Duration::from_secs(2);
const STAGGER_JITTER: Duration = Duration::from_millis(50);
/// How much later the next of the server's addresses is tried over an uplink (RFC 8305 section 5).
const SERVER_STAGGER: Duration = Duration::from_millis(250);
const SERVERS_MAX: usize = 32;
/// Handshakes under way per pair: an answer may take as many seconds.
const ATTEMPTS_PER_PAIR: usize = 4;
const ATTEMPTS_PER_UPLINK: usize = 8;
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
pub(super) const STABLE_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Attempt {
    pair: Pair,
    began: Instant,
    /// Until when others wait for its result, once the server was heard.
    others_wait: Option<Instant>,
    hello: Option<Instant>,
}

impl Attempt {
    fn on_answer(&mut self, now: Instant) {
        let wait = now.since(self.began) * WELCOME_ROUNDS;
        self.others_wait = Some(now + wait.clamp(OTHERS_WAIT_MIN, OTHERS_WAIT_MAX));
    }
}

/// What the attempts go over, and to which server.
pub(super) struct Course<'a> {
    pub(super) now: Instant,
    pub(super) endpoint: &'a mut Endpoint,
    pub(super) uplinks: &'a mut Uplinks,
    pub(super) choice: &'a mut Choice,
    pub(super) event_queue: &'a mut EventQueue,
}

/// Attempts at a session, and when the next may begin.
#[derive(Debug)]
pub(super) struct Race {
    attempts: BTreeMap<ConnectionId, Attempt>,
    pub(super) pairs: Pairs,
    pub(super) attempt_backoff: AttemptBackoff,
    heard_on: Option<UplinkId>,
    pub(super) last_heard: Instant,
    /// Whether there was a session before.
    comes_back: bool,
    backoff: Duration,
    /// A connection that was welcomed beside a silent session, to replace it.
    pub(super) replacement: Option<AcceptedConnection>,
    /// Whether another session with the same server is to replace this one.
    pub(super) renews: bool,
}

impl Race {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            attempts: BTreeMap::new(),
            pairs: Pairs::new(seed),
            attempt_backoff: AttemptBackoff::default(),
            heard_on: None,
            last_heard: Instant::ZERO,
            comes_back: false,
            backoff: Duration::ZERO,
            replacement: None,
            renews: false,
        }
    }

    /// When the next attempt may begin: one was answered, or there was no answer for long.
    fn waits_until(&self) -> Instant {
        let until = self.attempts.values().filter_map(|attempt| attempt.others_wait).max();
        until.filter(|_| self.comes_back).unwrap_or_default().max(self.attempt_backoff.due)
    }

    /// When a pair may be tried next, unless an attempt on it waits for its welcome. An uplink that
    /// is held back is expected not to answer.
    fn due(&self, pair: Pair, is_held_back: bool) -> Option<Instant> {
        let state = self.pairs.get(pair);
        let due = if is_held_back { state.resting_until } else { state.due() };
        Some(due).filter(|_| !self.is_greeted(pair))
    }

    pub(super) fn is_greeted(&self, pair: Pair) -> bool {
        self.attempts.values().any(|attempt| attempt.pair == pair && attempt.hello.is_some())
    }

    pub(super) fn on_sign_of_life(&mut self, now: Instant, uplink: Option<UplinkId>) {
        self.pairs.reset_backoff(now, uplink);
        self.attempt_backoff.on_sign_of_life();
    }

    pub(super) fn begin(&mut self, has_session: bool, course: &mut Course<'_>) {
        let (now, uplinks) = (course.now, &course.uplinks);
        let waits = self.waits_until() > now;
        let may_begin = |id: &UplinkId| !waits || uplinks.is_held_back(*id);
        let is_due = |id: &UplinkId| uplinks.all[id].next_attempt <= now && may_begin(id);
        let mut due: Vec<UplinkId> = uplinks.all.keys().copied().filter(is_due).collect();
        // If only one may begin, the one that waited longest does.
        due.sort_by_key(|id| uplinks.all[id].next_attempt);
        for id in due {
            let is_held_back = course.uplinks.is_held_back(id);
            if !is_held_back && self.attempt_backoff.due > now {
                continue;
            }
            // Each uplink tries all servers: it may reach those of one family only.
            let servers = course.choice.servers(id).iter().take(SERVERS_MAX);
            let round = SERVER_STAGGER * servers.len() as u32;
            let pairs = servers.map(|server| (id, *server));
            let due = pairs.filter(|it| self.due(*it, is_held_back).is_some_and(|at| at <= now));
            let next = due.min_by_key(|pair| self.pairs.get(*pair).attempts);
            let (Some(pair), Some(uplink)) = (next, course.uplinks.all.get_mut(&id)) else {
                continue;
            };
            if uplink.port.gives_way(now, has_session) {
                uplink.next_attempt = now + PORT_CHANGE;
                continue;
            }
            uplink.port.on_attempt();
            let pause = if is_held_back { HELD_BACK_RETRY } else { SERVER_STAGGER };
            uplink.next_attempt = now + pause;
            self.make_room(pair, course);
            self.pairs.on_attempt(now, pair);
            if !is_held_back {
                self.attempt_backoff.on_attempt(now, round, &mut self.pairs);
            }
            match course.endpoint.connect(now, id, pair.1, course.choice.home().key) {
                Ok(connection) => {
                    let attempt = Attempt { pair, began: now, others_wait: None, hello: None };
                    self.attempts.insert(connection, attempt);
                }
                Err(error) => {
                    let reason = format!("cannot begin to connect: {error}");
                    self.rest(pair, Rejection::Doubtful, &reason, course);
                }
            }
        }
    }

    pub(super) fn poll_timeout(&self, view: &View<'_>) -> Option<Instant> {
        let waits_until = self.waits_until();
        let of_uplink = |(id, uplink): (&UplinkId, &Uplink)| {
            let is_held_back = uplink.held_back.is_some();
            let servers = view.choice.servers(*id).iter().take(SERVERS_MAX);
            let next = servers.filter_map(|it| self.due((*id, *it), is_held_back)).min()?;
            let next = next.max(uplink.next_attempt);
            Some(if is_held_back { next } else { next.max(waits_until) })
        };
        view.uplinks.all.iter().filter_map(of_uplink).min()
    }

    fn make_room(&mut self, pair: Pair, course: &mut Course<'_>) {
        let handshakes = |attempt: &Attempt| attempt.pair == pair && attempt.hello.is_none();
        self.drop_oldest(ATTEMPTS_PER_PAIR - 1, handshakes, course);
        self.drop_oldest(ATTEMPTS_PER_UPLINK - 1, |attempt| attempt.pair.0 == pair.0, course);
    }

    fn drop_oldest(&mut self, most: usize, of: impl Fn(&Attempt) -> bool, course: &mut Course<'_>) {
        let mut excess = self.attempts.values().filter(|it| of(it)).count().saturating_sub(most);
        let is_oldest = |attempt: &Attempt| {
            let goes = excess > 0 && of(attempt);
            excess -= usize::from(goes);
            goes
        };
        for pair in self.drop_attempts("no answer", is_oldest, course) {
            self.pairs.note(pair, "no answer".into());
        }
    }

    fn drop_attempts(
        &mut self,
        reason: &str,
        mut which: impl FnMut(&Attempt) -> bool,
        course: &mut Course<'_>,
    ) -> Vec<Pair> {
        let gone = self.attempts.extract_if(.., |_, attempt| which(attempt));
        let close = |(id, attempt): (ConnectionId, Attempt)| {
            connections::close(course.endpoint, course.now, id, reason);
            attempt.pair
        };
        gone.map(close).collect()
    }

    pub(super) fn drop_all(&mut self, reason: &str, course: &mut Course<'_>) {
        self.drop_attempts(reason, |_| true, course);
    }

    pub(super) fn drop_replacement(&mut self, reason: &str, course: &mut Course<'_>) {
        if let Some(replacement) = self.replacement.take() {
            connections::close(course.endpoint, course.now, replacement.id, reason);
        }
    }

    pub(super) fn forget_uplink(&mut self, id: UplinkId, course: &mut Course<'_>) {
        let reason = "its uplink is gone";
        self.drop_attempts(reason, |attempt| attempt.pair.0 == id, course);
        if self.replacement.as_ref().is_some_and(|replacement| replacement.pair.0 == id) {
            self.drop_replacement(reason, course);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.attempts.is_empty() && self.replacement.is_none() && !self.renews
    }

    pub(super) fn owns(&self, id: ConnectionId) -> bool {
        self.attempts.contains_key(&id)
    }

    /// A server was heard over `uplink`. Returns how long none was before.
    pub(super) fn on_heard(&mut self, now: Instant, uplink: UplinkId) -> Duration {
        self.heard_on = Some(uplink);
        now.since(std::mem::replace(&mut self.last_heard, now))
    }

    /// Returns whether it is the first packet of an attempt: then others wait.
    pub(super) fn on_packet(&mut self, now: Instant, id: ConnectionId) -> bool {
        let attempt = self.attempts.get_mut(&id).filter(|it| it.others_wait.is_none());
        attempt.map(|attempt| attempt.on_answer(now)).is_some()
    }

    pub(super) fn on_connected(&mut self, now: Instant, id: ConnectionId) {
        if let Some(attempt) = self.attempts.get_mut(&id) {
            attempt.hello = Some(now);
            attempt.on_answer(now);
            self.pairs.on_answered(attempt.pair);
        }
    }

    pub(super) fn on_closed(&mut self, id: ConnectionId, why: &CloseReason, on: &mut Course<'_>) {
        let Some(Attempt { pair, .. }) = self.attempts.remove(&id) else { return };
        match rejection_of(why) {
            Some(rejection) => self.rest(pair, rejection, &why.to_string(), on),
            None => self.pairs.note(pair, legible(&why.to_string())),
        }
    }

    /// Returns the connection if its server welcomes it.
    pub(super) fn on_message(
        &mut self,
        id: ConnectionId,
        message: Bytes,
        course: &mut Course<'_>,
    ) -> Result<Option<AcceptedConnection>, DropReason> {
        let Some(Attempt { pair, .. }) = self.attempts.get(&id) else { return Ok(None) };
        let (now, pair) = (course.now, *pair);
        let refusal = match Control::parse(message)? {
            Control::Welcome(Welcome { mtu, .. }) if mtu < MTU_MIN => {
                format!("the server requires an MTU of {mtu} bytes, but IPv6 needs {MTU_MIN}")
            }
            Control::Welcome(welcome) => {
                self.attempts.remove(&id);
                return Ok(Some(AcceptedConnection { id, pair, welcome, since: now }));
            }
            Control::Refuse { reason, .. } => {
                course.choice.on_home_refused(now, &legible(&reason));
                format!("refused by the server: {reason}")
            }
            _ => return Err(DropReason::UnknownMessage),
        };
        self.attempts.remove(&id);
        connections::close(course.endpoint, now, id, "refused");
        self.rest(pair, Rejection::Refused, &refusal, course);
        Ok(None)
    }

    /// Lets a pair rest for its answer. Another address may be tried over its uplink at once.
    pub(super) fn rest(&mut self, pair: Pair, why: Rejection, reason: &str, on: &mut Course<'_>) {
        let (now, reason) = (on.now, legible(reason));
        let Some(rest) = self.pairs.rest(now, pair, why, reason.clone()) else { return };
        let Some(uplink) = on.uplinks.all.get_mut(&pair.0) else { return };
        uplink.next_attempt = uplink.next_attempt.min(now);
        // The remaining pairs need not wait.
        self.attempt_backoff.due = Instant::ZERO;
        let (uplink, is_proven) = (uplink.name.clone(), why == Rejection::Refused);
        on.event_queue
            .notify(now, Notice::Answer { uplink, server: pair.1, reason, rest, is_proven });
    }

    pub(super) fn give_up_unwelcomed(&mut self, course: &mut Course<'_>) {
        let now = course.now;
        let is_over = |attempt: &Attempt| attempt.hello.is_some_and(|at| now >= at + JOIN_TIMEOUT);
        for pair in self.drop_attempts("no welcome came", is_over, course) {
            self.rest(pair, Rejection::Doubtful, "connected, and no welcome came", course);
        }
    }

    pub(super) fn welcome_timeout(&self) -> Option<Instant> {
        self.attempts.values().filter_map(|attempt| Some(attempt.hello? + JOIN_TIMEOUT)).min()
    }

    /// The session is over, and its server rests for the time returned.
    pub(super) fn on_left(
        &mut self,
        left: &Current,
        after: After,
        reason: &str,
        course: &mut Course<'_>,
    ) -> Duration {
        let (now, pair) = (course.now, left.pair);
        self.comes_back = true;
        if now.since(left.since) >= STABLE_AFTER {
            self.backoff = Duration::ZERO;
            self.pairs.on_success(pair);
        }
        self.pairs.note(pair, reason.to_owned());
        self.pairs.reset_backoff(now, None);
        match after {
            After::Restart => self.attempt_backoff.on_restart(),
            _ => self.attempt_backoff.on_sign_of_life(),
        }
        if after == After::Unused {
            self.rest(pair, Rejection::Doubtful, reason, course);
        }
        let rest = self.next_rest(after);
        let all_rest = if after == After::Superseded { rest } else { Duration::ZERO };
        course.choice.home_first_until += all_rest;
        let mut ids = course.uplinks.by_rank(course.uplinks.all.keys().copied().collect());
        let wait = if after == After::Restart { RESTART_WAIT } else { Duration::ZERO };
        if after == After::Restart {
            ids.sort_by_key(|id| self.heard_on != Some(*id));
        }
        for (position, id) in ids.into_iter().enumerate() {
            // Thousands of clients may have lost the same server at the same moment.
            let jitter = self.pairs.jitter(STAGGER_JITTER * (position as u32 + 1));
            let wait = if position > 0 { wait } else { Duration::ZERO };
            let stagger = RACE_STAGGER * ((1 << position.min(4)) - 1);
            if let Some(uplink) = course.uplinks.all.get_mut(&id) {
                uplink.next_attempt = now + all_rest + stagger + wait + jitter;
            }
            // The server would answer the same over any uplink.
            if !rest.is_zero() {
                self.pairs.rest_for(now, (id, pair.1), rest);
            }
        }
        rest
    }

    /// A session began on `pair` and fell silent: what else may work is tried at once.
    pub(super) fn on_doubt(&mut self, now: Instant, pair: Pair, is_young: bool) {
        self.on_sign_of_life(now, None);
        if is_young {
            let reason = "a session began over it and fell silent".to_owned();
            self.pairs.rest(now, pair, Rejection::Doubtful, reason);
        }
    }

    pub(super) fn is_tried(&self, pair: Pair) -> bool {
        self.attempts.values().any(|attempt| attempt.pair == pair)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.attempts.values().any(|attempt| attempt.hello.is_some())
    }

    /// How long the server is not tried after it ended a session; grows with each.
    fn next_rest(&mut self, after: After) -> Duration {
        match after {
            After::Restart | After::Silence | After::Unused => Duration::ZERO,
            After::Backoff | After::Superseded => {
                let grown = (self.backoff * 2).clamp(Duration::from_secs(1), BACKOFF_MAX);
                let before = std::mem::replace(&mut self.backoff, grown);
                if after == After::Superseded { grown } else { before }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The server restarted: retry at once.
    Restart,
    /// Server or networks fell silent: retry at once; switch to the standby only if it answers.
    Silence,
    /// The server ended it: retry at once the first time, then later each time. Two boxes with one
    /// key would displace each other without end.
    Backoff,
    /// Another box has a session with this key: rest, whichever server it is.
    Superseded,
    /// The server heard nothing in it: its network let it begin and no more. The pair rests.
    Unused,
}

pub(super) fn after(reason: &CloseReason) -> After {
    match reason {
        CloseReason::ByPeer { code: UNUSED, .. } => After::Unused,
        CloseReason::Refused(_)
        | CloseReason::ByPeer { .. }
        | CloseReason::Protocol(_)
        | CloseReason::Busy => After::Backoff,
        CloseReason::TimedOut | CloseReason::HandshakeTimedOut => After::Silence,
        _ => After::Restart,
    }
}

fn rejection_of(reason: &CloseReason) -> Option<Rejection> {
    match reason {
        CloseReason::Refused(_) => Some(Rejection::Refused),
        CloseReason::Local
        | CloseReason::HandshakeTimedOut
        | CloseReason::TimedOut
        | CloseReason::Reset => None,
        _ => Some(Rejection::Doubtful),
    }
}
