//! A member of a fleet: the control plane of a box, a proxy or an anchor.
//!
//! A thread runs the agent, with one TLS stream to a controller and the signed state on disk, and
//! exchanges updates and commands with the event loop. Without a controller, the state serves.

mod backoff;
mod controller_connection;
mod controller_route;
mod figures;
mod handle;
mod join;
mod mailbox;
mod members;
mod membership;
mod state_writer;
mod store;
mod stream;
#[cfg(test)]
mod testing;
mod thread;
mod worker;

pub use join::{JoinError, JoinOptions, Joined, join};
pub use membership::{Membership, MembershipError};
pub use store::StoreError;
pub use thread::Merge;

pub(crate) use handle::{Fleet, FleetOptions};
pub(crate) use mailbox::{FleetUpdates, ServerFigures};
pub(crate) use members::{LeftOut, Members, Space, beside};
