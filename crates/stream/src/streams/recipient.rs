//! Input: the frames of one stream.

use roadweave_proto::Instant;
use roadweave_proto::wire::{Acknowledged, Data, Open, ResetCode, StreamFrame};

use crate::config::{ACK_DELAY, Obligation, Stats};
use crate::credit::ReceiveCredit;
use crate::error::Violation;
use crate::event::EventKind;
use crate::receive::Received;
use crate::stream::{Ack, Stream};

/// A stream with what its frames may change beside it.
pub(super) struct Recipient<'a> {
    pub(super) stream: &'a mut Stream,
    pub(super) credit: &'a mut ReceiveCredit,
    pub(super) stats: &'a mut Stats,
    pub(super) may_hold_range: bool,
    pub(super) may_add_record: bool,
}

impl Recipient<'_> {
    pub(super) fn handle_frame(
        &mut self,
        now: Instant,
        frame: StreamFrame,
    ) -> Result<(), Violation> {
        let stream = &mut *self.stream;
        stream.retries.waiting_since = None;
        match frame {
            StreamFrame::Reset { code, final_size, is_answer, .. } => {
                return self.handle_reset(code, final_size, is_answer);
            }
            // Data of a reset stream counts by its final size.
            _ if stream.reset.is_some() => self.stats.ignored_frames += 1,
            StreamFrame::Open(Open { id, priority, destination, fin, data }) => {
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
                self.stream.ack = Ack::Now;
            }
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

    fn handle_data(&mut self, now: Instant, data: Data) -> Result<(), Violation> {
        let Data { offset, fin, data, .. } = data;
        let stream = &mut *self.stream;
        let length = data.len() as u64;
        self.stats.received += length;
        let growth = stream.receive.growth(offset + length, fin)?;
        if !self.credit.allows(growth) {
            return Err(Violation::SessionCredit);
        }
        let knew_end = stream.receive.final_size.is_some();
        let received = stream.receive.receive(offset, &data, fin, self.may_hold_range);
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
            self.credit.is_due = true;
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
        self.credit.on_received(growth);
        if stream.receive.is_stopped {
            self.credit.on_consumed(growth);
        }
        stream.offer_credit(self.credit);
        Ok(())
    }

    fn handle_acknowledged(&mut self, acknowledged: Acknowledged) -> Result<(), Violation> {
        let Acknowledged { begun, fin, contiguous, credit, ranges, .. } = acknowledged;
        let stream = &mut *self.stream;
        if begun && matches!(stream.begin, Obligation::None | Obligation::Due) {
            return Err(Violation::NeverSent);
        }
        let was_done = stream.send.is_done();
        let mut is_progress =
            stream.send.on_acknowledged(contiguous, &ranges, fin, self.may_add_record)?;
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
        code: ResetCode,
        final_size: u64,
        is_answer: bool,
    ) -> Result<(), Violation> {
        let stream = &mut *self.stream;
        let mut growth = 0;
        // A peer that does not know the stream does not know its size.
        if code != ResetCode::Unknown {
            match stream.receive.end_at(final_size) {
                Ok(further) if self.credit.allows(further) => growth = further,
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
        self.credit.on_received(growth);
        self.credit.on_consumed(dropped);
        Ok(())
    }
}
