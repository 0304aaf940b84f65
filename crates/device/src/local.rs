//! The local socket: JSON-RPC 2.0, one request a line.
//!
//! ```text
//! roadweave show --> /run/roadweave/NAME.sock --> thread per connection --> bounded queue + Waker
//!                                                  <-- answer, or "busy" after a while <-- event loop
//! ```
//!
//! Only the user who runs the instance, and root, may connect: the socket's mode is 0600 before
//! anybody can.

mod client;
mod requests;
mod server;

pub use client::{RequestError, request};
pub use requests::{
    Drain, DrainAnswer, SetAnswer, SetQoe, SetStrategy, TellPlayer, drain, set_strategy, status,
};
pub(crate) use server::RequestSender;
pub use server::{LocalRequest, LocalServer, RpcError};

/// Longest line, bytes; a longer one ends the connection.
const LINE_MAX: usize = 1024 * 1024;
