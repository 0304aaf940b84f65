//! Output: the frames of one symbol.
//!
//! ```text
//! credit of the session ─► answers ─► control: reset, opened, stop, acknowledged, probe
//!     ─► open and data by rank: what was lost, then what is new, while there is credit for it
//! ```

use bytes::Bytes;
use roadweave_proto::Instant;
use roadweave_proto::wire::{
    ACKNOWLEDGED_RANGES_MAX, Acknowledged, Data, Open, STREAM_TAG, StreamFrame, StreamId,
};

use super::Streams;
use super::handle::StreamReply;
use crate::config::Obligation;
use crate::priority::Rank;
use crate::send::Segment;
use crate::stream::{Ack, Stream};

pub(crate) struct Symbol {
    out: Vec<u8>,
    room: usize,
}

impl Symbol {
    pub(crate) fn new(room: usize) -> Self {
        let mut out = Vec::with_capacity(room.min(roadweave_proto::wire::MAX_SYMBOL_BODY));
        out.push(STREAM_TAG);
        Self { out, room }
    }

    pub(crate) fn room(&self) -> usize {
        self.room.saturating_sub(self.out.len())
    }

    fn put(&mut self, frame: &StreamFrame) -> bool {
        let fits = frame.encoded_len() <= self.room();
        if fits {
            frame.write(&mut self.out);
        }
        fits
    }

    pub(crate) fn put_data(&mut self, id: StreamId, stream: &Stream, segment: &Segment) {
        let Segment { offset, length, fin } = *segment;
        let header = Data { id, offset, fin, data: Bytes::new() };
        header.write_header(length as usize, &mut self.out);
        stream.send.copy_to(segment, &mut self.out);
    }

    pub(crate) fn finish(self) -> Option<Bytes> {
        (self.out.len() > 1).then(|| self.out.into())
    }
}

impl Streams {
    /// The body of the next symbol, of at most `room` bytes; call until `None`, or until the lane
    /// takes no more. Below 300 bytes a stream to a long name cannot be opened.
    pub fn poll_transmit(&mut self, now: Instant, room: usize) -> Option<Bytes> {
        let mut symbol = Symbol::new(room);
        if let Some(credit) = self.receive_credit.due()
            && symbol.put(&StreamFrame::SessionCredit(credit))
        {
            self.receive_credit.on_advertised();
        }
        self.put_answers(&mut symbol);
        while let Some(id) = self.index.control.first().copied() {
            let fits = self.put_control(now, id, &mut symbol);
            self.settle(now, id);
            if !fits {
                break;
            }
        }
        while let Some(rank) = self.next_rank(now) {
            let fits = self.put_stream(now, rank.id, &mut symbol);
            self.settle(now, rank.id);
            if !fits {
                break;
            }
        }
        let symbol = symbol.finish()?;
        self.stats.symbols += symbol.len() as u64;
        Some(symbol)
    }

    fn put_answers(&mut self, symbol: &mut Symbol) {
        while let Some((&id, &answer)) = self.answers.first_key_value() {
            let frame = match answer {
                StreamReply::Whole(size) => StreamFrame::Acknowledged(Acknowledged {
                    id,
                    begun: true,
                    fin: true,
                    contiguous: size,
                    credit: size,
                    ranges: Vec::new(),
                }),
                StreamReply::Reset { code, final_size } => {
                    StreamFrame::Reset { id, code, final_size, is_answer: true }
                }
            };
            if !symbol.put(&frame) {
                break;
            }
            self.answers.pop_first();
        }
    }

    fn put_control(&mut self, now: Instant, id: StreamId, symbol: &mut Symbol) -> bool {
        let Some(stream) = self.table.get_mut(&id) else { return true };
        let window = self.receive_credit.share(stream.receive.held());
        if let Some(reset) = &mut stream.reset {
            let final_size = stream.send.next;
            let (code, is_answer) = (reset.code, reset.is_agreed && reset.by_peer);
            let fits = symbol.put(&StreamFrame::Reset { id, code, final_size, is_answer });
            if fits {
                reset.frame = if reset.is_agreed { Obligation::Met } else { Obligation::Sent(now) };
            }
            return fits;
        }
        if !stream.is_ours && stream.begin.is_due() {
            if !symbol.put(&StreamFrame::Opened(id)) {
                return false;
            }
            stream.begin = Obligation::Sent(now);
        }
        if let Some(stop) = &mut stream.stop
            && stop.frame.is_due()
        {
            if !symbol.put(&StreamFrame::Stop { id, code: stop.code }) {
                return false;
            }
            stop.frame = Obligation::Sent(now);
        }
        if stream.asked.is_due {
            let (change, priority) = (stream.asked.change, stream.asked.priority);
            if !symbol.put(&StreamFrame::Priority { id, change, priority }) {
                return false;
            }
            stream.asked.is_due = false;
        }
        if stream.ack == Ack::Now && !put_acknowledgement(id, stream, window, symbol) {
            return false;
        }
        if stream.probe.is_due() {
            let probe = Segment { offset: stream.send.next, length: 0, fin: false };
            if Data::header_len(id, probe.offset, 0) > symbol.room() {
                return false;
            }
            symbol.put_data(id, stream, &probe);
            stream.probe = Obligation::Sent(now);
        }
        true
    }

    fn next_rank(&mut self, now: Instant) -> Option<Rank> {
        let again = self.index.again.first().copied();
        let mut fresh = self.index.fresh.first().copied();
        if fresh.is_some() && self.send_credit.room() == 0 {
            let timeout = self.timing.retransmit_timeout(0);
            self.starved.get_or_insert((now + timeout, 0));
            fresh = None;
        }
        if self.index.records >= self.records_max() {
            fresh = None;
        }
        again.into_iter().chain(fresh).min()
    }

    fn put_stream(&mut self, now: Instant, id: StreamId, symbol: &mut Symbol) -> bool {
        let credit = self.send_credit.room();
        let Some(stream) = self.table.get_mut(&id) else { return false };
        let window = self.receive_credit.share(stream.receive.held());
        let opens = stream.is_ours && stream.begin.is_due();
        let sent = if opens {
            let sent = put_open(now, id, stream, credit, symbol);
            if sent.is_some() {
                // Grants credit for the answer at once.
                put_acknowledgement(id, stream, window, symbol);
            }
            sent
        } else {
            if matches!(stream.ack, Ack::By(_)) {
                put_acknowledgement(id, stream, window, symbol);
            }
            put_segment(now, id, stream, credit, symbol)
        };
        let Some((length, fresh)) = sent else { return false };
        self.turns += 1;
        stream.precedence.turn = self.turns;
        self.send_credit.used += fresh;
        self.stats.sent += fresh;
        self.stats.sent_again += length - fresh;
        true
    }
}

fn put_acknowledgement(
    id: StreamId,
    stream: &mut Stream,
    window: u64,
    symbol: &mut Symbol,
) -> bool {
    let Some(spare) = symbol.room().checked_sub(ACKNOWLEDGED_HEAD_MAX) else { return false };
    let ranges_max = ACKNOWLEDGED_RANGES_MAX.min(spare / ACKNOWLEDGED_RANGE_MAX);
    let acknowledged = stream.acknowledgement(id, window, ranges_max);
    stream.ack = Ack::None;
    symbol.put(&StreamFrame::Acknowledged(acknowledged))
}

/// Appends the open frame with first bytes that fit; returns its bytes, and how many are new.
fn put_open(
    now: Instant,
    id: StreamId,
    stream: &mut Stream,
    credit: u64,
    symbol: &mut Symbol,
) -> Option<(u64, u64)> {
    let destination = stream.destination.as_deref()?.clone();
    let room = symbol.room().checked_sub(ACKNOWLEDGED_HEAD_MAX)?;
    let room = room.checked_sub(Open::header_len(id, &destination, room))?;
    let segment = stream.send.first(room as u64, credit);
    let (priority, fin) = (stream.asked.priority, segment.fin);
    let header = Open { id, priority, destination, fin, data: Bytes::new() };
    header.write_header(segment.length as usize, &mut symbol.out);
    stream.send.copy_to(&segment, &mut symbol.out);
    stream.begin = Obligation::Sent(now);
    Some((segment.length, sent(now, stream, &segment)))
}

fn put_segment(
    now: Instant,
    id: StreamId,
    stream: &mut Stream,
    credit: u64,
    symbol: &mut Symbol,
) -> Option<(u64, u64)> {
    let all = stream.send.again(u64::MAX).or_else(|| stream.send.fresh(credit))?;
    let room = data_room(id, &all, symbol)?;
    let segment = stream.send.again(room).or_else(|| stream.send.fresh(room.min(credit)))?;
    symbol.put_data(id, stream, &segment);
    Some((segment.length, sent(now, stream, &segment)))
}

fn sent(now: Instant, stream: &mut Stream, segment: &Segment) -> u64 {
    let fresh = stream.send.on_sent(now, segment);
    stream.on_fresh_sent(segment.offset + segment.length - fresh, fresh);
    fresh
}

/// How many bytes fit, if that is all or enough to be worth a frame.
pub(crate) fn data_room(id: StreamId, all: &Segment, symbol: &Symbol) -> Option<u64> {
    let room = symbol.room();
    let room = room.checked_sub(Data::header_len(id, all.offset, room))? as u64;
    (room >= all.length.min(SEGMENT_MIN)).then_some(room)
}

/// Shorter data waits for the next symbol, unless it is all there is.
const SEGMENT_MIN: u64 = 64;
/// The largest encoding of an acknowledgement without ranges, and of one range.
const ACKNOWLEDGED_HEAD_MAX: usize = 27;
const ACKNOWLEDGED_RANGE_MAX: usize = 16;
