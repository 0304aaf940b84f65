//! The kinds of datagrams, by their first byte, and errors.

use crate::wire::symbol::SymbolError;

pub(crate) const KIND_SOURCE: u8 = 1;
pub(crate) const KIND_CODED: u8 = 2;
pub(crate) const KIND_FEEDBACK: u8 = 3;
pub(crate) const KIND_PART: u8 = 5;
/// The values between are kinds of legs.
pub(crate) const KIND_LOAD: u8 = 9;

/// Why bytes are not a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    /// Unknown kind.
    #[error("datagram of unknown kind {0:#04x}")]
    UnknownKind(u8),
    /// It ends within its header.
    #[error("datagram of {0} bytes ends within its header")]
    Truncated(usize),
    /// The symbol of a source datagram is broken.
    #[error(transparent)]
    Symbol(#[from] SymbolError),
    /// A coded datagram over no packets, or without a symbol.
    #[error("coded datagram over {count} packets with {bytes} bytes")]
    EmptyCombination {
        /// The length of its range.
        count: u16,
        /// The length of its symbol.
        bytes: usize,
    },
    /// A part with an impossible place, of a whole datagram, or empty.
    #[error("part {index} of 0 to {last} with {bytes} bytes")]
    Part {
        /// Its place.
        index: u8,
        /// The place of the last part.
        last: u8,
        /// Its bytes.
        bytes: usize,
    },
    /// Feedback whose length does not fit its number of lanes.
    #[error("feedback for {lanes} lanes has {bytes} bytes")]
    Feedback {
        /// The announced number.
        lanes: u8,
        /// The bytes after it.
        bytes: usize,
    },
}
