//! How a driver runs a client.

use bytes::{Bytes, BytesMut};
use roadweave_proto::{DropReason, Instant, earliest};
use roadweave_quic::{Local, Transmit};

use super::{Client, ClientStreams, Current};
use crate::node::{Node, RecvMeta};
use crate::usage::ip_bytes;

impl Node for Client {
    fn handle_inner(&mut self, now: Instant, packet: &[u8]) {
        match &mut self.current {
            Some(Current { session, .. }) => session.handle_inner(now, packet),
            None => self.drops.count(DropReason::NoSession),
        }
    }

    fn handle_packet(&mut self, now: Instant, meta: &RecvMeta, payload: &[u8]) {
        let uplink = meta.socket;
        self.count_packet(uplink, ip_bytes(meta.remote, payload.len()));
        let source = meta.source(Local::Uplink(uplink));
        if self.has_choice()
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
        for id in self.endpoint.handle_timeout(now) {
            self.pump(now, id);
        }
        self.give_up_unwelcomed(now);
        self.watch_silence(now);
        self.watch_ports(now);
        self.release_validated(now);
        self.tend_standby(now);
        self.tend_leaving(now);
        self.measure(now);
        if self.current.is_some() {
            self.reconcile_paths(now);
            self.apply_policies();
        }
        self.watch_caps(now);
        if self.is_racing(now) {
            self.race(now);
        }
        if let Some(current) = &mut self.current
            && let Some(connection) = self.endpoint.connection_mut(current.id)
        {
            let streams = self.streams.as_mut().and_then(ClientStreams::turn);
            current.session.turn(now, connection, streams);
            current.session.send_load(now, connection, None);
            connection.flush(now);
        }
        self.tend_speedtest(now);
        self.tend_streams(now);
        self.watch_outages(now);
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
        current.or_else(|| self.poll_leaving_inner())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let own = match &self.current {
            Some(current) => earliest([
                current.session.poll_timeout(),
                self.next_path_try(),
                self.silence_timeout(),
                self.race.renews.then(|| self.race_timeout()).flatten(),
            ]),
            None => self.race_timeout(),
        };
        earliest([
            own,
            self.welcome_timeout(),
            self.outage_timeout(),
            self.port_timeout(),
            self.endpoint.poll_timeout(),
            self.standby_timeout(),
            self.leaving_timeout(),
            self.measure_timeout(),
            self.speedtest_timeout(),
            self.streams.as_ref().and_then(ClientStreams::poll_timeout),
        ])
    }
}
