//! All streams of one end of a session, as their user sees them.

mod crowding;
mod recipient;
mod table;
mod transmit;

use bytes::Bytes;
use roadweave_proto::wire::{
    Destination, ResetCode, StreamFrame, StreamFrames, StreamId, StreamPriority, StreamsOffer,
};
use roadweave_proto::{Instant, Urgency, earliest};

use self::table::StreamTable;
use self::transmit::Output;
use crate::closed::{CLOSED_MEMORY_MAX, Tombstone};
use crate::config::{Config, Obligation, Stats, Timing};
use crate::error::{HandleError, StreamError, Violation};
use crate::event::{Event, EventKind};
use crate::priority::Asked;
use crate::ring::SLACK;
use crate::stream::{Ack, RECORD, Stop, Stream};

/// All streams of one end of a session.
///
/// Any call may cause transmissions, events and another timeout. Calls with an `id` fail with
/// [`StreamError::NoSuchStream`] once the stream is over and its events were fetched.
#[derive(Debug)]
pub struct Streams {
    pub(crate) table: StreamTable,
    output: Output,
    violation: Option<Violation>,
    peer_takes_priorities: bool,
    peer_takes_early: bool,
    next_index: u64,
}

impl Streams {
    /// Creates an end without streams.
    pub fn new(config: Config) -> Self {
        Self {
            table: StreamTable::new(config),
            output: Output::default(),
            violation: None,
            peer_takes_priorities: false,
            peer_takes_early: false,
            next_index: 0,
        }
    }

    /// Sets the properties of the lane that carries the streams.
    pub fn set_timing(&mut self, timing: Timing) {
        self.table.timing = timing;
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
        if self.table.ours >= self.table.config.opened_max {
            return Err(StreamError::TooMany);
        }
        let id = StreamId(self.next_index << 1 | self.table.config.side as u64);
        self.next_index += 1;
        let mut stream = Stream::new(true, priority, &self.table.config);
        stream.destination = Some(Box::new(destination));
        if self.peer_takes_early {
            stream.send.raise_credit(self.output.credit.early());
        }
        self.table.insert(now, id, stream);
        self.table.receive_credit.update();
        Ok(id)
    }

    /// Reports that the destination of a stream of the peer is connected.
    ///
    /// # Errors
    /// When it was reset, or is not the peer's.
    pub fn accept(&mut self, now: Instant, id: StreamId) -> Result<(), StreamError> {
        let stream = self.table.usable(id)?;
        if stream.is_ours || !stream.begun {
            return Err(StreamError::NotAccepted);
        }
        if stream.begin == Obligation::None {
            stream.begin = Obligation::Due;
        }
        self.table.settle(now, id);
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
        let free = self.table.free();
        let stream = self.table.writable(id)?;
        let room = free.saturating_sub(stream.send.buffered());
        let taken = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        stream.send.write(&bytes[..taken]);
        stream.wants_room = taken < bytes.len();
        self.table.settle(now, id);
        Ok(taken)
    }

    /// How many bytes [`Streams::write`] would take. 0: too few to be worth a call;
    /// [`Event::Writable`] follows.
    ///
    /// # Errors
    /// As [`Streams::write`].
    pub fn room(&mut self, now: Instant, id: StreamId) -> Result<usize, StreamError> {
        let free = self.table.free();
        let enough = self.table.enough_room();
        let stream = self.table.writable(id)?;
        let room = free.saturating_sub(stream.send.buffered());
        stream.wants_room = room < enough;
        self.table.settle(now, id);
        Ok(if room < enough { 0 } else { usize::try_from(room).unwrap_or(usize::MAX) })
    }

    /// Ends writing; what was written is still sent, and the stream can be read.
    ///
    /// # Errors
    /// When the stream was reset, or was not accepted.
    pub fn finish(&mut self, now: Instant, id: StreamId) -> Result<(), StreamError> {
        let stream = self.table.usable(id)?;
        if !stream.is_ours && stream.begin == Obligation::None {
            return Err(StreamError::NotAccepted);
        }
        stream.send.finish();
        stream.wants_room = false;
        self.table.settle(now, id);
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
        let stream = self.table.usable(id)?;
        let was_done = stream.receive.is_done();
        let length = take(stream.receive.peek());
        assert!(length as u64 <= stream.receive.readable(), "taken and not there");
        stream.receive.consume(length);
        stream.reading.is_announced = stream.receive.readable() > 0;
        if stream.receive.is_done() && !was_done {
            stream.events.add(EventKind::Finished);
        }
        self.table.receive_credit.on_consumed(length as u64);
        if let Some(stream) = self.table.streams.get_mut(&id) {
            stream.offer_credit(&self.table.receive_credit);
        }
        self.table.settle(now, id);
        Ok(length)
    }

    /// Stops reading: what comes is dropped. The stream can still be written.
    ///
    /// # Errors
    /// When the stream was reset.
    pub fn stop(&mut self, now: Instant, id: StreamId, code: ResetCode) -> Result<(), StreamError> {
        let stream = self.table.usable(id)?;
        let knows_end = stream.receive.final_size.is_some();
        let dropped = stream.receive.stop();
        stream.reading.is_announced = false;
        if knows_end {
            stream.ack = Ack::Now;
        } else if stream.stop.is_none() {
            stream.stop = Some(Stop { code, frame: Obligation::Due });
        }
        self.table.receive_credit.on_consumed(dropped);
        self.table.settle(now, id);
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
        self.table.usable(id)?;
        self.table.end(now, id, code);
        let stream = self.table.streams.get_mut(&id).expect("it was there");
        stream.events.clear();
        self.table.settle(now, id);
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
        let stream = self.table.usable(id)?;
        stream.priority = priority;
        if stream.is_ours && stream.asked.priority != priority {
            // The open frame carries it.
            match stream.begin == Obligation::Due {
                true => stream.asked = Asked::new(priority),
                false => stream.asked.ask(priority, takes),
            }
        }
        self.table.settle(now, id);
        Ok(())
    }

    /// The priority that was asked for last, by the stream's opener or since.
    ///
    /// # Errors
    /// When the stream was reset.
    pub fn asked_priority(&mut self, id: StreamId) -> Result<StreamPriority, StreamError> {
        self.table.usable(id).map(|stream| stream.asked.priority)
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
        self.table.usable(id)?.priority = priority;
        self.table.settle(now, id);
        Ok(())
    }

    /// Sends the bytes before offset `bytes` before everything else, beside those of
    /// [`Config::head`], up to [`Config::favour`] bytes: a first video frame, say.
    ///
    /// # Errors
    /// When the stream was reset.
    pub fn set_head(&mut self, now: Instant, id: StreamId, bytes: u64) -> Result<(), StreamError> {
        self.table.usable(id)?.precedence.head = bytes;
        self.table.settle(now, id);
        Ok(())
    }

    /// The next event; call until `None`. A stream with unfetched events counts as open.
    pub fn poll_event(&mut self, now: Instant) -> Option<Event> {
        let id = *self.table.index.eventful.first()?;
        let stream = self.table.streams.get_mut(&id)?;
        let event = stream.take_event(id)?;
        self.table.settle(now, id);
        Some(event)
    }

    /// Whether [`Streams::poll_transmit`] may have something to send.
    pub fn has_frames(&self) -> bool {
        let index = &self.table.index;
        let has_data = !index.again.is_empty() || !index.fresh.is_empty();
        let owes = !index.control.is_empty() || !self.table.closed.answers.is_empty();
        has_data || owes || self.table.receive_credit.due().is_some()
    }

    /// The urgency of the data that leaves next; [`Urgency::LAST`] if no data may leave.
    pub fn next_urgency(&self) -> Urgency {
        let may_send = self.output.credit.room() > 0
            && self.table.index.records < self.table.config.records_max();
        let fresh = self.table.index.fresh.first().filter(|_| may_send);
        let next = self.table.index.again.first().into_iter().chain(fresh).min();
        next.map_or(Urgency::LAST, |rank| rank.urgency)
    }

    /// Whether [`Streams::poll_event`] has an event.
    pub fn has_events(&self) -> bool {
        !self.table.index.eventful.is_empty()
    }

    /// The violation that has ended all streams.
    pub fn violation(&self) -> Option<Violation> {
        self.violation
    }

    /// Streams that are open, or not yet over at both ends.
    pub fn open_streams(&self) -> usize {
        self.table.streams.len()
    }

    /// How many more [`Streams::open`] opens now.
    pub fn free_streams(&self) -> usize {
        match self.violation {
            Some(_) => 0,
            None => self.table.config.opened_max.saturating_sub(self.table.ours),
        }
    }

    /// Bytes written and never sent, as far as session credit allows.
    pub fn unsent(&self) -> u64 {
        self.table.index.unsent.min(self.output.credit.room())
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        self.table.stats
    }

    /// Bytes of memory: exact for buffers, estimated for tables.
    pub fn memory(&self) -> usize {
        let streams: usize = self.table.streams.values().map(|stream| stream.memory()).sum();
        streams + self.table.streams.len() * INDEXED + self.table.closed.memory()
    }

    /// Resets the streams that hold most, until all together hold at most `bytes`.
    pub fn shed(&mut self, now: Instant, bytes: usize) {
        let holders = self.table.streams.iter().map(|(id, stream)| (stream.memory(), *id));
        let mut holders: Vec<(usize, StreamId)> = holders.collect();
        holders.sort_unstable_by(|a, b| b.cmp(a));
        let mut excess = self.memory().saturating_sub(bytes);
        for (held, id) in holders {
            if excess == 0 {
                return;
            }
            if self.table.streams.get(&id).is_some_and(|stream| stream.reset.is_none()) {
                self.table.end(now, id, ResetCode::TooMany);
                let left = self.table.streams.get(&id).map_or(0, |stream| stream.memory());
                excess = excess.saturating_sub(held.saturating_sub(left));
            }
        }
    }

    /// The upper bound of [`Streams::memory`].
    pub fn memory_max(&self) -> usize {
        let config = &self.table.config;
        let streams = config.opened_max + config.accepted_max;
        let receive_max = self.table.receive_credit.window;
        let ranges = self.table.held_ranges_max() + streams * crate::receive::RANGES_MIN;
        let ranges = ranges.min(receive_max as usize);
        let each = size_of::<(StreamId, Stream)>() + size_of::<Destination>() + 256 + INDEXED;
        let buffers = 4 * (receive_max + config.send_max) as usize + 2 * streams * SLACK;
        let records = config.records_max() + roadweave_proto::wire::ACKNOWLEDGED_RANGES_MAX;
        streams * each + buffers + CLOSED_MEMORY_MAX + (ranges + records) * RECORD
    }

    /// Takes the body of a symbol that begins with [`STREAM_TAG`](roadweave_proto::wire::STREAM_TAG).
    ///
    /// # Errors
    /// When it is malformed; or when the peer violated the protocol, so that all streams are over
    /// (returned once; [`Streams::violation`] keeps it).
    pub fn handle_symbol(&mut self, now: Instant, body: Bytes) -> Result<(), HandleError> {
        let frames = StreamFrames::new(body).inspect_err(|_| self.table.stats.malformed += 1)?;
        for frame in frames {
            let frame = frame.inspect_err(|_| self.table.stats.malformed += 1)?;
            if let Err(violation) = self.handle_frame(now, frame) {
                self.close(now, violation);
                return Err(violation.into());
            }
        }
        Ok(())
    }

    /// The body of the next symbol, of at most `room` bytes; call until `None`, or until the lane
    /// takes no more. Below 300 bytes a stream to a long name cannot be opened.
    pub fn poll_transmit(&mut self, now: Instant, room: usize) -> Option<Bytes> {
        self.output.poll_transmit(now, room, &mut self.table)
    }

    /// When to call [`Streams::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timer = self.table.index.timers.first().map(|(at, _)| *at);
        earliest([timer, self.output.starved.map(|(at, _)| at), self.table.crowd.look_at])
    }

    /// Handles expired timers; may be called at any time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.table.handle_timeout(now);
        self.output.handle_timeout(now, &mut self.table);
    }

    /// The lanes belong to another session: all that is not acknowledged is sent again at once.
    pub fn on_new_session(&mut self, now: Instant) {
        self.table.on_new_session(now, self.peer_takes_priorities);
        self.output.starved = self.output.starved.map(|_| (now, 0));
    }

    fn handle_frame(&mut self, now: Instant, frame: StreamFrame) -> Result<(), Violation> {
        let (id, begins) = match &frame {
            StreamFrame::SessionCredit(credit) => {
                if self.output.credit.raise(*credit) {
                    self.output.starved = None;
                }
                return Ok(());
            }
            StreamFrame::Open(open) => (open.id, true),
            StreamFrame::Data(data) => (data.id, true),
            StreamFrame::Acknowledged(acknowledged) => (acknowledged.id, false),
            StreamFrame::Reset { id, .. } => (*id, false),
            StreamFrame::Stop { id, .. } => (*id, true),
            StreamFrame::Opened(id) | StreamFrame::Priority { id, .. } => (*id, false),
        };
        let is_of_wrong_end = match &frame {
            StreamFrame::Open(_) | StreamFrame::Priority { .. } => self.table.is_ours(id),
            StreamFrame::Opened(_) => !self.table.is_ours(id),
            _ => false,
        };
        if is_of_wrong_end || self.table.is_ours(id) && id.0 >> 1 >= self.next_index {
            return Err(Violation::StreamState);
        }
        let is_new = !self.table.is_ours(id) && !self.table.closed.has_seen(id);
        let overtook = matches!(frame, StreamFrame::Acknowledged(_) | StreamFrame::Priority { .. });
        if is_new && overtook {
            // It overtook the open frame, so it concerns nothing that was sent here.
            self.table.stats.ignored_frames += 1;
            return Ok(());
        }
        if is_new {
            self.begin(now, id, begins);
        }
        let Some(mut recipient) = self.table.recipient(id) else {
            let credit = &mut self.table.receive_credit;
            let is_answered = self.table.closed.handle_frame(id, &frame, credit)?;
            self.table.stats.ignored_frames += u64::from(!is_answered);
            return Ok(());
        };
        let outcome = recipient.handle_frame(now, frame);
        self.table.settle(now, id);
        match outcome {
            Err(violation) if violation.is_of_one_stream() => {
                self.table.stats.violations += 1;
                self.table.end(now, id, ResetCode::Violation);
                Ok(())
            }
            outcome => outcome,
        }
    }

    fn begin(&mut self, now: Instant, id: StreamId, begins: bool) {
        self.table.closed.on_seen(id);
        let theirs = self.table.streams.len() - self.table.ours;
        let has_room = theirs < self.table.config.accepted_max;
        if begins && self.violation.is_none() && has_room {
            let stream = Stream::new(false, StreamPriority::default(), &self.table.config);
            return self.table.insert(now, id, stream);
        }
        let code = match self.violation {
            _ if !begins => ResetCode::Unknown,
            Some(_) => ResetCode::Violation,
            None => ResetCode::TooMany,
        };
        self.table.stats.refused += u64::from(begins);
        let tombstone = Tombstone { code: Some(code), sent: 0, received: 0, is_final: false };
        self.table.closed.insert(id, tombstone);
    }

    fn close(&mut self, now: Instant, violation: Violation) {
        self.violation.get_or_insert(violation);
        self.table.stats.violations += 1;
        let open = self.table.streams.iter().filter(|(_, stream)| stream.reset.is_none());
        let open: Vec<StreamId> = open.map(|(id, _)| *id).collect();
        open.into_iter().for_each(|id| self.table.end(now, id, ResetCode::Violation));
    }
}

const INDEXED: usize = 384;
