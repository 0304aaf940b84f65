//! The messages between a recorder's client and server, in UDP datagrams.
//!
//! ```text
//! 0        1          2                 10
//! +--------+----------+-----------------+----------------------------+
//! | 0xC7   | version, | token           | by kind; numbers are       |
//! |        | kind     | (u64)           | big-endian                 |
//! +--------+----------+-----------------+----------------------------+
//!
//! Hello      client: the token is its nonce; padded
//! Challenge  server: the nonce and a secret, which proves the address of a client that returns it
//! Open       client: the secret, the session to resume or 0, time since the start, plan, zeros, and
//!            in the last 32 bytes the proof of a token, or zeros
//! Welcome    server: the session has begun or is resumed
//! Refuse     server: the reason
//! Packet     either: data, tail or probe
//! Report     either: arrivals; from the server also its log
//! Close      client: the end
//! ```
//!
//! Hello and Open are longer than any answer to them, and an address that has not answered a
//! challenge receives nothing else: a server is no amplifier.

use bytes::Buf as _;

use crate::log::{LogEntry, REPORT_HEADER_BYTES, decode_entries};
use crate::plan::RecordPlan;
use crate::token::PROOF_BYTES;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Hello { nonce: u64 },
    Challenge { nonce: u64, token: u64 },
    Open(Open),
    Welcome(Welcome),
    Refuse { to: u64, why: RecordRefusal },
    Packet(Packet),
    Report(Report),
    Close { token: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub token: u64,
    /// The token of an earlier session to resume, or 0.
    pub resume: u64,
    /// Time since the plan's start, us.
    pub elapsed_us: u64,
    pub plan: RecordPlan,
    /// The code over all of this if the client has a token; otherwise zeros.
    pub proof: [u8; PROOF_BYTES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    /// The token of the answered [`Open`].
    pub token: u64,
    /// Whether it resumes the requested session, which keeps its token.
    pub resumed: bool,
    /// The plan's start on the server's wall clock, us since 1970.
    pub start_unix_us: u64,
}

/// Why a server refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordRefusal {
    #[error("the server uses another version of the protocol")]
    Version = 1,
    #[error("the server has reached its limit of clients or of its sending rate")]
    Busy = 2,
    #[error("the plan is longer or faster than the server allows")]
    Plan = 3,
    #[error(
        "the token is missing or wrong: give the server's token with --token-file or \
         ROADWEAVE_RECORD_TOKEN"
    )]
    Token = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketKind {
    Data = 0,
    /// Follows data: when it has arrived, the queue is empty.
    Tail = 1,
    Probe = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub token: u64,
    pub kind: PacketKind,
    /// Whether the plan was cut short: the receiver stops sending.
    pub finishing: bool,
    /// Counts all packets of a sender, from 1.
    pub number: u32,
    pub cycle: u16,
    /// When it was sent, us since the sender's start.
    pub sent_us: u64,
    /// Number of log entries received by the sender.
    pub confirmed: u32,
    pub probes: u16,
    /// Bytes of UDP payload.
    pub payload_bytes: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub token: u64,
    pub highest: u32,
    /// When the last received packet was sent, us since its sender's start.
    pub sent_us: u64,
    /// When it was received, us since the receiver's start.
    pub received_us: u64,
    /// How long the report was held after that, us.
    pub held_us: u32,
    /// Bytes of received data, as IP packets.
    pub bytes: u64,
    /// Number of log entries received by the reporter.
    pub confirmed: u32,
    /// Total number of entries in the reporter's log so far.
    pub log_end: u32,
    /// Number of entries discarded because the log was full.
    pub log_discarded: u32,
    pub log_first: u32,
    pub entries: Vec<LogEntry>,
}

/// Length of a Hello or Open: more than any answer to it.
pub(crate) const REQUEST_BYTES: usize = 96;
/// Offset of the proof in an Open; zeros precede it.
const PROOF_OFFSET: usize = REQUEST_BYTES - PROOF_BYTES;
/// Payload of tails and probes; LoLa section 4.1.
pub(crate) const PROBE_BYTES: usize = 50;

const MAGIC: u8 = 0xC7;
const VERSION: u8 = 1;

impl Message {
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let mut reader = payload;
        if reader.try_get_u8().ok()? != MAGIC {
            return None;
        }
        let kind = reader.try_get_u8().ok()?;
        let token = reader.try_get_u64().ok()?;
        if kind >> 4 != VERSION {
            return None;
        }
        Some(match kind & 0x0f {
            1 if payload.len() >= REQUEST_BYTES => Self::Hello { nonce: token },
            2 => Self::Challenge { nonce: token, token: reader.try_get_u64().ok()? },
            3 if payload.len() >= REQUEST_BYTES => Self::Open(Open {
                token,
                resume: reader.try_get_u64().ok()?,
                elapsed_us: reader.try_get_u64().ok()?,
                plan: RecordPlan::decode(&mut reader)?,
                proof: *payload[PROOF_OFFSET..].first_chunk()?,
            }),
            4 => Self::Welcome(Welcome {
                token,
                resumed: reader.try_get_u8().ok()? != 0,
                start_unix_us: reader.try_get_u64().ok()?,
            }),
            5 => Self::Refuse { to: token, why: RecordRefusal::decode(reader.try_get_u8().ok()?)? },
            6 => Self::Packet(Packet::decode(token, payload.len(), &mut reader)?),
            7 => Self::Report(Report::decode(token, &mut reader)?),
            8 => Self::Close { token },
            _ => return None,
        })
    }

    /// The nonce in a Hello of another version, whose answer is [`RecordRefusal::Version`].
    pub fn foreign_hello(payload: &[u8]) -> Option<u64> {
        let mut reader = payload;
        let is_ours = reader.try_get_u8().ok()? == MAGIC;
        let kind = reader.try_get_u8().ok()?;
        let token = reader.try_get_u64().ok()?;
        (is_ours && kind >> 4 != VERSION && kind & 0x0f == 1 && payload.len() >= REQUEST_BYTES)
            .then_some(token)
    }

    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello { nonce } => padded(header(1, *nonce), REQUEST_BYTES),
            Self::Challenge { nonce, token } => with(header(2, *nonce), token.to_be_bytes()),
            Self::Open(open) => padded(with(open.request(), open.proof), REQUEST_BYTES),
            Self::Welcome(Welcome { token, resumed, start_unix_us }) => {
                with(with(header(4, *token), [u8::from(*resumed)]), start_unix_us.to_be_bytes())
            }
            Self::Refuse { to, why } => with(header(5, *to), [*why as u8]),
            Self::Packet(packet) => packet.encode(),
            Self::Report(report) => report.encode(),
            Self::Close { token } => header(8, *token),
        }
    }
}

impl Open {
    /// The bytes covered by the proof: all that precede it in the datagram.
    pub fn request(&self) -> Vec<u8> {
        let mut bytes = header(3, self.token);
        bytes.extend(self.resume.to_be_bytes());
        bytes.extend(self.elapsed_us.to_be_bytes());
        self.plan.encode(&mut bytes);
        padded(bytes, PROOF_OFFSET)
    }
}

impl RecordRefusal {
    fn decode(code: u8) -> Option<Self> {
        [Self::Version, Self::Busy, Self::Plan, Self::Token]
            .into_iter()
            .find(|why| *why as u8 == code)
    }
}

impl Packet {
    fn decode(token: u64, payload_bytes: usize, reader: &mut &[u8]) -> Option<Self> {
        let flags = reader.try_get_u8().ok()?;
        Some(Self {
            token,
            kind: match flags & 3 {
                0 => PacketKind::Data,
                1 => PacketKind::Tail,
                2 => PacketKind::Probe,
                _ => return None,
            },
            finishing: flags & 4 != 0,
            number: reader.try_get_u32().ok()?,
            cycle: reader.try_get_u16().ok()?,
            sent_us: reader.try_get_u64().ok()?,
            confirmed: reader.try_get_u32().ok()?,
            probes: reader.try_get_u16().ok()?,
            payload_bytes,
        })
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = header(6, self.token);
        bytes.reserve_exact(self.payload_bytes.saturating_sub(bytes.len()));
        bytes.push(self.kind as u8 | u8::from(self.finishing) << 2);
        bytes.extend(self.number.to_be_bytes());
        bytes.extend(self.cycle.to_be_bytes());
        bytes.extend(self.sent_us.to_be_bytes());
        bytes.extend(self.confirmed.to_be_bytes());
        bytes.extend(self.probes.to_be_bytes());
        padded(bytes, self.payload_bytes)
    }
}

impl Report {
    fn decode(token: u64, reader: &mut &[u8]) -> Option<Self> {
        Some(Self {
            token,
            highest: reader.try_get_u32().ok()?,
            sent_us: reader.try_get_u64().ok()?,
            received_us: reader.try_get_u64().ok()?,
            held_us: reader.try_get_u32().ok()?,
            bytes: reader.try_get_u64().ok()?,
            confirmed: reader.try_get_u32().ok()?,
            log_end: reader.try_get_u32().ok()?,
            log_discarded: reader.try_get_u32().ok()?,
            log_first: reader.try_get_u32().ok()?,
            entries: decode_entries(reader)?,
        })
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = header(7, self.token);
        bytes.extend(self.highest.to_be_bytes());
        bytes.extend(self.sent_us.to_be_bytes());
        bytes.extend(self.received_us.to_be_bytes());
        bytes.extend(self.held_us.to_be_bytes());
        bytes.extend(self.bytes.to_be_bytes());
        bytes.extend(self.confirmed.to_be_bytes());
        bytes.extend(self.log_end.to_be_bytes());
        bytes.extend(self.log_discarded.to_be_bytes());
        bytes.extend(self.log_first.to_be_bytes());
        debug_assert_eq!(bytes.len(), REPORT_HEADER_BYTES);
        for entry in &self.entries {
            entry.encode(&mut bytes);
        }
        bytes
    }
}

fn header(kind: u8, token: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(REQUEST_BYTES);
    bytes.extend([MAGIC, VERSION << 4 | kind]);
    bytes.extend(token.to_be_bytes());
    bytes
}

fn with<const N: usize>(mut bytes: Vec<u8>, more: [u8; N]) -> Vec<u8> {
    bytes.extend(more);
    bytes
}

fn padded(mut bytes: Vec<u8>, length: usize) -> Vec<u8> {
    bytes.resize(length.max(bytes.len()), 0);
    bytes
}

#[cfg(test)]
pub(crate) mod tests;
