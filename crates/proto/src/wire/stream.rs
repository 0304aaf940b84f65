//! Frames of streams: reliable bytes both ways, in symbols of a lane instead of an inner packet.
//!
//! ```text
//! symbol's body     20 | frame | frame | ...
//!
//! open              01 or 02 | id | priority:1 | destination | length | data      02: fin
//! data              03 or 04 | id | offset | length | data                        04: fin
//! acknowledged      05 | id | flags:1 | contiguous | credit - contiguous
//!                      | count:1 | count * { gap | length }
//! session credit    06 | credit
//! reset             07 or 08 | id | code:1 | final size                            08: an answer
//! stop              09 | id | code:1
//! opened            0a | id
//! priority          0b | id | change | priority:1
//! ```
//!
//! An inner packet begins with its IP version, 4 or 6, and its prefixes with 0 and 1, so the first
//! four bits, 0010, mark frames. Numbers without a width are QUIC's (RFC 9000 section 16), and so
//! are the terms: offset, final size, credit (QUIC's MAX_STREAM_DATA and MAX_DATA).
//!
//! Lanes give up and sessions change, so streams have acknowledgements of their own, by offset.

mod destination;
mod priority;
mod reset_code;
mod varint;

use std::ops::Range;

use bytes::{Buf, BufMut, Bytes};

pub use self::destination::Destination;
pub use self::priority::StreamPriority;
pub use self::reset_code::ResetCode;
pub use self::varint::{VARINT_MAX, put_varint};
use self::varint::{get_varint, varint_len};

/// The first byte of a symbol's body with frames.
pub const STREAM_TAG: u8 = 0x20;
/// Initial credit of each direction of a stream, bytes: about TCP's initial window (RFC 6928).
pub const STREAM_CREDIT: u64 = 16 << 10;
/// Initial credit of all streams of a direction together, bytes.
pub const SESSION_CREDIT: u64 = 256 << 10;
/// Initial credit of a stream whose far end takes bytes early, without waiting for a credit.
pub const EARLY_CREDIT: u64 = 256 << 10;
/// Most ranges of an acknowledgement.
pub const ACKNOWLEDGED_RANGES_MAX: usize = 32;

const KIND_OPEN: u8 = 0x01;
const KIND_OPEN_FIN: u8 = 0x02;
const KIND_DATA: u8 = 0x03;
const KIND_DATA_FIN: u8 = 0x04;
const KIND_ACKNOWLEDGED: u8 = 0x05;
const KIND_SESSION_CREDIT: u8 = 0x06;
const KIND_RESET: u8 = 0x07;
const KIND_RESET_ANSWER: u8 = 0x08;
const KIND_STOP: u8 = 0x09;
const KIND_OPENED: u8 = 0x0a;
const KIND_PRIORITY: u8 = 0x0b;

const FLAG_BEGUN: u8 = 1;
const FLAG_FIN: u8 = 2;

/// The number of a stream, at most [`VARINT_MAX`]: even if the client opened it, odd if the server
/// did (RFC 9000 section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// One end's name for its streams: a new epoch ends all streams before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamsEpoch(pub u64);

/// One end's offer of streams to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamsOffer {
    /// Its name for them.
    pub epoch: StreamsEpoch,
    /// It takes frames that change the priority of a stream.
    pub takes_priorities: bool,
    /// It takes [`EARLY_CREDIT`] of a stream that the other end opens, before it grants a credit.
    pub takes_early: bool,
}

/// One frame; data shares the memory of its input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamFrame {
    /// The first of a stream.
    Open(Open),
    /// Bytes of a stream; empty without `fin`, it asks for an acknowledgement.
    Data(Data),
    /// The bytes that the receiver of a stream has, and its credit.
    Acknowledged(Acknowledged),
    /// Credit for the sum of the highest offsets of all streams.
    SessionCredit(u64),
    /// Both directions of the stream are over.
    Reset {
        /// The stream.
        id: StreamId,
        /// Why.
        code: ResetCode,
        /// Bytes that its sender sent on the stream; 0 with [`ResetCode::Unknown`].
        final_size: u64,
        /// Whether it answers a frame, and so needs no answer.
        is_answer: bool,
    },
    /// The receiver wants no more of the stream.
    Stop {
        /// The stream.
        id: StreamId,
        /// Why.
        code: ResetCode,
    },
    /// The far end has connected; implied by the first data.
    Opened(StreamId),
    /// Changes the priority of the stream. Only for peers that take such frames.
    Priority {
        /// The stream.
        id: StreamId,
        /// Counts the sender's changes for this stream, from 1: the highest is valid.
        change: u64,
        /// The new priority.
        priority: StreamPriority,
    },
}

/// The first frame of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The stream.
    pub id: StreamId,
    /// The requested priority.
    pub priority: StreamPriority,
    /// The destination.
    pub destination: Destination,
    /// Whether the opener sends nothing after `data`.
    pub fin: bool,
    /// Its first bytes, as many as fit.
    pub data: Bytes,
}

/// Bytes of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// The stream.
    pub id: StreamId,
    /// The offset of the first byte; with the length at most [`VARINT_MAX`].
    pub offset: u64,
    /// Whether the stream ends after `data`.
    pub fin: bool,
    /// The bytes.
    pub data: Bytes,
}

/// The bytes that the receiver of one direction of a stream has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// The stream.
    pub id: StreamId,
    /// Whether the first frame of the direction has come: open, or opened.
    pub begun: bool,
    /// Whether the final size is known.
    pub fin: bool,
    /// All bytes below this offset have come, or are not wanted.
    pub contiguous: u64,
    /// The highest offset that may be sent.
    pub credit: u64,
    /// Received above, ascending, not empty or adjacent, at most [`ACKNOWLEDGED_RANGES_MAX`],
    /// within the credit.
    pub ranges: Vec<Range<u64>>,
}

/// Why bytes are not frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamFrameError {
    /// The body of the symbol does not begin with [`STREAM_TAG`].
    #[error("symbol holds no stream frames")]
    Tag,
    /// It ends within a frame.
    #[error("stream frame ends within a field")]
    Truncated,
    /// Unknown kind.
    #[error("stream frame of unknown kind {0}")]
    UnknownKind(u8),
    /// An unused bit is set.
    #[error("stream frame with bits {0:#04x}")]
    Bits(u8),
    /// An invalid destination: an unknown form, an invalid name, or port 0.
    #[error("stream to an invalid destination")]
    Destination,
    /// Bytes or credit beyond the largest offset.
    #[error("stream frame beyond the largest offset")]
    Offset,
    /// Too many, empty or adjacent ranges, or ranges beyond the credit.
    #[error("stream acknowledgement with invalid ranges")]
    Ranges,
}

/// The frames of a symbol's body; ends after the first broken one.
#[derive(Clone, Debug)]
pub struct StreamFrames(Bytes);

impl StreamFrames {
    /// The frames of `body`, which begins with [`STREAM_TAG`].
    pub fn new(mut body: Bytes) -> Result<Self, StreamFrameError> {
        match body.first() {
            Some(&STREAM_TAG) => {
                body.advance(1);
                Ok(Self(body))
            }
            _ => Err(StreamFrameError::Tag),
        }
    }
}

impl Iterator for StreamFrames {
    type Item = Result<StreamFrame, StreamFrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let frame = StreamFrame::take(&mut self.0);
        if frame.is_err() {
            self.0.clear();
        }
        Some(frame)
    }
}

impl StreamFrame {
    fn take(bytes: &mut Bytes) -> Result<Self, StreamFrameError> {
        let kind = byte(bytes)?;
        match kind {
            KIND_OPEN | KIND_OPEN_FIN => Ok(Self::Open(Open {
                id: id(bytes)?,
                priority: StreamPriority::from_byte(byte(bytes)?)?,
                destination: Destination::take(bytes)?,
                fin: kind == KIND_OPEN_FIN,
                data: data(bytes, 0)?,
            })),
            KIND_DATA | KIND_DATA_FIN => {
                let (id, offset) = (id(bytes)?, number(bytes)?);
                let fin = kind == KIND_DATA_FIN;
                Ok(Self::Data(Data { id, offset, fin, data: data(bytes, offset)? }))
            }
            KIND_ACKNOWLEDGED => Acknowledged::take(bytes).map(Self::Acknowledged),
            KIND_SESSION_CREDIT => number(bytes).map(Self::SessionCredit),
            KIND_RESET | KIND_RESET_ANSWER => Ok(Self::Reset {
                id: id(bytes)?,
                code: ResetCode::from_byte(byte(bytes)?),
                final_size: number(bytes)?,
                is_answer: kind == KIND_RESET_ANSWER,
            }),
            KIND_STOP => {
                Ok(Self::Stop { id: id(bytes)?, code: ResetCode::from_byte(byte(bytes)?) })
            }
            KIND_OPENED => id(bytes).map(Self::Opened),
            KIND_PRIORITY => Ok(Self::Priority {
                id: id(bytes)?,
                change: number(bytes)?,
                priority: StreamPriority::from_byte(byte(bytes)?)?,
            }),
            other => Err(StreamFrameError::UnknownKind(other)),
        }
    }

    /// The bytes that [`StreamFrame::write`] appends.
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::Open(open) => {
                Open::header_len(open.id, &open.destination, open.data.len()) + open.data.len()
            }
            Self::Data(data) => {
                Data::header_len(data.id, data.offset, data.data.len()) + data.data.len()
            }
            Self::Acknowledged(acknowledged) => acknowledged.encoded_len(),
            Self::SessionCredit(credit) => 1 + varint_len(*credit),
            Self::Reset { id, final_size, .. } => 2 + varint_len(id.0) + varint_len(*final_size),
            Self::Stop { id, .. } => 2 + varint_len(id.0),
            Self::Opened(id) => 1 + varint_len(id.0),
            Self::Priority { id, change, .. } => 2 + varint_len(id.0) + varint_len(*change),
        }
    }

    /// Appends the frame. Its numbers must be at most [`VARINT_MAX`], and ranges as
    /// [`Acknowledged::ranges`] says.
    pub fn write(&self, out: &mut impl BufMut) {
        match self {
            Self::Open(open) => {
                open.write_header(open.data.len(), out);
                out.put_slice(&open.data);
            }
            Self::Data(data) => {
                data.write_header(data.data.len(), out);
                out.put_slice(&data.data);
            }
            Self::Acknowledged(acknowledged) => acknowledged.write(out),
            Self::SessionCredit(credit) => {
                out.put_u8(KIND_SESSION_CREDIT);
                put_varint(out, *credit);
            }
            Self::Reset { id, code, final_size, is_answer } => {
                out.put_u8(if *is_answer { KIND_RESET_ANSWER } else { KIND_RESET });
                put_varint(out, id.0);
                out.put_u8(code.to_byte());
                put_varint(out, *final_size);
            }
            Self::Stop { id, code } => {
                out.put_u8(KIND_STOP);
                put_varint(out, id.0);
                out.put_u8(code.to_byte());
            }
            Self::Opened(id) => {
                out.put_u8(KIND_OPENED);
                put_varint(out, id.0);
            }
            Self::Priority { id, change, priority } => {
                out.put_u8(KIND_PRIORITY);
                put_varint(out, id.0);
                put_varint(out, *change);
                out.put_u8(priority.to_byte());
            }
        }
    }
}

impl Open {
    /// The bytes before `length` bytes of data.
    pub fn header_len(id: StreamId, destination: &Destination, length: usize) -> usize {
        2 + varint_len(id.0) + destination.encoded_len() + varint_len(length as u64)
    }

    /// Appends all but the data, `length` bytes that follow.
    pub fn write_header(&self, length: usize, out: &mut impl BufMut) {
        out.put_u8(if self.fin { KIND_OPEN_FIN } else { KIND_OPEN });
        put_varint(out, self.id.0);
        out.put_u8(self.priority.to_byte());
        self.destination.put(out);
        put_varint(out, length as u64);
    }
}

impl Data {
    /// The bytes before `length` bytes of data.
    pub fn header_len(id: StreamId, offset: u64, length: usize) -> usize {
        1 + varint_len(id.0) + varint_len(offset) + varint_len(length as u64)
    }

    /// Appends all but the data, `length` bytes that follow.
    pub fn write_header(&self, length: usize, out: &mut impl BufMut) {
        out.put_u8(if self.fin { KIND_DATA_FIN } else { KIND_DATA });
        put_varint(out, self.id.0);
        put_varint(out, self.offset);
        put_varint(out, length as u64);
    }
}

impl Acknowledged {
    fn take(bytes: &mut Bytes) -> Result<Self, StreamFrameError> {
        let (id, flags) = (id(bytes)?, byte(bytes)?);
        if flags & !(FLAG_BEGUN | FLAG_FIN) != 0 {
            return Err(StreamFrameError::Bits(flags));
        }
        let contiguous = number(bytes)?;
        let credit = contiguous + number(bytes)?;
        if credit > VARINT_MAX {
            return Err(StreamFrameError::Offset);
        }
        let count = usize::from(byte(bytes)?);
        if count > ACKNOWLEDGED_RANGES_MAX {
            return Err(StreamFrameError::Ranges);
        }
        let mut ranges = Vec::with_capacity(count);
        let mut below = contiguous;
        for _ in 0..count {
            let (gap, length) = (number(bytes)?, number(bytes)?);
            let range = below + gap..below + gap + length;
            if gap == 0 || length == 0 || range.end > credit {
                return Err(StreamFrameError::Ranges);
            }
            below = range.end;
            ranges.push(range);
        }
        let (begun, fin) = (flags & FLAG_BEGUN != 0, flags & FLAG_FIN != 0);
        Ok(Self { id, begun, fin, contiguous, credit, ranges })
    }

    fn encoded_len(&self) -> usize {
        let head = 3 + varint_len(self.id.0) + varint_len(self.contiguous);
        let head = head + varint_len(self.credit - self.contiguous);
        head + self.gaps().map(|(gap, length)| varint_len(gap) + varint_len(length)).sum::<usize>()
    }

    fn write(&self, out: &mut impl BufMut) {
        out.put_u8(KIND_ACKNOWLEDGED);
        put_varint(out, self.id.0);
        let begun = if self.begun { FLAG_BEGUN } else { 0 };
        out.put_u8(begun | if self.fin { FLAG_FIN } else { 0 });
        put_varint(out, self.contiguous);
        put_varint(out, self.credit - self.contiguous);
        out.put_u8(self.ranges.len() as u8);
        for (gap, length) in self.gaps() {
            put_varint(out, gap);
            put_varint(out, length);
        }
    }

    fn gaps(&self) -> impl Iterator<Item = (u64, u64)> {
        let ends = self.ranges.iter().map(|range| range.end);
        let below = std::iter::once(self.contiguous).chain(ends);
        let ranges = self.ranges.iter().zip(below);
        ranges.map(|(range, below)| (range.start - below, range.end - range.start))
    }
}

fn byte(bytes: &mut Bytes) -> Result<u8, StreamFrameError> {
    bytes.try_get_u8().map_err(|_| StreamFrameError::Truncated)
}

fn number(bytes: &mut Bytes) -> Result<u64, StreamFrameError> {
    get_varint(bytes).ok_or(StreamFrameError::Truncated)
}

fn id(bytes: &mut Bytes) -> Result<StreamId, StreamFrameError> {
    number(bytes).map(StreamId)
}

fn data(bytes: &mut Bytes, offset: u64) -> Result<Bytes, StreamFrameError> {
    let length = number(bytes)?;
    if length > bytes.len() as u64 {
        return Err(StreamFrameError::Truncated);
    }
    // RFC 9000 section 19.8: "The largest offset delivered on a stream -- the sum of the offset and
    // data length -- cannot exceed 2^62-1".
    if offset + length > VARINT_MAX {
        return Err(StreamFrameError::Offset);
    }
    Ok(bytes.split_to(length as usize))
}

#[cfg(test)]
mod tests;
