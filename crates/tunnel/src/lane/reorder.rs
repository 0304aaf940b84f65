//! Keeps the order that a lane promises: packets wait for earlier ones, but not for long.
//!
//! ```text
//! decoder, fragments ─► Unit ─► pass: no wait ─────────────────────────────────────► out
//!                               reorder: for all before it in the lane      (strict)  ▲ later: discarded
//!                               reorder-adaptive: for the one before it in its flow   ▲ later: out at once
//!                                                 as long as waiting pays (adaptive, fill_times)
//!                               frames: for the rest of its frame, and    ▲ behind a later frame:
//!                                       the frames before it (frames)       discarded
//!                               even: until it is as old as all others ▲ later: out at once
//!                                     (even)
//! ```
//!
//! With `reorder-adaptive` flows do not wait for each other: a packet carries the distance to its
//! flow's predecessor ([`roadweave_proto::wire::predecessor_prefix`]).
//!
//! Memory is bounded in packets and bytes: when it is full, the longest waiting packets go out.

mod adaptive;
mod even;
mod fill_times;
mod frames;
mod gaps;
mod strict;

use std::time::Duration;

use bytes::Bytes;
use roadweave_coding::WINDOW_IDS;
use roadweave_proto::wire::Stamp;
use roadweave_proto::{Instant, Order, PacketId};
use serde::{Deserialize, Serialize};

use adaptive::Adaptive;
use even::Even;
use frames::{Frames, Times};
use strict::Strict;

/// The most packets that a lane holds: 0.3 s at 150 Mbit/s.
pub(crate) const HELD_MAX: usize = 4096;
const HELD_BYTES_MAX: usize = 8 << 20;

const HELD_OVERHEAD: usize = 320;

/// If the first packet has a smaller ID, the lane began at 0 and others are on slower paths.
const JUST_BEGUN: u32 = 1024;

/// An ID that does not wrap, as in RFC 3550; its low 32 bits are the packet's ID.
type ExtendedId = u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) first: PacketId,
    pub(crate) last: PacketId,
    pub(crate) id: PacketId,
    /// Distance from `first` to the end of its predecessor in its flow; 0 without a near one.
    pub(crate) after: u16,
    pub(crate) sent: Option<Stamp>,
    pub(crate) age: Duration,
    pub(crate) decoded: bool,
    /// `None` for a malformed packet, which has its place.
    pub(crate) packet: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Turn {
    #[default]
    Kept,
    Late,
    Discarded,
}

/// How the packets of a lane waited for one another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OrderStats {
    /// The promised order: `pass`, `reorder`, `reorder-adaptive`, `frames` or `even`.
    pub order: String,
    /// Packets that wait now.
    pub held_packets: u64,
    /// Bytes of packets that wait now.
    pub held_bytes: u64,
    /// Packets that have waited, including those that wait now.
    pub waited_packets: u64,
    /// Packets that went out after their turn had been given up; with `even`, after their time.
    pub late_packets: u64,
    /// How often a wait for missing packets timed out: with `reorder` for each gap (table IV of
    /// Networking'24), and with `frames`.
    pub timeouts: u64,
    /// How often a wait ended early, for lack of memory or at the end of the sequence: with
    /// `reorder` for each gap, and with `frames`.
    pub forced: u64,
    /// How long a packet that goes missing now is waited for, microseconds; with `even`, how long
    /// the quickest recent packet would wait.
    pub wait_us: u64,
}

#[derive(Debug)]
pub(crate) struct Reorder {
    pub(crate) order: Order,
    policy: ReorderPolicy,
    newest: ExtendedId,
    held_bytes: usize,
    counts: OrderStats,
}

#[derive(Debug)]
enum ReorderPolicy {
    Pass,
    Strict(Strict),
    Adaptive(Box<Adaptive>),
    Frames(Box<Frames>),
    Even(Box<Even>),
}

#[derive(Debug)]
struct Placed {
    first: ExtendedId,
    last: ExtendedId,
    since: Instant,
    unit: Unit,
}

impl Placed {
    /// The last position of its predecessor; meaningless without one.
    fn before(&self) -> ExtendedId {
        self.first - u64::from(self.unit.after)
    }

    fn bytes(&self) -> usize {
        self.unit.packet.as_ref().map_or(0, Bytes::len)
    }
}

impl Reorder {
    /// `order` for packets from `begin` on; earlier ones go out as they come.
    pub(crate) fn new(order: Order, begin: PacketId) -> Self {
        let first = BASE + u64::from(begin.0);
        let policy = match order {
            Order::Pass => ReorderPolicy::Pass,
            Order::Reorder { max_buffer } => ReorderPolicy::Strict(Strict::new(first, max_buffer)),
            Order::Adaptive { max_buffer } => {
                ReorderPolicy::Adaptive(Box::new(Adaptive::new(first, max_buffer)))
            }
            Order::Frames { deadline, decode, max_buffer } => {
                let times = Times { deadline, decode, max_buffer };
                ReorderPolicy::Frames(Box::new(Frames::new(first, times)))
            }
            Order::Even { max_buffer } => ReorderPolicy::Even(Box::new(Even::new(max_buffer))),
        };
        Self { order, policy, newest: first - 1, held_bytes: 0, counts: OrderStats::default() }
    }

    /// Packets before `first` have missed their turn, unless the lane has just begun.
    pub(crate) fn opening(order: Order, first: PacketId) -> Self {
        let begin = if first.0 < JUST_BEGUN { PacketId(0) } else { first };
        Self::new(order, begin).forget_before()
    }

    /// Earlier packets were not sent under another order, so they have missed their turn.
    fn forget_before(mut self) -> Self {
        if let ReorderPolicy::Strict(strict) = &mut self.policy {
            strict.begin = 0;
        }
        self
    }

    /// Changes the order. If only the wait changes, the promise holds. Else what waits goes out.
    pub(crate) fn set_order(&mut self, now: Instant, order: Order, release: Release<'_>) {
        self.handle_timeout(now, release);
        match (&mut self.policy, order) {
            (ReorderPolicy::Strict(strict), Order::Reorder { max_buffer }) => {
                strict.max_buffer = max_buffer;
            }
            (ReorderPolicy::Adaptive(adaptive), Order::Adaptive { max_buffer }) => {
                adaptive.set_max_buffer(max_buffer);
            }
            (ReorderPolicy::Frames(frames), Order::Frames { deadline, decode, max_buffer }) => {
                frames.set_times(Times { deadline, decode, max_buffer });
            }
            (ReorderPolicy::Even(it), Order::Even { max_buffer }) => {
                it.delays.set_wait_max(max_buffer)
            }
            _ => {
                self.flush(release);
                let (counts, next) = (std::mem::take(&mut self.counts), self.newest as u32);
                *self = Self { counts, ..Self::new(order, PacketId(next).next()) };
            }
        }
        self.order = order;
        self.handle_timeout(now, release);
    }

    pub(crate) fn handle(&mut self, now: Instant, unit: Unit, release: Release<'_>) -> Turn {
        if matches!(self.policy, ReorderPolicy::Pass) {
            self.newest = self.position(unit.last).max(self.newest);
            release(unit);
            return Turn::Kept;
        }
        // Due units are released first, however late the timer is.
        self.handle_timeout(now, release);
        let distance = unit.last.distance(PacketId(self.newest as u32));
        if u64::from(distance.unsigned_abs()) >= WINDOW_IDS {
            // The decoder's window leaped: earlier packets do not count, but the order still holds.
            self.flush(release);
            let begun = Self::new(self.order, unit.first).forget_before();
            *self = Self { counts: std::mem::take(&mut self.counts), ..begun };
        }
        let last = self.position(unit.last);
        let first = last - u64::from(unit.last.distance(unit.first).unsigned_abs());
        let placed = Placed { first, last, since: now, unit };
        self.newest = self.newest.max(last);
        let held = self.held_packets();
        let bytes = placed.bytes();
        self.held_bytes += bytes;
        let mut out = Outlet { bytes: &mut self.held_bytes, counts: &mut self.counts, release };
        let turn = match &mut self.policy {
            ReorderPolicy::Pass => Turn::Kept,
            ReorderPolicy::Strict(strict) => strict.handle(placed, &mut out),
            ReorderPolicy::Adaptive(adaptive) => adaptive.handle(placed, &mut out),
            ReorderPolicy::Frames(frames) => frames.handle(placed, &mut out),
            ReorderPolicy::Even(even) => even.handle(placed, &mut out),
        };
        match turn {
            Turn::Kept => self.counts.waited_packets += u64::from(self.held_packets() > held),
            Turn::Late => self.counts.late_packets += 1,
            Turn::Discarded => self.held_bytes -= bytes,
        }
        while (self.held_packets() > HELD_MAX || self.held_bytes > HELD_BYTES_MAX)
            && self.release_oldest(release)
        {}
        turn
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant, release: Release<'_>) {
        let mut out = Outlet { bytes: &mut self.held_bytes, counts: &mut self.counts, release };
        match &mut self.policy {
            ReorderPolicy::Pass => {}
            ReorderPolicy::Strict(strict) => strict.handle_timeout(now, &mut out),
            ReorderPolicy::Adaptive(adaptive) => adaptive.handle_timeout(now, &mut out),
            ReorderPolicy::Frames(frames) => frames.handle_timeout(now, &mut out),
            ReorderPolicy::Even(even) => even.handle_timeout(now, &mut out),
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match &self.policy {
            ReorderPolicy::Pass => None,
            ReorderPolicy::Strict(strict) => strict.poll_timeout(),
            ReorderPolicy::Adaptive(adaptive) => adaptive.poll_timeout(),
            ReorderPolicy::Frames(frames) => frames.poll_timeout(),
            ReorderPolicy::Even(even) => even.poll_timeout(),
        }
    }

    pub(crate) fn flush(&mut self, release: Release<'_>) {
        while self.release_oldest(release) {}
    }

    pub(crate) fn stats(&self) -> OrderStats {
        let wait = match &self.policy {
            ReorderPolicy::Adaptive(adaptive) => adaptive.wait(),
            ReorderPolicy::Even(even) => even.delays.spread(),
            _ => self.order.max_buffer(),
        };
        OrderStats {
            order: self.order.to_string(),
            held_packets: self.held_packets() as u64,
            held_bytes: self.held_bytes as u64,
            wait_us: wait.as_micros() as u64,
            ..self.counts.clone()
        }
    }

    pub(crate) fn memory(&self) -> usize {
        let beside = match &self.policy {
            ReorderPolicy::Adaptive(adaptive) => adaptive.gaps_memory(),
            ReorderPolicy::Frames(frames) => frames.memory(),
            ReorderPolicy::Even(even) => even.delays.memory(),
            _ => 0,
        };
        self.held_bytes + self.held_packets() * HELD_OVERHEAD + beside
    }

    pub(crate) fn shed(&mut self, bytes: usize, release: Release<'_>) {
        let target = self.memory().saturating_sub(bytes);
        while self.memory() > target && self.release_oldest(release) {}
        if self.memory() > target
            && let ReorderPolicy::Frames(frames) = &mut self.policy
        {
            frames.forget_sources();
        }
    }

    fn held_packets(&self) -> usize {
        match &self.policy {
            ReorderPolicy::Pass => 0,
            ReorderPolicy::Strict(strict) => strict.len(),
            ReorderPolicy::Adaptive(adaptive) => adaptive.len(),
            ReorderPolicy::Frames(frames) => frames.len(),
            ReorderPolicy::Even(even) => even.len(),
        }
    }

    /// Releases the unit whose time ends first, and those it waits for; `false` if none waits.
    fn release_oldest(&mut self, release: Release<'_>) -> bool {
        let mut out = Outlet { bytes: &mut self.held_bytes, counts: &mut self.counts, release };
        match &mut self.policy {
            ReorderPolicy::Pass => false,
            ReorderPolicy::Strict(strict) => strict.release_oldest(&mut out),
            ReorderPolicy::Adaptive(adaptive) => adaptive.release_oldest(&mut out),
            ReorderPolicy::Frames(frames) => frames.release_oldest(&mut out),
            ReorderPolicy::Even(even) => even.release_oldest(&mut out),
        }
    }

    fn position(&self, id: PacketId) -> ExtendedId {
        let distance = id.distance(PacketId(self.newest as u32));
        self.newest.saturating_add_signed(i64::from(distance))
    }
}

pub(crate) type Release<'a> = &'a mut dyn FnMut(Unit);

struct Outlet<'a> {
    bytes: &'a mut usize,
    counts: &'a mut OrderStats,
    release: Release<'a>,
}

impl Outlet<'_> {
    fn release(&mut self, placed: Placed) {
        *self.bytes -= placed.bytes();
        (self.release)(placed.unit);
    }
}

/// The extended ID of ID 0, high enough that nothing near it is negative.
const BASE: ExtendedId = 1 << 40;

#[cfg(test)]
mod tests;
