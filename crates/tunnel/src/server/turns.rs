//! What a server does when it is due: output and memory of its sessions, events of its legs, and
//! changes of its clients.

use std::net::IpAddr;

use bytes::Bytes;
use roadweave_identity::{PublicKey, Refusal};
use roadweave_proto::wire::{Control, Detached, InnerPacket, Reason};
use roadweave_proto::{DropReason, Instant};
use roadweave_quic::ConnectionId;

use super::forwards::may_answer;
use super::{Server, ServerEvent, UNUSED, refusals, speedtest};
use crate::proxy::LegEvent;
use crate::rate::{Direction, Limit};
use crate::session::StreamTurn;

/// Changed clients handled in one turn: packets must not wait for thousands.
const CHANGED_AT_ONCE: usize = 32;
const CHANGED: &str = "the server's configuration of this client has changed";

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
                self.budget.set(id, held + self.held_beside(id, &key));
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
        speedtest::turn(now, joined, connection, &self.shared);
        connection.flush(now);
        let next = joined.session.poll_timeout();
        let (key, held) = (joined.key, joined.session.memory().total());
        self.streams.iter_mut().for_each(|all| all.table.on_turned(&key));
        self.budget.set(id, held + self.held_beside(id, &key));
        self.sessions.timers.set(id, next);
        // Packets that have waited long enough for others.
        self.take_inner(now, id);
        let violation = self.streams.as_ref().and_then(|all| all.violation(id, &key));
        if let Some(violation) = violation {
            self.end(now, id, &format!("the client broke the rules of its streams: {violation}"));
        }
    }

    /// What a session's streams hold, here or relayed.
    fn held_beside(&self, id: ConnectionId, key: &PublicKey) -> u64 {
        let streams = self.streams.as_ref().map_or(0, |all| all.table.memory(key));
        streams + self.legs.as_ref().map_or(0, |legs| legs.relayed(id) as u64)
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

    fn deliver(&mut self, destination: IpAddr, packet: Bytes) {
        let is_apart = !self.config.clients_reach_clients;
        let is_between = is_apart && self.peers.route(destination).is_some();
        if is_between && !may_answer(&self.forwards, &packet) {
            self.drops.count(DropReason::NoRoute);
        } else if !self.inbox.push(packet) {
            self.drops.count(DropReason::DeviceFull);
        }
    }

    pub(super) fn ask_to_move(&mut self, now: Instant) {
        while let Some(id) = self.drain.poll_ask(now) {
            let Some(joined) = self.sessions.all.get(&id) else { continue };
            self.drain.on_asked(now, id);
            self.sessions.touched.insert(id);
            let message = Control::Move { why: Reason::Drain, grace: None };
            if let Some(connection) = self.endpoint.connection_mut(id)
                && let Err(error) = connection.send_message(message.to_bytes())
            {
                tracing::warn!(%error, peer = joined.peer.name, "cannot ask a client to move");
            }
        }
    }

    pub(super) fn settle_changed(&mut self, now: Instant) {
        for _ in 0..CHANGED_AT_ONCE {
            let Some(key) = self.changed.pop_first() else { return };
            // Its welcome may be outdated; the client comes again if it may.
            if let Some(standby) = self.standbys.of(&key) {
                self.end(now, standby, CHANGED);
            }
            let peer = self.let_in(&key);
            let Some(id) = self.sessions.by_key.get(&key).copied() else {
                if peer.is_err() {
                    self.end_streams_of(&key);
                }
                continue;
            };
            let Some(joined) = self.sessions.all.get_mut(&id) else { continue };
            match peer {
                Ok(peer) if peer.is_where(&joined.peer) => {
                    if peer.rate_limit != joined.peer.rate_limit {
                        joined.limits = peer.rate_limit.map(|rate| [Limit::new(rate); 2]);
                    }
                    joined.peer = peer;
                }
                Err(why @ (Refusal::Expired | Refusal::Revoked)) => {
                    self.end(now, id, &why.to_string())
                }
                // While no new client is let in, present ones stay.
                Err(Refusal::Forbidden) => {}
                _ => self.end(now, id, CHANGED),
            }
        }
    }

    pub(super) fn take_leg_events(&mut self, now: Instant) {
        while let Some(event) = self.legs.as_mut().and_then(|legs| legs.events.pop_front()) {
            match event {
                LegEvent::Down(id, packet) => self.hand_down(now, id, &packet),
                LegEvent::Newest(id, newest) => self.send_control(id, &Control::Binding(newest)),
                LegEvent::Refused(id, Detached::Superseded) => {
                    let reason = "the client has a newer session elsewhere".to_owned();
                    self.send_control(id, &Control::Refuse { reason, why: Reason::Superseded });
                }
                LegEvent::Refused(id, why) => {
                    let reason = format!("the tenant's anchor does not take it: {}", why.name());
                    self.send_control(id, &Control::Refuse { reason, why: Reason::Other });
                }
                LegEvent::Streams(id, offer) => self.send_control(id, &Control::Streams(offer)),
                LegEvent::StreamsOver(id) => self.end(now, id, "the client's streams are over"),
                LegEvent::Frames(id) => _ = self.sessions.touched.insert(id),
                // Packets that it sends here are lost until the leg is back.
                LegEvent::Away(id) => {
                    self.send_control(id, &Control::Move { why: Reason::Other, grace: None });
                }
                LegEvent::StandbysAway => self.end_useless_standbys(now),
                LegEvent::Text(text) => self.events.push_back(ServerEvent::Leg { text }),
            }
        }
    }

    fn end_useless_standbys(&mut self, now: Instant) {
        for key in self.standbys.keys().collect::<Vec<_>>() {
            let why = self.let_in(&key).ok().and_then(|peer| self.anchor_of(now, &peer).err());
            if let (Some(why), Some(id)) = (why, self.standbys.of(&key)) {
                self.end(now, id, why);
            }
        }
    }

    fn hand_down(&mut self, now: Instant, id: ConnectionId, packet: &[u8]) {
        let Some(joined) = self.sessions.all.get_mut(&id) else { return };
        match InnerPacket::parse(packet) {
            Ok(view) => {
                if joined.allows(now, Direction::Down, packet.len()) {
                    joined.session.handle_parsed_inner(now, packet, &view);
                }
                self.sessions.touched.insert(id);
            }
            Err(_) => self.drops.count(DropReason::MalformedInner),
        }
    }

    fn send_control(&mut self, id: ConnectionId, message: &Control) {
        if let Some(connection) = self.endpoint.connection_mut(id)
            && let Err(error) = connection.send_message(message.to_bytes())
        {
            tracing::debug!(%error, "cannot notify a client of its anchor");
        }
        self.sessions.touched.insert(id);
    }
}
