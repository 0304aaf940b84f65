//! How the sessions of a client begin, follow each other and end.
//!
//! ```text
//! race ─► welcomed ─► join ───────────────► leave ─► race
//! replacement, another with the same server ─► set aside, join ─► the former is heard for a while
//! standby ─► switch ─► set aside, hello, join ─┘
//! ```

use roadweave_proto::Instant;
use roadweave_proto::wire::{Control, Hello, Reason, Role};
use roadweave_quic::{Connection, ConnectionId};

use super::current::{AcceptedConnection, InUse, View};
use super::notices::legible;
use super::pairs::Rejection;
use super::paths::PathTry;
use super::race::{After, Course, PREFERRED_SERVER_DELAY, RACE_STAGGER, STABLE_AFTER};
use super::silence::{SILENCE_MAX, Verdict};
use super::standby::{Around, Switch};
use super::{Client, ClientEvent, Current, EventQueue, Outages, Race, Standby, connections, seed};
use crate::session::{Session, SessionConfig};

impl Client {
    pub(super) fn in_use(&self) -> InUse {
        let session = self.current.as_ref().map(|current| current.id);
        InUse { session, silent_since: self.silence.since }
    }

    pub(super) fn view(&self) -> View<'_> {
        let Self { config, uplinks, choice, endpoint, .. } = self;
        View { in_use: self.in_use(), config, uplinks, choice, endpoint }
    }

    pub(super) fn outages(&mut self) -> (&mut Outages, View<'_>, &mut EventQueue) {
        let in_use = self.in_use();
        let Self { outages, event_queue, config, uplinks, choice, endpoint, .. } = self;
        (outages, View { in_use, config, uplinks, choice, endpoint }, event_queue)
    }

    pub(super) fn race(&mut self, now: Instant) -> (&mut Race, Course<'_>) {
        let Self { race, endpoint, uplinks, choice, event_queue, .. } = self;
        (race, Course { now, endpoint, uplinks, choice, event_queue })
    }

    pub(super) fn standby(&mut self, now: Instant) -> (&mut Standby, Around<'_>) {
        let in_use = self.in_use();
        let Self { standby, race, uplinks, choice, endpoint, .. } = self;
        let Race { last_heard, pairs, .. } = race;
        let last_heard = *last_heard;
        (standby, Around { now, in_use, last_heard, uplinks, choice, pairs, endpoint })
    }

    pub(super) fn greet(&mut self, id: ConnectionId, role: Role) {
        let key = self.endpoint.connection(id).and_then(Connection::peer);
        let streams = self.streams.as_mut().zip(key).map(|(streams, key)| streams.offer(key));
        let hello = Hello { name: self.config.name.clone(), role, streams };
        connections::send(&mut self.endpoint, id, &Control::Hello(hello));
    }

    pub(super) fn on_welcome(&mut self, now: Instant, welcomed: AcceptedConnection) {
        if self.current.is_none() {
            self.join(now, welcomed, None);
        } else if self.race.renews {
            self.join_renewed(now, welcomed);
        } else if self.race.replacement.is_none() {
            self.race.replacement = Some(welcomed);
        } else {
            let reason = "another connection was welcomed";
            connections::close(&mut self.endpoint, now, welcomed.id, reason);
        }
    }

    fn join(&mut self, now: Instant, welcomed: AcceptedConnection, moved: Option<String>) {
        let AcceptedConnection { id, pair, .. } = welcomed;
        let welcome = welcomed.welcome.clone();
        let config = SessionConfig {
            lanes: self.config.lanes.clone(),
            peer_sources: None,
            streams: self.streams.as_ref().and_then(|streams| streams.lane(&welcome)),
            memory_max: self.config.memory_max,
            seed: seed(&self.config.transport) ^ id.0,
        };
        let mut session = match Session::new(config, true) {
            Ok(session) => session,
            Err(error) => {
                let reason = "this client's lanes cannot be used";
                connections::close(&mut self.endpoint, now, id, reason);
                let (race, mut course) = self.race(now);
                return race.rest(pair, Rejection::Refused, &error.to_string(), &mut course);
            }
        };
        session.observe_packets(self.observes);
        if self.choice.has_several() {
            session.keep_unfinished();
        }
        if let Some(learned) = self.learned.get(&self.server().key.to_string()) {
            session.restore(learned);
        }
        self.silence.clear();
        self.race.renews = false;
        let mut current = Current::new(now, welcomed, session);
        self.begin_streams(now, &mut current);
        current.refuse_sources(&self.local_networks);
        let (race, mut course) = self.race(now);
        race.drop_all("another connection was welcomed", &mut course);
        let server = pair.1;
        self.event_queue.events.push_back(match moved {
            None => ClientEvent::Joined { welcome, server },
            Some(reason) => {
                let name = self.server().name.clone();
                ClientEvent::Moved { welcome, server, name, reason }
            }
        });
        self.bindings.on_session(&current, &mut self.endpoint);
        // This shows the server which of the welcomed connections is used.
        current.name_paths(&self.uplinks, &mut self.endpoint);
        current.apply_policies(&self.uplinks, &mut self.endpoint);
        self.current = Some(current);
    }

    fn begin_streams(&mut self, now: Instant, current: &mut Current) {
        let key = self.endpoint.connection(current.id).and_then(Connection::peer);
        if let (Some(streams), Some(key)) = (&mut self.streams, key)
            && let Some(offer) = streams.begin(now, current, key)
        {
            connections::send(&mut self.endpoint, current.id, &Control::Streams(Some(offer)));
        }
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
        self.drops.merge(&current.session.end(now));
        self.leaving.take_inner(&mut current.session);
        self.choice.home_first_until = now + PREFERRED_SERVER_DELAY;
        if after == After::Silence {
            let (standby, mut around) = self.standby(now);
            standby.on_silence(&mut around);
        }
        self.keep_learned(&current.session);
        connections::close(&mut self.endpoint, now, current.id, "the session is over");
        self.silence.clear();
        self.outages.on_left();
        let reason = legible(reason);
        let (race, mut course) = self.race(now);
        let rest = race.on_left(&current, after, &reason, &mut course);
        let next = self.race.poll_timeout(&self.view());
        let rest = next.map_or(rest, |at| at.since(now));
        self.event_queue.events.push_back(ClientEvent::Left { reason, rest });
        if let Some(replacement) = self.race.replacement.take() {
            self.join(now, replacement, None);
        }
    }

    /// Replaces the session by another one with the same server, since the peer identifies lanes by
    /// their numbers and fixes their order at the first packet. The session goes on until the new
    /// one is welcomed. It stays if it suits again before that (not `renews`).
    pub(super) fn renew(&mut self, now: Instant, renews: bool) {
        let renewed = std::mem::replace(&mut self.race.renews, renews);
        if renewed && !renews {
            let (race, mut course) = self.race(now);
            race.drop_all("the session may stay", &mut course);
        }
        let Some(current) = self.current.as_mut().filter(|_| renews) else { return };
        current.session.keep_unfinished();
        if let Some(replacement) = self.race.replacement.take() {
            return self.join_renewed(now, replacement);
        }
        self.race.pairs.hurry(now, None);
        self.race.attempt_backoff.on_sign_of_life();
        for (position, uplink) in (0_u32..).zip(self.uplinks.all.values_mut()) {
            uplink.next_attempt = now + RACE_STAGGER * position;
        }
    }

    fn join_renewed(&mut self, now: Instant, welcomed: AcceptedConnection) {
        self.set_aside_session(now);
        self.uplinks.hurry_paths(now);
        self.join(now, welcomed, None);
        self.send_on_set_aside();
    }

    pub(super) fn switch(&mut self, now: Instant, why: &str) {
        let (standby, mut around) = self.standby(now);
        let Some((target, accepted)) = standby.take(&mut around) else { return };
        self.set_aside_session(now);
        self.call_off_race(now, "another server is used");
        self.choice.on_moved(now, target);
        for uplink in self.uplinks.all.values_mut() {
            uplink.path = PathTry::new(now);
        }
        self.greet(accepted.id, Role::Join);
        if let Some(connection) = self.endpoint.connection_mut(accepted.id) {
            connection.restore_keep_alive();
        }
        self.join(now, accepted, Some(legible(why)));
        self.send_on_set_aside();
    }

    fn set_aside_session(&mut self, now: Instant) {
        let Some(mut current) = self.current.take() else { return };
        current.session.loads.forget();
        self.keep_learned(&current.session);
        let connection = self.endpoint.connection(current.id);
        let is_open = connection.is_some_and(Connection::is_open);
        let is_gone = self.silence.since.take().is_some() || !is_open;
        self.outages.on_left();
        let (leaving, mut sink) = self.leaving(now);
        leaving.set_aside(current, is_gone, &mut sink);
    }

    fn send_on_set_aside(&mut self) {
        if let Some(current) = &mut self.current {
            current.session.resume(self.leaving.take_sent_on());
        }
    }

    fn call_off_race(&mut self, now: Instant, reason: &str) {
        let (race, mut course) = self.race(now);
        race.drop_all(reason, &mut course);
        race.drop_replacement(reason, &mut course);
    }

    pub(super) fn on_move(&mut self, now: Instant, why: Reason) {
        if !self.choice.has_several() {
            return self.outages.stay(now, why == Reason::Drain, &mut self.event_queue);
        }
        let why = match why {
            Reason::Drain => "the server drains",
            Reason::Other | Reason::Superseded => "the server asked for it",
        };
        self.choice.on_failure(now, self.choice.current, why);
        self.standby.want_away(why);
        self.tend_standby(now);
    }

    pub(super) fn tend_standby(&mut self, now: Instant) {
        if !self.choice.has_several() {
            return;
        }
        let (standby, mut around) = self.standby(now);
        let Some(Switch { why, is_takeover }) = standby.tend(&mut around) else { return };
        let home = self.choice.current;
        self.switch(now, &why);
        if is_takeover {
            self.choice.on_failure(now, home, "it fell silent");
        }
    }

    pub(super) fn watch_silence(&mut self, now: Instant) {
        let answers = self
            .connection()
            .is_none_or(|connection| connection.paths().iter().any(|path| path.is_usable()));
        match self.silence.watch(now, answers, self.current.is_some()) {
            Verdict::Wait => {}
            Verdict::Recovered => {
                self.race.attempt_backoff.on_sign_of_life();
                self.call_off_race(now, "the session answers again");
            }
            Verdict::Silent { since, is_long } => {
                // A network that lets a session begin and nothing more would win every race.
                if is_long
                    && let Some(current) = &mut self.current
                    && !std::mem::replace(&mut current.doubted, true)
                {
                    let is_young = now.since(current.since) < STABLE_AFTER + SILENCE_MAX;
                    self.race.on_doubt(now, current.pair, is_young);
                }
                let replacement = self.race.replacement.as_ref();
                if replacement.is_some_and(|it| now >= self.silence.takeover(it.since, since)) {
                    // `leave` joins the replacement.
                    self.leave(now, "the session does not answer any more", After::Silence);
                }
            }
        }
    }

    pub(super) fn is_racing(&self, now: Instant) -> bool {
        let is_another_wanted = self.silence.needs_another(now) || self.race.renews;
        self.current.is_none() || self.race.replacement.is_none() && is_another_wanted
    }

    /// The last server may answer first, since it knows the client's flows and another may not.
    pub(super) fn on_coverage_back(&mut self, now: Instant) {
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

    /// The server in use is no candidate any more.
    pub(super) fn leave_home(&mut self, now: Instant, reason: &str) {
        self.standby.forget_goal();
        if self.standby.ready.is_some() {
            return self.switch(now, reason);
        }
        self.call_off_race(now, reason);
        self.leave(now, reason, After::Restart);
        self.choice.home_first_until = now + PREFERRED_SERVER_DELAY;
    }
}
