//! Coded pictures as RTP, at both ends.
//!
//! ```text
//! clip or synthetic sizes ─► access unit, one per 1/fps ─► Packetizer ─► tunnel ─► arrival times
//!                                                        quality: stalls, frames, delays ◄──┘
//! ```
//!
//! Quality follows from times alone. For a clip, pictures can be rebuilt afterwards from its known
//! packets ([`VideoReport::write_logs`]).

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use roadweave_emulate::{Direction, Random};
use roadweave_proto::{Instant, Rate};
use roadweave_tunnel::{EncoderTarget, Superseded};

use super::{Base, DataStream, Detail, Traffic, TrafficReport, TrafficSpec};
use crate::inner;
use crate::video::encoder::{AdaptiveEncoder, Buffer, ssim_db};
use crate::video::h264::{AccessUnit, NAL_IDR};
use crate::video::quality::{self, Percentiles, Player, Playout, Quality, SentFrame};
use crate::video::refresh::Refresh;
use crate::video::rtp::{CLOCK_HZ, Packetizer, RtpPacket};
use crate::video::stream_log::{ArrivedPacket, SentLine};

/// Source of coded pictures.
#[derive(Clone, Debug, PartialEq)]
pub enum FrameSource {
    /// Repeats these pictures.
    Clip(Arc<[AccessUnit]>),
    /// Random bytes and sizes, with an IDR frame every second.
    Synthetic {
        /// Rate of coded pictures, without headers.
        bitrate: Rate,
    },
    /// Random bytes in sizes set by the tunnel, with an IDR frame on request of the receiver.
    Adaptive(AdaptiveEncoder),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct VideoReport {
    pub stream: DataStream,
    /// Fate of each frame at the player.
    pub playout: Playout,
    pub quality: Quality,
    pub player: Player,
    /// SSIM of each coded frame, dB; empty without a model.
    pub ssim_db: Vec<f64>,
    packets: Vec<PacketRecord>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PacketRecord {
    timestamp: u32,
    sequence: u16,
    bytes: u16,
}

#[derive(Debug)]
pub struct VideoTraffic {
    base: Base,
    frames: FrameSource,
    player: Player,
    start: Instant,
    frame_count: u64,
    packetizer: Packetizer,
    random: Random,
    noise: Bytes,
    outgoing: VecDeque<Bytes>,
    stream: DataStream,
    records: Vec<PacketRecord>,
    target: EncoderTarget,
    buffer: Buffer,
    ssim_db: Vec<f64>,
    refresh: Option<Refresh>,
    wants_key_frame: bool,
}

impl VideoTraffic {
    pub fn new(
        spec: &TrafficSpec,
        frames: FrameSource,
        player: Player,
        start: Instant,
        seed: u64,
    ) -> Self {
        let frame_count = spec.lasting.as_nanos() * u128::from(player.fps) / NANOS;
        let player = Player { fps: player.fps.max(1), ..player };
        let mut random = Random::new(seed);
        let noise = (0..NOISE / 8).flat_map(|_| random.bits().to_be_bytes()).collect();
        let wait = player.frame_wait;
        let refresh = matches!(&frames, FrameSource::Adaptive(_)).then(|| Refresh::new(wait));
        let is_empty = matches!(&frames, FrameSource::Clip(units) if units.is_empty());
        Self {
            base: Base::of(spec),
            frame_count: if is_empty { 0 } else { u64::try_from(frame_count).unwrap_or(u64::MAX) },
            frames,
            player,
            start: start + spec.begin,
            packetizer: Packetizer::new(SSRC, 0),
            random,
            noise,
            outgoing: VecDeque::new(),
            stream: DataStream::default(),
            records: Vec::new(),
            target: EncoderTarget::default(),
            buffer: Buffer::default(),
            ssim_db: Vec::new(),
            refresh,
            wants_key_frame: true,
        }
    }

    fn captured(&self, number: u64) -> Instant {
        let nanos = u128::from(number) * NANOS / u128::from(self.player.fps);
        self.start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn timestamp(&self, number: u64) -> u32 {
        (number * u64::from(CLOCK_HZ) / u64::from(self.player.fps)) as u32
    }

    fn capture(&mut self, now: Instant) {
        let number = self.stream.log.frames.len() as u64;
        let unit = match &self.frames {
            FrameSource::Clip(units) => units[(number % units.len() as u64) as usize].clone(),
            FrameSource::Synthetic { bitrate } => {
                let size = synthetic_size(number, *bitrate, self.player.fps, &mut self.random);
                synthetic(number, is_idr(number, self.player.fps), size, &self.noise)
            }
            FrameSource::Adaptive(encoder) => {
                let limit = encoder.limit(self.target, self.player.fps);
                let size = self.buffer.size(limit, &mut self.random);
                let is_key_frame = std::mem::take(&mut self.wants_key_frame);
                self.ssim_db.push(ssim_db(size, is_key_frame));
                synthetic(number, is_key_frame, size, &self.noise)
            }
        };
        let timestamp = self.timestamp(number);
        let first = self.stream.log.packets.len();
        for packet in self.packetizer.packetize(&unit, timestamp) {
            self.records.push(PacketRecord {
                timestamp,
                sequence: self.records.len() as u16,
                bytes: packet.len() as u16,
            });
            self.stream.note_sent(now);
            self.outgoing.push_back(packet);
        }
        let packets = first..self.stream.log.packets.len();
        if let Some(refresh) = &mut self.refresh {
            refresh.on_sent(packets.len(), unit.is_idr());
        }
        self.stream.log.frames.push(SentFrame { captured: now, idr: unit.is_idr(), packets });
    }

    fn next_capture(&self) -> Option<Instant> {
        let next = self.stream.log.frames.len() as u64;
        (next < self.frame_count).then(|| self.captured(next))
    }

    /// The index of the packet with this header, whose sequence number is unique near its frame.
    fn index_of(&self, packet: &RtpPacket) -> Option<usize> {
        let fps = u64::from(self.player.fps);
        let ticks = u64::from(packet.timestamp) * fps;
        let frame = usize::try_from(ticks.div_ceil(u64::from(CLOCK_HZ))).ok()?;
        let packets = self.stream.log.frames.get(frame)?.packets.clone();
        let offset = packet.sequence.wrapping_sub(packets.start as u16);
        let index = packets.start + usize::from(offset);
        packets.contains(&index).then_some(index)
    }
}

impl Traffic for VideoTraffic {
    fn port(&self) -> u16 {
        self.base.port
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let asks = self.refresh.as_ref().and_then(Refresh::poll_timeout);
        self.next_capture().into_iter().chain(asks).min()
    }

    fn wants_target(&self, now: Instant) -> Option<Direction> {
        let is_due = self.outgoing.is_empty() && self.next_capture().is_some_and(|due| due <= now);
        (is_due && self.refresh.is_some()).then_some(self.base.direction)
    }

    fn set_target(&mut self, target: EncoderTarget) -> Option<Superseded> {
        // Frames under a target of zero bytes cannot serve as references.
        self.wants_key_frame |= self.target.frame_bytes == 0 && target.frame_bytes > 0;
        let renews = target.renewals > self.target.renewals;
        self.wants_key_frame |= renews;
        self.target = target;
        let timestamp = self.timestamp(self.stream.log.frames.len() as u64);
        renews.then_some(Superseded { ssrc: SSRC, timestamp })
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<(Direction, Bytes)> {
        if self.refresh.as_mut().is_some_and(|refresh| refresh.asks(now)) {
            let direction = self.base.direction.opposite();
            return Some((direction, inner::udp(direction, self.base.port, KEY_FRAME_REQUEST)));
        }
        if self.outgoing.is_empty() && self.next_capture().is_some_and(|due| due <= now) {
            self.capture(now);
        }
        let packet = inner::udp(self.base.direction, self.base.port, &self.outgoing.pop_front()?);
        self.base.sent_bytes += packet.len() as u64;
        Some((self.base.direction, packet))
    }

    fn handle_arrival(&mut self, now: Instant, direction: Direction, packet: &Bytes) {
        if direction != self.base.direction && self.refresh.is_some() {
            self.wants_key_frame = true;
            return;
        }
        let packet = RtpPacket::parse(&inner::payload(packet)).ok();
        let index =
            packet.filter(|_| direction == self.base.direction).and_then(|p| self.index_of(&p));
        let is_new = index.is_some_and(|index| self.stream.note_arrival(now, index));
        if self.base.count(is_new)
            && let (Some(refresh), Some(index)) = (&mut self.refresh, index)
        {
            refresh.on_arrived(now, self.stream.log.frame_of(index));
        }
    }

    fn report(&self, end: Instant) -> TrafficReport {
        let DataStream { log, arrivals } = &self.stream;
        let playout = Playout::new(log, arrivals, &self.player, end);
        let quality = quality::measure(log, arrivals, &playout, &self.player);
        let detail = Detail::Video(Box::new(VideoReport {
            stream: self.stream.clone(),
            playout,
            quality,
            player: self.player.clone(),
            ssim_db: self.ssim_db.clone(),
            packets: self.records.clone(),
        }));
        TrafficReport {
            delay_variation_ms: Some(Percentiles::of_sorted(&self.stream.delay_variations())),
            ..self.base.report(log.packets.len(), &self.stream.delays(), detail)
        }
    }
}

impl VideoReport {
    /// SSIM of a coded frame, dB.
    pub fn quality_of(&self, frame: usize) -> f64 {
        self.ssim_db.get(frame).copied().unwrap_or_else(|| {
            let sent = &self.stream.log.frames[frame];
            ssim_db(self.frame_bytes(sent), sent.idr)
        })
    }

    /// Total bytes of the packets of a frame with RTP headers.
    pub fn frame_bytes(&self, frame: &SentFrame) -> usize {
        self.packets[frame.packets.clone()].iter().map(|packet| usize::from(packet.bytes)).sum()
    }

    /// Writes the logs of source and sink as a demo would, for a decoder. `clip` has the sent
    /// pictures. Fails if a writer does.
    pub fn write_logs(
        &self,
        clip: &[AccessUnit],
        mut sent: impl Write,
        mut arrived: impl Write,
    ) -> io::Result<()> {
        let mut packetizer = Packetizer::new(SSRC, 0);
        let mut arrivals = Vec::new();
        for (number, frame) in self.stream.log.frames.iter().enumerate() {
            let timestamp = self.packets.get(frame.packets.start).map_or(0, |p| p.timestamp);
            let datagrams = packetizer.packetize(&clip[number % clip.len()], timestamp);
            for (index, datagram) in frame.packets.clone().zip(datagrams) {
                let record = self.packets[index];
                let packet = SentLine {
                    frame: number,
                    idr: frame.idr,
                    captured: frame.captured,
                    sent: self.stream.log.packets[index],
                    sequence: record.sequence,
                    timestamp,
                    bytes: usize::from(record.bytes),
                };
                packet.write(&mut sent)?;
                arrivals.extend(self.stream.arrivals[index].map(|at| (at, index, datagram)));
            }
        }
        arrivals.sort_by_key(|(at, index, _)| (*at, *index));
        arrivals
            .iter()
            .try_for_each(|(at, _, datagram)| ArrivedPacket::write(*at, datagram, &mut arrived))
    }
}

/// Size of synthetic picture `number`, bytes. One IDR frame a second is [`IDR_SIZE`] times as large
/// as other frames; sizes vary by a tenth around the mean `bitrate`.
fn synthetic_size(number: u64, bitrate: Rate, fps: u32, random: &mut Random) -> usize {
    let per_second = bitrate.bytes_in(Duration::from_secs(1)) as f64;
    let ordinary = per_second / (f64::from(fps) - 1.0 + IDR_SIZE);
    let mean = if is_idr(number, fps) { ordinary * IDR_SIZE } else { ordinary };
    let size = mean * (1.0 + VARIATION * (2.0 * random.unit() - 1.0));
    (size.round() as usize).max(SLICE_HEADER)
}

/// A picture of at least [`SLICE_HEADER`] bytes: one slice with the frame's number and noise.
fn synthetic(number: u64, is_idr: bool, size: usize, noise: &[u8]) -> AccessUnit {
    let mut slice = BytesMut::with_capacity(size);
    slice.put_u8(0x60 | if is_idr { NAL_IDR } else { NAL_SLICE });
    slice.put_u8(0x80);
    slice.put_u64(number);
    while slice.len() < size {
        let rest = size - slice.len();
        slice.put_slice(&noise[..rest.min(noise.len())]);
    }
    AccessUnit { nals: vec![slice.freeze()] }
}

fn is_idr(number: u64, fps: u32) -> bool {
    number.is_multiple_of(u64::from(fps))
}

/// As long as a picture loss indication (RFC 4585 section 6.3.1) with a receiver report.
const KEY_FRAME_REQUEST: &[u8] = &[0; 44];
const NANOS: u128 = 1_000_000_000;
const SSRC: u32 = 0x726f_6164;
const NAL_SLICE: u8 = 1;
/// Repeated in synthetic pictures; a multiple of 8.
const NOISE: usize = 1 << 16;
const SLICE_HEADER: usize = 10;
/// Typical of low-latency encoders with a buffer of some frames.
const IDR_SIZE: f64 = 2.0;
const VARIATION: f64 = 0.1;
