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

use super::table::StreamTable;
use crate::closed::{Closed, StreamReply};
use crate::config::Obligation;
use crate::credit::SendCredit;
use crate::priority::Rank;
use crate::send::Segment;
use crate::stream::{Ack, Stream};

struct Symbol {
    out: Vec<u8>,
    room: usize,
}

impl Symbol {
    fn new(room: usize) -> Self {
        let mut out = Vec::with_capacity(room.min(roadweave_proto::wire::MAX_SYMBOL_BODY));
        out.push(STREAM_TAG);
        Self { out, room }
    }

    fn room(&self) -> usize {
        self.room.saturating_sub(self.out.len())
    }

    fn put(&mut self, frame: &StreamFrame) -> bool {
        let fits = frame.encoded_len() <= self.room();
        if fits {
            frame.write(&mut self.out);
        }
        fits
    }

    fn put_data(&mut self, id: StreamId, stream: &Stream, segment: &Segment) {
        let Segment { offset, length, fin } = *segment;
        let header = Data { id, offset, fin, data: Bytes::new() };
        header.write_header(length as usize, &mut self.out);
        stream.send.copy_to(segment, &mut self.out);
    }

    fn finish(self) -> Option<Bytes> {
        (self.out.len() > 1).then(|| self.out.into())
    }
}

#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) credit: SendCredit,
    /// While new bytes wait for credit: when to ask for some, and how often that was in vain.
    pub(super) starved: Option<(Instant, u32)>,
    turns: u64,
}

impl Output {
    pub(super) fn handle_timeout(&mut self, now: Instant, table: &mut StreamTable) {
        let Some((_, attempts)) = self.starved.take_if(|(at, _)| *at <= now) else { return };
        if self.credit.room() == 0
            && let Some(id) = table.index.fresh.first().map(|rank| rank.id)
        {
            let attempts = attempts + 1;
            self.starved = Some((now + table.timing.retransmit_timeout(attempts), attempts));
            if let Some(stream) = table.streams.get_mut(&id) {
                stream.probe = Obligation::Due;
            }
            table.settle(now, id);
        }
    }

    pub(super) fn poll_transmit(
        &mut self,
        now: Instant,
        room: usize,
        table: &mut StreamTable,
    ) -> Option<Bytes> {
        let mut symbol = Symbol::new(room);
        if let Some(credit) = table.receive_credit.due()
            && symbol.put(&StreamFrame::SessionCredit(credit))
        {
            table.receive_credit.on_advertised();
        }
        put_answers(&mut table.closed, &mut symbol);
        while let Some(id) = table.index.control.first().copied() {
            let fits = put_control(now, id, table, &mut symbol);
            table.settle(now, id);
            if !fits {
                break;
            }
        }
        while let Some(rank) = self.next_rank(now, table) {
            let fits = self.put_stream(now, rank.id, table, &mut symbol);
            table.settle(now, rank.id);
            if !fits {
                break;
            }
        }
        let symbol = symbol.finish()?;
        table.stats.symbols += symbol.len() as u64;
        Some(symbol)
    }

    fn next_rank(&mut self, now: Instant, table: &StreamTable) -> Option<Rank> {
        let again = table.index.again.first().copied();
        let mut fresh = table.index.fresh.first().copied();
        if fresh.is_some() && self.credit.room() == 0 {
            let timeout = table.timing.retransmit_timeout(0);
            self.starved.get_or_insert((now + timeout, 0));
            fresh = None;
        }
        if table.index.records >= table.config.records_max() {
            fresh = None;
        }
        again.into_iter().chain(fresh).min()
    }

    fn put_stream(
        &mut self,
        now: Instant,
        id: StreamId,
        table: &mut StreamTable,
        symbol: &mut Symbol,
    ) -> bool {
        let credit = self.credit.room();
        let Some(stream) = table.streams.get_mut(&id) else { return false };
        let window = table.receive_credit.share(stream.receive.held());
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
        self.credit.used += fresh;
        table.stats.sent += fresh;
        table.stats.sent_again += length - fresh;
        true
    }
}

fn put_answers(closed: &mut Closed, symbol: &mut Symbol) {
    while let Some((&id, &answer)) = closed.answers.first_key_value() {
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
        closed.answers.pop_first();
    }
}

fn put_control(now: Instant, id: StreamId, table: &mut StreamTable, symbol: &mut Symbol) -> bool {
    let Some(stream) = table.streams.get_mut(&id) else { return true };
    let window = table.receive_credit.share(stream.receive.held());
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
    let from = segment.offset + segment.length - fresh;
    stream.precedence.on_fresh_sent(stream.priority, from, fresh);
    fresh
}

/// How many bytes fit, if that is all or enough to be worth a frame.
fn data_room(id: StreamId, all: &Segment, symbol: &Symbol) -> Option<u64> {
    let room = symbol.room();
    let room = room.checked_sub(Data::header_len(id, all.offset, room))? as u64;
    (room >= all.length.min(SEGMENT_MIN)).then_some(room)
}

/// Shorter data waits for the next symbol, unless it is all there is.
const SEGMENT_MIN: u64 = 64;
/// The largest encoding of an acknowledgement without ranges, and of one range.
const ACKNOWLEDGED_HEAD_MAX: usize = 27;
const ACKNOWLEDGED_RANGE_MAX: usize = 16;
