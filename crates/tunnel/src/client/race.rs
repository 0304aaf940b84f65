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
//! fastest wins, and faster technologies begin sooner (XLINK section 5.3, [`Client::set_rank`]).
//! Without an answer attempts become rarer ([`attempt_backoff`](super::attempt_backoff)).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::wire::{Control, Role, Welcome};
use roadweave_proto::{DropReason, Instant, UplinkId};
use roadweave_quic::{CloseReason, ConnectionId, Event};

use super::attempt_backoff::AttemptBackoff;
use super::measure::OwnRtt;
use super::notices::{Notice, legible};
use super::pairs::{Pair, Pairs, Rejection};
use super::portals::HELD_BACK_RETRY;
use super::ports::PORT_CHANGE;
use super::{Client, ClientEvent, Current, MTU_MIN, seed};
use crate::server::UNUSED;
use crate::session::{Session, SessionConfig};

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
pub(super) struct Attempt {
    pub(super) pair: Pair,
    began: Instant,
    /// Until when others wait for its result, once the server was heard.
    others_wait: Option<Instant>,
    pub(super) hello: Option<Instant>,
}

impl Attempt {
    fn on_answer(&mut self, now: Instant) {
        let wait = now.since(self.began) * WELCOME_ROUNDS;
        self.others_wait = Some(now + wait.clamp(OTHERS_WAIT_MIN, OTHERS_WAIT_MAX));
    }
}

fn stagger(position: usize) -> Duration {
    RACE_STAGGER * ((1 << position.min(4)) - 1)
}

/// A welcomed connection: the server makes a session of it when it is used.
#[derive(Debug)]
pub(super) struct AcceptedConnection {
    pub(super) id: ConnectionId,
    pub(super) pair: Pair,
    pub(super) welcome: Welcome,
    pub(super) since: Instant,
}

/// Attempts at a session, and when the next may begin.
#[derive(Debug)]
pub(super) struct Race {
    pub(super) attempts: BTreeMap<ConnectionId, Attempt>,
    pub(super) pairs: Pairs,
    pub(super) attempt_backoff: AttemptBackoff,
    /// Where the server was heard last.
    pub(super) heard_on: Option<UplinkId>,
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
            comes_back: false,
            backoff: Duration::ZERO,
            replacement: None,
            renews: false,
        }
    }

    /// When the next attempt may begin: one was answered, or there was no answer for long.
    fn waits_until(&self) -> Option<Instant> {
        let until = self.attempts.values().filter_map(|attempt| attempt.others_wait).max();
        until.filter(|_| self.comes_back).max(Some(self.attempt_backoff.due))
    }

    /// When a pair may be tried next. An uplink that is held back is expected not to answer.
    fn due(&self, pair: Pair, is_held_back: bool) -> Instant {
        let state = self.pairs.get(pair);
        if is_held_back { state.resting_until } else { state.due() }
    }

    fn is_greeted(&self, pair: Pair) -> bool {
        self.attempts.values().any(|attempt| attempt.pair == pair && attempt.hello.is_some())
    }

    pub(super) fn on_sign_of_life(&mut self, now: Instant, uplink: Option<UplinkId>) {
        self.pairs.reset_backoff(now, uplink);
        self.attempt_backoff.on_sign_of_life();
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

impl Client {
    pub(super) fn race(&mut self, now: Instant) {
        let waits = self.race.waits_until().is_some_and(|until| until > now);
        let may_begin = |id: &UplinkId| !waits || self.is_held_back(*id);
        let is_due = |id: &UplinkId| self.uplinks.all[id].next_attempt <= now && may_begin(id);
        let mut due: Vec<UplinkId> = self.uplinks.all.keys().copied().filter(is_due).collect();
        // If only one may begin, the one that waited longest does.
        due.sort_by_key(|id| self.uplinks.all[id].next_attempt);
        for id in due {
            let is_held_back = self.is_held_back(id);
            if !is_held_back && self.race.attempt_backoff.due > now {
                continue;
            }
            // Each uplink tries all servers: it may reach those of one family only.
            let servers = self.addresses_due(id).filter(|(_, at)| *at <= now);
            let next =
                servers.min_by_key(|(server, _)| self.race.pairs.get((id, *server)).attempts);
            let Some((server, _)) = next else { continue };
            if let Some(uplink) = self.uplinks.all.get_mut(&id)
                && uplink.port.gives_way(now, self.current.is_some())
            {
                uplink.next_attempt = now + PORT_CHANGE;
                continue;
            }
            self.make_room(now, (id, server));
            if let Some(uplink) = self.uplinks.all.get_mut(&id) {
                uplink.port.on_attempt();
                let pause = if is_held_back { HELD_BACK_RETRY } else { SERVER_STAGGER };
                uplink.next_attempt = now + pause;
            }
            self.race.pairs.on_attempt(now, (id, server));
            if !is_held_back {
                let round = SERVER_STAGGER * self.servers_of(id).len().min(SERVERS_MAX) as u32;
                self.race.attempt_backoff.on_attempt(now, round, &mut self.race.pairs);
            }
            let key = self.server().key;
            match self.endpoint.connect(now, id, server, key) {
                Ok(connection) => {
                    let (pair, others_wait) = ((id, server), None);
                    let attempt = Attempt { pair, began: now, others_wait, hello: None };
                    self.race.attempts.insert(connection, attempt);
                }
                Err(error) => {
                    let reason = format!("cannot begin to connect: {error}");
                    self.rest(now, (id, server), Rejection::Doubtful, reason);
                }
            }
        }
    }

    pub(super) fn race_timeout(&self) -> Option<Instant> {
        let waits_until = self.race.waits_until();
        let of_uplink = |id: &UplinkId| {
            let next = self.addresses_due(*id).map(|(_, at)| at).min()?;
            let next = next.max(self.uplinks.all[id].next_attempt);
            let waits_until = waits_until.filter(|_| !self.is_held_back(*id));
            Some(waits_until.map_or(next, |until| next.max(until)))
        };
        self.uplinks.all.keys().filter_map(of_uplink).min()
    }

    /// The first packet of an attempt makes others wait, and asks a silent session again.
    pub(super) fn on_attempt_heard(&mut self, now: Instant, id: ConnectionId) {
        let attempt =
            self.race.attempts.get_mut(&id).filter(|attempt| attempt.others_wait.is_none());
        let Some(attempt) = attempt else { return };
        attempt.on_answer(now);
        let silent = self.current.as_ref().filter(|_| self.silence.since.is_some());
        if let Some(connection) = silent.and_then(|it| self.endpoint.connection_mut(it.id)) {
            connection.ask_paths(now);
        }
    }

    fn addresses_due(&self, id: UplinkId) -> impl Iterator<Item = (SocketAddr, Instant)> {
        let servers = self.servers_of(id).iter().take(SERVERS_MAX);
        let is_held_back = self.is_held_back(id);
        servers
            .filter(move |server| !self.race.is_greeted((id, **server)))
            .map(move |server| (*server, self.race.due((id, *server), is_held_back)))
    }

    fn make_room(&mut self, now: Instant, pair: Pair) {
        let handshakes = |attempt: &Attempt| attempt.pair == pair && attempt.hello.is_none();
        self.drop_oldest(now, ATTEMPTS_PER_PAIR - 1, handshakes);
        self.drop_oldest(now, ATTEMPTS_PER_UPLINK - 1, |attempt| attempt.pair.0 == pair.0);
    }

    fn drop_oldest(&mut self, now: Instant, most: usize, which: impl Fn(&Attempt) -> bool) {
        let matching = self.race.attempts.values().filter(|attempt| which(attempt)).count();
        let mut excess = matching.saturating_sub(most);
        let is_oldest = |attempt: &Attempt| {
            let goes = excess > 0 && which(attempt);
            excess -= usize::from(goes);
            goes
        };
        for pair in self.drop_attempts(now, "no answer", is_oldest) {
            self.race.pairs.note(pair, "no answer".into());
        }
    }

    pub(super) fn drop_attempts(
        &mut self,
        now: Instant,
        reason: &str,
        mut which: impl FnMut(&Attempt) -> bool,
    ) -> Vec<Pair> {
        let gone = self.race.attempts.extract_if(.., |_, attempt| which(attempt));
        let gone: Vec<(ConnectionId, Attempt)> = gone.collect();
        gone.iter().for_each(|(id, _)| self.close_connection(now, *id, reason));
        gone.into_iter().map(|(_, attempt)| attempt.pair).collect()
    }

    pub(super) fn on_attempt_event(&mut self, now: Instant, id: ConnectionId, event: Event) {
        match event {
            Event::Connected { .. } => {
                if let Some(attempt) = self.race.attempts.get_mut(&id) {
                    attempt.hello = Some(now);
                    attempt.on_answer(now);
                    self.race.pairs.on_answered(attempt.pair);
                }
                let hello = self.hello(Role::Join, id);
                self.send_control(id, &Control::Hello(hello));
            }
            Event::Message(message) => self.on_answer(now, id, message),
            Event::Closed(reason) => {
                let Some(Attempt { pair, .. }) = self.race.attempts.remove(&id) else { return };
                match rejection_of(&reason) {
                    Some(rejection) => self.rest(now, pair, rejection, reason.to_string()),
                    None => self.race.pairs.note(pair, legible(&reason.to_string())),
                }
            }
            _ => {}
        }
    }

    fn on_answer(&mut self, now: Instant, id: ConnectionId, message: Bytes) {
        let Some(pair) = self.race.attempts.get(&id).map(|attempt| attempt.pair) else { return };
        let refusal = match Control::parse(message) {
            Ok(Control::Welcome(welcome)) if welcome.mtu < MTU_MIN => {
                format!(
                    "the server requires an MTU of {} bytes, but IPv6 needs {MTU_MIN}",
                    welcome.mtu
                )
            }
            Ok(Control::Welcome(welcome)) => {
                self.race.attempts.remove(&id);
                return self.on_welcome(now, AcceptedConnection { id, pair, welcome, since: now });
            }
            Ok(Control::Refuse { reason, .. }) => {
                self.on_home_refused(now, &reason);
                format!("refused by the server: {reason}")
            }
            Ok(_) => return self.drops.count(DropReason::UnknownMessage),
            Err(_) => return self.drops.count(DropReason::MalformedMessage),
        };
        self.race.attempts.remove(&id);
        self.close_connection(now, id, "refused");
        self.rest(now, pair, Rejection::Refused, refusal);
    }

    fn on_home_refused(&mut self, now: Instant, why: &str) {
        if self.has_choice() {
            self.choice.on_failure(now, self.choice.current, &legible(why));
            self.choice.home_first_until = now;
        }
    }

    fn on_welcome(&mut self, now: Instant, welcomed: AcceptedConnection) {
        if self.current.is_none() {
            self.join(now, welcomed, None);
        } else if self.race.renews {
            self.join_renewed(now, welcomed);
        } else if self.race.replacement.is_none() {
            self.race.replacement = Some(welcomed);
        } else {
            self.close_connection(now, welcomed.id, "another connection was welcomed");
        }
    }

    /// Lets a pair rest for its answer. Another address may be tried over its uplink at once.
    pub(super) fn rest(&mut self, now: Instant, pair: Pair, rejection: Rejection, reason: String) {
        let reason = legible(&reason);
        let Some(rest) = self.race.pairs.rest(now, pair, rejection, reason.clone()) else { return };
        let Some(uplink) = self.uplinks.all.get_mut(&pair.0) else { return };
        uplink.next_attempt = uplink.next_attempt.min(now);
        // The remaining pairs need not wait.
        self.race.attempt_backoff.due = Instant::ZERO;
        let uplink = uplink.name.clone();
        let is_proven = rejection == Rejection::Refused;
        self.notify(now, Notice::Answer { uplink, server: pair.1, reason, rest, is_proven });
    }

    pub(super) fn give_up_unwelcomed(&mut self, now: Instant) {
        let is_over = |attempt: &Attempt| attempt.hello.is_some_and(|at| now >= at + JOIN_TIMEOUT);
        for pair in self.drop_attempts(now, "no welcome came", is_over) {
            let reason = "connected, and no welcome came".to_owned();
            self.rest(now, pair, Rejection::Doubtful, reason);
        }
    }

    pub(super) fn welcome_timeout(&self) -> Option<Instant> {
        self.race.attempts.values().filter_map(|attempt| Some(attempt.hello? + JOIN_TIMEOUT)).min()
    }

    pub(super) fn join(
        &mut self,
        now: Instant,
        welcomed: AcceptedConnection,
        moved: Option<String>,
    ) {
        let AcceptedConnection { id, pair, welcome, .. } = welcomed;
        let config = SessionConfig {
            lanes: self.config.lanes.clone(),
            peer_sources: None,
            streams: self.stream_lane(&welcome),
            memory_max: self.config.memory_max,
            seed: seed(&self.config.transport) ^ id.0,
        };
        let mut session = match Session::new(config, true) {
            Ok(session) => session,
            Err(error) => {
                self.close_connection(now, id, "this client's lanes cannot be used");
                return self.rest(now, pair, Rejection::Refused, error.to_string());
            }
        };
        session.observe_packets(self.observes);
        if self.has_choice() {
            session.keep_unfinished();
        }
        if let Some(learned) = self.learned.get(&self.server().key.to_string()) {
            session.restore(learned);
        }
        self.silence.clear();
        self.race.renews = false;
        let granted = welcome.clone();
        self.current = Some(Current {
            id,
            pair,
            session,
            since: now,
            welcome,
            far_end: None,
            doubted: false,
            path_policies: BTreeMap::new(),
            own_rtt: OwnRtt::default(),
        });
        self.begin_streams(now);
        self.refuse_local_sources();
        self.drop_attempts(now, "another connection was welcomed", |_| true);
        let (welcome, server) = (granted, pair.1);
        self.outbox.events.push_back(match moved {
            None => ClientEvent::Joined { welcome, server },
            Some(reason) => {
                let name = self.server().name.clone();
                ClientEvent::Moved { welcome, server, name, reason }
            }
        });
        self.bind();
        // This shows the server which of the welcomed connections is used.
        self.name_paths();
        self.apply_policies();
    }

    /// Ends the session; attempts beside it live on. `after` decides how soon the next is tried.
    pub(super) fn leave(&mut self, now: Instant, reason: &str, after: After) {
        let may_switch = match after {
            After::Superseded => false,
            After::Silence => self.standby.has_answered(),
            After::Restart | After::Backoff | After::Unused => true,
        };
        if self.race.replacement.is_none() && self.standby.ready.is_some() && may_switch {
            let home = self.choice.current;
            self.switch(now, reason);
            return self.choice.on_failure(now, home, &legible(reason));
        }
        let Some(mut current) = self.current.take() else { return };
        self.race.comes_back = true;
        self.take_last(now, &mut current.session);
        self.choice.home_first_until = now + PREFERRED_SERVER_DELAY;
        if after == After::Silence {
            self.doubt_standby(now);
        }
        self.keep_learned(&current.session);
        if now.since(current.since) >= STABLE_AFTER {
            self.race.backoff = Duration::ZERO;
            self.race.pairs.on_success(current.pair);
        }
        self.close_connection(now, current.id, "the session is over");
        self.silence.clear();
        self.outages.on_left();
        let reason = legible(reason);
        self.race.pairs.note(current.pair, reason.clone());
        self.race.pairs.reset_backoff(now, None);
        match after {
            After::Restart => self.race.attempt_backoff.on_restart(),
            _ => self.race.attempt_backoff.on_sign_of_life(),
        }
        if after == After::Unused {
            self.rest(now, current.pair, Rejection::Doubtful, reason.clone());
        }
        let rest = self.race.next_rest(after);
        let all_rest = if after == After::Superseded { rest } else { Duration::ZERO };
        self.choice.home_first_until += all_rest;
        let mut ids = self.uplinks.by_rank();
        let wait = if after == After::Restart { RESTART_WAIT } else { Duration::ZERO };
        if after == After::Restart {
            ids.sort_by_key(|id| self.race.heard_on != Some(*id));
        }
        for (position, id) in ids.into_iter().enumerate() {
            // Thousands of clients may have lost the same server at the same moment.
            let jitter = self.race.pairs.jitter(STAGGER_JITTER * (position as u32 + 1));
            let wait = if position > 0 { wait } else { Duration::ZERO };
            let stagger = stagger(position) + wait + jitter;
            if let Some(uplink) = self.uplinks.all.get_mut(&id) {
                uplink.next_attempt = now + all_rest + stagger;
            }
            // The server would answer the same over any uplink.
            if !rest.is_zero() {
                self.race.pairs.rest_for(now, (id, current.pair.1), rest);
            }
        }
        let rest = self.race_timeout().map_or(rest, |at| at.since(now));
        self.outbox.events.push_back(ClientEvent::Left { reason, rest });
        if let Some(replacement) = self.race.replacement.take() {
            self.join(now, replacement, None);
        }
    }
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
