//! Sessions with a successor: still heard for a while; the successor sends their last packets.
//!
//! ```text
//! switch ─┬─ the server is silent: what it has not acknowledged is sent on at once
//!         └─ the server answers: the session sends its own to the end; after 2 s the rest is sent on
//! both are heard for 2 s, and closed
//! ```
//!
//! A packet whose acknowledgement was under way arrives twice, once through each server.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::wire::Control;
use roadweave_proto::{DropReason, Instant};
use roadweave_quic::{ConnectionId, Event};
use roadweave_schedule::AcknowledgedDatagram;

use super::race::{AcceptedConnection, RACE_STAGGER};
use super::{Client, Current};
use crate::lane::Unfinished;
use crate::session::Session;

#[derive(Debug, Default)]
pub(super) struct Leaving {
    pub(super) sessions: Vec<LeavingSession>,
    /// Packets of sessions that have ended.
    late_inner: VecDeque<Bytes>,
}

#[derive(Debug)]
pub(super) struct LeavingSession {
    pub(super) current: Current,
    until: Instant,
    sent_on: Vec<Unfinished>,
}

impl Client {
    pub(super) fn set_aside_session(&mut self, now: Instant) {
        let Some(mut current) = self.current.take() else { return };
        current.session.loads.forget();
        self.keep_learned(&current.session);
        let connection = self.endpoint.connection(current.id);
        let is_open = connection.is_some_and(|connection| connection.is_open());
        let is_gone = self.silence.since.take().is_some() || !is_open;
        let sent_on = if is_gone { current.session.take_unfinished(now) } else { Vec::new() };
        self.outages.on_left();
        self.leaving.sessions.push(LeavingSession { current, until: now + HEARD_FOR, sent_on });
        while self.leaving.sessions.len() > LEAVING_MAX {
            self.end_leaving(now, 0);
        }
    }

    pub(super) fn send_on_set_aside(&mut self) {
        let take = |leaving: &mut LeavingSession| std::mem::take(&mut leaving.sent_on);
        let packets: Vec<Unfinished> = self.leaving.sessions.iter_mut().flat_map(take).collect();
        if let Some(current) = &mut self.current {
            current.session.resume(packets);
        }
    }

    pub(super) fn on_leaving_event(&mut self, now: Instant, id: ConnectionId, event: Event) {
        let Some(at) = self.leaving.sessions.iter().position(|it| it.current.id == id) else {
            return;
        };
        let session = &mut self.leaving.sessions[at].current.session;
        match event {
            Event::Received { datagram, .. } => session.handle_datagram(now, datagram),
            Event::Acknowledged { path, token, sent, bytes, rtt } => {
                let acknowledged = AcknowledgedDatagram { path, sent, bytes, rtt };
                session.on_acknowledged(now, token, &acknowledged);
            }
            Event::Lost { path, token } => session.on_lost(now, path, token),
            Event::Message(message) => {
                if let Ok(Control::LanePromise { lane, promise }) = Control::parse(message) {
                    session.on_lane_promise(now, lane, promise);
                }
            }
            Event::Closed(_) => self.end_leaving(now, at),
            _ => {}
        }
    }

    pub(super) fn tend_leaving(&mut self, now: Instant) {
        while let Some(at) = self.leaving.sessions.iter().position(|leaving| leaving.until <= now) {
            self.end_leaving(now, at);
        }
        for LeavingSession { current, .. } in &mut self.leaving.sessions {
            if let Some(connection) = self.endpoint.connection_mut(current.id) {
                current.session.handle_timeout(now, connection);
                let streams = self.streams.as_mut();
                if let Some(mut turn) = streams.and_then(|streams| streams.turn_of(current.far_end))
                {
                    current.session.hand_over_symbols(now, &mut turn);
                }
                connection.flush(now);
            }
        }
    }

    fn end_leaving(&mut self, now: Instant, at: usize) {
        let LeavingSession { mut current, sent_on, .. } = self.leaving.sessions.remove(at);
        let mut packets = sent_on;
        packets.extend(current.session.take_unfinished(now));
        self.take_last(now, &mut current.session);
        match (&mut self.current, self.leaving.sessions.last_mut()) {
            (Some(current), _) => current.session.resume(packets),
            (None, Some(leaving)) => leaving.sent_on.extend(packets),
            (None, None) => self.drops.add(DropReason::NoSession, packets.len() as u64),
        }
        self.close_connection(now, current.id, "the client is with another server");
    }

    pub(super) fn take_last(&mut self, now: Instant, session: &mut Session) {
        self.drops.merge(&session.end(now));
        while let Some(packet) = session.poll_inner() {
            self.leaving.late_inner.push_back(packet);
        }
    }

    pub(super) fn poll_leaving_inner(&mut self) -> Option<Bytes> {
        let late = self.leaving.late_inner.pop_front();
        late.or_else(|| {
            self.leaving.sessions.iter_mut().find_map(|it| it.current.session.poll_inner())
        })
    }

    pub(super) fn leaving_timeout(&self) -> Option<Instant> {
        let due = |leaving: &LeavingSession| {
            let session = leaving.current.session.poll_timeout();
            session.map_or(leaving.until, |at| at.min(leaving.until))
        };
        self.leaving.sessions.iter().map(due).min()
    }

    /// Replaces the session by another one with the same server, since the peer identifies lanes by
    /// their numbers and fixes their order at the first packet. The session goes on until the new
    /// one is welcomed. It stays if it suits again before that (not `renews`).
    pub(super) fn renew(&mut self, now: Instant, renews: bool) {
        let renewed = std::mem::replace(&mut self.race.renews, renews);
        if renewed && !renews {
            self.drop_attempts(now, "the session may stay", |_| true);
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

    pub(super) fn join_renewed(&mut self, now: Instant, welcomed: AcceptedConnection) {
        self.set_aside_session(now);
        for uplink in self.uplinks.all.values_mut() {
            uplink.next_path = now;
        }
        self.join(now, welcomed, None);
        self.send_on_set_aside();
    }
}

const HEARD_FOR: Duration = Duration::from_secs(2);
const LEAVING_MAX: usize = 2;
