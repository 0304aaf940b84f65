//! The bounds of a decoder.

use std::time::Duration;

/// The bounds of a [`Decoder`](super::Decoder).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderConfig {
    /// The age at which equations and delivered symbols are dropped (CellFusion section 4.4.3).
    pub expiry: Duration,
    /// How long nothing must have been delivered before packets behind the window may move it back;
    /// at least the expiry. Where IDs never start again, the lifetime of packets suffices.
    pub rewind_after: Duration,
    /// The most bytes of delivered symbols to keep, each with an allowance of 128 bytes.
    pub known_bytes_max: usize,
    /// The most bytes of equations to keep, each with an allowance of 640 bytes, of the known
    /// symbols that they cover, each with 80, and of groups of equations connected by missing
    /// packets, each with 1,024.
    pub equation_bytes_max: usize,
}

impl Default for DecoderConfig {
    /// 700 ms as in CellFusion; 16 MiB of symbols, enough for 190 Mbit/s, and 4 MiB of equations.
    fn default() -> Self {
        Self {
            expiry: Duration::from_millis(700),
            rewind_after: Duration::from_millis(700),
            known_bytes_max: 16 << 20,
            equation_bytes_max: 4 << 20,
        }
    }
}
