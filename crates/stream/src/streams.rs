//! All streams of one end of a session, as their user sees them.

mod crowding;
mod handle;
mod timeout;
mod transmit;

use std::collections::BTreeMap;

use roadweave_proto::wire::{Destination, ResetCode, StreamId, StreamPriority, StreamsOffer};
use roadweave_proto::{Instant, Urgency};

use self::crowding::Crowd;
use self::handle::{ANSWERS_MAX, StreamReply};
use crate::closed::{CLOSED_MAX, Closed, SEEN, SEEN_MAX, Tombstone};
use crate::config::{Config, Obligation, Stats, Timing};
use crate::credit::{ReceiveCredit, SendCredit};
use crate::error::{StreamError, Violation};
use crate::event::{Event, EventKind};
use crate::index::Index;
use crate::priority::Asked;
use crate::ring::SLACK;
use crate::stream::{Ack, RECORD, Stop, Stream};

/// All streams of one end of a session.
///
/// Any call may cause transmissions, events and another timeout. Calls with an `id` fail with
/// [`StreamError::NoSuchStream`] once the stream is over and its events were fetched.
#[derive(Debug)]
pub struct Streams {
    pub(crate) config: Config,
    pub(crate) timing: Timing,
    pub(crate) table: BTreeMap<StreamId, Box<Stream>>,
    pub(crate) index: Index,
    pub(crate) closed: Closed,
    pub(crate) answers: BTreeMap<StreamId, StreamReply>,
    pub(crate) send_credit: SendCredit,
    pub(crate) receive_credit: ReceiveCredit,
    pub(crate) crowd: Crowd,
    pub(crate) starved: Option<(Instant, u32)>,
    pub(crate) turns: u64,
    pub(crate) stats: Stats,
    pub(crate) violation: Option<Violation>,
    pub(crate) peer_takes_priorities: bool,
    peer_takes_early: bool,
    pub(crate) next_index: u64,
    ours: usize,
    freed: u64,
}

impl Streams {
    /// Creates an end without streams.
    pub fn new(config: Config) -> Self {
        Self {
            receive_credit: ReceiveCredit::new(config.receive_max),
            crowd: Crowd::default(),
            config,
            timing: Timing::default(),
            table: BTreeMap::new(),
            index: Index::default(),
            closed: Closed::default(),
            answers: BTreeMap::new(),
            send_credit: SendCredit::default(),
            starved: None,
            turns: 0,
            stats: Stats::default(),
            violation: None,
            peer_takes_priorities: false,
            peer_takes_early: false,
            next_index: 0,
            ours: 0,
            freed: 0,
        }
    }

    /// Sets the properties of the lane that carries the streams.
    pub fn set_timing(&mut self, timing: Timing) {
        self.timing = timing;
    }

    /// Opens a stream to `destination`. Bytes written before the next transmission leave with it.
    ///
    /// # Errors
    /// When too many are open, or the peer has violated the protocol.
    pub fn open(
        &mut self,
        now: Instant,
        destination: Destination,
        priority: StreamPriority,
    ) -> Result<StreamId, StreamError> {
        if let Some(violation) = self.violation {
            return Err(StreamError::Closed(violation));
        }
        if self.ours >= self.config.opened_max {
            return Err(StreamError::TooMany);
        }
        let id = StreamId(self.next_index << 1 | self.config.side as u64);
        self.next_index += 1;
        let mut stream = Stream::new(true, priority, &self.config);
        stream.destination = Some(Box::new(destination));
        if self.peer_takes_early {
            stream.send.raise_credit(self.send_credit.early());
        }
        self.insert(now, id, stream);
        self.receive_credit.update();
        Ok(id)
    }

    /// Reports that the destination of a stream of the peer is connected.
    ///
    /// # Errors
    /// When it was reset, or is not the peer's.
    pub fn accept(&mut self, now: Instant, id: StreamId) -> Result<(), StreamError> {
        let stream = self.usable(id)?;
        if stream.is_ours || !stream.begun {
            return Err(StreamError::NotAccepted);
        }
        if stream.begin == Obligation::None {
            stream.begin = Obligation::Due;
        }
        self.settle(now, id);
        Ok(())
    }

    /// Takes a prefix of `bytes` to be sent and returns its length. If that is not all,
    /// [`Event::Writable`] follows.
    ///
    /// A stream may fill what is free: n streams that write without end get one part of n + 1 each.
    ///
    /// # Errors
    /// When nothing may be written, or not yet.
    pub fn write(
        &mut self,
        now: Instant,
        id: StreamId,
        bytes: &[u8],
    ) -> Result<usize, StreamError> {
        let free = self.free();
        let stream = self.writable(id)?;
        let room = free.saturating_sub(stream.send.buffered());
        let taken = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        stream.send.write(&bytes[..taken]);
        stream.wants_room = taken < bytes.len();
        self.settle(now, id);
        Ok(taken)
    }

    /// How many bytes [`Streams::write`] would take. 0: too few to be worth a call;
    /// [`Event::Writable`] follows.
    ///
    /// # Errors
    /// As [`Streams::write`].
    pub fn room(&mut self, now: Instant, id: StreamId) -> Result<usize, StreamError> {
        let free = self.free();
        let enough = self.enough_room();
        let stream = self.writable(id)?;
        let room = free.saturating_sub(stream.send.buffered());
        stream.wants_room = room < enough;
        self.settle(now, id);
        Ok(if room < enough { 0 } else { usize::try_from(room).unwrap_or(usize::MAX) })
    }

    /// Ends writing; what was written is still sent, and the stream can be read.
    ///
    /// # Errors
    /// When the stream was reset, or was not accepted.
    pub fn finish(&mut self, now: Instant, id: StreamId) -> Result<(), StreamError> {
        let stream = self.usable(id)?;
        if !stream.is_ours && stream.begin == Obligation::None {
            return Err(StreamError::NotAccepted);
        }
        stream.send.finish();
        stream.wants_room = false;
        self.settle(now, id);
        Ok(())
    }

    /// Reads into `out`, in order; returns the number of bytes. 0: nothing is there, and
    /// [`Event::Readable`] or [`Event::Finished`] follows. Reading gives the peer more credit.
    ///
    /// # Errors
    /// When the stream was reset.
    pub fn read(
        &mut self,
        now: Instant,
        id: StreamId,
        out: &mut [u8],
    ) -> Result<usize, StreamError> {
        self.read_with(now, id, |pieces| {
            let mut length = 0;
            for piece in pieces {
                let taken = piece.len().min(out.len() - length);
                out[length..][..taken].copy_from_slice(&piece[..taken]);
                length += taken;
            }
            length
        })
    }

    /// As [`Streams::read`], without a copy: `take` gets two pieces, and returns how much it took.
    ///
    /// # Errors
    /// When the stream was reset.
    ///
    /// # Panics
    /// When `take` returns more than there was.
    pub fn read_with(
        &mut self,
        now: Instant,
        id: StreamId,
        take: impl FnOnce([&[u8]; 2]) -> usize,
    ) -> Result<usize, StreamError> {
        let stream = self.usable(id)?;
        let was_done = stream.receive.is_done();
        let length = take(stream.receive.peek());
        assert!(length as u64 <= stream.receive.readable(), "taken and not there");
        stream.receive.consume(length);
        stream.reading.is_announced = stream.receive.readable() > 0;
        if stream.receive.is_done() && !was_done {
            stream.events.add(EventKind::Finished);
        }
        self.receive_credit.on_consumed(length as u64);
        self.offer_credit(id);
        self.settle(now, id);
        Ok(length)
    }

    /// Stops reading: what comes is dropped. The stream can still be written.
    ///
    /// # Errors
    /// When the stream was reset.
    pub fn stop(&mut self, now: Instant, id: StreamId, code: ResetCode) -> Result<(), StreamError> {
        let stream = self.usable(id)?;
        let knows_end = stream.receive.final_size.is_some();
        let dropped = stream.receive.stop();
        stream.reading.is_announced = false;
        if knows_end {
            stream.ack = Ack::Now;
        } else if stream.stop.is_none() {
            stream.stop = Some(Stop { code, frame: Obligation::Due });
        }
        self.receive_credit.on_consumed(dropped);
        self.settle(now, id);
        Ok(())
    }

    /// Ends the stream in both directions; data in flight is lost.
    ///
    /// # Errors
    /// When it was reset before.
    pub fn reset(
        &mut self,
        now: Instant,
        id: StreamId,
        code: ResetCode,
    ) -> Result<(), StreamError> {
        self.usable(id)?;
        self.end(now, id, code);
        let stream = self.table.get_mut(&id).expect("it was there");
        stream.events.clear();
        self.settle(now, id);
        Ok(())
    }

    /// Sets which optional frames the peer accepts: changes of priority, and data before credit.
    pub fn set_peer_takes(&mut self, offer: Option<StreamsOffer>) {
        self.peer_takes_priorities = offer.is_some_and(|offer| offer.takes_priorities);
        self.peer_takes_early = offer.is_some_and(|offer| offer.takes_early);
    }

    /// Changes the priority at both ends of a stream that was opened here, if the peer accepts
    /// that. The frame is not acknowledged: the lane repairs it, and a new session repeats it.
    ///
    /// # Errors
    /// When the stream was reset.
    pub fn ask_priority(
        &mut self,
        now: Instant,
        id: StreamId,
        priority: StreamPriority,
    ) -> Result<(), StreamError> {
        let takes = self.peer_takes_priorities;
        let stream = self.usable(id)?;
        stream.priority = priority;
        if stream.is_ours && stream.asked.priority != priority {
            // The open frame carries it.
            match stream.begin == Obligation::Due {
                true => stream.asked = Asked::new(priority),
                false => stream.asked.ask(priority, takes),
            }
        }
        self.settle(now, id);
        Ok(())
    }

    /// The priority that was asked for last, by the stream's opener or since.
    ///
    /// # Errors
    /// When the stream was reset.
    pub fn asked_priority(&mut self, id: StreamId) -> Result<StreamPriority, StreamError> {
        self.usable(id).map(|stream| stream.asked.priority)
    }

    /// Changes the priority of the bytes that this end sends, until the peer asks for another. A
    /// priority above the default holds as far as [`Config::favour`] goes.
    ///
    /// # Errors
    /// When the stream was reset.
    pub fn set_priority(
        &mut self,
        now: Instant,
        id: StreamId,
        priority: StreamPriority,
    ) -> Result<(), StreamError> {
        self.usable(id)?.priority = priority;
        self.settle(now, id);
        Ok(())
    }

    /// Sends the bytes before offset `bytes` before everything else, beside those of
    /// [`Config::head`], up to [`Config::favour`] bytes: a first video frame, say.
    ///
    /// # Errors
    /// When the stream was reset.
    pub fn set_head(&mut self, now: Instant, id: StreamId, bytes: u64) -> Result<(), StreamError> {
        self.usable(id)?.precedence.head = bytes;
        self.settle(now, id);
        Ok(())
    }

    /// The next event; call until `None`. A stream with unfetched events counts as open.
    pub fn poll_event(&mut self, now: Instant) -> Option<Event> {
        let id = *self.index.eventful.first()?;
        let stream = self.table.get_mut(&id)?;
        let kind = stream.events.take()?;
        let event = match kind {
            EventKind::Opened => {
                let destination = *stream.destination.take().expect("kept until it is told");
                Event::Opened { id, destination, priority: stream.priority }
            }
            EventKind::Connected => Event::Connected(id),
            EventKind::Readable => Event::Readable(id),
            EventKind::Writable => Event::Writable(id),
            EventKind::Stopped => {
                let code = stream.stopped_by_peer.unwrap_or(ResetCode::Other);
                Event::Stopped { id, code }
            }
            EventKind::Acknowledged => Event::Acknowledged(id),
            EventKind::Finished => Event::Finished(id),
            EventKind::Reset => {
                let (code, by_peer) = stream
                    .reset
                    .map_or((ResetCode::Other, false), |reset| (reset.code, reset.by_peer));
                Event::Reset { id, code, by_peer }
            }
        };
        self.settle(now, id);
        Some(event)
    }

    /// Whether [`Streams::poll_transmit`] may have something to send.
    pub fn has_frames(&self) -> bool {
        let index = &self.index;
        let has_data = !index.again.is_empty() || !index.fresh.is_empty();
        let owes = !index.control.is_empty() || !self.answers.is_empty();
        has_data || owes || self.receive_credit.due().is_some()
    }

    /// The urgency of the data that leaves next; [`Urgency::LAST`] if no data may leave.
    pub fn next_urgency(&self) -> Urgency {
        let may_send = self.send_credit.room() > 0 && self.index.records < self.records_max();
        let fresh = self.index.fresh.first().filter(|_| may_send);
        let next = self.index.again.first().into_iter().chain(fresh).min();
        next.map_or(Urgency::LAST, |rank| rank.urgency)
    }

    /// Whether [`Streams::poll_event`] has an event.
    pub fn has_events(&self) -> bool {
        !self.index.eventful.is_empty()
    }

    /// The violation that has ended all streams.
    pub fn violation(&self) -> Option<Violation> {
        self.violation
    }

    /// Streams that are open, or not yet over at both ends.
    pub fn open_streams(&self) -> usize {
        self.table.len()
    }

    /// How many more [`Streams::open`] opens now.
    pub fn free_streams(&self) -> usize {
        match self.violation {
            Some(_) => 0,
            None => self.config.opened_max.saturating_sub(self.ours),
        }
    }

    /// Bytes written and never sent, as far as session credit allows.
    pub fn unsent(&self) -> u64 {
        self.index.unsent.min(self.send_credit.room())
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Bytes of memory: exact for buffers, estimated for tables.
    pub fn memory(&self) -> usize {
        let streams: usize = self.table.values().map(|stream| stream.memory()).sum();
        streams + self.table.len() * INDEXED + self.closed.memory() + self.answers.len() * RECORD
    }

    /// Resets the streams that hold most, until all together hold at most `bytes`.
    pub fn shed(&mut self, now: Instant, bytes: usize) {
        let holders = self.table.iter().map(|(id, stream)| (stream.memory(), *id));
        let mut holders: Vec<(usize, StreamId)> = holders.collect();
        holders.sort_unstable_by(|a, b| b.cmp(a));
        let mut excess = self.memory().saturating_sub(bytes);
        for (held, id) in holders {
            if excess == 0 {
                return;
            }
            if self.table.get(&id).is_some_and(|stream| stream.reset.is_none()) {
                self.end(now, id, ResetCode::TooMany);
                let left = self.table.get(&id).map_or(0, |stream| stream.memory());
                excess = excess.saturating_sub(held.saturating_sub(left));
            }
        }
    }

    /// The upper bound of [`Streams::memory`].
    pub fn memory_max(&self) -> usize {
        let config = &self.config;
        let streams = config.opened_max + config.accepted_max;
        let receive_max = self.receive_credit.window;
        let ranges = self.held_ranges_max() + streams * crate::receive::RANGES_MIN;
        let ranges = ranges.min(receive_max as usize);
        let each = size_of::<(StreamId, Stream)>() + size_of::<Destination>() + 256 + INDEXED;
        let buffers = 4 * (receive_max + config.send_max) as usize + 2 * streams * SLACK;
        let closed = 2 * (CLOSED_MAX * 64 + SEEN_MAX * SEEN) + ANSWERS_MAX * RECORD;
        let records = self.records_max() + roadweave_proto::wire::ACKNOWLEDGED_RANGES_MAX;
        streams * each + buffers + closed + (ranges + records) * RECORD
    }

    pub(crate) fn records_max(&self) -> usize {
        (self.config.send_max / 512) as usize + self.config.opened_max + self.config.accepted_max
    }

    /// Beside `RANGES_MIN` of each stream; segments and gaps are rarely shorter than the divisor.
    pub(crate) fn held_ranges_max(&self) -> usize {
        (self.receive_credit.window / 1024) as usize
    }

    pub(crate) fn insert(&mut self, now: Instant, id: StreamId, stream: Stream) {
        self.ours += usize::from(stream.is_ours);
        self.table.insert(id, Box::new(stream));
        self.settle(now, id);
    }

    pub(crate) fn theirs(&self) -> usize {
        self.table.len() - self.ours
    }

    pub(crate) fn is_ours(&self, id: StreamId) -> bool {
        id.0 & 1 == self.config.side as u64
    }

    pub(crate) fn end(&mut self, now: Instant, id: StreamId, code: ResetCode) {
        let Some(stream) = self.table.get_mut(&id) else { return };
        let dropped = stream.receive.stop();
        stream.end(code, false, false);
        self.receive_credit.on_consumed(dropped);
        self.settle(now, id);
    }

    pub(crate) fn offer_credit(&mut self, id: StreamId) {
        if let Some(stream) = self.table.get_mut(&id)
            && stream.receive.highest > 0
            && stream.receive.wants_to_advertise(self.receive_credit.share(stream.receive.held()))
        {
            stream.ack = Ack::Now;
        }
    }

    pub(crate) fn settle(&mut self, now: Instant, id: StreamId) {
        let Some(stream) = self.table.get_mut(&id) else { return };
        stream.arm(now, &self.timing, self.config.give_up_after);
        stream.watch_reader(now);
        let is_over = stream.is_over();
        let new = if is_over { Default::default() } else { stream.listing(id) };
        let old = std::mem::replace(&mut stream.listed, new);
        self.index.update(id, old, new);
        self.freed += old.buffered.saturating_sub(new.buffered);
        if is_over {
            let stream = self.table.remove(&id).expect("it was there");
            self.ours -= usize::from(stream.is_ours);
            let tombstone = Tombstone {
                code: stream.reset.map(|reset| reset.code),
                sent: stream.send.next,
                received: stream.receive.highest,
                is_final: stream.receive.final_size.is_some(),
            };
            self.closed.insert(id, tombstone);
        }
        self.note_crowding(now);
        if old.wants_room && new.wants_room && new.buffered < old.buffered {
            self.offer_room(id);
        }
        if self.freed >= self.config.send_max / 16 || self.index.buffered == 0 {
            self.freed = 0;
            let waiting: Vec<StreamId> = self.index.want_room.iter().copied().collect();
            waiting.into_iter().for_each(|id| self.offer_room(id));
        }
    }

    fn offer_room(&mut self, id: StreamId) {
        let free = self.free();
        let enough = self.enough_room();
        let Some(stream) = self.table.get_mut(&id) else { return };
        if stream.wants_room && free.saturating_sub(stream.send.buffered()) >= enough {
            stream.wants_room = false;
            stream.events.add(EventKind::Writable);
            let new = stream.listing(id);
            let old = std::mem::replace(&mut stream.listed, new);
            self.index.update(id, old, new);
        }
    }

    fn free(&self) -> u64 {
        self.config.send_max.saturating_sub(self.index.buffered)
    }

    fn enough_room(&self) -> u64 {
        (self.config.send_max / 64).clamp(1, roadweave_proto::wire::STREAM_CREDIT)
    }

    fn writable(&mut self, id: StreamId) -> Result<&mut Stream, StreamError> {
        let stream = self.usable(id)?;
        if !stream.is_ours && stream.begin == Obligation::None {
            return Err(StreamError::NotAccepted);
        }
        if !stream.send.is_open() {
            return Err(StreamError::Finished);
        }
        Ok(stream)
    }

    fn usable(&mut self, id: StreamId) -> Result<&mut Stream, StreamError> {
        let stream = self.table.get_mut(&id).ok_or(StreamError::NoSuchStream)?;
        match stream.reset {
            Some(reset) => Err(StreamError::Reset(reset.code)),
            None => Ok(stream),
        }
    }
}

const INDEXED: usize = 384;
