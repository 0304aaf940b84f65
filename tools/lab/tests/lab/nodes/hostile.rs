//! A hostile client with the valid key of a vehicle.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use roadweave_proto::wire::{
    Coded, Control, FragmentPosition, Hello, Part, SourceDatagram, Stamp, Symbol,
};
use roadweave_proto::{Instant, LaneId, Order, PacketId, PathId, Promise, UplinkId};
use roadweave_quic::ConnectionId;
use roadweave_tunnel::LANES_MAX;

use super::network::server_address;
use super::{NodeId, Nodes, inner_address, key};

const PUSH_MAX: usize = 200;

/// Sends packets that cost the server memory, on all lanes: unsolvable combinations, fragments and
/// parts without siblings, packets behind gaps in ordered lanes, ever more videos, false ages, tiny
/// packets; and new lane parameters each time.
#[derive(Debug)]
pub struct Hostile {
    vehicle: usize,
    connection: ConnectionId,
    said_hello: bool,
    presses: u32,
    next: u32,
}

impl Hostile {
    /// Connects with the key of `vehicle`. Panics if the vehicle's settings cannot be used.
    pub fn start(nodes: &mut Nodes, vehicle: usize) -> Self {
        nodes.start_bare(vehicle);
        let now = nodes.now();
        let endpoint = nodes.bare(vehicle).expect("it was just given one");
        let connection = endpoint
            .connect(now, UplinkId(0), server_address(0), key(NodeId::Server(0)))
            .expect("a usable address");
        Self { vehicle, connection, said_hello: false, presses: 0, next: 1 }
    }

    pub fn vehicle(&self) -> usize {
        self.vehicle
    }

    /// Sends as much as congestion control allows after the hello; follow it with [`Nodes::flush`].
    pub fn press(&mut self, nodes: &mut Nodes) {
        let now = nodes.now();
        let Some(endpoint) = nodes.bare(self.vehicle) else { return };
        let Some(connection) = endpoint.connection_mut(self.connection) else { return };
        while connection.poll_event().is_some() {}
        if !connection.is_open() {
            return;
        }
        if !self.said_hello {
            self.said_hello = true;
            let hello = Control::Hello(Hello { name: "whoever".into(), ..Hello::default() });
            let _ = connection.send_message(hello.to_bytes());
        }
        self.presses += 1;
        for lane in 0..LANES_MAX as u8 {
            // A message that does not fit is skipped.
            let _ = connection.send_message(promise(lane, self.presses).to_bytes());
        }
        for _ in 0..PUSH_MAX {
            let datagram = self.next_datagram();
            if connection.send_on(now, PathId(0), datagram, 0).is_err() {
                return;
            }
        }
    }

    fn next_datagram(&mut self) -> Bytes {
        self.next += 1;
        let (lane, round) = (self.next % LANES_MAX as u32, self.next / LANES_MAX as u32);
        // Every second ID is missing.
        let (lane, id) = (LaneId(lane as u8), PacketId(round * 2 + 1));
        let body = self.packet();
        match round % 6 {
            0 => {
                let mut bytes = BytesMut::new();
                Coded::write_header(lane, id, 64, self.next, &mut bytes);
                bytes.put_bytes(7, 1_100);
                bytes.freeze()
            }
            1 => {
                let symbol = Symbol { position: FragmentPosition::First, body: &body };
                SourceDatagram::new(lane, &symbol).finish(id)
            }
            2 => {
                // One of two parts, or one of three of the same datagram, never the others.
                let parts = Part::cut(lane, round / 2, &body, 600 - 200 * (round as usize % 2));
                parts.into_iter().flatten().next().unwrap_or_default()
            }
            3 => {
                let symbol = Symbol { position: FragmentPosition::First, body: &body[..1] };
                SourceDatagram::new(lane, &symbol).finish(id)
            }
            4 => {
                // From the future, and from days ago.
                let said = Instant::from_millis(u64::from(self.next.wrapping_mul(0x9e37_79b9)));
                SourceDatagram::of_packet(lane, true, Some(Stamp::of(said)), &body).finish(id)
            }
            _ => {
                let mut datagram = SourceDatagram::of_packet(lane, true, None, &body);
                datagram.set_predecessor(1);
                datagram.finish(id)
            }
        }
    }

    /// An acceptable inner packet: a video frame with a gap; the video changes after some dozens.
    fn packet(&self) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0x03, 0xe8, 0, 0, 0, 0, 64, 17, 0, 0];
        packet.extend(inner_address(self.vehicle).octets());
        packet.extend([198, 51, 100, 66, 0, 9, 0, 9, 0, 0, 0, 0, 0x80, 96]);
        packet.extend((self.next as u16 / 4).to_be_bytes());
        packet.extend((self.next / 64).to_be_bytes());
        packet.extend((self.next / 1_024).to_be_bytes());
        packet.resize(1_000, 7);
        packet
    }
}

/// Lane parameters with the longest possible wait for order; sometimes other values.
fn promise(lane: u8, time: u32) -> Control {
    let max_buffer = Duration::from_secs(10);
    let order = match (u32::from(lane) + time / 8) % 4 {
        0 => Order::Reorder { max_buffer },
        1 => Order::Adaptive { max_buffer },
        2 => Order::Even { max_buffer },
        _ => Order::Frames { deadline: max_buffer, decode: Duration::ZERO, max_buffer },
    };
    let expires = time % 8 == 7;
    let promise = Promise { order, age_max: Promise::AGE_MAX, expires, ..Promise::default() };
    Control::LanePromise { lane: LaneId(lane), promise }
}
