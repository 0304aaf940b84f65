//! The edge to Linux: TUN, sockets, interfaces, routes, packet filters, namespaces, clock.
//!
//! ```text
//! Poller ─► Tun, UplinkSocket: packets          Monitor ─► Routes, Answers: each uplink by its gateway
//!      └──► Signals, Waker, Clock               Filters, Dns: what passes, and who is asked
//! ```
//!
//! This crate takes no type of the tunnel, the configuration or the fleet: its users say in plain
//! types what is routed, filtered and opened. Like the node above it, it may read the clock, wait,
//! open sockets and start threads (invariant 1 of docs/ARCHITECTURE.md).

#![allow(
    clippy::disallowed_methods,
    reason = "this crate is where time, sockets, threads and processes come from"
)]

mod answers;
mod apart;
mod callers;
mod cleanup;
mod clock;
mod conflicts;
pub mod dns;
mod error;
pub mod files;
mod filter;
#[cfg(test)]
#[path = "../../../scripts/golden.rs"]
mod golden;
pub mod lookup;
mod monitor;
mod netlink;
pub mod netns;
mod offload;
pub mod pauses;
mod poll;
pub mod portal;
pub mod privileges;
mod process;
mod program;
mod random;
mod routes;
mod serial;
mod signals;
pub mod socket;
mod space;
mod sysctl;
mod technology;
pub mod threads;
mod tun;
mod udp;

pub use answers::Answers;
pub use apart::Apart;
pub use callers::Callers;
pub use cleanup::{cleanup, take_over};
pub use clock::{Clock, processor_time};
pub use conflicts::{Owner, Protected};
pub use error::DeviceError;
pub use filter::{
    Destination, FilterKeeper, FilterOptions, Filters, FlowRemover, Forward, Forwarding,
    MaintainedTable, Share, TableTurn, check_sockets, split,
};
pub use monitor::{Gateway, Monitor, Uplink, UplinkEvent};
pub use netlink::{Interface, Netlink, NetworkInterface, Route, Rule};
pub use poll::{Event, Interest, Poller, Token, Waker, wait_any, wait_readable};
pub use privileges::become_owner_of;
pub use process::{Instance, InstanceLock, ROUTE_PROTOCOL, own_directory};
pub use random::random_bytes;
pub use routes::{
    AnchorTun, Change, ClientRoutes, Excluded, Grant, LocalNetworks, Repairs, RouteKeeper,
    RouteSettings, Routes, has_reverse_path_filter,
};
pub use serial::is_exclusive;
pub use signals::{Signal, Signals};
pub use space::space_length;
pub use technology::{detected_technology, hardware};
pub use tun::{Tun, TunOptions, TunStatistics, WriteCounts};
pub use udp::{
    Ecn, Incoming, Outgoing, SendFailure, SendOutcome, UdpOptions, UdpStatistics, UplinkSocket,
    bind_to_interface,
};
