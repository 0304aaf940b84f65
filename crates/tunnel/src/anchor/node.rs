//! How a driver runs an anchor.

use bytes::{Bytes, BytesMut};
use roadweave_proto::Instant;
use roadweave_quic::{Local, Source, Transmit};

use super::{Anchor, AnchorEvent};
use crate::leg::TenantId;
use crate::node::{Node, RecvMeta};
use crate::server::refusals;

const ONLY: TenantId = TenantId(0);

/// As a node an anchor has one device, that of its first tenant.
impl Node for Anchor {
    fn handle_inner(&mut self, now: Instant, packet: &[u8]) {
        self.handle_tenant_inner(now, ONLY, packet);
    }

    fn handle_packet(&mut self, now: Instant, meta: &RecvMeta, payload: &[u8]) {
        let RecvMeta { remote, local, ecn, received, .. } = *meta;
        let source = Source { remote, local: Local::Address(local), ecn, received };
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
        let ignored = self.endpoint.stats().ignored;
        let before = std::mem::replace(&mut self.crowded_out, ignored);
        self.refusals.count_unnamed(refusals::CROWDED_OUT, ignored - before);
        while let Some(reason) = self.refusals.poll_summary(now) {
            self.events.push_back(AnchorEvent::Refused { reason });
        }
        self.turn_streams(now);
        let due = self.legs.iter().filter(|(_, leg)| leg.end.poll_timeout().is_some());
        self.touched.extend(due.map(|(id, _)| *id));
        for id in std::mem::take(&mut self.touched) {
            if let Some(leg) = self.legs.get_mut(&id)
                && let Some(connection) = self.endpoint.connection_mut(id)
            {
                leg.end.transmit(now, connection, &mut self.accounts);
                connection.flush(now);
            }
        }
    }

    fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        self.endpoint.poll_transmit()
    }

    fn poll_inner(&mut self) -> Option<Bytes> {
        self.poll_tenant_inner(ONLY)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let legs = self.legs.values().filter_map(|leg| leg.end.poll_timeout());
        let streams = self.streams.as_ref().and_then(|streams| streams.poll_timeout());
        let own = legs.chain(self.refusals.poll_timeout()).chain(streams);
        own.chain(self.endpoint.poll_timeout()).min()
    }
}
