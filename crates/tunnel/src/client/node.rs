//! How a driver runs a client, and in which order.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_proto::wire::{Control, Reason, Role};
use roadweave_proto::{DropReason, Instant, PathSnapshot, UplinkId, earliest};
use roadweave_quic::{Connection, ConnectionId, Event, Local, ProbeOutcome, Transmit};

use super::leaving::Sink;
use super::race::{After, after};
use super::{Client, ClientStreams, Current, Leaving, Notice, connections, paths};
use crate::node::{Node, RecvMeta};
use crate::usage::ip_bytes;

const UPKEEP_INTERVAL: Duration = Duration::from_millis(10);
/// After a silence of this length any packet means that coverage is back.
const NO_COVERAGE: Duration = Duration::from_secs(2);

impl Node for Client {
    fn handle_inner(&mut self, now: Instant, packet: &[u8]) {
        match &mut self.current {
            Some(Current { session, .. }) => session.handle_inner(now, packet),
            None => self.drops.count(DropReason::NoSession),
        }
    }

    fn handle_packet(&mut self, now: Instant, meta: &RecvMeta, payload: &[u8]) {
        let uplink = meta.socket;
        self.uplinks.on_packet(uplink, ip_bytes(meta.remote, payload.len()));
        let source = meta.source(Local::Uplink(uplink));
        if self.choice.has_several()
            && let Some(outcome) = self.prober.handle_packet(now, &source, payload)
        {
            self.on_heard(now, uplink);
            return self.on_probe_outcome(now, &outcome);
        }
        if let Some(id) = self.endpoint.handle_packet(now, source, BytesMut::from(payload)) {
            self.on_heard(now, uplink);
            self.on_attempt_heard(now, id);
            self.pump(now, id);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        // What connections report decides all else.
        for id in self.endpoint.handle_timeout(now) {
            self.pump(now, id);
        }
        let is_due = !self.is_calm() || self.upkeep.is_due(now, self.usable_paths());
        if is_due {
            self.look_after(now);
        }
        if let Some(current) = &mut self.current
            && let Some(connection) = self.endpoint.connection_mut(current.id)
        {
            let streams = self.streams.as_mut().and_then(ClientStreams::turn);
            current.session.turn(now, connection, streams);
            current.session.send_load(now, connection, None);
            connection.flush(now);
        }
        // Loads, streams and reports follow what the session did in this turn.
        self.speedtests.tend(now, self.current.as_mut(), &mut self.endpoint);
        let has_session = self.current.is_some();
        let streams = self.streams.as_mut();
        if let Some(why) = streams.and_then(|streams| streams.tend(now, has_session)) {
            self.upkeep.done = None;
            self.leave(now, why, After::Backoff);
        }
        if is_due {
            let (outages, view, event_queue) = self.outages();
            outages.watch(now, &view, event_queue);
            let (due, usable_paths) = (self.upkeep_timeout(), self.usable_paths());
            self.upkeep = Upkeep { done: Some(now), due, usable_paths };
        }
        self.endpoint.settle(now);
    }

    fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        let packets = match self.prober.has_packets() {
            true => self.prober.poll_transmit(),
            false => self.endpoint.poll_transmit(),
        }?;
        for run in packets.runs() {
            let lengths = || run.packets().map(<[u8]>::len);
            let bytes = || lengths().map(|it| ip_bytes(run.route.destination, it)).sum();
            run.route.uplink.into_iter().for_each(|id| self.uplinks.count(id, bytes));
        }
        Some(packets)
    }

    fn poll_inner(&mut self) -> Option<Bytes> {
        let current = self.current.as_mut().and_then(|current| current.session.poll_inner());
        if current.is_some() {
            self.outages.on_inner();
        }
        current.or_else(|| self.leaving.poll_inner())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        earliest([
            self.upkeep.done.map_or(Some(Instant::ZERO), |_| self.upkeep.due),
            self.current.as_ref().and_then(|current| current.session.poll_timeout()),
            self.endpoint.poll_timeout(),
            self.speedtests.poll_timeout(),
            self.streams.as_ref().and_then(ClientStreams::poll_timeout),
        ])
    }
}

/// What a turn does besides the session: not again within [`UPKEEP_INTERVAL`] while packets alone
/// come and go.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    /// `None`: something has changed since.
    done: Option<Instant>,
    due: Option<Instant>,
    usable_paths: usize,
}

impl Upkeep {
    fn is_due(&self, now: Instant, usable_paths: usize) -> bool {
        let is_old = self.done.is_none_or(|done| now >= done + UPKEEP_INTERVAL);
        is_old || self.usable_paths != usable_paths || self.due.is_some_and(|due| due <= now)
    }
}

impl Client {
    pub(super) fn on_change(&mut self, now: Instant) {
        self.upkeep.done = None;
        self.handle_timeout(now);
    }

    fn is_calm(&self) -> bool {
        let is_settled = self.current.is_some() && self.silence.since.is_none();
        is_settled && self.race.is_idle() && self.leaving.is_empty()
    }

    fn usable_paths(&self) -> usize {
        self.paths().iter().filter(|path| path.is_usable()).count()
    }

    fn look_after(&mut self, now: Instant) {
        // Attempts, sessions and the standby end before others begin in their place.
        let (race, mut course) = self.race(now);
        race.give_up_unwelcomed(&mut course);
        self.watch_silence(now);
        let session = self.in_use().session;
        self.uplinks.watch_ports(now, connections::paths(&self.endpoint, session));
        self.release_validated(now);
        self.tend_standby(now);
        let (leaving, mut sink) = self.leaving(now);
        leaving.tend(&mut sink);
        self.measure(now);
        // The session has its paths and their policies before it sends.
        if let Some(current) = &mut self.current {
            let Self { endpoint, uplinks, choice, .. } = self;
            if let Some(connection) = endpoint.connection_mut(current.id) {
                paths::reconcile(now, connection, current.pair.1, uplinks, choice);
            }
            current.apply_policies(uplinks, endpoint);
        }
        self.outages.watch_caps(now, &self.uplinks, &mut self.event_queue);
        if self.is_racing(now) {
            let has_session = self.current.is_some();
            let (race, mut course) = self.race(now);
            race.begin(has_session, &mut course);
        }
    }

    fn upkeep_timeout(&self) -> Option<Instant> {
        let (view, race) = (self.view(), &self.race);
        let next_attempt = || race.poll_timeout(&view);
        let welcomed = race.replacement.as_ref().map(|replacement| replacement.since);
        let own = match &self.current {
            Some(current) => earliest([
                paths::poll_timeout(current.pair.1, &view),
                self.silence.poll_timeout(welcomed, current.doubted, next_attempt),
                race.renews.then(next_attempt).flatten(),
            ]),
            None => next_attempt(),
        };
        let has_several = self.choice.has_several();
        earliest([
            own,
            race.welcome_timeout(),
            self.outages.poll_timeout(&view),
            self.uplinks.port_timeout(self.paths()),
            has_several.then(|| self.standby.poll_timeout(&view)).flatten(),
            self.leaving.poll_timeout(),
            self.choice.poll_timeout(),
            has_several.then(|| self.prober.poll_timeout()).flatten(),
        ])
    }

    pub(super) fn leaving(&mut self, now: Instant) -> (&mut Leaving, Sink<'_>) {
        let Self { leaving, streams, current, drops, endpoint, .. } = self;
        let (current, streams) = (current.as_mut(), streams.as_mut());
        let successor = current.map(|current| &mut current.session);
        (leaving, Sink { now, successor, streams, drops, endpoint })
    }

    fn pump(&mut self, now: Instant, id: ConnectionId) {
        while let Some(event) = self.endpoint.connection_mut(id).and_then(Connection::poll_event) {
            if !matches!(
                event,
                Event::Received { .. } | Event::Acknowledged { .. } | Event::Lost { .. }
            ) {
                self.upkeep.done = None;
            }
            if self.race.owns(id) {
                self.on_attempt_event(now, id, event);
            } else if self.current.as_ref().is_some_and(|current| current.id == id) {
                self.on_session_event(now, event);
            } else if self.standby.owns(id) {
                self.on_standby_event(now, id, event);
            } else if let Some(at) = self.leaving.position(id) {
                let (leaving, mut sink) = self.leaving(now);
                leaving.on_event(at, event, &mut sink);
            } else if matches!(event, Event::Closed(_)) {
                self.race.replacement.take_if(|replacement| replacement.id == id);
            }
        }
    }

    fn on_attempt_event(&mut self, now: Instant, id: ConnectionId, event: Event) {
        let (race, mut course) = self.race(now);
        match event {
            Event::Connected { .. } => {
                race.on_connected(now, id);
                self.greet(id, Role::Join);
            }
            Event::Message(message) => match race.on_message(id, message, &mut course) {
                Ok(None) => {}
                Ok(Some(welcomed)) => self.on_welcome(now, welcomed),
                Err(reason) => self.drops.count(reason),
            },
            Event::Closed(reason) => race.on_closed(id, &reason, &mut course),
            _ => {}
        }
    }

    fn on_standby_event(&mut self, now: Instant, id: ConnectionId, event: Event) {
        if matches!(event, Event::Connected { .. }) {
            self.standby.on_connected(id, &mut self.race.pairs);
            return self.greet(id, Role::Standby);
        }
        let (standby, mut around) = self.standby(now);
        standby.on_event(id, event, &mut around);
    }

    fn on_session_event(&mut self, now: Instant, event: Event) {
        let Some(current) = &mut self.current else { return };
        match current.on_datagram(now, event) {
            Some(Event::PathClosed(path, _)) => current.session.forget_path(path),
            Some(Event::PathUsable(path)) => {
                let Self { uplinks, endpoint, event_queue, .. } = self;
                let paths = connections::paths(endpoint, Some(current.id));
                if let Some(uplink) = uplinks.on_path_usable(path, paths) {
                    current.name_path(path, uplink.clone(), endpoint);
                    event_queue.notify(now, Notice::Validated { uplink });
                }
                current.apply_policies(uplinks, endpoint);
            }
            Some(Event::Message(message)) => {
                let taken = self.on_message(now, message);
                taken.unwrap_or_else(|reason| self.drops.count(reason));
            }
            Some(Event::Closed(reason)) => self.leave(now, &reason.to_string(), after(&reason)),
            _ => {}
        }
    }

    fn on_message(&mut self, now: Instant, message: Bytes) -> Result<(), DropReason> {
        let Some(current) = &mut self.current else { return Ok(()) };
        match Control::parse(message)? {
            Control::LanePromise { lane, promise } => {
                current.session.on_lane_promise(now, lane, promise);
            }
            Control::Player(report) => {
                let is_known = current.session.on_player(now, &report);
                return is_known.then_some(()).ok_or(DropReason::UnknownMessage);
            }
            Control::Speedtest(said) => {
                return self.speedtests.on_message(now, said, current, &mut self.endpoint);
            }
            Control::Streams(named) => {
                let streams = self.streams.as_mut().ok_or(DropReason::UnknownMessage)?;
                return streams.on_far_end(now, current, named);
            }
            Control::Binding(newest) => {
                return self.bindings.on_newest(&newest, current, &mut self.endpoint);
            }
            Control::Refuse { reason, why } => {
                let is_superseded = why == Reason::Superseded;
                let after = if is_superseded { After::Superseded } else { After::Backoff };
                self.leave(now, &format!("refused by the server: {reason}"), after);
            }
            Control::Move { why, .. } => self.on_move(now, why),
            _ => return Err(DropReason::UnknownMessage),
        }
        Ok(())
    }

    /// A packet of a probe or a connection; a stranger's says nothing about the way to a server.
    fn on_heard(&mut self, now: Instant, uplink: UplinkId) {
        let silence = self.race.on_heard(now, uplink);
        self.uplinks.all.get_mut(&uplink).into_iter().for_each(|it| it.port.on_heard(now));
        if self.current.is_none() && self.choice.has_several() && silence >= NO_COVERAGE {
            self.on_coverage_back(now);
        }
    }

    fn on_attempt_heard(&mut self, now: Instant, id: ConnectionId) {
        if self.race.on_packet(now, id)
            && self.silence.since.is_some()
            && let Some(session) = self.in_use().session
            && let Some(connection) = self.endpoint.connection_mut(session)
        {
            connection.ask_paths(now);
        }
    }

    fn measure(&mut self, now: Instant) {
        if !self.choice.has_several() {
            return;
        }
        let in_use = self.in_use();
        let paths = connections::paths(&self.endpoint, in_use.session);
        if self.current.as_mut().is_some_and(|current| current.own_rtt.is_doubtful(now, paths)) {
            self.choice.on_doubt(now);
        }
        let capacity = |uplink: UplinkId| {
            let path = paths.iter().find(|path| path.uplink == Some(uplink));
            (uplink, path.map_or(0, carries))
        };
        let uplinks = self.uplinks.frugal(paths, in_use.is_without_server());
        self.choice.handle_timeout(now, &uplinks.into_iter().map(capacity).collect());
        while let Some((candidate, uplink)) = self.choice.poll_probe(now) {
            let server = self.choice.candidates.addresses(candidate, uplink).first().copied();
            let leaves = server.is_some_and(|server| self.prober.probe(now, uplink, server));
            if !leaves {
                self.choice.on_outcome(now, candidate, uplink, None);
            }
        }
        while let Some(outcome) = self.prober.poll_unanswered(now) {
            self.on_probe_outcome(now, &outcome);
        }
    }

    fn on_probe_outcome(&mut self, now: Instant, outcome: &ProbeOutcome) {
        self.upkeep.done = None;
        let ProbeOutcome { uplink, server, rtt } = *outcome;
        if let Some(candidate) = self.choice.candidates.probed(uplink, server) {
            self.choice.on_outcome(now, candidate, uplink, rtt);
        }
    }
}

fn carries(path: &PathSnapshot) -> u64 {
    let millis = u64::try_from(path.smoothed_rtt.as_millis()).unwrap_or(u64::MAX).max(1);
    path.congestion_window.saturating_mul(1000) / millis
}
