//! A turn of a server's sessions: output, deadlines, and memory.

use std::net::IpAddr;

use bytes::Bytes;
use roadweave_proto::{DropReason, Instant};
use roadweave_quic::ConnectionId;

use super::forwards::may_answer;
use super::{Direction, Server, UNUSED, refusals};
use crate::session::StreamTurn;

impl Server {
    pub(super) fn close_silent(&mut self, now: Instant) {
        for id in self.waiting.silent(now) {
            self.shared.refuse(|all| all.count_silently(refusals::UNUSED));
            self.end_with(now, id, UNUSED, "the connection was not used");
        }
    }

    pub(super) fn keep_to_budget(&mut self, now: Instant) {
        let connections = self.endpoint.connection_count().saturating_sub(self.sessions.all.len());
        let legs = self.legs.as_ref().map_or(0, |legs| legs.waiting());
        let away = self.streams.as_ref().map_or(0, |all| all.table.away_bytes);
        let waiting = self.inbox.memory() + legs + away;
        self.budget.begin_turn(connections, waiting);
        while let Some((id, bytes)) = self.budget.next_excess() {
            if let Some(joined) = self.sessions.all.get_mut(&id) {
                joined.session.shrink_to(now, bytes);
                let (key, held) = (joined.key, joined.session.memory().total());
                if let Some(all) = &mut self.streams {
                    all.table.shed(now, &key, bytes.saturating_sub(held));
                }
                if let Some(legs) = &mut self.legs {
                    legs.shed_relayed(id, bytes.saturating_sub(held) as usize);
                }
                let held = held + self.stream_memory(&key) + self.relayed(id);
                self.budget.set(id, held);
                self.take_inner(now, id);
            }
        }
    }

    pub(super) fn turn_touched(&mut self, now: Instant) {
        let touched = std::mem::take(&mut self.sessions.touched);
        if self.legs.is_none() {
            return touched.into_iter().for_each(|id| self.turn_session(now, id));
        }
        let mut turns: Vec<ConnectionId> = touched.into_iter().collect();
        self.relay_up(now, &mut turns);
        self.legs.iter().for_each(|legs| legs.sort(&mut turns, Direction::Down));
        turns.into_iter().for_each(|id| self.turn_session(now, id));
    }

    fn relay_up(&mut self, now: Instant, turns: &mut [ConnectionId]) {
        let Some(legs) = &mut self.legs else { return };
        legs.sort(turns, Direction::Up);
        for id in turns {
            if let Some(joined) = self.sessions.all.get_mut(id)
                && let Some(mut relay) = legs.relay(*id)
            {
                let mut turn = StreamTurn::new(&mut relay, joined.limits.as_mut());
                joined.session.hand_over_symbols(now, &mut turn);
            }
        }
    }

    fn turn_session(&mut self, now: Instant, id: ConnectionId) {
        let Some(joined) = self.sessions.all.get_mut(&id) else { return };
        let Some(connection) = self.endpoint.connection_mut(id) else { return };
        let limits = joined.limits.as_mut();
        match &mut self.legs {
            None => {
                let streams = self.streams.as_mut();
                let turn = streams.and_then(|all| all.turn(id, &joined.key, limits));
                joined.session.turn(now, connection, turn);
            }
            Some(legs) => {
                let mut relay = legs.relay(id);
                let turn = relay.as_mut().map(|relay| StreamTurn::new(relay, limits));
                joined.session.turn(now, connection, turn);
                relay.into_iter().for_each(|relay| relay.finish(now));
            }
        }
        joined.turn_test(now, connection, &self.shared);
        connection.flush(now);
        let next = joined.session.poll_timeout();
        let (key, held) = (joined.key, joined.session.memory().total());
        self.streams.iter_mut().for_each(|all| all.table.on_turned(&key));
        self.budget.set(id, held + self.stream_memory(&key) + self.relayed(id));
        self.sessions.timers.set(id, next);
        // Packets that have waited long enough for others.
        self.take_inner(now, id);
        self.end_if_violated(now, id, &key);
    }

    fn relayed(&self, id: ConnectionId) -> u64 {
        self.legs.as_ref().map_or(0, |legs| legs.relayed(id) as u64)
    }

    /// Puts out what a session has for the device, at once: packets in order wait for nothing.
    pub(super) fn take_inner(&mut self, now: Instant, id: ConnectionId) {
        while let Some(joined) = self.sessions.all.get_mut(&id)
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

    pub(super) fn deliver(&mut self, destination: IpAddr, packet: Bytes) {
        let is_apart = !self.config.clients_reach_clients;
        let is_between = is_apart && self.peers.route(destination).is_some();
        if is_between && !may_answer(&self.forwards, &packet) {
            self.drops.count(DropReason::NoRoute);
        } else if !self.inbox.push(packet) {
            self.drops.count(DropReason::DeviceFull);
        }
    }
}
