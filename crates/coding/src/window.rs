//! Which packets were delivered: a window of IDs that slides with the newest.
//!
//! ```text
//!        behind             window, a bit per ID            ahead        too far ahead
//! ... ------------- [ 1 1 0 1 1 1 ... 1 1 0 1 newest ] ------------ | --------------- ...
//!        too old       delivered or still missing         missing     refused
//! ```
//!
//! IDs are unfolded to 64-bit positions, which do not wrap, at the border of the decoder.

use roadweave_types::PacketId;

/// How many IDs are remembered as delivered or missing: 131,072, more than 0.7 s at 1 Gbit/s.
///
/// A packet further behind the newest one is too old: nobody knows whether it was delivered.
pub(crate) const WINDOW_IDS: u64 = 1 << 17;

/// How far ahead of the newest packet a believable ID may be.
pub(crate) const AHEAD_IDS_MAX: u64 = WINDOW_IDS / 2;

/// A packet ID, unfolded so that it does not wrap; its low 32 bits are the ID.
pub(crate) type Position = u64;

/// Where a position lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Not delivered yet.
    Missing,
    /// Delivered before.
    Delivered,
    /// Behind the window.
    Behind,
    /// So far ahead that it is not believable.
    FarAhead,
}

/// The delivered positions.
#[derive(Debug)]
pub(crate) struct Window {
    newest: Position,
    bits: Box<[u64]>,
}

impl Window {
    /// A window in which `newest` and all before it are missing.
    pub(crate) fn starting_at(newest: PacketId) -> Self {
        let bits = vec![0; (WINDOW_IDS / 64) as usize].into_boxed_slice();
        // One wrap above zero, so that IDs before the first one have a position.
        Self { newest: (1 << 32) + u64::from(newest.0), bits }
    }

    /// The position of `id`: the one nearest to the newest.
    pub(crate) fn position(&self, id: PacketId) -> Position {
        let distance = id.distance(PacketId(self.newest as u32));
        self.newest.saturating_add_signed(i64::from(distance))
    }

    pub(crate) fn place(&self, position: Position) -> Place {
        if position > self.newest {
            let ahead = position - self.newest;
            return if ahead > AHEAD_IDS_MAX { Place::FarAhead } else { Place::Missing };
        }
        if self.newest - position >= WINDOW_IDS {
            return Place::Behind;
        }
        let (word, bit) = index(position);
        if self.bits[word] & bit == 0 { Place::Missing } else { Place::Delivered }
    }

    /// Notes the delivery of `position`; returns whether it was missing.
    pub(crate) fn deliver(&mut self, position: Position) -> bool {
        if self.place(position) != Place::Missing {
            return false;
        }
        self.advance(position);
        let (word, bit) = index(position);
        self.bits[word] |= bit;
        true
    }

    /// Makes `position` the newest, if it is ahead; what it skips is missing.
    pub(crate) fn advance(&mut self, position: Position) {
        if position.saturating_sub(self.newest) >= WINDOW_IDS {
            self.bits.fill(0);
            self.newest = position;
        }
        while self.newest < position {
            self.newest += 1;
            let (word, bit) = index(self.newest);
            self.bits[word] &= !bit;
        }
    }
}

fn index(position: Position) -> (usize, u64) {
    let slot = position % WINDOW_IDS;
    ((slot / 64) as usize, 1 << (slot % 64))
}
