//! One stream: two halves, and the frames that each end owes the other.
//!
//! ```text
//! opener    open ──► begun by data or opened ────────────┐
//!                                                        ├──► both halves done ──► over
//! far end   begun by open ──► accept: opened ────────────┘
//!
//! either    reset ──► repeated until the peer's reset comes ────────┐
//!           the peer's reset ──► answered by a reset, once ─────────┴──► over
//! ```
//!
//! A reset ends both directions, as TCP's RST does. Each end announces how much it has sent, so
//! that both agree on the session's credit.

use std::time::Duration;

use roadweave_proto::wire::{Acknowledged, Destination, ResetCode, StreamId, StreamPriority};
use roadweave_proto::{Instant, earliest};

use crate::closed::Tombstone;
use crate::config::{Config, Obligation, Timing};
use crate::credit::ReceiveCredit;
use crate::event::{Event, EventKind, Pending};
use crate::priority::{Asked, Favour, Rank};
use crate::receive::ReceiveBuffer;
use crate::send::SendBuffer;

#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) is_ours: bool,
    pub(crate) priority: StreamPriority,
    pub(crate) asked: Asked,
    pub(crate) precedence: Precedence,
    /// Kept until the peer knows it (ours), or the owner does (the peer's).
    pub(crate) destination: Option<Box<Destination>>,
    /// Open (ours), or opened (the peer's).
    pub(crate) begin: Obligation,
    pub(crate) begun: bool,
    pub(crate) send: SendBuffer,
    pub(crate) receive: ReceiveBuffer,
    pub(crate) ack: Ack,
    /// A frame that only asks for an answer.
    pub(crate) probe: Obligation,
    pub(crate) stop: Option<Stop>,
    pub(crate) stopped_by_peer: Option<ResetCode>,
    pub(crate) reset: Option<Reset>,
    pub(crate) events: Pending,
    pub(crate) wants_room: bool,
    pub(crate) reading: ReadProgress,
    pub(crate) retries: Retries,
    timer: Option<Instant>,
    /// Its entries in [`Index`](crate::index::Index), after [`Stream::arm`].
    pub(crate) listed: Listed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ack {
    #[default]
    None,
    By(Instant),
    Now,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    pub(crate) code: ResetCode,
    pub(crate) frame: Obligation,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reset {
    pub(crate) code: ResetCode,
    pub(crate) by_peer: bool,
    pub(crate) frame: Obligation,
    /// The peer knows it, or will never answer.
    pub(crate) is_agreed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) has_control: bool,
    pub(crate) again: Option<Rank>,
    pub(crate) fresh: Option<Rank>,
    pub(crate) timer: Option<Instant>,
    pub(crate) has_events: bool,
    pub(crate) wants_room: bool,
    pub(crate) buffered: u64,
    pub(crate) unsent: u64,
    pub(crate) records: usize,
    pub(crate) held_ranges: usize,
}

/// What goes before what: the parts of a stream, and the stream among others.
#[derive(Debug, Default)]
pub(crate) struct Precedence {
    favour: Favour,
    pub(crate) turn: u64,
    /// Bytes at the start that go before everything else.
    first: u64,
    /// Bytes below this offset do so too, while there is favour.
    pub(crate) head: u64,
}

impl Precedence {
    fn rank(&self, priority: StreamPriority, id: StreamId, from: u64) -> Rank {
        let is_favoured = self.favour.is_left();
        let priority = if is_favoured { priority } else { priority.not_raised() };
        let is_head = from < self.first || is_favoured && from < self.head;
        Rank::new(priority, is_head, self.turn, id)
    }

    pub(crate) fn on_fresh_sent(&mut self, priority: StreamPriority, from: u64, fresh: u64) {
        let is_favoured = from >= self.first && (from < self.head || priority.is_raised());
        self.favour.on_sent(fresh, is_favoured);
    }
}

#[derive(Debug, Default)]
pub(crate) struct ReadProgress {
    /// Since when, and at which offset, its owner has read next to nothing.
    pub(crate) unread: Option<(Instant, u64)>,
    pub(crate) is_announced: bool,
}

/// When what the peer does not answer is repeated.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    attempts: u32,
    at: Option<Instant>,
    /// Since when an answer is missing and nothing was heard of the peer.
    pub(crate) waiting_since: Option<Instant>,
}

impl Stream {
    pub(crate) fn new(is_ours: bool, priority: StreamPriority, config: &Config) -> Self {
        Self {
            is_ours,
            priority,
            asked: Asked::new(priority),
            precedence: Precedence {
                favour: Favour::new(config.favour),
                first: config.head,
                ..Precedence::default()
            },
            begin: if is_ours { Obligation::Due } else { Obligation::None },
            send: SendBuffer::new(),
            receive: ReceiveBuffer::new(is_ours),
            ..Self::default()
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        let is_settled = match &self.reset {
            Some(reset) => reset.is_agreed && !reset.frame.is_due(),
            None => {
                // The far end must learn the destination, or the data went nowhere.
                let is_known = !self.is_ours || self.begin == Obligation::Met;
                let is_done = self.send.is_done() && self.receive.is_done();
                is_known && is_done && self.ack == Ack::None
            }
        };
        is_settled && self.events.is_empty()
    }

    pub(crate) fn acknowledgement(
        &mut self,
        id: StreamId,
        window: u64,
        ranges_max: usize,
    ) -> Acknowledged {
        let contiguous = self.receive.contiguous();
        let mut ranges = self.receive.ranges();
        ranges.truncate(ranges_max);
        let credit = self.receive.extend_credit(window).max(contiguous);
        let fin = self.receive.final_size.is_some();
        Acknowledged { id, begun: self.begun, fin, contiguous, credit, ranges }
    }

    /// Notes since when nothing is read. A read of less than a 64th of the held bytes does not
    /// count. A stream that is not accepted yet has no reader.
    pub(crate) fn watch_reader(&mut self, now: Instant) {
        let read = self.receive.read;
        let next_to_nothing = self.receive.held() / 64;
        let before = self.reading.unread.filter(|(_, at)| read - *at <= next_to_nothing);
        let has_reader = self.is_ours || self.begin != Obligation::None;
        let waits = has_reader && self.receive.readable() > 0;
        self.reading.unread = waits.then(|| before.unwrap_or((now, read)));
    }

    pub(crate) fn forgive_reader(&mut self, now: Instant) {
        self.reading.unread = self.reading.unread.map(|(_, read)| (now, read));
    }

    pub(crate) fn end(&mut self, code: ResetCode, by_peer: bool, is_agreed: bool) {
        self.send.discard();
        self.reset = Some(Reset { code, by_peer, frame: Obligation::Due, is_agreed });
        (self.ack, self.stop, self.probe) = (Ack::None, None, Obligation::None);
        self.asked.is_due = false;
        (self.begin, self.wants_room) = (Obligation::Met, false);
        self.retries = Retries::default();
        let owner_knows = self.is_ours || self.begun && !self.events.has(EventKind::Opened);
        self.events.clear();
        self.destination = None;
        if owner_knows {
            self.events.add(EventKind::Reset);
        }
    }

    pub(crate) fn on_progress(&mut self) {
        if self.retries.attempts > 0 {
            (self.retries.attempts, self.retries.at) = (0, None);
        }
    }

    pub(crate) fn on_new_session(&mut self, now: Instant, takes_priorities: bool) {
        self.mark_lost(now, Duration::ZERO);
        self.retries = Retries::default();
        if self.reset.is_none() && self.send.is_blocked() {
            self.probe = Obligation::Due;
        }
        self.asked.send_again(takes_priorities && self.is_ours && self.reset.is_none());
    }

    pub(crate) fn is_in_vain(&self, now: Instant, give_up_after: Duration) -> bool {
        self.given_up_at(give_up_after).is_some_and(|at| at <= now)
    }

    /// When it is given up. A reset costs only its place and is never asked for by a peer that only
    /// waits, so it is repeated for longer.
    fn given_up_at(&self, give_up_after: Duration) -> Option<Instant> {
        let factor = if self.reset.is_some() { RESET_GIVE_UP_FACTOR } else { 1 };
        self.retries.waiting_since.map(|since| since + give_up_after * factor)
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant, timing: &Timing) {
        if matches!(self.ack, Ack::By(at) if at <= now) {
            self.ack = Ack::Now;
        }
        if self.retries.at.is_some_and(|at| at <= now) {
            self.retries.at = None;
            let mut any = self.mark_lost(now, timing.retransmit_timeout(self.retries.attempts));
            if self.reset.is_none() && self.send.is_blocked() && !self.probe.is_due() {
                (self.probe, any) = (Obligation::Due, true);
            }
            self.retries.attempts += u32::from(any);
        }
    }

    fn mark_lost(&mut self, now: Instant, timeout: Duration) -> bool {
        let mut any = self.send.mark_lost(now, timeout);
        any |= self.begin.mark_lost(now, timeout);
        any |= self.probe.mark_lost(now, timeout);
        any |= self.stop.as_mut().is_some_and(|stop| stop.frame.mark_lost(now, timeout));
        any |= self.reset.as_mut().is_some_and(|reset| reset.frame.mark_lost(now, timeout));
        any
    }

    fn earliest_sent(&self) -> Option<Instant> {
        let stop = self.stop.and_then(|stop| stop.frame.sent());
        let reset = self.reset.and_then(|reset| reset.frame.sent());
        earliest([self.begin.sent(), self.probe.sent(), stop, reset, self.send.earliest_sent()])
    }

    fn is_waiting(&self) -> bool {
        let is_asked = |obligation: Obligation| {
            obligation.is_due() || matches!(obligation, Obligation::Sent(_))
        };
        is_asked(self.begin)
            || is_asked(self.probe)
            || self.stop.is_some_and(|stop| is_asked(stop.frame))
            || self.reset.is_some_and(|reset| is_asked(reset.frame) && !reset.is_agreed)
            || !self.begun && !self.is_ours && self.reset.is_none()
            || !self.send.is_quiet()
    }

    pub(crate) fn arm(&mut self, now: Instant, timing: &Timing, give_up_after: Duration) {
        self.retries.waiting_since =
            self.is_waiting().then(|| self.retries.waiting_since.unwrap_or(now));
        let is_blocked = self.reset.is_none() && self.send.is_blocked();
        if self.retries.at.is_none() {
            let timeout = timing.retransmit_timeout(self.retries.attempts);
            let sent = self.earliest_sent().or_else(|| is_blocked.then_some(now));
            self.retries.at = sent.map(|sent| sent + timeout);
        } else if !is_blocked && !self.is_waiting() {
            self.retries.at = None;
        }
        let ack = if let Ack::By(at) = self.ack { Some(at) } else { None };
        self.timer = earliest([self.retries.at, ack, self.given_up_at(give_up_after)]);
    }

    pub(crate) fn listing(&self, id: StreamId) -> Listed {
        let rank = |from| self.precedence.rank(self.priority, id, from);
        let has_control = self.ack == Ack::Now
            || self.probe.is_due()
            || self.asked.is_due
            || !self.is_ours && self.begin.is_due()
            || self.stop.is_some_and(|stop| stop.frame.is_due())
            || self.reset.is_some_and(|reset| reset.frame.is_due());
        let is_accepted = self.is_ours || self.begin != Obligation::None;
        let sends = self.reset.is_none() && is_accepted;
        let opens = self.is_ours && self.begin.is_due();
        Listed {
            has_control,
            again: (sends && (opens || self.send.has_again()))
                .then(|| rank(self.send.again_from())),
            fresh: (sends && self.send.has_fresh()).then(|| rank(self.send.next)),
            timer: self.timer,
            // The owner first learns that the stream exists.
            has_events: !self.events.is_empty()
                && (self.is_ours || self.begun || self.reset.is_some()),
            wants_room: self.wants_room,
            buffered: self.send.buffered(),
            unsent: if sends { self.send.unsent() } else { 0 },
            records: self.send.records(),
            held_ranges: self.receive.records(),
        }
    }

    pub(crate) fn take_event(&mut self, id: StreamId) -> Option<Event> {
        let kind = self.events.take()?;
        Some(match kind {
            EventKind::Opened => {
                let destination = *self.destination.take().expect("kept until it is told");
                Event::Opened { id, destination, priority: self.priority }
            }
            EventKind::Connected => Event::Connected(id),
            EventKind::Readable => Event::Readable(id),
            EventKind::Writable => Event::Writable(id),
            EventKind::Stopped => {
                let code = self.stopped_by_peer.unwrap_or(ResetCode::Other);
                Event::Stopped { id, code }
            }
            EventKind::Acknowledged => Event::Acknowledged(id),
            EventKind::Finished => Event::Finished(id),
            EventKind::Reset => {
                let reset = self.reset.map(|reset| (reset.code, reset.by_peer));
                let (code, by_peer) = reset.unwrap_or((ResetCode::Other, false));
                Event::Reset { id, code, by_peer }
            }
        })
    }

    pub(crate) fn offer_credit(&mut self, credit: &ReceiveCredit) {
        let window = credit.share(self.receive.held());
        if self.receive.highest > 0 && self.receive.wants_to_advertise(window) {
            self.ack = Ack::Now;
        }
    }

    pub(crate) fn tombstone(&self) -> Tombstone {
        Tombstone {
            code: self.reset.map(|reset| reset.code),
            sent: self.send.next,
            received: self.receive.highest,
            is_final: self.receive.final_size.is_some(),
        }
    }

    pub(crate) fn memory(&self) -> usize {
        let destination = self.destination.as_ref().map_or(0, |_| size_of::<Destination>() + 256);
        let records = self.send.records() + self.receive.records();
        let buffers = self.send.capacity() + self.receive.capacity();
        size_of::<(StreamId, Self)>() + destination + buffers + records * RECORD
    }
}

const RESET_GIVE_UP_FACTOR: u32 = 10;
pub(crate) const RECORD: usize = 64;
