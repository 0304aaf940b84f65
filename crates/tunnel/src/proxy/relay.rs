//! Relays the streams of a session whose far end is the anchor; keeps only frames that wait.
//!
//! ```text
//! session ─► symbols that wait for limits and leg ─► leg, as they are ─► anchor
//! session ◄─ lane ◄─ frames that wait, by urgency ◄─ leg ◄────────────── anchor
//!                       └─ how much the lane has taken ─► room ─► leg ──► anchor
//! ```
//!
//! The anchor has no paths, so it sends what the proxy allows: twice what left in the last RTT.
//!
//! The ends agree on the epoch of their streams. It does not change within a session: frames do not
//! carry it, and former ones may be under way.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use roadweave_proto::wire::{LegFrames, LegRoom, StreamsOffer};
use roadweave_proto::{DropReason, Instant, Urgency};
use roadweave_quic::ConnectionId;
use roadweave_stream::Timing;

use super::LegEvent;
use crate::leg::{Accounts, LegEnd, TenantId};
use crate::rate::Direction;
use crate::session::StreamEnd;

#[derive(Debug, Default)]
pub(super) struct Relay {
    pub(super) client: Option<StreamsOffer>,
    offered: Option<Option<StreamsOffer>>,
    waiting: BTreeMap<(Urgency, u64), Bytes>,
    came: u64,
    pub(super) held: usize,
    room: Room,
    /// When frames last passed, by [`Direction`], on a counter shared by all sessions.
    pub(super) served: [u64; 2],
}

#[derive(Debug, Default)]
struct Room {
    sent: u64,
    waiting: u64,
    until: u64,
    window: u64,
    since: Instant,
    passed: u64,
    is_asked: bool,
    size: u16,
    wait: Duration,
}

impl Room {
    fn left(&self) -> u64 {
        self.sent.saturating_sub(self.waiting)
    }

    /// Twice what left within a round trip of the leg and a turn of its ends.
    fn window(&mut self, now: Instant, round_trip: Duration) -> u64 {
        let span = round_trip + TURN;
        let elapsed = now.since(self.since);
        let left = self.left();
        if elapsed >= span {
            let taken = left.saturating_sub(self.passed) as u128;
            let within = taken * span.as_nanos() / elapsed.as_nanos();
            self.window = u64::try_from(2 * within).unwrap_or(WINDOW_MAX);
            (self.since, self.passed) = (now, left);
        }
        self.window.clamp(WINDOW_MIN, WINDOW_MAX)
    }
}

impl Relay {
    /// The anchor's answer. A session in which another one was announced cannot go on.
    pub(super) fn on_far_end(
        &mut self,
        session: ConnectionId,
        far_end: Option<StreamsOffer>,
    ) -> Option<LegEvent> {
        self.client?;
        if self.offered.is_some_and(|offered| offered != far_end) {
            return Some(LegEvent::StreamsOver(session));
        }
        self.offered = Some(far_end);
        self.room.is_asked = far_end.is_some();
        Some(LegEvent::Streams(session, far_end))
    }

    /// Both ends repeat what was under way. Returns how many waiting frames are dropped.
    pub(super) fn reset(&mut self) -> usize {
        let gone = std::mem::take(&mut self.waiting).len();
        (self.held, self.room) = (0, Room::default());
        gone
    }

    fn is_agreed(&self) -> bool {
        matches!(self.offered, Some(Some(_)))
    }

    pub(super) fn push(&mut self, frames: LegFrames) -> Result<(), DropReason> {
        let LegFrames { urgency, sent, frames, .. } = frames;
        if !self.is_agreed() {
            return Err(DropReason::Unbound);
        }
        let length = frames.len() as u64;
        self.room.sent = self.room.sent.max(sent.saturating_add(length));
        if frames.is_empty() {
            self.room.is_asked = true;
            return Ok(());
        }
        if self.held + cost(&frames) > HELD_MAX {
            return Err(DropReason::ReceiveMemory);
        }
        self.came += 1;
        self.held += cost(&frames);
        self.room.waiting += length;
        self.waiting.insert((urgency, self.came), frames);
        Ok(())
    }

    fn pop(&mut self) -> Option<Bytes> {
        let (_, frames) = self.waiting.pop_first()?;
        self.on_gone(&frames);
        Some(frames)
    }

    fn on_gone(&mut self, frames: &Bytes) {
        self.held -= cost(frames);
        self.room.waiting -= frames.len() as u64;
    }

    pub(super) fn shed(&mut self, bytes: usize) -> usize {
        let before = self.waiting.len();
        while self.held > bytes
            && let Some((_, frames)) = self.waiting.pop_last()
        {
            self.on_gone(&frames);
        }
        before - self.waiting.len()
    }

    fn due(&mut self, now: Instant, round_trip: Duration) -> Option<(u64, u16, Duration)> {
        if !self.is_agreed() || self.room.size == 0 {
            return None;
        }
        let window = self.room.window(now, round_trip);
        let room = &mut self.room;
        let until = room.left().saturating_add(window).max(room.until);
        if !room.is_asked && until - room.until < window / 4 {
            return None;
        }
        (room.until, room.is_asked) = (until, false);
        Some((until, room.size, room.wait))
    }
}

pub(crate) struct RelayTurn<'a> {
    pub(super) relay: &'a mut Relay,
    pub(super) handle: Option<u32>,
    pub(super) tenant: TenantId,
    pub(super) leg: &'a mut LegEnd,
    pub(super) round_trip: Duration,
    pub(super) accounts: &'a mut Accounts,
    pub(super) serial: &'a mut u64,
}

impl RelayTurn<'_> {
    pub(crate) fn finish(self, now: Instant) {
        let Self { relay, handle, tenant, leg, round_trip, accounts, .. } = self;
        if let Some(handle) = handle
            && let Some((until, size, wait)) = relay.due(now, round_trip)
        {
            let room = LegRoom { handle, until, size, wait };
            leg.push_datagram(now, tenant, (room.to_bytes(), false), accounts);
        }
    }

    fn on_served(&mut self, direction: Direction) {
        *self.serial += 1;
        self.relay.served[direction as usize] = *self.serial;
    }
}

impl StreamEnd for RelayTurn<'_> {
    fn handle_symbol(&mut self, now: Instant, symbol: Bytes) -> Result<(), DropReason> {
        let handle = self.handle.filter(|_| self.relay.is_agreed()).ok_or(DropReason::Unbound)?;
        let place = usize::from(self.tenant.0);
        self.on_served(Direction::Up);
        // The tenant's rate was checked before.
        if self.accounts[place].allows(now, Direction::Up, symbol.len()) {
            self.leg.push(now, self.tenant, handle, &symbol, self.accounts);
        }
        Ok(())
    }

    fn passes_at(&mut self, now: Instant, direction: Direction, bytes: usize) -> Instant {
        let limit = self.accounts[usize::from(self.tenant.0)].frames_pass_at(direction, bytes);
        match direction {
            // Refused frames are not kept.
            Direction::Up if !self.relay.is_agreed() => Instant::ZERO,
            // It waits for the leg to come up, and for the anchor to confirm the streams.
            Direction::Up if self.handle.is_none() => Instant::FAR_FUTURE,
            Direction::Up => limit.max(self.leg.takes_frames_at(now)),
            Direction::Down => limit,
        }
    }

    fn handle_timeout(&mut self, _: Instant) {}

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn has_frames(&self) -> bool {
        !self.relay.waiting.is_empty() || self.relay.room.is_asked
    }

    fn set_timing(&mut self, timing: Timing) {
        self.relay.room.wait = 2 * timing.round_trip + timing.age_max;
    }

    fn poll_transmit(&mut self, now: Instant, room: usize) -> Option<Bytes> {
        self.relay.room.size = u16::try_from(room).unwrap_or(u16::MAX);
        let frames = self.relay.pop()?;
        let place = usize::from(self.tenant.0);
        self.on_served(Direction::Down);
        // The rate was checked before, for as many bytes at least as an anchor may send at once.
        let passes = self.accounts[place].allows(now, Direction::Down, frames.len());
        passes.then_some(frames)
    }

    fn next_urgency(&self) -> Urgency {
        self.relay.waiting.first_key_value().map_or(Urgency::LAST, |((urgency, _), _)| *urgency)
    }

    fn unsent(&self) -> u64 {
        self.relay.room.waiting
    }
}

fn cost(frames: &Bytes) -> usize {
    frames.len() + OVERHEAD
}

const TURN: Duration = Duration::from_millis(20);
const WINDOW_MIN: u64 = 64 << 10;
const WINDOW_MAX: u64 = 4 << 20;
/// The most bytes that wait for one session, if an anchor sends more than it may.
const HELD_MAX: usize = 2 * WINDOW_MAX as usize;
const OVERHEAD: usize = 128;

#[cfg(test)]
mod tests;
