//! RTP headers (RFC 3550) and H.264 payloads (RFC 6184).
//!
//! ```text
//!   AccessUnit --Packetizer--> packets ~~network~~> packets --Depacketizer--> Picture
//!                single NAL, STAP-A, FU-A           any order, holes, copies, garbage
//! ```
//!
//! Non-interleaved mode (RFC 6184 section 6.3): small NAL units share a packet (STAP-A), large ones
//! are fragmented (FU-A), and the marker ends a picture. The depacketizer collects packets by
//! timestamp in a bounded window and returns the NAL units of a picture on request; an incomplete
//! unit is cut at its first gap, since a decoder can use its beginning.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};

use super::h264::{AccessUnit, nal_type};

/// The RTP clock of video, Hz (RFC 6184 section 5.1).
pub const CLOCK_HZ: u32 = 90_000;
/// The largest payload of a packet, bytes.
pub const PAYLOAD_MAX: usize = 1_200;
/// Size of the RTP header without extensions, bytes.
pub const HEADER_LEN: usize = 12;

const VERSION: u8 = 2;
/// The first dynamic payload type (RFC 3551 section 6).
const PAYLOAD_TYPE: u8 = 96;
const NAL_STAP_A: u8 = 24;
const NAL_FU_A: u8 = 28;
const FU_START: u8 = 0x80;
const FU_END: u8 = 0x40;

/// Why a datagram is not a packet of the stream.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RtpError {
    #[error("rtp packet is truncated")]
    Truncated,
    #[error("rtp version {0} is not 2")]
    Version(u8),
    #[error("rtp payload type {0} is not the video's")]
    PayloadType(u8),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RtpPacket {
    /// Set on the last packet of a picture.
    pub marker: bool,
    /// Packet counter modulo 2^16.
    pub sequence: u16,
    /// The picture's time in units of 1/[`CLOCK_HZ`] s, modulo 2^32.
    pub timestamp: u32,
    /// The payload without padding.
    pub payload: Bytes,
}

impl RtpPacket {
    /// Parses a datagram (RFC 3550 sections 5.1 and 5.3.1).
    pub fn parse(datagram: &Bytes) -> Result<Self, RtpError> {
        let header = datagram.first_chunk::<HEADER_LEN>().ok_or(RtpError::Truncated)?;
        if header[0] >> 6 != VERSION {
            return Err(RtpError::Version(header[0] >> 6));
        }
        if header[1] & 0x7f != PAYLOAD_TYPE {
            return Err(RtpError::PayloadType(header[1] & 0x7f));
        }
        let mut start = HEADER_LEN + 4 * usize::from(header[0] & 0x0f);
        if header[0] & 0x10 != 0 {
            let words = datagram.get(start + 2..start + 4).ok_or(RtpError::Truncated)?;
            start += 4 + 4 * usize::from(u16::from_be_bytes([words[0], words[1]]));
        }
        let padding = match header[0] & 0x20 {
            0 => 0,
            _ => datagram.last().copied().map_or(0, usize::from),
        };
        let end = datagram.len().checked_sub(padding).filter(|end| *end >= start);
        let payload = datagram.slice(start..end.ok_or(RtpError::Truncated)?);
        Ok(Self {
            marker: header[1] & 0x80 != 0,
            sequence: u16::from_be_bytes([header[2], header[3]]),
            timestamp: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
            payload,
        })
    }
}

/// Turns access units into packets.
#[derive(Debug)]
pub struct Packetizer {
    ssrc: u32,
    sequence: u16,
}

impl Packetizer {
    /// A stream with the SSRC `ssrc` and the first sequence number `sequence`.
    pub fn new(ssrc: u32, sequence: u16) -> Self {
        Self { ssrc, sequence }
    }

    /// The packets of `unit`, in order, each of at most [`HEADER_LEN`] + [`PAYLOAD_MAX`] bytes.
    pub fn packetize(&mut self, unit: &AccessUnit, timestamp: u32) -> Vec<Bytes> {
        let mut payloads = Vec::new();
        let mut nals = unit.nals.as_slice();
        while let Some(nal) = nals.first() {
            let together = aggregatable(nals);
            if together > 1 {
                payloads.push(aggregate(&nals[..together]));
            } else if nal.len() <= PAYLOAD_MAX {
                payloads.push(nal.clone());
            } else {
                fragment(nal, &mut payloads);
            }
            nals = &nals[together.max(1)..];
        }
        let last = payloads.len().saturating_sub(1);
        let packets = payloads.into_iter().enumerate();
        packets.map(|(index, payload)| self.packet(index == last, timestamp, &payload)).collect()
    }

    fn packet(&mut self, marker: bool, timestamp: u32, payload: &[u8]) -> Bytes {
        let mut packet = BytesMut::with_capacity(HEADER_LEN + payload.len());
        packet.put_u8(VERSION << 6);
        packet.put_u8(u8::from(marker) << 7 | PAYLOAD_TYPE);
        packet.put_u16(self.sequence);
        packet.put_u32(timestamp);
        packet.put_u32(self.ssrc);
        packet.put_slice(payload);
        self.sequence = self.sequence.wrapping_add(1);
        packet.freeze()
    }
}

fn aggregatable(nals: &[Bytes]) -> usize {
    let mut size = 1;
    let fits = |nal: &&Bytes| {
        size += 2 + nal.len();
        size <= PAYLOAD_MAX
    };
    nals.iter().take_while(fits).count()
}

/// F and NRI of an aggregate are the maxima of its units (RFC 6184 section 5.7.1).
fn aggregate(nals: &[Bytes]) -> Bytes {
    let mut payload = BytesMut::with_capacity(PAYLOAD_MAX);
    let importance = nals.iter().map(|nal| nal[0] & 0x60).max().unwrap_or(0);
    let forbidden = nals.iter().fold(0, |bits, nal| bits | nal[0] & 0x80);
    payload.put_u8(forbidden | importance | NAL_STAP_A);
    for nal in nals {
        payload.put_u16(u16::try_from(nal.len()).expect("an aggregate fits one packet"));
        payload.put_slice(nal);
    }
    payload.freeze()
}

/// The unit's header is split into FU indicator and FU header (RFC 6184 section 5.8).
fn fragment(nal: &Bytes, payloads: &mut Vec<Bytes>) {
    let indicator = nal[0] & 0xe0 | NAL_FU_A;
    let body = &nal[1..];
    let chunks = body.len().div_ceil(PAYLOAD_MAX - 2);
    for (index, chunk) in body.chunks(PAYLOAD_MAX - 2).enumerate() {
        let start = if index == 0 { FU_START } else { 0 };
        let end = if index + 1 == chunks { FU_END } else { 0 };
        let mut payload = BytesMut::with_capacity(2 + chunk.len());
        payload.put_u8(indicator);
        payload.put_u8(start | end | nal_type(nal));
        payload.put_slice(chunk);
        payloads.push(payload.freeze());
    }
}

/// A received picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    pub timestamp: u32,
    /// NAL units in order, cut at gaps.
    pub nals: Vec<Bytes>,
}

const PICTURES_MAX: usize = 128;
const PACKETS_PER_PICTURE_MAX: usize = 8_192;
const BYTES_MAX: usize = 64 << 20;

/// Counters of packets discarded by a [`Depacketizer`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    pub duplicate: u64,
    /// Packets at or before the last taken picture.
    pub late: u64,
    /// Packets beyond the window.
    pub overflow: u64,
}

/// Gathers packets into pictures.
#[derive(Debug, Default)]
pub struct Depacketizer {
    /// By unwrapped timestamp, then by unwrapped sequence number.
    pictures: BTreeMap<i64, BTreeMap<i64, Bytes>>,
    bytes: usize,
    /// The newest unwrapped timestamp and sequence number, as the reference for unwrapping.
    newest: Option<(i64, i64)>,
    taken: Option<i64>,
    discarded: Discarded,
}

impl Depacketizer {
    /// Adds a packet; unusable ones are counted.
    pub fn push(&mut self, packet: RtpPacket) {
        let (reference_time, reference_sequence) =
            self.newest.unwrap_or((i64::from(packet.timestamp), i64::from(packet.sequence)));
        let timestamp = reference_time
            + i64::from(packet.timestamp.wrapping_sub(reference_time as u32).cast_signed());
        let sequence = reference_sequence
            + i64::from(packet.sequence.wrapping_sub(reference_sequence as u16).cast_signed());
        if self.taken.is_some_and(|taken| timestamp <= taken) {
            self.discarded.late += 1;
            return;
        }
        let known = self.pictures.contains_key(&timestamp);
        if self.bytes + packet.payload.len() > BYTES_MAX
            || !known && self.pictures.len() >= PICTURES_MAX
        {
            self.discarded.overflow += 1;
            return;
        }
        let picture = self.pictures.entry(timestamp).or_default();
        if picture.contains_key(&sequence) {
            self.discarded.duplicate += 1;
        } else if picture.len() >= PACKETS_PER_PICTURE_MAX {
            self.discarded.overflow += 1;
        } else {
            self.bytes += packet.payload.len();
            picture.insert(sequence, packet.payload);
        }
        if self.newest.is_none_or(|(newest, _)| timestamp >= newest) {
            self.newest = Some((timestamp, sequence));
        }
    }

    /// Takes the picture `timestamp` and drops earlier ones; `None` if it is absent or was taken.
    pub fn take(&mut self, timestamp: u32) -> Option<Picture> {
        let (newest, _) = self.newest?;
        let wanted = newest + i64::from(timestamp.wrapping_sub(newest as u32).cast_signed());
        let later = self.pictures.split_off(&(wanted + 1));
        let mut passed = std::mem::replace(&mut self.pictures, later);
        let bytes = passed.values().flat_map(BTreeMap::values).map(Bytes::len).sum::<usize>();
        self.bytes -= bytes;
        self.taken = self.taken.max(Some(wanted));
        let packets = passed.remove(&wanted)?;
        Some(Picture { timestamp, nals: assemble(&packets) })
    }

    pub fn discarded(&self) -> &Discarded {
        &self.discarded
    }
}

fn assemble(packets: &BTreeMap<i64, Bytes>) -> Vec<Bytes> {
    let mut nals = Vec::new();
    let mut open: Option<(BytesMut, i64)> = None;
    for (&sequence, payload) in packets {
        if let Some((nal, _)) = open.take_if(|(_, next)| *next != sequence) {
            nals.push(nal.freeze());
        }
        match nal_type(payload) {
            NAL_FU_A => assemble_fragment(sequence, payload, &mut open, &mut nals),
            other => {
                nals.extend(open.take().map(|(nal, _)| nal.freeze()));
                match other {
                    1..=23 => nals.push(payload.clone()),
                    NAL_STAP_A => disaggregate(payload, &mut nals),
                    _ => {}
                }
            }
        }
    }
    nals.extend(open.map(|(nal, _)| nal.freeze()));
    nals
}

fn assemble_fragment(
    sequence: i64,
    payload: &Bytes,
    open: &mut Option<(BytesMut, i64)>,
    nals: &mut Vec<Bytes>,
) {
    let &[indicator, header, ref body @ ..] = payload.as_ref() else { return };
    if header & FU_START != 0 {
        nals.extend(open.take().map(|(nal, _)| nal.freeze()));
        let mut nal = BytesMut::with_capacity(64 << 10);
        nal.put_u8(indicator & 0xe0 | header & 0x1f);
        *open = Some((nal, sequence));
    }
    // A slice can only be decoded from its start.
    let Some((nal, next)) = open else { return };
    nal.put_slice(body);
    *next = sequence + 1;
    if header & FU_END != 0 {
        nals.extend(open.take().map(|(nal, _)| nal.freeze()));
    }
}

fn disaggregate(payload: &Bytes, nals: &mut Vec<Bytes>) {
    let mut rest = payload.slice(1..);
    while rest.len() > 2 {
        let size = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
        if size == 0 || rest.len() < 2 + size {
            return;
        }
        nals.push(rest.slice(2..2 + size));
        rest = rest.slice(2 + size..);
    }
}

#[cfg(test)]
mod tests;
