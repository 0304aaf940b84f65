//! Streams within a session: in a lane of their own, behind the others.
//!
//! ```text
//! Streams ─► poll_transmit ─► lane: as much as paths take now, and a little that waits ─► carrier
//! Streams ◄─ handle_symbol ◄─ symbols of any lane of the peer
//! ```
//!
//! At a proxy the streams end at the client's anchor, and a leg takes their place.
//!
//! Frames are made when a path has room: urgent data leaves first. A client's limit delays them.

use bytes::Bytes;
use roadweave_proto::{DropReason, Instant, PathSnapshot, Urgency, earliest};
use roadweave_stream::{Streams, Timing};

use super::InnerOutput;
use crate::carrier::Carrier;
use crate::lane::{HeldBack, LaneSender};
use crate::queue::BoundedQueue;
use crate::rate::{Direction, Limit};

/// Bytes of frames made ahead of room, so that a scheduler can choose among paths.
const AHEAD: usize = 16 << 10;

pub(crate) trait StreamEnd {
    fn handle_symbol(&mut self, now: Instant, symbol: Bytes) -> Result<(), DropReason>;

    fn passes_at(&mut self, _: Instant, _: Direction, _bytes: usize) -> Instant {
        Instant::ZERO
    }

    fn handle_timeout(&mut self, now: Instant);

    fn poll_timeout(&self) -> Option<Instant>;

    fn has_frames(&self) -> bool;

    fn set_timing(&mut self, timing: Timing);

    /// The next symbol to send, of at most `room` bytes if it is made now.
    fn poll_transmit(&mut self, now: Instant, room: usize) -> Option<Bytes>;

    fn next_urgency(&self) -> Urgency;

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

pub(crate) struct StreamTurn<'a> {
    streams: &'a mut dyn StreamEnd,
    limits: Option<&'a mut [Limit; 2]>,
    passes_at: Option<Instant>,
}

/// Waiting symbols, at most 2 MiB: a window of a path, or what a limit holds back for a moment.
pub(crate) type SymbolQueue = BoundedQueue<Bytes, { 2 << 20 }, 128>;

impl<'a> StreamTurn<'a> {
    pub(crate) fn new(streams: &'a mut dyn StreamEnd, limits: Option<&'a mut [Limit; 2]>) -> Self {
        Self { streams, limits, passes_at: None }
    }

    /// Whether a symbol of at most `bytes` bytes may pass now; if not, notes when.
    fn allows(&mut self, now: Instant, direction: Direction, bytes: usize) -> bool {
        let own = self.streams.passes_at(now, direction, bytes);
        let limit = self.limits.as_ref().map(|limits| &limits[direction as usize]);
        let at = limit.map_or(own, |limit| limit.passes_at(bytes).max(own));
        if at > now {
            self.passes_at = earliest([self.passes_at, Some(at)]);
        }
        at <= now
    }

    fn use_up(&mut self, now: Instant, direction: Direction, bytes: usize) {
        if let Some(limits) = &mut self.limits {
            limits[direction as usize].allows(now, bytes);
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        earliest([self.streams.poll_timeout(), self.passes_at])
    }

    pub(super) fn hand_over(&mut self, now: Instant, output: &mut InnerOutput) {
        let Some(queue) = &mut output.symbols else { return };
        while let Some(bytes) = queue.next_bytes()
            && self.allows(now, Direction::Up, bytes)
            && let Some(symbol) = queue.pop()
        {
            self.use_up(now, Direction::Up, bytes);
            if let Err(reason) = self.streams.handle_symbol(now, symbol) {
                output.drops.count(reason);
            }
        }
    }

    pub(super) fn transmit(
        &mut self,
        now: Instant,
        sender: &mut LaneSender,
        carrier: &mut impl Carrier,
    ) {
        self.streams.handle_timeout(now);
        if !self.streams.has_frames() {
            return sender.transmit(now, carrier);
        }
        let usable = carrier.paths(now).iter().filter(|path| path.is_usable());
        let round_trip = usable.map(|path: &PathSnapshot| path.smoothed_rtt).max();
        let round_trip = round_trip.unwrap_or(Timing::default().round_trip);
        self.streams.set_timing(Timing { round_trip, age_max: sender.config.keeps_for() });
        let room = sender.symbol_room(carrier);
        loop {
            let mut has_more = true;
            while has_more && sender.queued_bytes() < AHEAD {
                let passes = self.allows(now, Direction::Down, room);
                let urgency = self.streams.next_urgency();
                let symbol = passes.then(|| self.streams.poll_transmit(now, room)).flatten();
                has_more = symbol.is_some();
                if let Some(symbol) = symbol {
                    self.use_up(now, Direction::Down, symbol.len());
                    sender.handle_symbol(now, &symbol, urgency);
                }
            }
            let (bytes, urgency) = (self.streams.unsent(), self.streams.next_urgency());
            sender.hold_back(HeldBack { bytes, urgency });
            sender.transmit(now, carrier);
            if !has_more || sender.queued_bytes() >= AHEAD {
                return;
            }
        }
    }
}
