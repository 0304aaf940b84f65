//! How the two ends of a world are turned: by the functions by which the product's event loop turns
//! them, with links in the place of sockets and a list of arrivals in that of the TUN.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use roadweave_emulate::Direction;
use roadweave_quic::Outbox;
use roadweave_tunnel::{Client, ClientEvent, Io, Node as _, Server, deliver, flush, turn};
use roadweave_types::Instant;

use super::wire::Wire;
use super::{Arrival, Ride, SERVER, World};

/// The clock, the device and the network of one end.
struct EndIo<'a> {
    now: Instant,
    /// The way of what the end sends; what it delivers went the other.
    sends: Direction,
    /// What brought the inner packets that it delivers.
    ride: Option<Ride>,
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
                    self.wires.iter_mut().find(|wire| wire.public == route.destination)
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
    /// Lets the client do what is due, and takes out all that it has to give.
    pub(super) fn turn_client(&mut self) {
        self.run_client(None, |client, io| turn(client, io));
        self.note_client();
    }

    /// Takes out all that the client has to give after a call that has let happen what is due.
    pub(super) fn flush_client(&mut self) {
        self.run_client(None, |client, io| flush(client, io));
        self.note_client();
    }

    /// Takes out the inner packets that a packet brought to the client.
    pub(super) fn deliver_of_client(&mut self, ride: Ride) {
        self.run_client(Some(ride), |client, io| deliver(client, io));
    }

    /// Lets the server do what is due, and takes out all that it has to give.
    pub(super) fn turn_server(&mut self) {
        self.run_server(None, |server, io| turn(server, io));
        while let Some(event) = self.server.end.poll_event() {
            self.server_events.push((self.now, event));
        }
        self.server.due = self.server.end.poll_timeout();
        self.server.touched = false;
    }

    /// Takes out the inner packets that a packet brought to the server.
    pub(super) fn deliver_of_server(&mut self, ride: Ride) {
        self.run_server(Some(ride), |server, io| deliver(server, io));
    }

    fn run_client(&mut self, ride: Option<Ride>, run: impl FnOnce(&mut Client, &mut EndIo<'_>)) {
        let (sends, first) = (Direction::Up, self.arrivals.len());
        let Self { now, client, wires, undeliverable, arrivals, .. } = self;
        run(&mut client.end, &mut EndIo { now: *now, sends, ride, wires, undeliverable, arrivals });
        if let Some(trails) = &mut self.trails {
            let events = || self.client.end.poll_packet_event();
            trails.follow(sends, std::iter::from_fn(events), self.arrivals.range_mut(first..));
        }
    }

    fn run_server(&mut self, ride: Option<Ride>, run: impl FnOnce(&mut Server, &mut EndIo<'_>)) {
        let (sends, first) = (Direction::Down, self.arrivals.len());
        let Self { now, server, wires, undeliverable, arrivals, .. } = self;
        run(&mut server.end, &mut EndIo { now: *now, sends, ride, wires, undeliverable, arrivals });
        if let Some(trails) = &mut self.trails {
            let events = || self.server.end.poll_packet_event().map(|(_, event)| event);
            trails.follow(sends, std::iter::from_fn(events), self.arrivals.range_mut(first..));
        }
    }

    /// Takes down what the client has to tell, and when it is due again.
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
        self.client.due = self.client.end.poll_timeout();
        self.client.touched = false;
    }
}
