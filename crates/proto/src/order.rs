//! What a lane promises about the order of its packets.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a lane promises about the order of its packets; the receiving side keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// None: each packet goes out at once.
    #[default]
    Pass,
    /// Packets of a lane go out in sending order. A packet that misses its turn is discarded.
    ///
    /// Source: redundant framework (Networking'24) section III-B.
    Reorder {
        /// Longest wait for earlier packets, at most [`Order::MAX_BUFFER`].
        max_buffer: Duration,
    },
    /// Packets of a flow go out in sending order as far as waiting pays: the wait is learned from
    /// the delays of missing packets. A packet that misses its turn goes out late.
    Adaptive {
        /// Longest wait for earlier packets, at most [`Order::MAX_BUFFER`].
        max_buffer: Duration,
    },
    /// Frames of each video go out complete and in order. An incomplete one waits until the next
    /// frame's deadline less the decoder's time, and then goes out as it is. Packets behind a later
    /// frame are discarded; packets of no video go out at once.
    ///
    /// Source: LoLa section 3.5.
    Frames {
        /// Greatest age of a frame, at most [`Order::MAX_BUFFER`].
        deadline: Duration,
        /// The decoder's time for a frame (omega).
        decode: Duration,
        /// Longest wait of a packet, at most [`Order::MAX_BUFFER`].
        max_buffer: Duration,
    },
    /// All packets of a lane go out at the same age: a delay that 99 of 100 recent ones meet. Later
    /// ones go out at once.
    Even {
        /// Longest wait of a packet, at most [`Order::MAX_BUFFER`].
        max_buffer: Duration,
    },
}

impl Order {
    /// The longest wait that may be configured.
    pub const MAX_BUFFER: Duration = Duration::from_secs(10);
    /// The wait of Networking'24 section IV.
    pub const DEFAULT_BUFFER: Duration = Duration::from_millis(300);
    /// ffmpeg with one thread takes 6 ms for a frame of H.264 with 1080p at 8 Mbit/s, and longer
    /// for the first frames of a scene. At 30 frames a second this leaves 23 ms for the rest of a
    /// late frame.
    pub const DEFAULT_DECODE: Duration = Duration::from_millis(10);

    /// The longest wait; zero for [`Order::Pass`].
    pub const fn max_buffer(self) -> Duration {
        match self {
            Self::Pass => Duration::ZERO,
            Self::Reorder { max_buffer }
            | Self::Adaptive { max_buffer }
            | Self::Frames { max_buffer, .. }
            | Self::Even { max_buffer } => max_buffer,
        }
    }

    /// Whether its packets carry their sending times.
    pub const fn carries_times(self) -> bool {
        matches!(self, Self::Frames { .. } | Self::Even { .. })
    }

    /// This order with a wait of at most `limit`.
    #[must_use]
    pub fn at_most(mut self, limit: Duration) -> Self {
        match &mut self {
            Self::Pass => {}
            Self::Reorder { max_buffer }
            | Self::Adaptive { max_buffer }
            | Self::Frames { max_buffer, .. }
            | Self::Even { max_buffer } => *max_buffer = limit.min(*max_buffer),
        }
        self
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Reorder { .. } => "reorder",
            Self::Adaptive { .. } => "reorder-adaptive",
            Self::Frames { .. } => "frames",
            Self::Even { .. } => "even",
        })
    }
}
