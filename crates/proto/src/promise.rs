//! The sender's promise about the packets of a lane.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Order;

/// The sender's promise about the packets of a lane; the receiver keeps it or relies on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// The order in which they go out.
    pub order: Order,
    /// How long a packet, its lost parts and its repairs may still be sent, at most
    /// [`Promise::AGE_MAX`]; incomplete ones are kept as long.
    pub age_max: Duration,
    /// Whether packets carry their sending times and expire at that age.
    pub expires: bool,
    /// Whether coded packets may come, which require kept packets.
    pub coded: bool,
    /// Whether acknowledgements are wanted on all paths instead of the fastest.
    pub acknowledge_on_all: bool,
}

impl Promise {
    /// The longest that a packet may be kept.
    pub const AGE_MAX: Duration = Duration::from_secs(10);
    /// CellFusion's age beyond which a repair is useless (section 4.4.3).
    pub const DEFAULT_AGE: Duration = Duration::from_millis(700);
}

impl Default for Promise {
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
