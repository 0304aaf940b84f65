//! Input: the frames of the peer.

use bytes::Bytes;
use roadweave_proto::Instant;
use roadweave_proto::wire::{
    Acknowledged, Data, Open, ResetCode, StreamFrame, StreamFrames, StreamId, StreamPriority,
};

use super::Streams;
use crate::closed::Tombstone;
use crate::config::{ACK_DELAY, Obligation};
use crate::error::{HandleError, Violation};
use crate::event::EventKind;
use crate::receive::Received;
use crate::stream::{Ack, Stream};

/// The most pending answers; the peer asks again for more.
pub(crate) const ANSWERS_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamReply {
    /// All of it was received: its bytes.
    Whole(u64),
    /// It was reset, or is unknown.
    Reset { code: ResetCode, final_size: u64 },
}

impl Streams {
    /// Takes the body of a symbol that begins with [`STREAM_TAG`](roadweave_proto::wire::STREAM_TAG).
    ///
    /// # Errors
    /// When it is malformed; or when the peer violated the protocol, so that all streams are over
    /// (returned once; [`Streams::violation`] keeps it).
    pub fn handle_symbol(&mut self, now: Instant, body: Bytes) -> Result<(), HandleError> {
        let frames = StreamFrames::new(body).inspect_err(|_| self.stats.malformed += 1)?;
        for frame in frames {
            let frame = frame.inspect_err(|_| self.stats.malformed += 1)?;
            if let Err(violation) = self.handle_frame(now, frame) {
                self.close(now, violation);
                return Err(violation.into());
            }
        }
        Ok(())
    }

    fn handle_frame(&mut self, now: Instant, frame: StreamFrame) -> Result<(), Violation> {
        let (id, begins) = match &frame {
            StreamFrame::SessionCredit(credit) => {
                if self.send_credit.raise(*credit) {
                    self.starved = None;
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
            StreamFrame::Open(_) | StreamFrame::Priority { .. } => self.is_ours(id),
            StreamFrame::Opened(_) => !self.is_ours(id),
            _ => false,
        };
        if is_of_wrong_end || self.is_ours(id) && id.0 >> 1 >= self.next_index {
            return Err(Violation::StreamState);
        }
        let is_new = !self.is_ours(id) && !self.closed.has_seen(id);
        let overtook = matches!(frame, StreamFrame::Acknowledged(_) | StreamFrame::Priority { .. });
        if is_new && overtook {
            // It overtook the open frame, so it concerns nothing that was sent here.
            self.stats.ignored_frames += 1;
            return Ok(());
        }
        if is_new && !self.begin(now, id, begins) || !self.table.contains_key(&id) {
            return self.answer(id, &frame);
        }
        let outcome = self.handle_stream(now, id, frame);
        self.settle(now, id);
        match outcome {
            Err(violation) if violation.is_of_one_stream() => {
                self.stats.violations += 1;

                self.end(now, id, ResetCode::Violation);
                Ok(())
            }
            outcome => outcome,
        }
    }

    fn begin(&mut self, now: Instant, id: StreamId, begins: bool) -> bool {
        self.closed.on_seen(id);
        if begins && self.violation.is_none() && self.theirs() < self.config.accepted_max {
            self.insert(now, id, Stream::new(false, StreamPriority::default(), &self.config));
            return true;
        }
        let code = match self.violation {
            _ if !begins => ResetCode::Unknown,
            Some(_) => ResetCode::Violation,
            None => ResetCode::TooMany,
        };
        self.stats.refused += u64::from(begins);
        let tombstone = Tombstone { code: Some(code), sent: 0, received: 0, is_final: false };
        self.closed.insert(id, tombstone);
        false
    }

    fn handle_stream(
        &mut self,
        now: Instant,
        id: StreamId,
        frame: StreamFrame,
    ) -> Result<(), Violation> {
        let stream = self.table.get_mut(&id).expect("the caller has looked");
        stream.retries.waiting_since = None;
        match frame {
            StreamFrame::Reset { code, final_size, is_answer, .. } => {
                return self.handle_reset(id, code, final_size, is_answer);
            }
            // Data of a reset stream counts by its final size.
            _ if stream.reset.is_some() => self.stats.ignored_frames += 1,
            StreamFrame::Open(open) => self.handle_open(now, open)?,
            StreamFrame::Data(data) => {
                if stream.is_ours && !stream.begun {
                    stream.begun = true;
                    stream.events.add(EventKind::Connected);
                }
                self.handle_data(now, data)?;
            }
            StreamFrame::Acknowledged(acknowledged) => self.handle_acknowledged(acknowledged)?,
            StreamFrame::Stop { code, .. } => {
                if stream.stopped_by_peer.is_none() && !stream.send.is_done() {
                    stream.stopped_by_peer = Some(code);
                    stream.wants_room = false;
                    stream.send.stop();
                    stream.events.add(EventKind::Stopped);
                }
                // The fin waits until the stream is accepted.
                stream.ack = Ack::Now;
            }
            StreamFrame::Opened(_) => {
                if !stream.begun {
                    stream.begun = true;
                    stream.events.add(EventKind::Connected);
                }
                stream.ack = Ack::Now;
            }
            StreamFrame::Priority { change, priority, .. } => {
                if stream.asked.on_asked(change, priority) {
                    stream.priority = priority;
                }
            }
            StreamFrame::SessionCredit(_) => {}
        }
        Ok(())
    }

    fn handle_open(&mut self, now: Instant, open: Open) -> Result<(), Violation> {
        let Open { id, priority, destination, fin, data } = open;
        let stream = self.table.get_mut(&id).expect("the caller has looked");
        if !stream.begun {
            stream.begun = true;
            // A change of priority may have overtaken it.
            if stream.asked.change == 0 {
                (stream.priority, stream.asked.priority) = (priority, priority);
            }
            stream.destination = Some(Box::new(destination));
            stream.events.add(EventKind::Opened);
        }
        self.handle_data(now, Data { id, offset: 0, fin, data })?;
        if let Some(stream) = self.table.get_mut(&id) {
            stream.ack = Ack::Now;
        }
        Ok(())
    }

    fn handle_data(&mut self, now: Instant, data: Data) -> Result<(), Violation> {
        let Data { id, offset, fin, data } = data;
        let may_split = self.index.held_ranges < self.held_ranges_max();
        let stream = self.table.get_mut(&id).expect("the caller has looked");
        let length = data.len() as u64;
        self.stats.received += length;
        let growth = stream.receive.growth(offset + length, fin)?;
        if !self.receive_credit.allows(growth) {
            return Err(Violation::SessionCredit);
        }
        let knew_end = stream.receive.final_size.is_some();
        let received = stream.receive.receive(offset, &data, fin, may_split);
        match received {
            Received::Dropped => {
                self.stats.dropped += length;
                stream.ack = Ack::Now;
                return Ok(());
            }
            Received::Duplicate => self.stats.duplicate += length,
            Received::New => {}
        }
        // Acknowledgements need not be prompt: lanes detect losses. A duplicate may mean that the
        // last acknowledgement was lost.
        stream.ack = match (stream.ack, received) {
            (Ack::None, Received::New) if !fin => Ack::By(now + ACK_DELAY),
            (by @ Ack::By(_), Received::New) if !fin => by,
            _ => Ack::Now,
        };
        if length == 0 && !fin {
            self.receive_credit.is_due = true;
        }
        if stream.receive.final_size.is_some() {
            stream.stop = None;
        }
        if stream.receive.readable() > 0 && !stream.reading.is_announced {
            stream.reading.is_announced = true;
            stream.events.add(EventKind::Readable);
        }
        if stream.receive.is_done() && !knew_end && !stream.receive.is_stopped {
            stream.events.add(EventKind::Finished);
        }
        let is_stopped = stream.receive.is_stopped;
        self.receive_credit.on_received(growth);
        if is_stopped {
            self.receive_credit.on_consumed(growth);
        }
        self.offer_credit(id);
        Ok(())
    }

    fn handle_acknowledged(&mut self, acknowledged: Acknowledged) -> Result<(), Violation> {
        let Acknowledged { id, begun, fin, contiguous, credit, ranges } = acknowledged;
        let may_split = self.index.records < self.records_max();
        let stream = self.table.get_mut(&id).expect("the caller has looked");
        if begun && matches!(stream.begin, Obligation::None | Obligation::Due) {
            return Err(Violation::NeverSent);
        }
        let was_done = stream.send.is_done();
        let mut is_progress = stream.send.on_acknowledged(contiguous, &ranges, fin, may_split)?;
        is_progress |= stream.send.raise_credit(credit);
        if begun && stream.begin != Obligation::Met {
            (stream.begin, is_progress) = (Obligation::Met, true);
            if stream.is_ours {
                stream.destination = None;
            }
        }
        stream.probe = Obligation::None;
        if is_progress {
            stream.on_progress();
        }
        if stream.send.is_done() && !was_done {
            stream.events.add(EventKind::Acknowledged);
        }
        Ok(())
    }

    fn handle_reset(
        &mut self,
        id: StreamId,
        code: ResetCode,
        final_size: u64,
        is_answer: bool,
    ) -> Result<(), Violation> {
        let stream = self.table.get_mut(&id).expect("the caller has looked");
        let mut growth = 0;
        // A peer that does not know the stream does not know its size.
        if code != ResetCode::Unknown {
            match stream.receive.end_at(final_size) {
                Ok(further) if self.receive_credit.allows(further) => growth = further,
                Ok(_) => return Err(Violation::SessionCredit),
                Err(_) => self.stats.violations += 1,
            }
        }
        let dropped = stream.receive.stop();
        match &mut stream.reset {
            Some(reset) => {
                reset.is_agreed = true;
                if !reset.frame.is_due() {
                    reset.frame = Obligation::Met;
                }
            }
            // A peer that refuses the stream must still learn how much was sent.
            None => stream.end(code, true, !is_answer || code == ResetCode::Unknown),
        }
        self.receive_credit.on_received(growth);
        self.receive_credit.on_consumed(dropped);
        Ok(())
    }

    fn answer(&mut self, id: StreamId, frame: &StreamFrame) -> Result<(), Violation> {
        let end = match frame {
            StreamFrame::Open(open) => Some(open.data.len() as u64),
            StreamFrame::Data(data) => Some(data.offset + data.data.len() as u64),
            StreamFrame::Reset { final_size, .. } => Some(*final_size),
            _ => None,
        };
        let is_reset = matches!(frame, StreamFrame::Reset { .. });
        let asks = !matches!(
            frame,
            StreamFrame::Reset { is_answer: true, .. }
                | StreamFrame::Acknowledged(_)
                | StreamFrame::Priority { .. }
        );
        let answer = match self.closed.streams.get_mut(&id) {
            Some(tombstone) => {
                // Data of a refused stream takes session credit.
                let growth = end.unwrap_or(0).saturating_sub(tombstone.received);
                if !tombstone.is_final && growth > 0 {
                    if !self.receive_credit.allows(growth) {
                        return Err(Violation::SessionCredit);
                    }
                    tombstone.received += growth;
                    self.receive_credit.on_received(growth);
                    self.receive_credit.on_consumed(growth);
                }
                tombstone.is_final |= is_reset;
                match tombstone.code {
                    None if is_reset => {
                        StreamReply::Reset { code: ResetCode::Other, final_size: tombstone.sent }
                    }
                    None => StreamReply::Whole(tombstone.received),
                    Some(code) => StreamReply::Reset { code, final_size: tombstone.sent },
                }
            }
            None => StreamReply::Reset { code: ResetCode::Unknown, final_size: 0 },
        };
        if asks && self.answers.len() < ANSWERS_MAX {
            self.answers.insert(id, answer);
        } else {
            self.stats.ignored_frames += 1;
        }
        Ok(())
    }

    fn close(&mut self, now: Instant, violation: Violation) {
        self.violation.get_or_insert(violation);
        self.stats.violations += 1;
        let open = self.table.iter().filter(|(_, stream)| stream.reset.is_none());
        let open: Vec<StreamId> = open.map(|(id, _)| *id).collect();
        open.into_iter().for_each(|id| self.end(now, id, ResetCode::Violation));
    }
}
