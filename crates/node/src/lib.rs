//! A node: it connects the tunnel with Linux (`roadweave-linux`), the configuration and the fleet.
//!
//! ```text
//! cli --> driver --> Poller: Tun <> session <> UplinkSocket (one per uplink)
//!             │      Monitor (uplinks come and go) --> Routes (each by its own gateway)
//!             └----> status, metrics, local socket, streams, membership of a fleet
//! ```
//!
//! It may read the clock, wait, open sockets, start threads (docs/ARCHITECTURE.md, invariant 1).

#![allow(
    clippy::disallowed_methods,
    reason = "this crate is where time, sockets, threads and processes come from"
)]

mod driver;
pub mod fleet;
#[cfg(test)]
#[path = "../../../scripts/golden.rs"]
mod golden;
pub mod history;
mod http;
pub mod local;
mod metrics;
mod modem;
mod reset_salt;
mod state;
pub mod status;
pub mod streams;
mod time_of_day;

pub use driver::{
    DriverError, MemberOptions, Reload, Reread, run_anchor, run_client, run_proxy, run_router,
    run_server,
};
pub use modem::ModemFacts;
pub use state::{Persisted, StateFile};
pub use time_of_day::{ClockReading, HighestTime, TimeOfDay};
