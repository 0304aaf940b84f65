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
}

impl Order {
    /// The names of configuration files.
    pub const NAMES: [&str; 3] = ["pass", "reorder", "reorder-adaptive"];
    /// The longest wait that may be asked for.
    pub const MAX_BUFFER: Duration = Duration::from_secs(10);
    /// The wait of Networking'24 section IV.
    pub const DEFAULT_BUFFER: Duration = Duration::from_millis(300);

    /// The order called `name`, one of [`Order::NAMES`]; `None` if there is none.
    pub fn by_name(name: &str, max_buffer: Duration) -> Option<Self> {
        match name {
            "pass" => Some(Self::Pass),
            "reorder" => Some(Self::Reorder { max_buffer }),
            "reorder-adaptive" => Some(Self::Adaptive { max_buffer }),
            _ => None,
        }
    }

    /// The order's name in configuration files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Reorder { .. } => "reorder",
            Self::Adaptive { .. } => "reorder-adaptive",
        }
    }

    /// The longest wait; zero for [`Order::Pass`].
    pub const fn max_buffer(self) -> Duration {
        match self {
            Self::Pass => Duration::ZERO,
            Self::Reorder { max_buffer } | Self::Adaptive { max_buffer } => max_buffer,
        }
    }

    /// This order with a wait of at most `limit`.
    #[must_use]
    pub fn at_most(self, limit: Duration) -> Self {
        match self {
            Self::Pass => Self::Pass,
            Self::Reorder { max_buffer } => Self::Reorder { max_buffer: max_buffer.min(limit) },
            Self::Adaptive { max_buffer } => Self::Adaptive { max_buffer: max_buffer.min(limit) },
        }
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
