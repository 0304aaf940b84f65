//! Streams within a session: a lane of their own that takes nothing else, behind the others.
//!
//! ```text
//! Streams ─► poll_transmit ─► lane: as much as paths take now, and a little that waits ─► carrier
//! Streams ◄─ handle_symbol ◄─ symbols of whichever lane the peer sends them by
//! ```
//!
//! Frames are made when a path has room for them, so that what is urgent by then leaves first, and
//! what the peer has meanwhile is not sent again. A client's limit holds them back in both
//! directions and drops nothing of them: what may not pass yet waits.

use std::collections::VecDeque;

use bytes::Bytes;
use roadweave_stream::{Streams, Timing};
use roadweave_types::{DropReason, Instant, PathSnapshot, earliest};

use super::Session;
use crate::carrier::Carrier;
use crate::lane::HeldBack;
use crate::rate::{Direction, Limit};

/// Bytes of symbols that may wait for their turn: a window of a path, or what a client's limit
/// holds back for a moment.
const WAITING_MAX: usize = 2 << 20;
/// Bytes of frames that are made before a path has room for them: some packets for each of a few
/// paths, so that a scheduler has something to choose from.
const AHEAD: usize = 16 << 10;

/// The streams that a session carries, in one turn.
pub(crate) struct StreamTurn<'a> {
    streams: &'a mut Streams,
    /// What goes to the client and what comes from it, by [`Direction`], if it has a limit.
    limits: Option<&'a mut [Limit; 2]>,
    /// When something passes that a limit has held back.
    passes_at: Option<Instant>,
}

/// Symbols of the peer that wait for the next turn.
#[derive(Debug, Default)]
pub(super) struct SymbolQueue {
    symbols: VecDeque<Bytes>,
    bytes: usize,
}

impl SymbolQueue {
    /// Whether there is room for it.
    pub(super) fn push(&mut self, symbol: Bytes) -> bool {
        let fits = self.bytes + symbol.len() <= WAITING_MAX;
        if fits {
            self.bytes += symbol.len();
            self.symbols.push_back(symbol);
        }
        fits
    }

    fn pop(&mut self) -> Option<Bytes> {
        let symbol = self.symbols.pop_front()?;
        self.bytes -= symbol.len();
        Some(symbol)
    }

    /// Bytes of memory that it holds.
    pub(super) fn memory(&self) -> usize {
        self.bytes
    }
}

impl<'a> StreamTurn<'a> {
    pub(crate) fn new(streams: &'a mut Streams, limits: Option<&'a mut [Limit; 2]>) -> Self {
        Self { streams, limits, passes_at: None }
    }

    /// Whether a symbol of at most `bytes` bytes may pass now; notes when it may, if not now.
    fn allows(&mut self, now: Instant, direction: Direction, bytes: usize) -> bool {
        let Some(limits) = &self.limits else { return true };
        let at = limits[direction as usize].passes_at(bytes).unwrap_or(Instant::FAR_FUTURE);
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
        while let Some(bytes) = queue.symbols.front().map(Bytes::len)
            && turn.allows(now, Direction::Up, bytes)
            && let Some(symbol) = queue.pop()
        {
            turn.use_up(now, Direction::Up, bytes);
            if turn.streams.handle_symbol(now, symbol).is_err() {
                self.exit.drops.count(DropReason::MalformedMessage);
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
