//! The configuration files: their fields, and errors with the remedy.
//!
//! Every field has a default where one makes sense, and its unit in its name. Its comment is its
//! description for users: a test writes the tables of docs/ from the types and their comments.

mod anchor;
mod client;
mod destinations;
mod differing;
mod field;
mod fleet;
mod forwards;
mod lane;
mod merge;
mod metrics;
mod new_peer;
mod packet_mark;
mod peers;
mod policy;
mod proxy;
mod reader;
mod router;
mod secret;
mod server;
mod speedtest;
mod strategy;
mod streams;
mod transport;
mod tun;
mod values;

pub use anchor::{ANCHOR_PORT, AnchorFile, ProxyFields};
pub use client::{
    BeforeJoin, ClientFile, ClientLimits, LocalNetworks, RouteFields, ServerFields, UplinkFields,
};
pub use destinations::AllowedDestination;
pub use differing::differing;
pub use field::{Field, fields};
pub use fleet::{FleetFields, ProxyFleetFields};
pub use forwards::{ForwardFields, ForwardProtocol};
pub use lane::{
    LaneFields, LaneNames, MatchFields, Ordering, Ports, Protocol, lane_configs,
    validate_deadlines, validate_lanes,
};
pub use merge::{Merged, merge};
pub use metrics::MetricsFields;
pub use new_peer::{ChangeError, NewClient, add_client, change_server_file, next_peer, with_peer};
pub use packet_mark::{PacketMark, PacketMarks};
pub use peers::{PeerFields, peers};
pub use policy::{MeteredFields, PolicyFields, SetUplink, UplinkTraits};
pub use proxy::{AnchorFields, ProxyFile, ProxyTenantFields};
pub use reader::{Fault, FileError, Validate, check, load, parse, read_text, reading_group};
pub use router::{LinkSocket, RouterFile, RouterLinkFields, RouterOrdering};
pub use secret::{PrivateKey, WriteError, create_secret, write_secrets};
pub use server::{SERVER_PORT, ServerFile, ServerLimits};
pub use speedtest::SpeedtestFields;
pub use strategy::StrategyName;
pub use streams::{AnchorStreams, ClientStreams, ProxyStreams, ServerStreams, TcpRule, TcpWay};
pub use transport::TransportFields;
pub use tun::{TunFields, TunName};
pub use values::{Within, host_port, state_directory as default_state_directory};

#[cfg(test)]
#[path = "../../../scripts/golden.rs"]
mod golden;
#[cfg(test)]
mod tests;
