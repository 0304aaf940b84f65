//! What all crates share: ids, units, plain values, everything that crosses the network ([`wire`]),
//! and readers of players' plain HTTP ([`media`]).
//!
//! Nothing here does I/O or reads a clock.

pub mod media;
pub mod wire;

mod deadlines;
mod delays;
mod drop_reason;
mod ids;
mod marks;
mod name_pattern;
mod named;
mod offer;
mod order;
mod pacing;
mod path;
mod policy;
mod probe_url;
mod promise;
mod random;
mod rtt;
mod server_name;
mod technology;
mod text;
mod time;
mod token_bucket;
mod uplink_selector;
mod urgency;

pub use deadlines::Deadlines;
pub use delays::Delays;
pub use drop_reason::{DropCounters, DropReason};
pub use ids::{LaneId, PacketId, PathId, UplinkId};
pub use marks::{Kind, Marks, Side};
pub use name_pattern::NamePattern;
pub use offer::PathOffer;
pub use order::Order;
pub use pacing::Pacing;
pub use path::{PathSnapshot, PathStatus};
pub use policy::{Policy, Priority};
pub use probe_url::ProbeUrl;
pub use promise::Promise;
pub use random::SplitMix64;
pub use rtt::RttEstimator;
pub use server_name::{ServerHost, ServerName};
pub use technology::Technology;
pub use text::{PEER_TEXT_MAX, peer_text};
pub use time::{Instant, Rate, earliest};
pub use token_bucket::TokenBucket;
pub use uplink_selector::{NoUplink, UplinkSelector, glob};
pub use urgency::Urgency;

/// The version that programs print; with the commit, if `deploy/version.sh` named it to the build.
pub const VERSION: &str = match option_env!("ROADWEAVE_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};
