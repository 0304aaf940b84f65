//! The outcomes of packets at a decoder.

use roadweave_proto::DropCounters;

/// The outcome of a source packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceOutcome {
    /// The packet was missing, and is the first that was appended to `out`.
    New,
    /// The packet was delivered before, or determined by coded packets.
    Duplicate,
    /// The packet is so far behind the newest one that its delivery is no longer recorded.
    Late,
    /// The packet's ID is too far ahead to be believed ([`Decoder`](super::Decoder)).
    FarAhead,
    /// The bytes are not a symbol.
    Malformed,
}

/// The outcome of a coded packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodedOutcome {
    /// The coded packet determined this many packets, which were appended to `out`.
    Determined(usize),
    /// The coded packet is kept until more is known, or memory runs out.
    Kept,
    /// The coded packet adds nothing to the known packets and the stored equations, or only
    /// determines packets delivered so long ago that their bytes were dropped.
    Redundant,
    /// The coded packet covers packets too far behind the newest one.
    Late,
    /// The coded packet covers packets too far ahead to be believed ([`Decoder`](super::Decoder)).
    FarAhead,
    /// The coded packet's range or length breaks the format.
    Malformed,
    /// The coded packet contradicts known packets or stored equations.
    Inconsistent,
}

/// The counters of a [`Decoder`](super::Decoder).
///
/// `sources + coded`, all that arrived, equals `new_sources + recovered + redundant` plus the drops
/// and the equations still stored ([`Decoder::pending`](super::Decoder::pending)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecoderStats {
    /// Source packets received.
    pub sources: u64,
    /// Coded packets received.
    pub coded: u64,
    /// Source packets that were missing, and are delivered.
    pub new_sources: u64,
    /// Packets determined by coded packets and delivered; each used up one coded packet.
    pub recovered: u64,
    /// Redundant coded packets.
    pub redundant: u64,
    /// What was discarded: sources as [`DropReason::Duplicate`](roadweave_proto::DropReason::Duplicate), coded packets that expired or were
    /// evicted, and either that was late, far ahead, malformed or inconsistent.
    pub drops: DropCounters,
}
