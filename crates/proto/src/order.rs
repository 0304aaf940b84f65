//! What a lane promises about the order of its packets.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a lane promises about the order of its packets; the receiving side keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Nothing: each packet goes out the moment it is known.
    #[default]
    Pass,
    /// Packets of a lane go out in the order in which they left. One that misses its turn is
    /// discarded.
    ///
    /// Source: redundant framework (Networking'24) section III-B.
    Reorder {
        /// The longest that a packet waits for those before it, at most [`Order::MAX_BUFFER`].
        max_buffer: Duration,
    },
    /// Packets of a flow go out in the order in which they left, as far as waiting pays: the wait
    /// is learned from how long missing packets took to come. One that misses its turn goes out
    /// late.
    Adaptive {
        /// The longest that a packet waits for those before it, at most [`Order::MAX_BUFFER`].
        max_buffer: Duration,
    },
    /// Frames of each video go out whole and in order: one that is not whole waits until the next
    /// frame's deadline less the time of the decoder, and then goes out as it is. What comes behind
    /// a later frame is discarded; what is no video goes out as it comes.
    ///
    /// Source: LoLa section 3.5.
    Frames {
        /// How old a frame may be when it comes out, at most [`Order::MAX_BUFFER`].
        deadline: Duration,
        /// How long a decoder takes for a frame (omega).
        decode: Duration,
        /// The longest that a packet waits, at most [`Order::MAX_BUFFER`].
        max_buffer: Duration,
    },
    /// Each packet goes out as long after it was sent as all others of its lane: after a delay that
    /// 99 of 100 of late keep. What comes later goes out at once.
    Even {
        /// The longest that a packet waits for its time, at most [`Order::MAX_BUFFER`].
        max_buffer: Duration,
    },
}

impl Order {
    /// The names of configuration files.
    pub const NAMES: [&str; 5] = ["pass", "reorder", "reorder-adaptive", "frames", "even"];
    /// The longest wait that may be asked for.
    pub const MAX_BUFFER: Duration = Duration::from_secs(10);
    /// The wait of Networking'24 section IV.
    pub const DEFAULT_BUFFER: Duration = Duration::from_millis(300);
    /// How old a frame may be as a rule: LoLa section 3.1.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);
    /// How long a decoder takes for a frame as a rule: ffmpeg with one thread takes 6 ms for H.264
    /// of 1080p at 8 Mbit/s, and the first frames of a scene more. At 30 frames a second it leaves
    /// 23 ms for what is missing of a frame that is late already.
    pub const DEFAULT_DECODE: Duration = Duration::from_millis(10);

    /// The order called `name`, one of [`Order::NAMES`], with the default times of a frame; `None`
    /// if there is none.
    pub fn by_name(name: &str, max_buffer: Duration) -> Option<Self> {
        match name {
            "pass" => Some(Self::Pass),
            "reorder" => Some(Self::Reorder { max_buffer }),
            "reorder-adaptive" => Some(Self::Adaptive { max_buffer }),
            "frames" => Some(Self::Frames {
                deadline: Self::DEFAULT_DEADLINE,
                decode: Self::DEFAULT_DECODE,
                max_buffer,
            }),
            "even" => Some(Self::Even { max_buffer }),
            _ => None,
        }
    }

    /// The order's name in configuration files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Reorder { .. } => "reorder",
            Self::Adaptive { .. } => "reorder-adaptive",
            Self::Frames { .. } => "frames",
            Self::Even { .. } => "even",
        }
    }

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

    /// Whether its packets tell when they were sent.
    pub const fn tells_times(self) -> bool {
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
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for name in Order::NAMES {
            let order = Order::by_name(name, Order::DEFAULT_BUFFER).expect("known");
            assert_eq!(order.to_string(), name);
        }
        assert_eq!(Order::by_name("sorted", Order::DEFAULT_BUFFER), None);
    }
}
