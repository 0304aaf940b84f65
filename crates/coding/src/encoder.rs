//! The sender's side: stores packets that may be lost, and combines them.
//!
//! ```text
//! insert > [ pool: ID > symbol ] > range(start, count) > encode_all(seeds) > coded packets
//!            forget: acknowledged, or given up      expire: too old to be worth a repair
//! ```
//!
//! A repair sends several coded packets over one range. Its symbols are looked up once; then all
//! coded packets are written in one pass over the symbols, each after the header of its datagram.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_proto::{DropCounters, DropReason, Instant, PacketId};
use thiserror::Error;

use crate::kernel::Kernel;
use crate::pool::Pool;
use crate::{COUNT_MAX, CodedRange, coefficients, symbol};

/// The bounds of an [`Encoder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderConfig {
    /// The age at which a symbol is no longer worth a repair (CellFusion section 4.4.3).
    pub expiry: Duration,
    /// The most bytes of symbols to keep, each with an allowance of 128 bytes.
    pub bytes_max: usize,
}

impl Default for EncoderConfig {
    /// 700 ms as in CellFusion; 16 MiB, which holds that at 190 Mbit/s.
    fn default() -> Self {
        Self { expiry: Duration::from_millis(700), bytes_max: 16 << 20 }
    }
}

/// Why there is no coded packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// A packet of the range is not in the pool: it was forgotten, expired or never inserted.
    #[error("packet {0} is not in the pool")]
    Missing(PacketId),
    /// The range is empty or longer than [`COUNT_MAX`].
    #[error("a coded packet covers 1 to {COUNT_MAX} packets, not {0}")]
    Count(u16),
}

/// The pool of sent symbols, and their combinations.
#[derive(Debug)]
pub struct Encoder {
    config: EncoderConfig,
    kernel: Kernel,
    pool: Pool,
    drops: DropCounters,
}

impl Encoder {
    /// An empty encoder.
    #[must_use]
    pub fn new(config: EncoderConfig) -> Self {
        Self::with_kernel(config, Kernel::fastest())
    }

    /// An empty encoder that computes with `kernel`, for measurements; the results are the same.
    #[must_use]
    pub fn with_kernel(config: EncoderConfig, kernel: Kernel) -> Self {
        let pool = Pool::new(config.bytes_max);
        Self { config, kernel, pool, drops: DropCounters::default() }
    }

    /// Stores the symbol of a packet; discards the oldest ones if the pool is full.
    ///
    /// `symbol`: prefix and bytes, unpadded; stored without a copy, so it should not be a slice of
    /// a much larger buffer. It replaces the symbol of an ID that is already stored.
    pub fn insert(&mut self, now: Instant, id: PacketId, symbol: Bytes) {
        debug_assert!(symbol::is_symbol(&symbol), "not a symbol: {symbol:?}");
        self.expire(now);
        let evicted = self.pool.insert(now, u64::from(id.0), symbol);
        self.drops.add(DropReason::QueueFull, evicted);
    }

    /// Discards a symbol whose packet was acknowledged or given up; returns whether it was stored.
    pub fn forget(&mut self, id: PacketId) -> bool {
        self.pool.remove(u64::from(id.0))
    }

    /// Sets the age at which a symbol is no longer worth a repair.
    pub fn set_expiry(&mut self, expiry: Duration) {
        self.config.expiry = expiry;
    }

    /// Discards what is older than the configured expiry.
    pub fn expire(&mut self, now: Instant) {
        let expired = self.pool.expire(now, self.config.expiry);
        self.drops.add(DropReason::RepairExpired, expired);
    }

    /// Discards the oldest symbols until `bytes` bytes are freed or none is left.
    pub fn shed(&mut self, bytes: usize) {
        let shed = self.pool.shed(bytes);
        self.drops.add(DropReason::MemoryShare, shed);
    }

    /// The symbol of a packet, if it is stored.
    #[must_use]
    pub fn symbol(&self, id: PacketId) -> Option<&Bytes> {
        self.pool.get(u64::from(id.0))
    }

    /// Looks up the symbols of a range, to make coded packets of them.
    ///
    /// # Errors
    /// [`EncodeError`] if the range is empty or too long, or a packet is not in the pool.
    pub fn range(&self, start: PacketId, count: u16) -> Result<EncodeRange<'_>, EncodeError> {
        if count == 0 || count > COUNT_MAX {
            return Err(EncodeError::Count(count));
        }
        let mut symbols = Vec::with_capacity(usize::from(count));
        let mut coded_len = 0;
        for offset in 0..count {
            let id = start.plus(u32::from(offset));
            let symbol = self.symbol(id).ok_or(EncodeError::Missing(id))?;
            coded_len = coded_len.max(symbol.len());
            symbols.push(&symbol[..]);
        }
        Ok(EncodeRange { kernel: self.kernel, symbols, coded_len })
    }

    /// Appends the coded packet of `range` to `out` and returns its length, bytes.
    ///
    /// # Errors
    /// [`EncodeError`]; then `out` is as it was.
    pub fn encode(&self, range: CodedRange, out: &mut BytesMut) -> Result<usize, EncodeError> {
        let symbols = self.range(range.start, range.count)?;
        let start = out.len();
        out.resize(start + symbols.coded_len(), 0);
        symbols.encode(range.seed, &mut out[start..]);
        Ok(symbols.coded_len())
    }

    /// Symbols stored.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pool.len()
    }

    /// Whether no symbol is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pool.len() == 0
    }

    /// Bytes stored, with an allowance of 128 bytes for each symbol.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pool.bytes()
    }

    /// Symbols discarded before [`Encoder::forget`]: [`DropReason::QueueFull`] and
    /// [`DropReason::RepairExpired`].
    ///
    /// Only copies are counted here: the packets themselves were sent.
    #[must_use]
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }
}

/// The complete symbols of an encode range, so that encoding cannot fail.
///
/// Source: CellFusion section 4.3.2.
#[derive(Debug)]
pub struct EncodeRange<'a> {
    kernel: Kernel,
    symbols: Vec<&'a [u8]>,
    coded_len: usize,
}

impl EncodeRange<'_> {
    /// The length of every coded packet of the range, bytes: that of its longest symbol.
    #[must_use]
    pub fn coded_len(&self) -> usize {
        self.coded_len
    }

    /// Overwrites `out` with one coded packet. For a range of one packet it is the symbol.
    ///
    /// `out`: of [`EncodeRange::coded_len`].
    ///
    /// # Panics
    /// If `out` has another length.
    pub fn encode(&self, seed: u32, out: &mut [u8]) {
        let mut coefficients = [0; COUNT_MAX as usize];
        let coefficients = &mut coefficients[..self.symbols.len()];
        coefficients::fill(seed, coefficients);
        self.combine(&mut [out], coefficients);
    }

    /// Overwrites each of `outputs` with the coded packet of the seed at the same place, all in one
    /// pass over the symbols.
    ///
    /// `outputs`: each of [`EncodeRange::coded_len`], such as the space after a datagram's header.
    ///
    /// # Panics
    /// If an output has another length, or there is not one for each seed.
    pub fn encode_all(&self, seeds: &[u32], outputs: &mut [&mut [u8]]) {
        assert_eq!(seeds.len(), outputs.len(), "a seed for each output");
        let mut coefficients = vec![0; seeds.len() * self.symbols.len()];
        coefficients::fill_rows(seeds, &mut coefficients);
        self.combine(outputs, &coefficients);
    }

    fn combine(&self, outputs: &mut [&mut [u8]], coefficients: &[u8]) {
        for output in &*outputs {
            assert_eq!(output.len(), self.coded_len, "an output takes one coded packet");
        }
        self.kernel.combine(outputs, coefficients, &self.symbols);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{encoder, symbol};

    fn range(start: u32, count: u16) -> CodedRange {
        CodedRange { start: PacketId(start), count, seed: 99 }
    }

    #[test]
    fn a_coded_packet_is_appended_to_what_is_there() {
        let encoder = encoder(PacketId(0), &[symbol(5, 1)]);
        let mut out = BytesMut::from(&b"header"[..]);
        assert_eq!(encoder.encode(range(0, 1), &mut out), Ok(7));
        assert_eq!(&out[..6], b"header");
        assert_eq!(out.len(), 13);
    }

    #[test]
    fn a_refused_range_leaves_the_buffer_alone() {
        let mut encoder = encoder(PacketId(0), &[symbol(5, 1), symbol(6, 2), symbol(7, 3)]);
        assert!(encoder.forget(PacketId(1)));
        assert!(!encoder.forget(PacketId(1)));
        let check = |range: CodedRange, expected: EncodeError| {
            let mut out = BytesMut::from(&b"header"[..]);
            assert_eq!(encoder.encode(range, &mut out), Err(expected));
            assert_eq!(&out[..], b"header");
        };
        check(range(0, 3), EncodeError::Missing(PacketId(1)));
        check(range(0, 0), EncodeError::Count(0));
        check(range(0, COUNT_MAX + 1), EncodeError::Count(COUNT_MAX + 1));
    }

    #[test]
    fn what_leaves_by_itself_is_counted_by_reason() {
        let mut encoder = Encoder::new(EncoderConfig { bytes_max: 1000, ..Default::default() });
        for id in 0..5 {
            encoder.insert(Instant::from_millis(id), PacketId(id as u32), symbol(198, id));
        }
        assert_eq!((encoder.len(), encoder.bytes()), (3, 3 * 328));
        assert_eq!(encoder.drops().get(DropReason::QueueFull), 2);
        encoder.expire(Instant::from_millis(703));
        assert_eq!(encoder.len(), 2);
        encoder.insert(Instant::from_millis(2000), PacketId(9), symbol(1, 1));
        assert_eq!(encoder.len(), 1);
        assert_eq!(encoder.drops().get(DropReason::RepairExpired), 3);
    }
}
