//! Every inner packet that entered the tunnel, and whether it was delivered.

use std::collections::HashMap;

use bytes::Bytes;
use roadweave_emulate::{Direction, Random};
use roadweave_lab::inner;
use roadweave_lab::world::Arrival;
use roadweave_proto::Instant;

use crate::random_world::ensure;
use crate::random_world::plan::{FRAME_PACKETS, Flow, FlowKind, PORTS_PER_LANE, Plan};
use crate::world::{udp_v4, udp_v6};

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
    kind: FlowKind,
    arrived: Option<Instant>,
}

impl Ledger {
    pub fn packet(&mut self, now: Instant, flow: &Flow) -> Bytes {
        let number = self.sent.len();
        let rtp = (flow.kind == FlowKind::Video).then(|| self.rtp(flow));
        let packet = build(flow, number as u64, rtp);
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

    pub fn note(&mut self, plan: &Plan, arrival: &Arrival) -> Result<(), String> {
        let Arrival { at, direction, packet, .. } = arrival;
        let number = self.by_bytes.get(&(*direction, packet.clone())).copied();
        let number = number.ok_or_else(|| format!("at {at} came, sent by nobody: {packet:?}"))?;
        let sent = &mut self.sent[number];
        let ensure = |holds: bool, what: &str| {
            ensure(holds, || format!("at {at} packet {number} came {direction:?} {what}"))
        };
        ensure(sent.arrived.replace(*at).is_none(), "again")?;
        ensure(
            matches!(sent.kind, FlowKind::Good | FlowKind::GoodV6 | FlowKind::Video),
            "and may not",
        )?;
        ensure(*at >= sent.at, "before it was sent")?;
        let (port, sent_at) = (sent.port, sent.at);
        let last = self.last.entry((*direction, port / PORTS_PER_LANE)).or_default();
        ensure(!plan.is_ordered(*direction, port) || *last <= number, "after a later one")?;
        *last = number;
        if let Some(lane) = plan.promising(*direction, port)
            && let Some((since, last)) = self.promised.get_mut(&(*direction, lane))
            && sent_at > *since
        {
            ensure(*last <= number, "after a later one, against a promise")?;
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
        let of_port = self.sent[from..].iter();
        let of_port = of_port.filter(|sent| (sent.direction, sent.port) == (direction, port));
        (of_port.clone().count(), of_port.filter(|sent| sent.arrived.is_some()).count())
    }
}

fn build(flow: &Flow, number: u64, rtp: Option<[u8; 12]>) -> Bytes {
    let vehicle = "fd77::2".parse().expect("an address");
    let cloud = "2001:db8::1".parse().expect("an address");
    let bytes = flow.bytes;
    let mut packet = match (flow.direction, flow.kind == FlowKind::GoodV6) {
        (Direction::Up, true) => udp_v6(vehicle, cloud, number, bytes),
        (Direction::Down, true) => udp_v6(cloud, vehicle, number, bytes),
        (Direction::Up, false) => udp_v4(inner::VEHICLE, inner::CLOUD, number, bytes),
        (Direction::Down, false) => udp_v4(inner::CLOUD, inner::VEHICLE, number, bytes),
    };
    let ports = if flow.kind == FlowKind::GoodV6 { 40 } else { 20 };
    packet[ports..ports + 2].copy_from_slice(&flow.port.to_be_bytes());
    packet[ports + 2..ports + 4].copy_from_slice(&flow.port.to_be_bytes());
    if let Some(rtp) = rtp {
        packet[28..40].copy_from_slice(&rtp);
        packet[40..48].copy_from_slice(&number.to_be_bytes());
    }
    match (flow.kind, flow.direction) {
        (FlowKind::Spoofed, _) => packet[SOURCE].copy_from_slice(&[10, 77, 0, 3]),
        (FlowKind::Unroutable, Direction::Up) => {
            packet[DESTINATION].copy_from_slice(&inner::VEHICLE)
        }
        (FlowKind::Unroutable, Direction::Down) => {
            packet[DESTINATION].copy_from_slice(&[10, 9, 9, 9])
        }
        (FlowKind::Garbage, _) => packet[0] = Random::new(number).bits() as u8 & 0x3f,
        (FlowKind::Good | FlowKind::GoodV6 | FlowKind::Oversized | FlowKind::Video, _) => {}
    }
    packet.into()
}

const SOURCE: std::ops::Range<usize> = 12..16;
const DESTINATION: std::ops::Range<usize> = 16..20;
