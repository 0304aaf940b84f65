//! One side of a world, driven by the functions of the product's event loop: links replace sockets,
//! a list of arrivals replaces the TUN.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use roadweave_emulate::Direction;
use roadweave_proto::Instant;
use roadweave_quic::Outbox;
use roadweave_tunnel::{Io, Node, PacketEvent, RecvMeta, deliver, flush, turn};

use super::machine::{HeldInput, Sleeper};
use super::trails::Trails;
use super::wire::Wire;
use super::{Arrival, SERVER, Transit};

/// What both sides reach: the links, and the list of arrivals.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) wires: Vec<Wire>,
    pub(super) arrivals: VecDeque<Arrival>,
    pub(super) undeliverable: u64,
    pub(super) trails: Option<Trails>,
}

/// A client or a server; `sends` is the direction of its packets.
#[derive(Debug)]
pub(super) struct WorldEnd<T> {
    pub(super) end: T,
    pub(super) touched: bool,
    sends: Direction,
    due: Option<Instant>,
    sleeper: Option<Sleeper>,
    poll_packet_event: fn(&mut T) -> Option<PacketEvent>,
}

impl<T: Node> WorldEnd<T> {
    pub(super) fn new(
        end: T,
        sends: Direction,
        sleeper: Option<Sleeper>,
        poll_packet_event: fn(&mut T) -> Option<PacketEvent>,
    ) -> Self {
        Self { end, touched: true, sends, due: None, sleeper, poll_packet_event }
    }

    pub(super) fn handle_inner(&mut self, now: Instant, packet: &[u8]) {
        if let Some(sleeper) = &mut self.sleeper {
            return sleeper.hold(now, HeldInput::Inner(Bytes::copy_from_slice(packet)));
        }
        self.end.handle_inner(now, packet);
        self.touched = true;
    }

    pub(super) fn handle_packet(
        &mut self,
        now: Instant,
        network: &mut Network,
        meta: RecvMeta,
        packet: Bytes,
        ride: Option<Transit>,
    ) {
        let Some(sleeper) = &mut self.sleeper else {
            return self.take(now, network, &meta, &packet, ride);
        };
        let meta = RecvMeta { received: Some(now), ..meta };
        sleeper.hold(now, HeldInput::Packet { meta, packet, ride });
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.sleeper.as_ref().and_then(|sleeper| sleeper.wakes).or(self.due)
    }

    /// If it runs now, handles the waiting input and marks itself as touched.
    pub(super) fn wake(&mut self, now: Instant, network: &mut Network) {
        let due = self.due.filter(|due| *due <= now);
        let Some(sleeper) = &mut self.sleeper else {
            self.touched |= due.is_some();
            return;
        };
        if let Some(due) = due {
            sleeper.on_due(now, due);
        }
        let Some(held) = sleeper.wake(now) else { return };
        self.touched = true;
        for input in held {
            match input {
                HeldInput::Inner(packet) => self.end.handle_inner(now, &packet),
                HeldInput::Packet { meta, packet, ride } => {
                    self.take(now, network, &meta, &packet, ride);
                }
            }
        }
    }

    pub(super) fn turn(&mut self, now: Instant, network: &mut Network) {
        self.run(now, network, None, |end, io| turn(end, io));
    }

    pub(super) fn flush(&mut self, now: Instant, network: &mut Network) {
        self.run(now, network, None, |end, io| flush(end, io));
    }

    /// Its events have been taken; it sleeps until its next timeout.
    pub(super) fn rest(&mut self) {
        self.due = self.end.poll_timeout();
        self.touched = false;
    }

    fn take(
        &mut self,
        now: Instant,
        network: &mut Network,
        meta: &RecvMeta,
        packet: &[u8],
        ride: Option<Transit>,
    ) {
        self.end.handle_packet(now, meta, packet);
        self.touched = true;
        if ride.is_some() {
            self.run(now, network, ride, |end, io| deliver(end, io));
        }
    }

    fn run(
        &mut self,
        now: Instant,
        network: &mut Network,
        ride: Option<Transit>,
        run: impl FnOnce(&mut T, &mut EndIo<'_>),
    ) {
        let first = network.arrivals.len();
        run(&mut self.end, &mut EndIo { now, sends: self.sends, ride, network });
        let Network { arrivals, trails, .. } = network;
        if let Some(trails) = trails {
            let events = std::iter::from_fn(|| (self.poll_packet_event)(&mut self.end));
            trails.follow(self.sends, events, arrivals.range_mut(first..));
        }
    }
}

struct EndIo<'a> {
    now: Instant,
    sends: Direction,
    ride: Option<Transit>,
    network: &'a mut Network,
}

impl Io for EndIo<'_> {
    fn now(&self) -> Instant {
        self.now
    }

    fn deliver(&mut self, packets: &mut dyn Iterator<Item = Bytes>) {
        let (at, direction, ride) = (self.now, self.sends.opposite(), self.ride);
        let arrival = |packet| Arrival { at, direction, packet, ride, trail: None };
        self.network.arrivals.extend(packets.map(arrival));
    }

    fn transmit(&mut self, packets: &Outbox) {
        let wires = &mut self.network.wires;
        for (route, packet) in packets.packets() {
            let wire = match self.sends {
                Direction::Up => route.uplink.and_then(|it| wires.get_mut(it.0 as usize)),
                Direction::Down => wires.iter_mut().find(|wire| wire.leads_to(route.destination)),
            };
            let packet = BytesMut::from(packet);
            match (wire, self.sends) {
                (Some(wire), Direction::Up) => wire.push_up(self.now, route.destination, packet),
                (Some(wire), Direction::Down) => wire.push_down(self.now, SERVER, packet),
                (None, _) => self.network.undeliverable += 1,
            }
        }
    }
}
