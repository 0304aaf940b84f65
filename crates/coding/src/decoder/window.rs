//! Which packets were delivered: a window of IDs that slides with the newest.
//!
//! ```text
//!        behind             window, a bit per ID            ahead        too far ahead
//! ... ------------- [ 1 1 0 1 1 1 ... 1 1 0 1 newest ] ------------ | --------------- ...
//!        too old       delivered or still missing         missing     refused
//! ```
//!
//! IDs are expanded to full IDs of 64 bits, which do not wrap, at the border of the decoder.

use roadweave_proto::PacketId;

/// How many IDs a decoder remembers as delivered or missing: 131,072, more than 0.7 s at 1 Gbit/s.
///
/// A packet further behind the newest one is too old: its delivery is no longer recorded.
pub const WINDOW_IDS: u64 = 1 << 17;

/// How far ahead of the newest packet a believable ID may be.
pub(crate) const AHEAD_IDS_MAX: u64 = WINDOW_IDS / 2;

/// A packet ID that does not wrap (compare RFC 9000 section 17.1). Its low 32 bits are the ID.
pub(crate) type FullId = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdState {
    Missing,
    Delivered,
    Behind,
    /// Too far ahead to be believed.
    FarAhead,
}

#[derive(Debug)]
pub(crate) struct Window {
    newest: FullId,
    /// The highest `newest` before the window was moved back; 0 if it never was.
    moved_back_from: FullId,
    bits: Box<[u64]>,
}

impl Window {
    /// A window in which `newest` and all before it are missing.
    pub(crate) fn starting_at(newest: PacketId) -> Self {
        let bits = vec![0; (WINDOW_IDS / 64) as usize].into_boxed_slice();
        // So far above zero that no number of moves back reaches it.
        Self { newest: (1 << 62) + u64::from(newest.0), moved_back_from: 0, bits }
    }

    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.bits)
    }

    /// The full ID of `id`: the one nearest to the newest.
    pub(crate) fn full_id(&self, id: PacketId) -> FullId {
        let distance = id.distance(PacketId(self.newest as u32));
        self.newest.saturating_add_signed(i64::from(distance))
    }

    pub(crate) fn state(&self, full_id: FullId) -> IdState {
        if full_id > self.newest {
            let ahead = full_id - self.newest;
            return if ahead > AHEAD_IDS_MAX { IdState::FarAhead } else { IdState::Missing };
        }
        if self.newest - full_id >= WINDOW_IDS {
            return IdState::Behind;
        }
        let (word, bit) = index(full_id);
        if self.bits[word] & bit == 0 { IdState::Missing } else { IdState::Delivered }
    }

    pub(crate) fn is_behind(&self, full_id: FullId) -> bool {
        full_id < self.newest
    }

    /// Which of the `count` (1 to 64) full IDs from `first` are missing, by offset, a bit each.
    /// None may be [`IdState::Behind`]; those ahead of the newest are missing.
    pub(crate) fn missing(&self, first: FullId, count: u32) -> u64 {
        debug_assert!((1..=64).contains(&count) && self.state(first) != IdState::Behind);
        let (word, bit) = index(first);
        let shift = bit.trailing_zeros();
        let next = self.bits[(word + 1) % self.bits.len()];
        // In two steps, because a shift by 64 bits overflows.
        let delivered = self.bits[word] >> shift | next << 1 << (63 - shift);
        let behind_newest = (self.newest + 1).saturating_sub(first).min(64) as u32;
        let ahead = u64::MAX.checked_shl(behind_newest).unwrap_or(0);
        (!delivered | ahead) & u64::MAX >> (64 - count)
    }

    /// Notes the delivery of `full_id`; returns whether it was missing.
    pub(crate) fn deliver(&mut self, full_id: FullId) -> bool {
        if self.state(full_id) != IdState::Missing {
            return false;
        }
        self.advance(full_id);
        let (word, bit) = index(full_id);
        self.bits[word] |= bit;
        true
    }

    /// Continues with the packets from `first` on, which is not near the window. Skipped packets
    /// are missing. But after a move back, until the window is where it was before, packets before
    /// `first` count as delivered, since some of them may have been.
    pub(crate) fn restart(&mut self, first: FullId) {
        if first > self.newest && self.newest >= self.moved_back_from {
            self.advance(first - 1);
        } else {
            self.moved_back_from = self.moved_back_from.max(self.newest);
            self.bits.fill(u64::MAX);
            self.newest = first - 1;
        }
    }

    /// Makes `full_id` the newest if it is ahead; skipped packets are missing.
    fn advance(&mut self, full_id: FullId) {
        if full_id.saturating_sub(self.newest) >= WINDOW_IDS {
            self.bits.fill(0);
            self.newest = full_id;
        }
        // Word by word: a peer may skip tens of thousands of IDs with each tiny packet.
        while self.newest < full_id {
            let next = self.newest + 1;
            let (word, first) = index(next);
            let last = (next | 63).min(full_id);
            let above = u64::MAX << first.trailing_zeros();
            let below = u64::MAX >> (63 - last % 64);
            self.bits[word] &= !(above & below);
            self.newest = last;
        }
    }
}

fn index(full_id: FullId) -> (usize, u64) {
    let slot = full_id % WINDOW_IDS;
    ((slot / 64) as usize, 1 << (slot % 64))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition of a [`Window`]: every delivered full ID.
    #[derive(Default)]
    struct Reference {
        newest: FullId,
        delivered: std::collections::BTreeSet<FullId>,
    }

    impl Reference {
        fn state(&self, full_id: FullId) -> IdState {
            if full_id > self.newest + AHEAD_IDS_MAX {
                IdState::FarAhead
            } else if full_id + WINDOW_IDS <= self.newest {
                IdState::Behind
            } else if self.delivered.contains(&full_id) {
                IdState::Delivered
            } else {
                IdState::Missing
            }
        }
    }

    #[test]
    fn a_move_beyond_the_window_forgets_all() {
        let mut window = Window::starting_at(PacketId(0));
        let first = window.full_id(PacketId(0));
        assert!(window.deliver(first));
        window.restart(first + 3 * WINDOW_IDS + 1);
        assert_eq!(window.state(first), IdState::Behind);
        assert_eq!(window.state(first + 2 * WINDOW_IDS + 1), IdState::Missing);
        assert_eq!(window.state(first + 3 * WINDOW_IDS), IdState::Missing);
    }

    #[test]
    fn a_move_back_takes_what_precedes_for_delivered() {
        let mut window = Window::starting_at(PacketId(0));
        let first = window.full_id(PacketId(1 << 30).plus(1 << 31));
        window.restart(first);
        for before in [1, 100, WINDOW_IDS] {
            assert_eq!(window.state(first - before), IdState::Delivered, "{before} before");
        }
        assert_eq!(window.state(first - WINDOW_IDS - 1), IdState::Behind);
        assert!(window.deliver(first + 5) && window.deliver(first));
        assert_eq!(window.state(first + 4), IdState::Missing);
        assert_eq!(window.state(first - 1), IdState::Delivered);
    }

    proptest! {
        #[test]
        fn a_window_remembers_what_a_set_would(
            start in prop_oneof![Just(u32::MAX - 100), any::<u32>()],
            count in 1u32..=64,
            steps in prop::collection::vec(
                prop_oneof![-50i64..50, -140_000i64..80_000], 1..200),
        ) {
            let mut window = Window::starting_at(PacketId(start));
            let mut reference = Reference { newest: window.newest, ..Reference::default() };
            for step in steps {
                let full_id = reference.newest.saturating_add_signed(step);
                let state = reference.state(full_id);
                prop_assert_eq!(window.state(full_id), state);
                prop_assert_eq!(window.full_id(PacketId(full_id as u32)), full_id);
                if state != IdState::Behind {
                    let missing = window.missing(full_id, count);
                    for offset in 0..64 {
                        let state = reference.state(full_id + offset);
                        let expected = offset < count.into() && state != IdState::Delivered;
                        prop_assert_eq!(missing >> offset & 1 == 1, expected, "offset {}", offset);
                    }
                }
                prop_assert_eq!(window.deliver(full_id), state == IdState::Missing);
                if state == IdState::Missing {
                    reference.newest = reference.newest.max(full_id);
                    reference.delivered.insert(full_id);
                }
            }
        }
    }
}
