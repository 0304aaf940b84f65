//! What became of the packets that a decoder took in.

use roadweave_proto::DropCounters;

/// What became of a source packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceOutcome {
    /// The packet was missing, and is the first that went to `out`.
    New,
    /// The packet was delivered before, or determined by coded packets.
    Duplicate,
    /// The packet is so far behind the newest one that its delivery is no longer recorded.
    Late,
    /// The packet's ID is too far ahead to be believed ([`Decoder`](super::Decoder)).
    FarAhead,
    /// The bytes are no symbol.
    Malformed,
}

/// What became of a coded packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CodedOutcome {
    /// The coded packet determined so many packets, which went to `out`.
    Determined(usize),
    /// The coded packet is kept until more is known, or memory runs out.
    Kept,
    /// The coded packet adds nothing to the known packets and the equations kept, or it only
    /// determined packets delivered so long ago that their bytes are forgotten.
    Redundant,
    /// The coded packet covers packets too far behind the newest one.
    Late,
    /// The coded packet covers packets too far ahead to be believed ([`Decoder`](super::Decoder)).
    FarAhead,
    /// The coded packet's range or length breaks the format.
    Malformed,
    /// The coded packet contradicts what is known, or what the equations kept say.
    Inconsistent,
}

/// What a [`Decoder`](super::Decoder) took in and gave out.
///
/// `sources + coded` is all that came in; it equals `new_sources + recovered + redundant`, the
/// drops and the equations still kept ([`Decoder::pending`](super::Decoder::pending)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecoderStats {
    /// Source packets that came.
    pub sources: u64,
    /// Coded packets that came.
    pub coded: u64,
    /// Source packets that were missing, and delivered.
    pub new_sources: u64,
    /// Packets that coded packets determined, and that were delivered. Each used up one coded
    /// packet.
    pub recovered: u64,
    /// Coded packets that turned out to be redundant.
    pub redundant: u64,
    /// What was discarded: sources as [`DropReason::Duplicate`](roadweave_proto::DropReason::Duplicate), coded packets that expired or were
    /// evicted, and either that was late, far ahead, malformed or inconsistent.
    pub drops: DropCounters,
}
