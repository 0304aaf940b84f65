//! The local socket: JSON-RPC 2.0, one request a line.
//!
//! ```text
//! roadweave show --> /run/roadweave/NAME.sock --> thread per connection --> bounded queue + Waker
//!                                                  <-- answer, or "busy" after a while <-- event loop
//!             subscribe -->                        <-- a word whenever there is news     <-- event loop
//! ```
//!
//! Only the user who runs the instance, and root, may connect: the socket's mode is 0600 before
//! anybody can.

mod client;
mod requests;
mod server;
mod subscribers;

pub use client::{RequestError, request, subscribe};
pub use requests::{
    BeginSpeedtest, Drain, DrainAnswer, EncoderWord, ReloadAnswer, SetAnswer, SetQoe, SetStrategy,
    SetUplink, Subscribe, Supersede, SupersedeAnswer, TellModem, TellPlayer, Topic,
    begin_speedtest, drain, reload, set_strategy, set_uplink, speedtest_report, status, summary,
    tell_modem,
};
pub(crate) use server::RequestSender;
#[cfg(test)]
pub(crate) use server::testing;
pub use server::{LocalRequest, LocalServer, RpcError};
pub(crate) use subscribers::{SEND_BUFFER, Subscribers};

/// Longest line of a caller, bytes; a longer one ends the connection.
const LINE_MAX: usize = 1024 * 1024;
