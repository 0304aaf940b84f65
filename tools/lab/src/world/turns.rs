//! Turns both sides of a world with the functions of the product's event loop: links replace
//! sockets, a list of arrivals replaces the TUN.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use roadweave_emulate::Direction;
use roadweave_proto::Instant;
use roadweave_quic::Outbox;
use roadweave_tunnel::{
    Client, ClientEvent, Io, Node as _, RecvMeta, Server, deliver, flush, turn,
};

use super::wire::Wire;
use super::{Arrival, HeldInput, SERVER, Transit, World};

struct EndIo<'a> {
    now: Instant,
    sends: Direction,
    ride: Option<Transit>,
    wires: &'a mut [Wire],
    undeliverable: &'a mut u64,
    arrivals: &'a mut VecDeque<Arrival>,
}

impl Io for EndIo<'_> {
    fn now(&self) -> Instant {
        self.now
    }

    fn deliver(&mut self, packets: &mut dyn Iterator<Item = Bytes>) {
        let (at, direction, ride) = (self.now, self.sends.opposite(), self.ride);
        let arrival = |packet| Arrival { at, direction, packet, ride, trail: None };
        self.arrivals.extend(packets.map(arrival));
    }

    fn transmit(&mut self, packets: &Outbox) {
        for (route, packet) in packets.packets() {
            let wire = match self.sends {
                Direction::Up => route.uplink.and_then(|it| self.wires.get_mut(it.0 as usize)),
                Direction::Down => {
                    self.wires.iter_mut().find(|wire| wire.leads_to(route.destination))
                }
            };
            let packet = BytesMut::from(packet);
            match (wire, self.sends) {
                (Some(wire), Direction::Up) => wire.push_up(self.now, route.destination, packet),
                (Some(wire), Direction::Down) => wire.push_down(self.now, SERVER, packet),
                (None, _) => *self.undeliverable += 1,
            }
        }
    }
}

impl World {
    pub(super) fn take_at_client(&mut self, meta: RecvMeta, packet: Bytes, ride: Option<Transit>) {
        let now = self.now;
        match &mut self.client.sleeper {
            Some(sleeper) => sleeper.hold(now, waiting(now, meta, packet, ride)),
            None => self.handle_at_client(&meta, &packet, ride),
        }
    }

    pub(super) fn take_at_server(&mut self, meta: RecvMeta, packet: Bytes, ride: Option<Transit>) {
        let now = self.now;
        match &mut self.server.sleeper {
            Some(sleeper) => sleeper.hold(now, waiting(now, meta, packet, ride)),
            None => self.handle_at_server(&meta, &packet, ride),
        }
    }

    pub(super) fn wake_ends(&mut self) {
        for waiting in self.client.wake(self.now) {
            match waiting {
                HeldInput::Inner(packet) => self.client.end.handle_inner(self.now, &packet),
                HeldInput::Packet { meta, packet, ride } => {
                    self.handle_at_client(&meta, &packet, ride);
                }
            }
        }
        for waiting in self.server.wake(self.now) {
            match waiting {
                HeldInput::Inner(packet) => self.server.end.handle_inner(self.now, &packet),
                HeldInput::Packet { meta, packet, ride } => {
                    self.handle_at_server(&meta, &packet, ride);
                }
            }
        }
    }

    fn handle_at_client(&mut self, meta: &RecvMeta, packet: &[u8], ride: Option<Transit>) {
        self.client.end.handle_packet(self.now, meta, packet);
        self.client.touched = true;
        if ride.is_some() {
            self.run_client(ride, |client, io| deliver(client, io));
        }
    }

    fn handle_at_server(&mut self, meta: &RecvMeta, packet: &[u8], ride: Option<Transit>) {
        self.server.end.handle_packet(self.now, meta, packet);
        self.server.touched = true;
        if ride.is_some() {
            self.run_server(ride, |server, io| deliver(server, io));
        }
    }

    pub(super) fn turn_client(&mut self) {
        self.run_client(None, |client, io| turn(client, io));
        self.note_client();
    }

    pub(super) fn flush_client(&mut self) {
        self.run_client(None, |client, io| flush(client, io));
        self.note_client();
    }

    pub(super) fn turn_server(&mut self) {
        self.run_server(None, |server, io| turn(server, io));
        while let Some(event) = self.server.end.poll_event() {
            self.server_events.push((self.now, event));
        }
        self.server.due = self.server.end.poll_timeout();
        self.server.touched = false;
    }

    fn run_client(&mut self, ride: Option<Transit>, run: impl FnOnce(&mut Client, &mut EndIo<'_>)) {
        let (sends, first) = (Direction::Up, self.arrivals.len());
        let Self { now, client, wires, undeliverable, arrivals, .. } = self;
        run(&mut client.end, &mut EndIo { now: *now, sends, ride, wires, undeliverable, arrivals });
        if let Some(trails) = &mut self.trails {
            let events = || self.client.end.poll_packet_event();
            trails.follow(sends, std::iter::from_fn(events), self.arrivals.range_mut(first..));
        }
    }

    fn run_server(&mut self, ride: Option<Transit>, run: impl FnOnce(&mut Server, &mut EndIo<'_>)) {
        let (sends, first) = (Direction::Down, self.arrivals.len());
        let Self { now, server, wires, undeliverable, arrivals, .. } = self;
        run(&mut server.end, &mut EndIo { now: *now, sends, ride, wires, undeliverable, arrivals });
        if let Some(trails) = &mut self.trails {
            let events = || self.server.end.poll_packet_event().map(|(_, event)| event);
            trails.follow(sends, std::iter::from_fn(events), self.arrivals.range_mut(first..));
        }
    }

    fn note_client(&mut self) {
        let now = self.now;
        while let Some(event) = self.client.end.poll_event() {
            if !matches!(event, ClientEvent::Notice(_))
                && let Some(trails) = &mut self.trails
            {
                trails.clear();
            }
            match event {
                ClientEvent::Notice(notice) => self.notices.push((now, notice)),
                event => self.client_events.push((now, event)),
            }
        }
        while let Some(uplink) = self.client.end.take_stale_port() {
            self.wires[uplink.0 as usize].change_port();
        }
        self.client.due = self.client.end.poll_timeout();
        self.client.touched = false;
    }
}

fn waiting(now: Instant, meta: RecvMeta, packet: Bytes, ride: Option<Transit>) -> HeldInput {
    HeldInput::Packet { meta: RecvMeta { received: Some(now), ..meta }, packet, ride }
}
