//! Network coding over GF(2^8): lost packets are repaired by random linear combinations of them.
//!
//! ```text
//! sender    source packet > Encoder::insert        the pool keeps what is not yet acknowledged
//!           lost range    > Encoder::range         start, count, seeds > coded packets
//! receiver  source packet > Decoder::on_source  \
//!           coded packet  > Decoder::on_coded   --> every packet once, the moment it is determined
//! ```
//!
//! A *symbol* is the unit of coding: a 2-byte prefix and the bytes of an inner packet or of a
//! fragment of one (see [`symbol_len`]). Shorter symbols count as padded with zeros to the longest
//! of their range; the prefix gives the length of a repaired one. Coefficients are not sent: both
//! sides derive them from a 32-bit seed ([`coefficients`]).
//!
//! The crate knows neither QUIC nor lanes nor time. Storage is bounded, and discards are counted.
//!
//! Two of three packets are lost, and two coded packets restore them:
//!
//! ```
//! use bytes::{Bytes, BytesMut};
//! use roadweave_coding::{CodedRange, Decoder, DecoderConfig, Encoder, EncoderConfig};
//! use roadweave_proto::wire::{FragmentPosition, Symbol};
//! use roadweave_proto::{Instant, PacketId};
//!
//! let (now, mut arrived) = (Instant::ZERO, Vec::new());
//! let mut encoder = Encoder::new(EncoderConfig::default());
//! let mut decoder = Decoder::new(DecoderConfig::default());
//! for (id, body) in (0..).map(PacketId).zip([&b"one"[..], b"two", b"three"]) {
//!     let symbol = Symbol { position: FragmentPosition::Whole, body };
//!     let mut bytes = BytesMut::new();
//!     symbol.write(&mut bytes);
//!     encoder.insert(now, id, bytes.clone().freeze());
//!     if body == b"one" {
//!         decoder.on_source(now, id, bytes.freeze(), &mut arrived);
//!     }
//! }
//! for seed in [1, 2] {
//!     let (range, mut coded) = (CodedRange { start: PacketId(0), count: 3, seed }, BytesMut::new());
//!     encoder.encode(range, &mut coded)?;
//!     decoder.on_coded(now, range, coded.freeze(), &mut arrived);
//! }
//! let bodies: Vec<&[u8]> = arrived.iter().map(|(_, symbol)| &symbol[2..]).collect();
//! assert_eq!(bodies, [&b"one"[..], b"two", b"three"]);
//! # Ok::<(), roadweave_coding::EncodeError>(())
//! ```
//!
//! Start reading with [`Encoder`], then [`Decoder`]; the arithmetic is in [`gf256`] and [`kernel`].
//! Source: CellFusion section 4.3, appendices A and B.

pub mod coefficients;
mod decoder;
mod encoder;
pub mod gf256;
pub mod kernel;
mod pool;
mod symbol;
#[cfg(test)]
mod test_support;

pub use decoder::{CodedOutcome, Decoder, DecoderConfig, DecoderStats, SourceOutcome, WINDOW_IDS};
pub use encoder::{EncodeError, EncodeRange, Encoder, EncoderConfig};
pub use symbol::{SYMBOL_BYTES_MAX, SYMBOL_PREFIX_BYTES, symbol_len};

use roadweave_proto::PacketId;

/// What a coded packet covers and how: the three fields of CellFusion's XNC_Header.
///
/// Source: CellFusion section 4.3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodedRange {
    /// The first packet of the run.
    pub start: PacketId,
    /// Packets of the run, 1..=[`COUNT_MAX`]. One means the packet itself.
    pub count: u16,
    /// The seed of the coefficients ([`coefficients`]); ignored for a run of one packet.
    pub seed: u32,
}

/// The longest run of packets that one coded packet may cover.
///
/// The encode ranges of CellFusion have 10 packets; the bound allows wider ones, and limits the
/// work that a hostile coded packet can cause.
pub const COUNT_MAX: u16 = 64;
