//! The open streams of one end, and what they share.
//!
//! Whatever changes a stream settles it afterwards: its timer is set, the [`Index`] lists what it
//! has to do, writers learn of room, and it is closed once it is over.

use std::collections::BTreeMap;

use roadweave_proto::Instant;
use roadweave_proto::wire::{ResetCode, StreamId};

use super::crowding::Crowd;
use super::recipient::Recipient;
use crate::closed::Closed;
use crate::config::{Config, Obligation, Stats, Timing};
use crate::credit::ReceiveCredit;
use crate::error::StreamError;
use crate::event::EventKind;
use crate::index::Index;
use crate::stream::Stream;

#[derive(Debug)]
pub(crate) struct StreamTable {
    pub(crate) config: Config,
    pub(super) timing: Timing,
    pub(crate) streams: BTreeMap<StreamId, Box<Stream>>,
    pub(crate) index: Index,
    pub(super) closed: Closed,
    pub(crate) receive_credit: ReceiveCredit,
    pub(super) crowd: Crowd,
    pub(super) stats: Stats,
    pub(super) ours: usize,
    freed: u64,
}

impl StreamTable {
    pub(super) fn new(config: Config) -> Self {
        Self {
            receive_credit: ReceiveCredit::new(config.receive_max),
            config,
            timing: Timing::default(),
            streams: BTreeMap::new(),
            index: Index::default(),
            closed: Closed::default(),
            crowd: Crowd::default(),
            stats: Stats::default(),
            ours: 0,
            freed: 0,
        }
    }

    pub(super) fn insert(&mut self, now: Instant, id: StreamId, stream: Stream) {
        self.ours += usize::from(stream.is_ours);
        self.streams.insert(id, Box::new(stream));
        self.settle(now, id);
    }

    pub(super) fn is_ours(&self, id: StreamId) -> bool {
        id.0 & 1 == self.config.side as u64
    }

    pub(super) fn end(&mut self, now: Instant, id: StreamId, code: ResetCode) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let dropped = stream.receive.stop();
        stream.end(code, false, false);
        self.receive_credit.on_consumed(dropped);
        self.settle(now, id);
    }

    pub(super) fn settle(&mut self, now: Instant, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.arm(now, &self.timing, self.config.give_up_after);
        stream.watch_reader(now);
        let is_over = stream.is_over();
        let new = if is_over { Default::default() } else { stream.listing(id) };
        let old = std::mem::replace(&mut stream.listed, new);
        self.index.update(id, old, new);
        self.freed += old.buffered.saturating_sub(new.buffered);
        if is_over {
            let stream = self.streams.remove(&id).expect("it was there");
            self.ours -= usize::from(stream.is_ours);
            self.closed.insert(id, stream.tombstone());
        }
        self.crowd.on_credit(now, &self.receive_credit);
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
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.wants_room && free.saturating_sub(stream.send.buffered()) >= enough {
            stream.wants_room = false;
            stream.events.add(EventKind::Writable);
            let new = stream.listing(id);
            let old = std::mem::replace(&mut stream.listed, new);
            self.index.update(id, old, new);
        }
    }

    pub(super) fn free(&self) -> u64 {
        self.config.send_max.saturating_sub(self.index.buffered)
    }

    pub(super) fn enough_room(&self) -> u64 {
        (self.config.send_max / 64).clamp(1, roadweave_proto::wire::STREAM_CREDIT)
    }

    pub(super) fn writable(&mut self, id: StreamId) -> Result<&mut Stream, StreamError> {
        let stream = self.usable(id)?;
        if !stream.is_ours && stream.begin == Obligation::None {
            return Err(StreamError::NotAccepted);
        }
        if !stream.send.is_open() {
            return Err(StreamError::Finished);
        }
        Ok(stream)
    }

    pub(super) fn usable(&mut self, id: StreamId) -> Result<&mut Stream, StreamError> {
        let stream = self.streams.get_mut(&id).ok_or(StreamError::NoSuchStream)?;
        match stream.reset {
            Some(reset) => Err(StreamError::Reset(reset.code)),
            None => Ok(stream),
        }
    }

    pub(super) fn recipient(&mut self, id: StreamId) -> Option<Recipient<'_>> {
        let may_hold_range = self.index.held_ranges < self.held_ranges_max();
        let may_add_record = self.index.records < self.config.records_max();
        let stream = self.streams.get_mut(&id)?;
        let (credit, stats) = (&mut self.receive_credit, &mut self.stats);
        Some(Recipient { stream, credit, stats, may_hold_range, may_add_record })
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some(id) = self.index.timers.first().filter(|(at, _)| *at <= now).map(|it| it.1) {
            self.handle_stream_timeout(now, id);
        }
        for id in self.crowd.handle_timeout(now, &mut self.streams, &self.receive_credit) {
            self.stats.unread += 1;
            self.end(now, id, ResetCode::Unread);
        }
    }

    fn handle_stream_timeout(&mut self, now: Instant, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if !stream.is_in_vain(now, self.config.give_up_after) {
            stream.handle_timeout(now, &self.timing);
            return self.settle(now, id);
        }
        self.stats.timed_out += 1;
        match &mut stream.reset {
            Some(reset) => {
                (reset.is_agreed, reset.frame) = (true, Obligation::Met);
                self.settle(now, id);
            }
            None => self.end(now, id, ResetCode::TimedOut),
        }
    }

    pub(super) fn on_new_session(&mut self, now: Instant, takes_priorities: bool) {
        let ids: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in ids {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.on_new_session(now, takes_priorities);
            }
            self.settle(now, id);
        }
        self.receive_credit.is_due = true;
        self.crowd.forgive(now, &mut self.streams);
    }

    /// Beside `RANGES_MIN` of each stream; segments and gaps are rarely shorter than the divisor.
    pub(super) fn held_ranges_max(&self) -> usize {
        (self.receive_credit.window / 1024) as usize
    }
}
