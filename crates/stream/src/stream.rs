//! One stream: two halves, and what both ends owe each other beside bytes.
//!
//! ```text
//! opener    open ──► begun by data or opened ────────────┐
//!                                                        ├──► both halves done ──► over
//! far end   begun by open ──► accept: opened ────────────┘
//!
//! either    reset ──► told until the peer's reset comes ────────────┐
//!           the peer's reset ──► answered by a reset, once ─────────┴──► over
//! ```
//!
//! A reset ends both directions, as TCP's RST does, and each end tells the other how much it has
//! sent, so that the credit of the session stays the same number at both.

use std::time::Duration;

use roadweave_proto::Instant;
use roadweave_proto::wire::{Acknowledged, Destination, ResetCode, StreamId, StreamPriority};

use crate::config::{Config, Obligation, Timing};
use crate::event::{Kind, Pending};
use crate::priority::{Asked, Favour, Rank};
use crate::receive::ReceiveBuffer;
use crate::send::SendBuffer;

/// A stream that is not over.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) is_ours: bool,
    /// By which its bytes leave here.
    pub(crate) priority: StreamPriority,
    /// What its opener, or a frame since, has asked for.
    pub(crate) asked: Asked,
    favour: Favour,
    /// Until the peer knows it, if it is ours; until the owner was told, if it is the peer's.
    pub(crate) destination: Option<Box<Destination>>,
    /// Open, if it is ours; opened, if it is the peer's.
    pub(crate) begin: Obligation,
    /// Whether the peer's open, or that it has connected, has come.
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
    /// Whether something was not written for want of room.
    pub(crate) wants_room: bool,
    /// Since when its owner has taken next to nothing of what is there, and from where on.
    unread: Option<(Instant, u64)>,
    /// Whether the owner was told that there is something to read.
    pub(crate) told_readable: bool,
    pub(crate) turn: u64,
    /// So many of the first bytes that are sent go before everything else.
    first: u64,
    /// So do those up to here, as far as there is favour.
    pub(crate) head: u64,
    /// Attempts in vain since the last news.
    attempts: u32,
    /// When to see what is lost.
    retry_at: Option<Instant>,
    /// Since when it has waited for an answer without hearing of the peer.
    waiting_since: Option<Instant>,
    /// When [`Stream::handle_timeout`] is to be called.
    timer: Option<Instant>,
    /// As it stands in the tables of all streams.
    pub(crate) listed: Listed,
}

/// Whether the peer is to be told what has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ack {
    #[default]
    None,
    /// Then at the latest.
    By(Instant),
    Now,
}

/// The peer was asked to send no more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    pub(crate) code: ResetCode,
    pub(crate) tell: Obligation,
}

/// The stream was reset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reset {
    pub(crate) code: ResetCode,
    pub(crate) by_peer: bool,
    pub(crate) tell: Obligation,
    /// Whether the peer knows it, or will never answer.
    pub(crate) is_agreed: bool,
}

/// Where a stream stands in the tables of all streams.
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

impl Stream {
    pub(crate) fn new(is_ours: bool, priority: StreamPriority, config: &Config) -> Self {
        Self {
            is_ours,
            priority,
            asked: Asked::new(priority),
            favour: Favour::new(config.favour),
            destination: None,
            begin: if is_ours { Obligation::Due } else { Obligation::None },
            begun: false,
            send: SendBuffer::default(),
            receive: ReceiveBuffer::new(is_ours),
            ack: Ack::None,
            probe: Obligation::None,
            stop: None,
            stopped_by_peer: None,
            reset: None,
            events: Pending::default(),
            wants_room: false,
            unread: None,
            told_readable: false,
            turn: 0,
            first: config.head,
            head: 0,
            attempts: 0,
            retry_at: None,
            waiting_since: None,
            timer: None,
            listed: Listed::default(),
        }
    }

    /// Whether nothing of it is left to do, so that it can be forgotten.
    pub(crate) fn is_over(&self) -> bool {
        let is_settled = match &self.reset {
            Some(reset) => reset.is_agreed && !reset.tell.is_due(),
            None => {
                // The far end must hear where to connect, or what was sent went nowhere.
                let is_known = !self.is_ours || self.begin == Obligation::Met;
                let is_done = self.send.is_done() && self.receive.is_done();
                is_known && is_done && self.ack == Ack::None
            }
        };
        is_settled && self.events.is_empty()
    }

    /// What the peer is told of what it sent; as many ranges as `ranges_max`.
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
        let fin = self.receive.final_size().is_some();
        Acknowledged { id, begun: self.begun, fin, contiguous, credit, ranges }
    }

    /// Notes whether there is something to read, and whether some of it was: a byte now and then of
    /// all that is held is none. Where nobody is there to read yet, nobody is slow.
    pub(crate) fn watch_reader(&mut self, now: Instant) {
        let read = self.receive.read_up_to();
        let next_to_nothing = self.receive.held() / 64;
        let before = self.unread.filter(|(_, at)| read - *at <= next_to_nothing);
        let has_reader = self.is_ours || self.begin != Obligation::None;
        let waits = has_reader && self.receive.readable() > 0;
        self.unread = waits.then(|| before.unwrap_or((now, read)));
    }

    /// Its reader could not read.
    pub(crate) fn forgive_reader(&mut self, now: Instant) {
        self.unread = self.unread.map(|(_, read)| (now, read));
    }

    /// Since when its owner has taken next to nothing of what is there.
    pub(crate) fn unread_since(&self) -> Option<Instant> {
        self.unread.map(|(since, _)| since)
    }

    /// Both directions end.
    pub(crate) fn end(&mut self, code: ResetCode, by_peer: bool, is_agreed: bool) {
        self.send.discard();
        self.reset = Some(Reset { code, by_peer, tell: Obligation::Due, is_agreed });
        (self.ack, self.stop, self.probe) = (Ack::None, None, Obligation::None);
        self.asked.on_told();
        (self.begin, self.wants_room) = (Obligation::Met, false);
        (self.attempts, self.retry_at, self.waiting_since) = (0, None, None);
        let owner_knows = self.is_ours || !self.is_untold();
        self.events.clear();
        self.destination = None;
        if owner_knows {
            self.events.add(Kind::Reset);
        }
    }

    /// Whether the owner has not been told that the peer opened it.
    fn is_untold(&self) -> bool {
        !self.is_ours && (!self.begun || self.events.has(Kind::Opened))
    }

    /// Something of the peer came.
    pub(crate) fn on_heard(&mut self) {
        self.waiting_since = None;
    }

    /// The peer has more than before: attempts count anew.
    pub(crate) fn on_news(&mut self) {
        if self.attempts > 0 {
            (self.attempts, self.retry_at) = (0, None);
        }
    }

    /// The peer may have lost all that is under way: it is sent again at once.
    pub(crate) fn on_new_session(&mut self, now: Instant, takes_priorities: bool) {
        self.mark_lost(now, Duration::ZERO);
        (self.attempts, self.retry_at, self.waiting_since) = (0, None, None);
        if self.reset.is_none() && self.send.is_blocked() {
            self.probe = Obligation::Due;
        }
        self.asked.tell_again(takes_priorities && self.is_ours && self.reset.is_none());
    }

    /// Whether nothing was heard for so long that it is to be given up.
    pub(crate) fn is_in_vain(&self, now: Instant, give_up_after: Duration) -> bool {
        self.given_up_at(give_up_after).is_some_and(|at| at <= now)
    }

    /// When it is given up if nothing is heard. A reset costs no more than its place, and a peer
    /// that only waits would never ask for it: it is told for longer.
    fn given_up_at(&self, give_up_after: Duration) -> Option<Instant> {
        let patience = if self.reset.is_some() { RESET_PATIENCE } else { 1 };
        self.waiting_since.map(|since| since + give_up_after * patience)
    }

    /// The time that [`Stream::arm`] has set has come: what is overdue is to be sent again.
    pub(crate) fn handle_timeout(&mut self, now: Instant, timing: &Timing) {
        if matches!(self.ack, Ack::By(at) if at <= now) {
            self.ack = Ack::Now;
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            let mut any = self.mark_lost(now, timing.patience(self.attempts));
            if self.reset.is_none() && self.send.is_blocked() && !self.probe.is_due() {
                (self.probe, any) = (Obligation::Due, true);
            }
            self.attempts += u32::from(any);
        }
    }

    fn mark_lost(&mut self, now: Instant, patience: Duration) -> bool {
        let mut any = self.send.mark_lost(now, patience);
        any |= self.begin.mark_lost(now, patience);
        any |= self.probe.mark_lost(now, patience);
        any |= self.stop.as_mut().is_some_and(|stop| stop.tell.mark_lost(now, patience));
        any |= self.reset.as_mut().is_some_and(|reset| reset.tell.mark_lost(now, patience));
        any
    }

    /// When the first of what waits for an answer left.
    fn earliest_sent(&self) -> Option<Instant> {
        let stop = self.stop.and_then(|stop| stop.tell.sent());
        let reset = self.reset.and_then(|reset| reset.tell.sent());
        let obligations = [self.begin.sent(), self.probe.sent(), stop, reset];
        obligations.into_iter().flatten().chain(self.send.earliest_sent()).min()
    }

    /// Whether an answer of the peer is missing.
    fn is_waiting(&self) -> bool {
        let is_asked = |obligation: Obligation| {
            obligation.is_due() || matches!(obligation, Obligation::Sent(_))
        };
        is_asked(self.begin)
            || is_asked(self.probe)
            || self.stop.is_some_and(|stop| is_asked(stop.tell))
            || self.reset.is_some_and(|reset| is_asked(reset.tell) && !reset.is_agreed)
            || !self.begun && !self.is_ours && self.reset.is_none()
            || !self.send.is_quiet()
    }

    /// Sets its timers; `give_up_after` as [`Stream::is_in_vain`] takes it.
    pub(crate) fn arm(&mut self, now: Instant, timing: &Timing, give_up_after: Duration) {
        if !self.is_waiting() {
            self.waiting_since = None;
        } else if self.waiting_since.is_none() {
            self.waiting_since = Some(now);
        }
        let is_blocked = self.reset.is_none() && self.send.is_blocked();
        if self.retry_at.is_none() {
            let patience = timing.patience(self.attempts);
            let sent = self.earliest_sent().or_else(|| is_blocked.then_some(now));
            self.retry_at = sent.map(|sent| sent + patience);
        } else if !is_blocked && !self.is_waiting() {
            self.retry_at = None;
        }
        let ack = if let Ack::By(at) = self.ack { Some(at) } else { None };
        self.timer =
            [self.retry_at, ack, self.given_up_at(give_up_after)].into_iter().flatten().min();
    }

    /// Where it is to stand in the tables of all streams, after [`Stream::arm`].
    pub(crate) fn listing(&self, id: StreamId) -> Listed {
        let rank = |from| self.rank(id, from);
        let has_control = self.ack == Ack::Now
            || self.probe.is_due()
            || self.asked.is_to_be_told()
            || !self.is_ours && self.begin.is_due()
            || self.stop.is_some_and(|stop| stop.tell.is_due())
            || self.reset.is_some_and(|reset| reset.tell.is_due());
        let is_accepted = self.is_ours || self.begin != Obligation::None;
        let sends = self.reset.is_none() && is_accepted;
        let opens = self.is_ours && self.begin.is_due();
        Listed {
            has_control,
            again: (sends && (opens || self.send.has_again()))
                .then(|| rank(self.send.again_from())),
            fresh: (sends && self.send.has_fresh()).then(|| rank(self.send.sent())),
            timer: self.timer,
            // The owner first learns that there is a stream.
            has_events: !self.events.is_empty()
                && (self.is_ours || self.begun || self.reset.is_some()),
            wants_room: self.wants_room,
            buffered: self.send.buffered(),
            unsent: if sends { self.send.unsent() } else { 0 },
            records: self.send.records(),
            held_ranges: self.receive.records(),
        }
    }

    /// The place of its bytes from `from` on.
    fn rank(&self, id: StreamId, from: u64) -> Rank {
        let is_favoured = self.favour.is_left();
        let priority = if is_favoured { self.priority } else { self.priority.not_raised() };
        let is_head = from < self.first || is_favoured && from < self.head;
        Rank::new(priority, is_head, self.turn, id)
    }

    /// `fresh` bytes from `from` on have left for the first time.
    pub(crate) fn on_fresh_sent(&mut self, from: u64, fresh: u64) {
        let is_favoured = from >= self.first && (from < self.head || self.priority.is_raised());
        self.favour.on_sent(fresh, is_favoured);
    }

    /// Bytes of memory, about.
    pub(crate) fn memory(&self) -> usize {
        let destination = self.destination.as_ref().map_or(0, |_| size_of::<Destination>() + 256);
        let records = self.send.records() + self.receive.records();
        let buffers = self.send.capacity() + self.receive.capacity();
        size_of::<(StreamId, Self)>() + destination + buffers + records * RECORD
    }
}

/// How many times longer than for anything else the peer's answer to a reset is waited for.
const RESET_PATIENCE: u32 = 10;
/// Bytes of memory that a record of a range takes, about.
pub(crate) const RECORD: usize = 64;
