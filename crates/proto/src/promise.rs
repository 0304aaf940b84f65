//! What the sender of a lane promises of its packets.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Order;

/// What the sender of a lane promises of its packets; the receiving side keeps it, or counts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// The order in which they come out.
    pub order: Order,
    /// For how long a packet, the parts of it that were lost and its repairs may still be sent, at
    /// most [`Promise::AGE_MAX`]: what is incomplete is kept for so long.
    pub age_max: Duration,
    /// Whether packets tell when they were sent, and are worth nothing beyond that age.
    pub expires: bool,
    /// Whether coded packets may come, for which packets must be kept.
    pub coded: bool,
    /// Whether the sender wants acknowledgements on all paths, and not on the fastest alone.
    pub acknowledge_on_all: bool,
}

impl Promise {
    /// The longest that anything of a packet may be kept for.
    pub const AGE_MAX: Duration = Duration::from_secs(10);
    /// The age at which a packet of CellFusion is worth no repair (section 4.4.3).
    pub const DEFAULT_AGE: Duration = Duration::from_millis(700);
}

impl Default for Promise {
    /// What holds of a lane before anything was promised.
    fn default() -> Self {
        Self {
            order: Order::Pass,
            age_max: Self::DEFAULT_AGE,
            expires: false,
            coded: true,
            acknowledge_on_all: false,
        }
    }
}
