//! The sender's side: keeps what may be lost, and combines it.
//!
//! ```text
//! insert > [ pool: ID > symbol ] > encode(start, count, seed) > coded packet
//!            forget: acknowledged, or given up      expire: too old to be worth a repair
//! ```

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_types::{DropCounters, DropReason, Instant, PacketId};
use thiserror::Error;

use crate::kernel::{Kernel, Term};
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
#[non_exhaustive]
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
        let pool = Pool::new(config.bytes_max);
        Self { config, kernel: Kernel::fastest(), pool, drops: DropCounters::default() }
    }

    /// Keeps the symbol of a packet, and discards the oldest ones if the pool is full.
    ///
    /// `symbol`: prefix and bytes, unpadded; kept as it is, without a copy, so it should not be a
    /// slice of something much larger. An ID that is held already gets the new symbol.
    pub fn insert(&mut self, now: Instant, id: PacketId, symbol: Bytes) {
        debug_assert!(symbol::is_symbol(&symbol), "not a symbol: {symbol:?}");
        self.expire(now);
        let evicted = self.pool.insert(now, u64::from(id.0), symbol);
        self.drops.add(DropReason::QueueFull, evicted);
    }

    /// Discards a symbol: its packet was acknowledged, or nothing more will be done for it.
    ///
    /// Returns whether it was held.
    pub fn forget(&mut self, id: PacketId) -> bool {
        self.pool.remove(u64::from(id.0))
    }

    /// Discards what is older than the configured expiry.
    pub fn expire(&mut self, now: Instant) {
        let expired = self.pool.expire(now, self.config.expiry);
        self.drops.add(DropReason::RepairExpired, expired);
    }

    /// The symbol of a packet, if it is held.
    #[must_use]
    pub fn symbol(&self, id: PacketId) -> Option<&Bytes> {
        self.pool.get(u64::from(id.0))
    }

    /// Appends the coded packet of `range` to `out` and returns its length, bytes.
    ///
    /// It is as long as the longest symbol of the range. For a range of one packet it is the symbol.
    ///
    /// # Errors
    /// [`EncodeError`]; then `out` is as it was.
    ///
    /// Source: CellFusion section 4.3.2.
    pub fn encode(&self, range: CodedRange, out: &mut BytesMut) -> Result<usize, EncodeError> {
        if range.count == 0 || range.count > COUNT_MAX {
            return Err(EncodeError::Count(range.count));
        }
        let count = usize::from(range.count);
        let mut coefficients = [0; COUNT_MAX as usize];
        coefficients::fill(range.seed, &mut coefficients[..count]);
        let mut terms: [Term<'_>; COUNT_MAX as usize] = [(0, &[]); COUNT_MAX as usize];
        let mut length = 0;
        for (offset, term) in terms[..count].iter_mut().enumerate() {
            let id = range.start.plus(offset as u32);
            let symbol = self.symbol(id).ok_or(EncodeError::Missing(id))?;
            *term = (coefficients[offset], symbol);
            length = length.max(symbol.len());
        }
        let start = out.len();
        out.resize(start + length, 0);
        self.kernel.dot_add(&mut out[start..], &terms[..count]);
        Ok(length)
    }

    /// Symbols held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pool.len()
    }

    /// Whether no symbol is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pool.len() == 0
    }

    /// Bytes held, with an allowance of 128 bytes for each symbol.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pool.bytes()
    }

    /// What was discarded before it was forgotten: [`DropReason::QueueFull`] and
    /// [`DropReason::RepairExpired`].
    ///
    /// These are copies: the packets themselves had been sent.
    #[must_use]
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gf256;
    use crate::test_support::{coded, encoder, symbol};

    fn range(start: u32, count: u16) -> CodedRange {
        CodedRange { start: PacketId(start), count, seed: 99 }
    }

    #[test]
    fn a_coded_packet_is_the_sum_that_its_header_says() {
        let symbols = [symbol(5, 1), symbol(200, 2), symbol(70, 3)];
        let encoder = encoder(PacketId(u32::MAX), &symbols);
        let mut coefficients = [0; 3];
        coefficients::fill(99, &mut coefficients);
        let expected: Vec<u8> = (0..202)
            .map(|index| {
                let byte = |symbol: &Bytes| symbol.get(index).copied().unwrap_or(0);
                let terms = symbols.iter().zip(coefficients);
                terms.map(|(symbol, c)| gf256::mul(c, byte(symbol))).fold(0, |sum, x| sum ^ x)
            })
            .collect();
        assert_eq!(coded(&encoder, range(u32::MAX, 3)), expected);
    }

    #[test]
    fn a_range_of_one_packet_is_the_packet() {
        let symbols = [symbol(5, 1), symbol(200, 2)];
        assert_eq!(coded(&encoder(PacketId(8), &symbols), range(9, 1)), symbols[1]);
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
