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
use roadweave_proto::{DropCounters, DropReason, Instant};
use roadweave_quic::{ConnectionId, Endpoint, Event};

use super::{ClientStreams, Current, connections};
use crate::lane::Unfinished;
use crate::session::Session;

#[derive(Debug, Default)]
pub(super) struct Leaving {
    sessions: Vec<LeavingSession>,
    late_inner: VecDeque<Bytes>,
}

#[derive(Debug)]
struct LeavingSession {
    current: Current,
    until: Instant,
    sent_on: Vec<Unfinished>,
}

/// Where the last packets of a session go, and the connections.
pub(super) struct Sink<'a> {
    pub(super) now: Instant,
    pub(super) successor: Option<&'a mut Session>,
    pub(super) streams: Option<&'a mut ClientStreams>,
    pub(super) drops: &'a mut DropCounters,
    pub(super) endpoint: &'a mut Endpoint,
}

impl Leaving {
    /// `is_gone`: the session's server does not answer. It has no successor yet.
    pub(super) fn set_aside(&mut self, mut current: Current, is_gone: bool, sink: &mut Sink<'_>) {
        let now = sink.now;
        let sent_on = if is_gone { current.session.take_unfinished(now) } else { Vec::new() };
        self.sessions.push(LeavingSession { current, until: now + HEARD_FOR, sent_on });
        while self.sessions.len() > LEAVING_MAX {
            self.end(0, sink);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    pub(super) fn take_sent_on(&mut self) -> Vec<Unfinished> {
        let take = |leaving: &mut LeavingSession| std::mem::take(&mut leaving.sent_on);
        self.sessions.iter_mut().flat_map(take).collect()
    }

    pub(super) fn position(&self, id: ConnectionId) -> Option<usize> {
        self.sessions.iter().position(|leaving| leaving.current.id == id)
    }

    pub(super) fn on_event(&mut self, at: usize, event: Event, sink: &mut Sink<'_>) {
        let current = &mut self.sessions[at].current;
        match current.on_datagram(sink.now, event) {
            Some(Event::Message(message)) => {
                if let Ok(Control::LanePromise { lane, promise }) = Control::parse(message) {
                    current.session.on_lane_promise(sink.now, lane, promise);
                }
            }
            Some(Event::Closed(_)) => self.end(at, sink),
            _ => {}
        }
    }

    pub(super) fn tend(&mut self, sink: &mut Sink<'_>) {
        let now = sink.now;
        while let Some(at) = self.sessions.iter().position(|leaving| leaving.until <= now) {
            self.end(at, sink);
        }
        for LeavingSession { current, .. } in &mut self.sessions {
            let Some(connection) = sink.endpoint.connection_mut(current.id) else { continue };
            current.session.handle_timeout(now, connection);
            let streams = sink.streams.as_mut();
            if let Some(mut turn) = streams.and_then(|streams| streams.turn_of(current.far_end)) {
                current.session.hand_over_symbols(now, &mut turn);
            }
            connection.flush(now);
        }
    }

    fn end(&mut self, at: usize, sink: &mut Sink<'_>) {
        let LeavingSession { mut current, sent_on: mut packets, .. } = self.sessions.remove(at);
        packets.extend(current.session.take_unfinished(sink.now));
        sink.drops.merge(&current.session.end(sink.now));
        self.take_inner(&mut current.session);
        match (&mut sink.successor, self.sessions.last_mut()) {
            (Some(successor), _) => successor.resume(packets),
            (None, Some(leaving)) => leaving.sent_on.extend(packets),
            (None, None) => sink.drops.add(DropReason::NoSession, packets.len() as u64),
        }
        let reason = "the client is with another server";
        connections::close(sink.endpoint, sink.now, current.id, reason);
    }

    pub(super) fn take_inner(&mut self, session: &mut Session) {
        self.late_inner.extend(std::iter::from_fn(|| session.poll_inner()));
    }

    pub(super) fn poll_inner(&mut self) -> Option<Bytes> {
        let late = self.late_inner.pop_front();
        late.or_else(|| self.sessions.iter_mut().find_map(|it| it.current.session.poll_inner()))
    }

    pub(super) fn drops(&self) -> impl Iterator<Item = DropCounters> {
        self.sessions.iter().map(|leaving| leaving.current.session.drops())
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let due = |leaving: &LeavingSession| {
            let session = leaving.current.session.poll_timeout();
            session.map_or(leaving.until, |at| at.min(leaving.until))
        };
        self.sessions.iter().map(due).min()
    }
}

const HEARD_FOR: Duration = Duration::from_secs(2);
const LEAVING_MAX: usize = 2;
