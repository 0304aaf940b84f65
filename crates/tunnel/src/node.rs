//! A tunnel's end: one trait for client, server and router, and one turn for all event loops.
//!
//! ```text
//! Io ─► handle_inner, handle_packet ─► turn: deliver ─► handle_timeout ─► transmit ─► deliver ─► Io
//!  ▲                                                                                             │
//!  └──────────────────── sleeps until poll_timeout, or until something comes ────────────────────┘
//! ```
//!
//! A [`Node`] does no I/O and has no clock: their owner passes input and calls [`turn`].

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use roadweave_proto::{Instant, UplinkId};
use roadweave_quic::{Ecn, Local, Outbox, Route, Source, Transmit};

/// One end of a tunnel: a client, a server or a router.
///
/// `handle_*` takes input, `poll_*` yields output. After input, and at [`Node::poll_timeout`], call
/// [`Node::handle_timeout`] and poll until nothing is left; [`turn`] does it in the right order.
pub trait Node {
    /// Takes an inner packet from this side's device, for the peer.
    fn handle_inner(&mut self, now: Instant, packet: &[u8]);

    /// Takes the payload of a UDP packet from the network.
    fn handle_packet(&mut self, now: Instant, meta: &RecvMeta, payload: &[u8]);

    /// Does what is due: input takes effect, and output waits for [`Node::poll_transmit`].
    fn handle_timeout(&mut self, now: Instant);

    /// The next packets for the network; dropping them discards them.
    fn poll_transmit(&mut self) -> Option<Transmit<'_>>;

    /// The next inner packet from the peer, for this side's device.
    fn poll_inner(&mut self) -> Option<Bytes>;

    /// When [`Node::handle_timeout`] must be called, if nothing comes before.
    fn poll_timeout(&self) -> Option<Instant>;
}

/// How a packet was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvMeta {
    /// The receiving socket: of a client's uplink or a router's link. A server ignores it.
    pub socket: UplinkId,
    /// The sender's address.
    pub remote: SocketAddr,
    /// The destination address, if the socket reports it.
    pub local: Option<IpAddr>,
    /// The ECN bits of its IP header (RFC 3168).
    pub ecn: Option<Ecn>,
    /// When the machine received it, if the socket reports it; it may be handled later.
    pub received: Option<Instant>,
}

impl RecvMeta {
    pub(crate) fn source(&self, local: Local) -> Source {
        let Self { remote, ecn, received, .. } = *self;
        Source { remote, local, ecn, received }
    }

    /// A packet without further information.
    pub fn new(socket: UplinkId, remote: SocketAddr) -> Self {
        Self { socket, remote, local: None, ecn: None, received: None }
    }
}

/// The surroundings of a node: clock, device and network; see also [`MemoryIo`].
pub trait Io {
    /// The time.
    fn now(&self) -> Instant;

    /// Takes inner packets for this side's device.
    fn deliver(&mut self, packets: &mut dyn Iterator<Item = Bytes>);

    /// Sends `packets`, each by its route.
    fn transmit(&mut self, packets: &Outbox);
}

/// Lets `node` do what is due after input, or at [`Node::poll_timeout`].
///
/// Complete packets go to the device before acknowledgements are made, which takes time.
pub fn turn(node: &mut impl Node, io: &mut impl Io) {
    deliver(node, io);
    node.handle_timeout(io.now());
    flush(node, io);
}

/// Passes on `node`'s packets for the network, then those for its device. A part of [`turn`]; also
/// for use after calls that did what was due, or when a node is closed.
pub fn flush(node: &mut impl Node, io: &mut impl Io) {
    while let Some(packets) = node.poll_transmit() {
        io.transmit(&packets);
    }
    deliver(node, io);
}

/// Passes on `node`'s inner packets for its device: a part of [`turn`], or between two inputs.
pub fn deliver(node: &mut impl Node, io: &mut impl Io) {
    io.deliver(&mut std::iter::from_fn(|| node.poll_inner()));
}

/// An [`Io`] that keeps a node's output in memory.
///
/// It is for existing event loops, tests and simulations. Take the output after each [`turn`]. An
/// end with much traffic needs its own [`Io`], which avoids a copy of each packet.
#[derive(Clone, Debug, Default)]
pub struct MemoryIo {
    /// The current time; set it before each turn, never backwards.
    pub now: Instant,
    /// Inner packets for this side's device, in order.
    pub delivered: Vec<Bytes>,
    /// Packets for the network with their routes, in order.
    pub transmitted: Vec<(Route, Bytes)>,
}

impl MemoryIo {
    /// Empty, at the time `now`.
    pub fn new(now: Instant) -> Self {
        Self { now, ..Self::default() }
    }
}

impl Io for MemoryIo {
    fn now(&self) -> Instant {
        self.now
    }

    fn deliver(&mut self, packets: &mut dyn Iterator<Item = Bytes>) {
        self.delivered.extend(packets);
    }

    fn transmit(&mut self, packets: &Outbox) {
        let copy = |(route, packet)| (route, Bytes::copy_from_slice(packet));
        self.transmitted.extend(packets.packets().map(copy));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use roadweave_quic::Route;

    use super::*;

    #[derive(Default)]
    struct Scripted {
        inner: VecDeque<Bytes>,
        outbox: Outbox,
    }

    impl Node for Scripted {
        fn handle_inner(&mut self, _: Instant, _: &[u8]) {}

        fn handle_packet(&mut self, _: Instant, _: &RecvMeta, payload: &[u8]) {
            self.inner.push_back(Bytes::copy_from_slice(payload));
        }

        fn handle_timeout(&mut self, now: Instant) {
            self.inner.push_back(Bytes::from(format!("timer at {now}")));
            let destination = SocketAddr::from(([192, 0, 2, 1], 4433));
            let route = Route { uplink: None, destination, source: None, ecn: None };
            self.outbox.push(route, b"acknowledged");
        }

        fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
            (!self.outbox.is_empty()).then(|| Transmit::new(&mut self.outbox))
        }

        fn poll_inner(&mut self) -> Option<Bytes> {
            self.inner.pop_front()
        }

        fn poll_timeout(&self) -> Option<Instant> {
            None
        }
    }

    struct Diary(Vec<String>);

    impl Io for Diary {
        fn now(&self) -> Instant {
            Instant::from_millis(7)
        }

        fn deliver(&mut self, packets: &mut dyn Iterator<Item = Bytes>) {
            self.0.extend(packets.map(|packet| String::from_utf8_lossy(&packet).into_owned()));
        }

        fn transmit(&mut self, packets: &Outbox) {
            let text = |(_, packet)| String::from_utf8_lossy(packet).into_owned();
            self.0.extend(packets.packets().map(text));
        }
    }

    #[test]
    fn a_turn_delivers_before_it_acknowledges_and_leaves_nothing_behind() {
        let (mut node, mut diary) = (Scripted::default(), Diary(Vec::new()));
        let remote = SocketAddr::from(([192, 0, 2, 1], 4433));
        let meta = RecvMeta { socket: UplinkId(0), remote, local: None, ecn: None, received: None };
        node.handle_packet(diary.now(), &meta, b"came");
        turn(&mut node, &mut diary);
        let timer = format!("timer at {}", diary.now());
        assert_eq!(diary.0, ["came", "acknowledged", &timer]);
        assert!(node.inner.is_empty() && node.poll_transmit().is_none());
    }
}
