//! Every inner packet that entered the tunnel, and whether it was delivered.

use std::collections::HashMap;

use bytes::{BufMut, Bytes, BytesMut};
use roadweave_emulate::{Direction, Random};
use roadweave_lab::inner;
use roadweave_lab::world::Arrival;
use roadweave_proto::Instant;

use crate::random_world::plan::{FRAME_PACKETS, Flow, Kind, PORTS_PER_LANE, Plan};

/// Beginning of a payload; with the number it makes the packet unique.
const MARK: &[u8; 8] = b"roadweav";

#[derive(Debug, Default)]
pub struct Ledger {
    sent: Vec<Sent>,
    /// Never iterated, so that its order does not matter.
    by_bytes: HashMap<(Direction, Bytes), usize>,
    /// By direction and lane: the number of the last delivered packet.
    last: HashMap<(Direction, u16), usize>,
    /// By direction and lane: since when the receiver keeps the order, and the last delivered
    /// number among packets sent since then.
    promised: HashMap<(Direction, usize), (Instant, usize)>,
    /// By direction and port: the last sequence number of a video.
    videos: HashMap<(Direction, u16), u16>,
    pub arrived_up: u64,
    pub arrived_down: u64,
    /// Hash of every arrival and its time.
    pub fingerprint: u64,
}

#[derive(Debug)]
struct Sent {
    at: Instant,
    direction: Direction,
    port: u16,
    kind: Kind,
    arrived: Option<Instant>,
}

impl Ledger {
    pub fn packet(&mut self, now: Instant, flow: &Flow) -> Bytes {
        let number = self.sent.len();
        let header = (flow.kind == Kind::Video).then(|| self.rtp(flow));
        let packet = build(flow, number as u64, header.as_ref().map_or(&[], |header| header));
        let Flow { direction, port, kind, .. } = *flow;
        self.sent.push(Sent { at: now, direction, port, kind, arrived: None });
        self.by_bytes.insert((direction, packet.clone()), number);
        packet
    }

    fn rtp(&mut self, flow: &Flow) -> [u8; 12] {
        let sequence = self.videos.entry((flow.direction, flow.port)).or_insert(u16::MAX - 40);
        *sequence = sequence.wrapping_add(1);
        let timestamp = u32::from(*sequence / FRAME_PACKETS) * 3_000;
        let marker = u8::from(*sequence % FRAME_PACKETS == FRAME_PACKETS - 1) << 7;
        let [high, low] = sequence.to_be_bytes();
        let [a, b, c, d] = timestamp.to_be_bytes();
        [0x80, 96 | marker, high, low, a, b, c, d, 1, 2, 3, 4]
    }

    /// Records that the receiver keeps the order of a lane.
    pub fn promise(&mut self, now: Instant, direction: Direction, lane: usize) {
        self.promised.entry((direction, lane)).or_insert((now, 0));
    }

    pub fn end_promises(&mut self) {
        self.promised.clear();
    }

    /// Checks a delivered packet.
    pub fn note(&mut self, plan: &Plan, arrival: &Arrival) -> Result<(), String> {
        let Arrival { at, direction, packet, .. } = arrival;
        let number = self.by_bytes.get(&(*direction, packet.clone())).copied();
        let Some(number) = number else {
            return Err(format!(
                "at {at} a packet came that nobody had sent {direction:?}: {packet:?}"
            ));
        };
        let sent = &mut self.sent[number];
        if let Some(before) = sent.arrived.replace(*at) {
            return Err(format!("packet {number} came at {before} and again at {at}"));
        }
        if !matches!(sent.kind, Kind::Good | Kind::GoodV6 | Kind::Video) {
            return Err(format!("at {at} packet {number} came, which is {:?}", sent.kind));
        }
        if *at < sent.at {
            return Err(format!("packet {number} came at {at}, before it was sent at {}", sent.at));
        }
        let (port, sent_at) = (sent.port, sent.at);
        let last = self.last.entry((*direction, port / PORTS_PER_LANE)).or_default();
        if plan.is_ordered(*direction, port) && *last > number {
            return Err(format!("at {at} packet {number} came after packet {last}"));
        }
        *last = number;
        if let Some(lane) = plan.promising(*direction, port)
            && let Some((since, last)) = self.promised.get_mut(&(*direction, lane))
            && sent_at > *since
        {
            if *last > number {
                return Err(format!(
                    "at {at} packet {number} came after {last}, against a promise"
                ));
            }
            *last = number;
        }
        match direction {
            Direction::Up => self.arrived_up += 1,
            Direction::Down => self.arrived_down += 1,
        }
        let mixed = self.fingerprint.rotate_left(7) ^ number as u64 ^ (at.as_nanos() << 20);
        self.fingerprint = mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Ok(())
    }

    pub fn sent(&self) -> usize {
        self.sent.len()
    }

    /// Packets to `port` from number `from` on: sent, and delivered.
    pub fn share(&self, direction: Direction, port: u16, from: usize) -> (usize, usize) {
        let of_port = || self.of_port(direction, port).filter(|(number, _)| *number >= from);
        (of_port().count(), of_port().filter(|(_, sent)| sent.arrived.is_some()).count())
    }

    pub fn first_arrival(&self, direction: Direction, port: u16) -> Option<Instant> {
        self.of_port(direction, port).filter_map(|(_, sent)| sent.arrived).min()
    }

    fn of_port(&self, direction: Direction, port: u16) -> impl Iterator<Item = (usize, &Sent)> {
        let numbered = self.sent.iter().enumerate();
        numbered.filter(move |(_, sent)| (sent.direction, sent.port) == (direction, port))
    }
}

fn build(flow: &Flow, number: u64, start: &[u8]) -> Bytes {
    let mut random = Random::new(number);
    let header = if flow.kind == Kind::GoodV6 { IPV6 + UDP } else { inner::HEADERS };
    let mut payload = BytesMut::with_capacity(flow.bytes);
    payload.put_slice(start);
    payload.put_slice(MARK);
    payload.put_u64(number);
    while payload.len() + header < flow.bytes {
        payload.put_u8(random.bits() as u8);
    }
    if flow.kind == Kind::GoodV6 {
        return udp_v6(flow.direction, flow.port, &payload);
    }
    let mut packet = BytesMut::from(&inner::udp(flow.direction, flow.port, &payload)[..]);
    match (flow.kind, flow.direction) {
        (Kind::Spoofed, _) => packet[SOURCE].copy_from_slice(&[10, 77, 0, 3]),
        (Kind::Unroutable, Direction::Up) => packet[DESTINATION].copy_from_slice(&inner::VEHICLE),
        (Kind::Unroutable, Direction::Down) => packet[DESTINATION].copy_from_slice(&[10, 9, 9, 9]),
        (Kind::Garbage, _) => packet[0] = random.bits() as u8 & 0x3f,
        (Kind::Good | Kind::GoodV6 | Kind::Oversized | Kind::Video, _) => {}
    }
    packet.freeze()
}

fn udp_v6(direction: Direction, port: u16, payload: &[u8]) -> Bytes {
    let vehicle = "fd77::2".parse::<std::net::Ipv6Addr>().unwrap().octets();
    let cloud = "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets();
    let (from, to) = match direction {
        Direction::Up => (vehicle, cloud),
        Direction::Down => (cloud, vehicle),
    };
    let length = (UDP + payload.len()) as u16;
    let mut packet = BytesMut::new();
    packet.put_slice(&[0x60, 0, 0, 0]);
    packet.put_u16(length);
    packet.put_slice(&[17, 64]);
    packet.put_slice(&from);
    packet.put_slice(&to);
    packet.put_u16(port);
    packet.put_u16(port);
    packet.put_u16(length);
    packet.put_u16(0);
    packet.put_slice(payload);
    packet.freeze()
}

const IPV6: usize = 40;
const UDP: usize = 8;
const SOURCE: std::ops::Range<usize> = 12..16;
const DESTINATION: std::ops::Range<usize> = 16..20;
