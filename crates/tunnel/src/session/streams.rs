//! Streams within a session: a lane of their own that takes nothing else, behind the others.
//!
//! ```text
//! Streams ─► poll_transmit ─► lane: as much as paths take now, and a little that waits ─► carrier
//! Streams ◄─ handle_symbol ◄─ symbols of whichever lane the peer sends them by
//! ```
//!
//! At a proxy the streams are at the client's anchor, and a leg is in their place.
//!
//! Frames are made when a path has room for them, so that what is urgent by then leaves first, and
//! what the peer has meanwhile is not sent again. A client's limit holds them back in both
//! directions and drops nothing of them: what may not pass yet waits.

use std::collections::VecDeque;

use bytes::Bytes;
use roadweave_proto::{DropReason, Instant, PathSnapshot, Urgency, earliest};
use roadweave_stream::{Streams, Timing};

use super::Session;
use crate::carrier::Carrier;
use crate::lane::HeldBack;
use crate::rate::{Direction, Limit};

/// Bytes of memory that symbols may take which wait for their turn: a window of a path, or what a
/// client's limit holds back for a moment.
const WAITING_MAX: usize = 2 << 20;
/// Bytes of memory that each symbol takes beside itself, about.
const OVERHEAD: usize = 128;
/// Bytes of frames that are made before a path has room for them: some packets for each of a few
/// paths, so that a scheduler has something to choose from.
const AHEAD: usize = 16 << 10;

/// What is behind a session that carries streams: their end, or what leads there.
pub(crate) trait StreamEnd {
    /// Takes a symbol of the client.
    ///
    /// # Errors
    /// Why it is discarded.
    fn handle_symbol(&mut self, now: Instant, symbol: Bytes) -> Result<(), DropReason>;

    /// When a symbol of `bytes` bytes may pass, as far as it is this end's to say.
    fn passes_at(&mut self, _: Instant, _: Direction, _bytes: usize) -> Instant {
        Instant::ZERO
    }

    /// Does what is due.
    fn handle_timeout(&mut self, now: Instant);

    /// When [`StreamEnd::handle_timeout`] has something to do.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Whether [`StreamEnd::poll_transmit`] may have something to send.
    fn has_frames(&self) -> bool;

    /// What the lane is like.
    fn set_timing(&mut self, timing: Timing);

    /// The next symbol that is to leave, of at most `room` bytes if it is made now.
    fn poll_transmit(&mut self, now: Instant, room: usize) -> Option<Bytes>;

    /// How urgent it is.
    fn next_urgency(&self) -> Urgency;

    /// Bytes that wait here.
    fn unsent(&self) -> u64;
}

impl StreamEnd for Streams {
    fn handle_symbol(&mut self, now: Instant, symbol: Bytes) -> Result<(), DropReason> {
        self.handle_symbol(now, symbol).map_err(|_| DropReason::MalformedMessage)
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.handle_timeout(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.poll_timeout()
    }

    fn has_frames(&self) -> bool {
        self.has_frames()
    }

    fn set_timing(&mut self, timing: Timing) {
        self.set_timing(timing);
    }

    fn poll_transmit(&mut self, now: Instant, room: usize) -> Option<Bytes> {
        self.poll_transmit(now, room)
    }

    fn next_urgency(&self) -> Urgency {
        self.next_urgency()
    }

    fn unsent(&self) -> u64 {
        self.unsent()
    }
}

/// The streams that a session carries, in one turn.
pub(crate) struct StreamTurn<'a> {
    streams: &'a mut dyn StreamEnd,
    /// What goes to the client and what comes from it, by [`Direction`], if it has a limit.
    limits: Option<&'a mut [Limit; 2]>,
    /// When something passes that a limit has held back.
    passes_at: Option<Instant>,
}

/// Symbols of the peer that wait for the next turn.
#[derive(Debug, Default)]
pub(crate) struct SymbolQueue {
    symbols: VecDeque<Bytes>,
    bytes: usize,
}

impl SymbolQueue {
    /// Whether there is room for it.
    pub(crate) fn push(&mut self, symbol: Bytes) -> bool {
        let fits = self.bytes + cost(&symbol) <= WAITING_MAX;
        if fits {
            self.bytes += cost(&symbol);
            self.symbols.push_back(symbol);
        }
        fits
    }

    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let symbol = self.symbols.pop_front()?;
        self.bytes -= cost(&symbol);
        Some(symbol)
    }

    /// Lets go of the newest until the others take no more than `bytes` bytes; returns how many.
    pub(crate) fn shed(&mut self, bytes: usize) -> usize {
        let before = self.symbols.len();
        while self.bytes > bytes
            && let Some(symbol) = self.symbols.pop_back()
        {
            self.bytes -= cost(&symbol);
        }
        before - self.symbols.len()
    }

    /// Bytes of the symbol that [`SymbolQueue::pop`] takes.
    pub(crate) fn next_bytes(&self) -> Option<usize> {
        self.symbols.front().map(Bytes::len)
    }

    /// Bytes of memory that it holds.
    pub(crate) fn memory(&self) -> usize {
        self.bytes
    }
}

fn cost(symbol: &Bytes) -> usize {
    symbol.len() + OVERHEAD
}

impl<'a> StreamTurn<'a> {
    pub(crate) fn new(streams: &'a mut dyn StreamEnd, limits: Option<&'a mut [Limit; 2]>) -> Self {
        Self { streams, limits, passes_at: None }
    }

    /// Whether a symbol of at most `bytes` bytes may pass now; notes when it may, if not now.
    fn allows(&mut self, now: Instant, direction: Direction, bytes: usize) -> bool {
        let own = self.streams.passes_at(now, direction, bytes);
        let limit = self.limits.as_ref().map(|limits| &limits[direction as usize]);
        let limit = limit.map(|limit| limit.passes_at(bytes).unwrap_or(Instant::FAR_FUTURE));
        let at = limit.map_or(own, |limit| limit.max(own));
        if at > now {
            self.passes_at = earliest([self.passes_at, Some(at)]);
        }
        at <= now
    }

    /// A symbol of `bytes` bytes passes.
    fn use_up(&mut self, now: Instant, direction: Direction, bytes: usize) {
        if let Some(limits) = &mut self.limits {
            limits[direction as usize].allows(now, bytes);
        }
    }

    /// When the streams are to be asked again, after a turn.
    pub(super) fn due(&self) -> Option<Instant> {
        earliest([self.streams.poll_timeout(), self.passes_at])
    }
}

impl Session {
    /// Whether the lane at this place carries streams, and nothing else.
    pub(super) fn is_stream_lane(&self, lane: usize) -> bool {
        lane >= self.lane_configs.len()
    }

    /// Hands to the streams what came for them.
    pub(crate) fn hand_over_symbols(&mut self, now: Instant, turn: &mut StreamTurn<'_>) {
        let Some(queue) = &mut self.exit.symbols else { return };
        while let Some(bytes) = queue.next_bytes()
            && turn.allows(now, Direction::Up, bytes)
            && let Some(symbol) = queue.pop()
        {
            turn.use_up(now, Direction::Up, bytes);
            if let Err(reason) = turn.streams.handle_symbol(now, symbol) {
                self.exit.drops.count(reason);
            }
        }
    }

    /// Lets the streams send as much as the paths take.
    pub(super) fn transmit_streams(
        &mut self,
        now: Instant,
        turn: &mut StreamTurn<'_>,
        carrier: &mut impl Carrier,
    ) {
        let Some(sender) = self.senders.get_mut(self.lane_configs.len()) else { return };
        turn.streams.handle_timeout(now);
        if !turn.streams.has_frames() {
            return sender.transmit(now, carrier);
        }
        let usable = carrier.paths(now).iter().filter(|path| path.is_usable());
        let round_trip = usable.map(|path: &PathSnapshot| path.smoothed_rtt).max();
        let round_trip = round_trip.unwrap_or(Timing::default().round_trip);
        turn.streams.set_timing(Timing { round_trip, age_max: sender.config().keeps_for() });
        let room = sender.symbol_room(carrier);
        loop {
            let mut has_more = true;
            while has_more && sender.queued_bytes() < AHEAD {
                let passes = turn.allows(now, Direction::Down, room);
                let urgency = turn.streams.next_urgency();
                let symbol = passes.then(|| turn.streams.poll_transmit(now, room)).flatten();
                has_more = symbol.is_some();
                if let Some(symbol) = symbol {
                    turn.use_up(now, Direction::Down, symbol.len());
                    sender.handle_symbol(now, &symbol, urgency);
                }
            }
            let (bytes, urgency) = (turn.streams.unsent(), turn.streams.next_urgency());
            sender.set_held_back(HeldBack { bytes, urgency });
            sender.transmit(now, carrier);
            if !has_more || sender.queued_bytes() >= AHEAD {
                return;
            }
        }
    }
}
