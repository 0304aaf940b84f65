//! How a driver runs a server.

use bytes::{Bytes, BytesMut};
use roadweave_proto::wire::InnerPacket;
use roadweave_proto::{DropReason, Instant, earliest};
use roadweave_quic::{Local, Transmit};

use super::{Server, ServerEvent, refusals};
use crate::node::{Node, RecvMeta};
use crate::proxy::LEG_SOCKET;
use crate::rate::Direction;

impl Node for Server {
    fn handle_inner(&mut self, now: Instant, packet: &[u8]) {
        let Ok(view) = InnerPacket::parse(packet) else {
            return self.drops.count(DropReason::MalformedInner);
        };
        let Some(key) = self.peers.route(view.destination) else {
            return self.drops.count(DropReason::NoRoute);
        };
        let id = self.sessions.by_key.get(&key).copied();
        match id.and_then(|id| self.sessions.all.get_mut(&id).map(|joined| (id, joined))) {
            Some((id, joined)) => {
                if joined.allows(now, Direction::Down, packet.len()) {
                    joined.session.handle_parsed_inner(now, packet, &view);
                }
                self.sessions.touched.insert(id);
            }
            None => {
                self.misrouting.take_inner(key, packet).unwrap_or_else(|why| self.drops.count(why))
            }
        }
    }

    fn handle_packet(&mut self, now: Instant, meta: &RecvMeta, payload: &[u8]) {
        if meta.socket == LEG_SOCKET
            && let Some(legs) = &mut self.legs
        {
            legs.handle_packet(now, meta, payload);
            return self.take_leg_events(now);
        }
        if let Some(taken) = self.misrouting.take_packet(meta, payload) {
            return taken.unwrap_or_else(|reason| self.drops.count(reason));
        }
        let source = meta.source(Local::Address(meta.local));
        if let Some(id) = self.endpoint.handle_packet(now, source, BytesMut::from(payload)) {
            self.pump(now, id);
        }
        self.pump_endpoint(now);
    }

    fn handle_timeout(&mut self, now: Instant) {
        for id in self.endpoint.handle_timeout(now) {
            self.pump(now, id);
        }
        self.pump_endpoint(now);
        self.legs.iter_mut().for_each(|legs| legs.handle_timeout(now));
        self.take_leg_events(now);
        self.close_silent(now);
        self.settle_changed(now);
        self.ask_to_move(now);
        self.streams.iter_mut().for_each(|all| all.handle_timeout(now, self.config.memory_max));
        let crowded_out = self.waiting.crowded_out_since(self.endpoint.stats().ignored);
        if crowded_out > 0 {
            self.shared.refuse(|all| all.count_unnamed(refusals::CROWDED_OUT, crowded_out));
        }
        while let Some(reason) = self.shared.poll_summary(now) {
            self.events.push_back(ServerEvent::Refused { reason });
        }
        while let Some(id) = self.sessions.timers.pop_due(now) {
            self.sessions.touched.insert(id);
        }
        self.turn_touched(now);
        self.keep_to_budget(now);
        self.legs.iter_mut().for_each(|legs| legs.transmit(now));
        self.endpoint.settle(now);
    }

    fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        match &mut self.legs {
            Some(legs) if legs.endpoint.has_packets() => legs.endpoint.poll_transmit(),
            _ => self.endpoint.poll_transmit(),
        }
    }

    fn poll_inner(&mut self) -> Option<Bytes> {
        self.inbox.pop()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let hello = self.waiting.poll_timeout();
        let session = match self.changed.is_empty() {
            true => self.sessions.timers.earliest(),
            false => Some(Instant::ZERO),
        };
        let touched = (!self.sessions.touched.is_empty()).then_some(Instant::ZERO);
        let legs = self.legs.as_ref().and_then(|legs| legs.poll_timeout());
        let streams = self.streams.as_ref().and_then(|streams| streams.table.poll_timeout());
        let (drain, shared) = (self.drain.poll_timeout(), self.shared.poll_timeout());
        let endpoint = self.endpoint.poll_timeout();
        earliest([legs, streams, touched, hello, session, drain, shared, endpoint])
    }
}
