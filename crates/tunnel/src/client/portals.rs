//! Uplinks whose network demands a login before it lets anything through.
//!
//! ```text
//! HTTP over it is answered by a login page ─► held back: tried seldom, behind all others, and
//!     no reason to wait ─► open, or its path is validated ─► as any other, at once
//! ```
//!
//! The network under that uplink says so, and may lie: it affects that uplink, until validated.

use std::time::Duration;

use roadweave_proto::Instant;
use serde::{Deserialize, Serialize};

/// Retries go on, since after a login an uplink may recover without HTTP showing it.
pub(super) const HELD_BACK_RETRY: Duration = Duration::from_secs(4);

/// A network that answers HTTP with a login page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Portal {
    /// The address of that page as the network reports it: valid characters of an http or https
    /// address, otherwise unverified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct HeldBack {
    pub(super) portal: Portal,
    pub(super) since: Instant,
    pub(super) reported: bool,
}
