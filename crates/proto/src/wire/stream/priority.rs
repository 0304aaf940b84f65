//! The priorities of RFC 9218, in one byte.
//!
//! ```text
//! 0000 | incremental:1 bit | urgency:3 bits
//! ```

use super::StreamFrameError;

/// The priority of a stream (RFC 9218 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPriority {
    urgency: u8,
    incremental: bool,
}

const URGENCY_MAX: u8 = 7;
const INCREMENTAL: u8 = 8;

impl StreamPriority {
    const DEFAULT: Self = Self::new(3, true);

    /// `urgency`: 0, first, to 7; larger ones count as 7. `incremental`: its first bytes are useful
    /// without the rest, so that it may take turns with others.
    pub const fn new(urgency: u8, incremental: bool) -> Self {
        let urgency = if urgency > URGENCY_MAX { URGENCY_MAX } else { urgency };
        Self { urgency, incremental }
    }

    /// 0, first, to 7.
    pub const fn urgency(self) -> u8 {
        self.urgency
    }

    /// Whether it takes turns with others of its urgency.
    pub const fn is_incremental(self) -> bool {
        self.incremental
    }

    /// The same, but not before streams with the default priority.
    pub const fn not_raised(self) -> Self {
        let default = Self::DEFAULT.urgency;
        let urgency = if self.urgency < default { default } else { self.urgency };
        Self { urgency, incremental: true }
    }

    /// Whether it precedes streams with the default priority: by urgency, or by not taking turns.
    pub const fn is_raised(self) -> bool {
        self.urgency < Self::DEFAULT.urgency
            || self.urgency == Self::DEFAULT.urgency && !self.incremental
    }

    pub(super) const fn to_byte(self) -> u8 {
        self.urgency | if self.incremental { INCREMENTAL } else { 0 }
    }

    pub(super) const fn from_byte(byte: u8) -> Result<Self, StreamFrameError> {
        if byte & !(URGENCY_MAX | INCREMENTAL) != 0 {
            return Err(StreamFrameError::Bits(byte));
        }
        Ok(Self { urgency: byte & URGENCY_MAX, incremental: byte & INCREMENTAL != 0 })
    }
}

/// Urgency 3 (RFC 9218 section 4.1), and incremental: connections without a priority take turns.
impl Default for StreamPriority {
    fn default() -> Self {
        Self::DEFAULT
    }
}
