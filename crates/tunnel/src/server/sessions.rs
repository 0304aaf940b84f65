//! The sessions of a server in a turn: what each sends and hands out, when it is due, what all
//! hold.

use std::net::IpAddr;

use bytes::Bytes;
use roadweave_quic::ConnectionId;
use roadweave_types::{DropReason, Instant};

use super::{Direction, Server, UNUSED, refusals};

impl Server {
    pub(super) fn close_silent(&mut self, now: Instant) {
        for id in self.waiting.silent(now) {
            self.kept.refuse(|all| all.count_silently(refusals::UNUSED));
            self.end_with(now, id, UNUSED, "the connection was not used");
        }
    }

    /// Lets those that hold most let go of some of it while all together hold too much.
    pub(super) fn keep_to_budget(&mut self, now: Instant) {
        let connections = self.endpoint.connection_count().saturating_sub(self.sessions.len());
        let waiting = self.inbox.bytes + self.waiting_for_legs() + self.away_stream_bytes();
        self.budget.begin_turn(connections, waiting);
        while let Some((id, bytes)) = self.budget.next_excess() {
            if let Some(joined) = self.sessions.get_mut(&id) {
                joined.session.shrink_to(now, bytes);
                let (key, held) = (joined.key, joined.session.memory().total());
                if let Some(all) = &mut self.streams {
                    all.shed(now, &key, bytes.saturating_sub(held));
                }
                let held = held + self.stream_memory(&key);
                self.budget.set(id, held);
                self.take_inner(now, id);
            }
        }
    }

    pub(super) fn turn_session(&mut self, now: Instant, id: ConnectionId) {
        let Some(joined) = self.sessions.get_mut(&id) else { return };
        let Some(connection) = self.endpoint.connection_mut(id) else { return };
        let streams = self.streams.as_mut();
        let turn = streams.and_then(|all| all.turn(id, &joined.key, joined.limits.as_mut()));
        joined.session.turn(now, connection, turn);
        connection.flush(now);
        let next = joined.session.poll_timeout();
        let (key, held) = (joined.key, joined.session.memory().total());
        self.streams.iter_mut().for_each(|all| all.on_turned(&key));
        self.budget.set(id, held + self.stream_memory(&key));
        self.set_timer(id, next);
        // Packets that have waited long enough for others.
        self.take_inner(now, id);
        self.end_if_violated(now, id, &key);
    }

    /// Puts out what a session has for the device: at once, since what comes in order waits for
    /// nothing.
    pub(super) fn take_inner(&mut self, now: Instant, id: ConnectionId) {
        while let Some(joined) = self.sessions.get_mut(&id)
            && let Some((destination, packet)) = joined.session.poll_routed_inner()
        {
            if !joined.allows(now, Direction::Up, packet.len()) {
                continue;
            }
            match &mut self.legs {
                Some(legs) => legs.pass(now, id, &packet),
                None => self.deliver(destination, packet),
            }
        }
    }

    /// Puts a client's packet out for the device, unless it goes to a client that it may not reach.
    pub(super) fn deliver(&mut self, destination: IpAddr, packet: Bytes) {
        if !self.config.clients_reach_clients && self.peers.route(destination).is_some() {
            self.drops.count(DropReason::NoRoute);
        } else if !self.inbox.push(packet) {
            self.drops.count(DropReason::DeviceFull);
        }
    }

    pub(super) fn set_timer(&mut self, id: ConnectionId, at: Option<Instant>) {
        if let Some(old) = self.timer_of.remove(&id) {
            self.timers.remove(&(old, id));
        }
        if let Some(at) = at {
            self.timers.insert((at, id));
            self.timer_of.insert(id, at);
        }
    }
}
