//! Messages of a few packets, each acknowledged and retransmitted after a doubling timeout.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use roadweave_proto::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    Data,
    Acknowledgement,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: MessageKind,
    pub(super) turn: u8,
    pub(super) index: u16,
    pub(super) count: u16,
    pub(super) request: u32,
    pub(super) sent: Instant,
}

impl Header {
    pub(super) const LEN: usize = 18;

    /// A payload of `bytes` bytes, at least the header; the rest is zero.
    pub(super) fn to_payload(self, bytes: usize) -> Bytes {
        let mut payload = BytesMut::with_capacity(bytes.max(Self::LEN));
        payload.put_u8(self.kind as u8);
        payload.put_u8(self.turn);
        payload.put_u16(self.index);
        payload.put_u16(self.count);
        payload.put_u32(self.request);
        payload.put_u64(self.sent.as_nanos());
        payload.resize(bytes.max(Self::LEN), 0);
        payload.freeze()
    }

    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = payload.first_chunk()?;
        let kind = match bytes[0] {
            0 => MessageKind::Data,
            1 => MessageKind::Acknowledgement,
            _ => return None,
        };
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let request = u32::from_be_bytes([bytes[6], bytes[7], bytes[8], bytes[9]]);
        let sent = u64::from_be_bytes(*bytes.last_chunk()?);
        Some(Self {
            kind,
            turn: bytes[1],
            index: u16_at(2),
            count: u16_at(4),
            request,
            sent: Instant::from_nanos(sent),
        })
    }
}

#[derive(Debug)]
pub(super) struct Outgoing {
    parts: Vec<MessagePart>,
}

#[derive(Debug)]
struct MessagePart {
    bytes: usize,
    settled: bool,
    due: Instant,
    timeout: Duration,
}

impl Outgoing {
    pub(super) fn message(now: Instant, bytes: usize) -> Self {
        let count = bytes.div_ceil(PART).max(1);
        let part =
            |index: usize| MessagePart::new(now, bytes.saturating_sub(index * PART).min(PART));
        Self { parts: (0..count).map(part).collect() }
    }

    /// Pieces of audio, sent as they are spoken from `now` on, and a request after a silent one.
    pub(super) fn speech(now: Instant, chunks: u32) -> Self {
        let chunk = |number: u32| {
            let at = now + super::CHUNK * number;
            let sizes = [PART, PART, AUDIO_BYTES - 2 * PART];
            sizes.map(|bytes| MessagePart::new(at, bytes))
        };
        let mut parts: Vec<MessagePart> = (1..=chunks).flat_map(chunk).collect();
        parts.push(MessagePart::new(now + super::CHUNK * (chunks + 1), REQUEST_BYTES));
        Self { parts }
    }

    pub(super) fn complete_at(&self) -> Instant {
        self.parts.iter().map(|part| part.due).max().unwrap_or_default()
    }

    /// Index, number of parts, size.
    pub(super) fn poll(&mut self, now: Instant) -> Option<(u16, u16, usize)> {
        let count = self.parts.len() as u16;
        let due = |part: &MessagePart| !part.settled && part.due <= now;
        let index = self.parts.iter().position(due)?;
        let part = &mut self.parts[index];
        part.due = now + part.timeout;
        part.timeout = (part.timeout * 2).min(TIMEOUT_MAX);
        Some((index as u16, count, part.bytes))
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.parts.iter().filter(|part| !part.settled).map(|part| part.due).min()
    }

    pub(super) fn settle(&mut self, index: u16) {
        if let Some(part) = self.parts.get_mut(usize::from(index)) {
            part.settled = true;
        }
    }
}

impl MessagePart {
    fn new(due: Instant, bytes: usize) -> Self {
        Self { bytes, settled: false, due, timeout: TIMEOUT_MIN }
    }
}

#[derive(Debug, Default)]
pub(super) struct Incoming {
    arrived: BTreeSet<u16>,
}

impl Incoming {
    pub(super) fn handle(&mut self, header: &Header) -> bool {
        let is_new = header.index < header.count && self.arrived.insert(header.index);
        is_new && self.arrived.len() == usize::from(header.count)
    }
}

/// Bytes of UDP payload.
const PART: usize = 1_200;
/// 100 ms of audio: 16 bits at 16 kHz.
const AUDIO_BYTES: usize = 3_200;
const REQUEST_BYTES: usize = 64;
/// The first timeout: Linux's minimum of 200 ms and a round trip.
const TIMEOUT_MIN: Duration = Duration::from_millis(300);
const TIMEOUT_MAX: Duration = Duration::from_secs(3);
