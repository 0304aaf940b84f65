//! A packet waits for the one before it in its flow, as long as waiting pays.
//!
//! ```text
//! IDs of the lane   1   2   3   4   5   6        flows: a = 1 2 5, b = 3 4 6
//! there             a       b           b        2, 4 and 5 are missing: a gap each, with the time
//!                                                at which a higher ID had come
//! 6 waits for 4, until the gap of 4 has been open for `wait`, which is max_buffer at most
//! 1 and 3 went out: gaps of flow a do not delay flow b
//! ```
//!
//! A gap opens when a higher ID comes, not after a packet that waits for it or gaps above it. So no
//! packet waits longer than max_buffer, and gaps are given up in order even if the wait changes.
//!
//! A packet that comes after it was given up goes out at once, late: TCP and QUIC acknowledge it,
//! which spares a repetition or reveals an unnecessary one (RFC 3522, RFC 8985 section 7.2). Flows
//! for which a late packet is worse than none belong in a lane with `reorder`.
//!
//! Gaps are remembered for `max_buffer`, given up or not, so that the wait can grow.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use roadweave_proto::Instant;

use super::fill_times::FillTimes;
use super::gaps::{Arrival, Gaps};
use super::{ExtendedId, Outlet, Placed, Turn};

const GIVEN_UP_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct Adaptive {
    max_buffer: Duration,
    gaps: Gaps,
    given_up: BTreeSet<ExtendedId>,
    /// Waiting units by last position, with when the gap before each opened (or else when it came).
    held: BTreeMap<ExtendedId, (Instant, Placed)>,
    waiting: HashMap<ExtendedId, ExtendedId>,
    roots: BTreeSet<(Instant, ExtendedId)>,
    fill_times: FillTimes,
}

impl Adaptive {
    pub(super) fn new(begin: ExtendedId, max_buffer: Duration) -> Self {
        Self {
            max_buffer,
            gaps: Gaps::new(begin),
            given_up: BTreeSet::new(),
            held: BTreeMap::new(),
            waiting: HashMap::new(),
            roots: BTreeSet::new(),
            fill_times: FillTimes::new(max_buffer),
        }
    }

    pub(super) fn set_max_buffer(&mut self, max_buffer: Duration) {
        self.max_buffer = max_buffer;
        self.fill_times.set_max_buffer(max_buffer);
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn gaps_memory(&self) -> usize {
        self.gaps.memory() + 32 * self.given_up.len()
    }

    pub(super) fn wait(&self) -> Duration {
        self.fill_times.wait
    }

    pub(super) fn handle(&mut self, placed: Placed, out: &mut Outlet<'_>) -> Turn {
        let now = placed.since;
        if self.held.contains_key(&placed.last) {
            return Turn::Discarded;
        }
        self.forget_gaps(now);
        let is_late = self.note_arrival(now, placed.first, placed.last);
        let last = placed.last;
        let before = (placed.unit.after > 0).then(|| placed.before());
        match before.filter(|before| !is_late && self.waits_for(*before)) {
            Some(before) => {
                let gap_opened = self.gaps.opened(before);
                let opened = gap_opened.unwrap_or(now);
                if gap_opened.is_some() {
                    self.roots.insert((opened, last));
                }
                self.waiting.insert(before, last);
                self.held.insert(last, (opened, placed));
            }
            None => {
                // The predecessors of a late unit are late too.
                before.into_iter().for_each(|before| self.release_up_to(before, out));
                out.release(placed);
                self.release_followers(last, out);
            }
        }
        // The wait may have become shorter.
        self.handle_timeout(now, out);
        if is_late { Turn::Late } else { Turn::Kept }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Outlet<'_>) {
        while self.poll_timeout().is_some_and(|at| at <= now) && self.release_oldest(out) {}
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.roots.first().map(|(opened, _)| *opened + self.wait())
    }

    pub(super) fn release_oldest(&mut self, out: &mut Outlet<'_>) -> bool {
        let Some((_, oldest)) = self.roots.pop_first() else { return false };
        self.release_up_to(oldest, out);
        true
    }

    /// Releases the unit at `last`, its held predecessors before it and its followers after it.
    /// Missing packets before them are given up.
    fn release_up_to(&mut self, last: ExtendedId, out: &mut Outlet<'_>) {
        let mut first = last;
        let mut root = None;
        while let Some((_, placed)) = self.held.get(&first) {
            root = Some(first);
            first = placed.before();
        }
        self.give_up(first);
        self.waiting.remove(&first);
        let Some(root) = root else { return };
        self.release_held(root, out);
        self.release_followers(root, out);
    }

    fn waits_for(&self, before: ExtendedId) -> bool {
        // Only a faulty peer sends a second unit with the same predecessor.
        !self.waiting.contains_key(&before)
            && (self.held.contains_key(&before) || self.gaps.opened(before).is_some())
    }

    fn release_followers(&mut self, last: ExtendedId, out: &mut Outlet<'_>) {
        let mut released = last;
        while let Some(follower) = self.waiting.remove(&released) {
            self.release_held(follower, out);
            released = follower;
        }
    }

    fn release_held(&mut self, last: ExtendedId, out: &mut Outlet<'_>) {
        let Some((opened, placed)) = self.held.remove(&last) else { return };
        self.roots.remove(&(opened, last));
        out.release(placed);
    }

    fn give_up(&mut self, position: ExtendedId) {
        if self.gaps.opened(position).is_some() {
            self.given_up.insert(position);
        }
        if self.given_up.len() > GIVEN_UP_MAX {
            self.given_up.pop_first();
        }
    }

    fn note_arrival(&mut self, now: Instant, first: ExtendedId, last: ExtendedId) -> bool {
        match self.gaps.on_arrival(now, first, last) {
            Arrival::Ahead => false,
            Arrival::Nowhere => true,
            Arrival::InGap { opened } => {
                self.fill_times.on_filled(now, now.since(opened));
                self.given_up.remove(&last)
            }
        }
    }

    fn forget_gaps(&mut self, now: Instant) {
        while let Some((first, last)) = self.gaps.pop_old(now, self.max_buffer) {
            self.given_up = self.given_up.split_off(&(last + 1));
            self.fill_times.on_never_filled(now, last - first + 1);
        }
    }
}
