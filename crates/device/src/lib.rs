//! The edge to Linux: TUN, uplink sockets, interfaces, routes, packet filters, namespaces, clock.
//!
//! ```text
//! cli --> driver --> Poller: Tun <> session <> UplinkSocket (one per uplink)
//!                    Monitor (uplinks come and go) --> Routes (each by its own gateway)
//! ```
//!
//! Only this crate, the controller and the command line may read the clock, wait, open sockets and
//! start threads (invariant 1 of docs/ARCHITECTURE.md). Only the drivers know the tunnel; they
//! connect it with the other modules.

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
mod dns;
mod driver;
mod error;
mod files;
mod filter;
pub mod fleet;
#[cfg(test)]
#[path = "../../../scripts/golden.rs"]
mod golden;
pub mod history;
mod http;
pub mod local;
mod lookup;
mod metrics;
mod modem;
mod monitor;
mod netlink;
pub mod netns;
mod offload;
mod pauses;
mod poll;
mod portal;
mod privileges;
mod process;
mod program;
mod random;
mod reset_salt;
mod routes;
mod serial;
mod signals;
mod socket;
mod space;
mod state;
pub mod status;
pub mod streams;
mod sysctl;
mod technology;
mod threads;
mod time_of_day;
mod tun;
mod udp;

pub use answers::Answers;
pub use apart::Apart;
pub use cleanup::cleanup;
pub use clock::Clock;
pub use driver::{
    DriverError, MemberOptions, Reload, Reread, run_anchor, run_client, run_proxy, run_router,
    run_server,
};
pub use error::DeviceError;
pub use filter::{
    Destination, FilterKeeper, FilterOptions, Filters, Forward, Forwarding, Share, Turn,
};
pub use modem::ModemFacts;
pub use monitor::{Gateway, Monitor, Uplink, UplinkEvent};
pub use netlink::{Interface, Netlink, NetworkInterface, Route, Rule};
pub use poll::{Event, Interest, Poller, Token, Waker, wait_readable};
pub use privileges::become_owner_of;
pub use process::{Instance, InstanceLock, ROUTE_PROTOCOL};
pub use random::random_bytes;
pub use routes::{
    AnchorTun, Change, ClientRoutes, Excluded, Grant, LocalNetworks, RouteKeeper, RouteSettings,
    Routes,
};
pub use serial::is_exclusive;
pub use signals::{Signal, Signals};
pub use state::{Kept, StateFile};
pub use technology::detected_technology;
pub use time_of_day::{ClockReading, HighestTime, TimeOfDay};
pub use tun::{Tun, TunOptions, TunStatistics, WriteCounts};
pub use udp::{
    Ecn, Incoming, Outgoing, SendFailure, SendOutcome, UdpOptions, UdpStatistics, UplinkSocket,
};
