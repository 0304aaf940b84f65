//! The bounds of a decoder.

use std::time::Duration;

/// The bounds of a [`Decoder`](super::Decoder).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderConfig {
    /// The age at which an equation, and a delivered symbol, is dropped (CellFusion section 4.4.3).
    pub expiry: Duration,
    /// For how long nothing must have been delivered until packets behind the window may move it
    /// back; at least the expiry. A peer whose IDs never start again needs no more than packets may
    /// live.
    pub rewind_after: Duration,
    /// The most bytes of delivered symbols to keep, each with an allowance of 128 bytes.
    pub known_bytes_max: usize,
    /// The most bytes of equations to keep, each with an allowance of 640 bytes, and of the known
    /// symbols that they cover, each with 80, and 1,024 for each group of equations that are
    /// connected by missing packets.
    pub equation_bytes_max: usize,
}

impl Default for DecoderConfig {
    /// 700 ms as in CellFusion; 16 MiB of symbols, which is that at 190 Mbit/s, and 4 MiB of
    /// equations.
    fn default() -> Self {
        Self {
            expiry: Duration::from_millis(700),
            rewind_after: Duration::from_millis(700),
            known_bytes_max: 16 << 20,
            equation_bytes_max: 4 << 20,
        }
    }
}
