//! What became of the packets that a decoder took in.

use roadweave_types::DropCounters;

/// What became of a source packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceOutcome {
    /// It was missing, and is the first that went to `out`.
    New,
    /// It was delivered before, or determined by coded packets.
    Duplicate,
    /// It is so far behind the newest packet that nobody knows whether it was delivered.
    Late,
    /// Its ID is too far ahead to be believed ([`Decoder`](super::Decoder)).
    FarAhead,
    /// It is no symbol.
    Malformed,
}

/// What became of a coded packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CodedOutcome {
    /// It determined so many packets, which went to `out`.
    Determined(usize),
    /// It is kept until more is known, or memory runs out.
    Kept,
    /// It tells nothing that is not known or does not follow from the equations kept, or it only
    /// determined packets that were delivered so long ago that their bytes are forgotten.
    Redundant,
    /// It covers packets too far behind the newest one.
    Late,
    /// It covers packets too far ahead to be believed ([`Decoder`](super::Decoder)).
    FarAhead,
    /// Its range or its length breaks the format.
    Malformed,
    /// It contradicts what is known, or what the equations kept say.
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
    /// Coded packets that turned out to tell nothing new.
    pub redundant: u64,
    /// What was discarded: sources as [`DropReason::Duplicate`](roadweave_types::DropReason::Duplicate), coded packets that expired or were
    /// evicted, and either that was late, far ahead, malformed or inconsistent.
    pub drops: DropCounters,
}
