//! The first byte of a datagram, which tells its kind, and why bytes are none of them.

use crate::wire::symbol::SymbolError;

pub(crate) const KIND_SOURCE: u8 = 1;
pub(crate) const KIND_CODED: u8 = 2;
pub(crate) const KIND_FEEDBACK: u8 = 3;
pub(crate) const KIND_PART: u8 = 5;
/// Those between are of legs.
pub(crate) const KIND_LOAD: u8 = 9;

/// Why bytes are no datagram of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    /// No message of this kind is known.
    #[error("datagram of unknown kind {0:#04x}")]
    UnknownKind(u8),
    /// The datagram ends before its header does.
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
    /// A part that has no place in its datagram, is all of it, or is empty.
    #[error("part {index} of 0 to {last} with {bytes} bytes")]
    Part {
        /// Its place.
        index: u8,
        /// The place of the last part.
        last: u8,
        /// Its bytes.
        bytes: usize,
    },
    /// Feedback whose length does not fit the number of lanes it announces.
    #[error("feedback for {lanes} lanes has {bytes} bytes")]
    Feedback {
        /// The announced number.
        lanes: u8,
        /// The bytes that follow it.
        bytes: usize,
    },
}
