//! The local socket: JSON-RPC 2.0, one request a line.
//!
//! A thread for each connection passes requests to the event loop through a bounded queue, and
//! answers "busy" on timeout. Only root and the instance's user may connect (mode 0600).

mod calls;
mod client;
mod error;
mod requests;
mod server;
mod subscribers;

pub use calls::{
    begin_speedtest, drain, reload, set_strategy, set_uplink, speedtest_report, status, summary,
    tell_modem,
};
pub use client::{RequestError, request, subscribe};
pub use error::RpcError;
pub use requests::{
    BeginSpeedtest, Drain, DrainAnswer, EncoderWord, ReloadAnswer, SetAnswer, SetQoe, SetStrategy,
    Subscribe, Supersede, SupersedeAnswer, TellModem, TellPlayer, Topic,
};
pub use roadweave_config::SetUplink;
pub(crate) use server::RequestSender;
#[cfg(test)]
pub(crate) use server::testing;
pub use server::{LocalRequest, LocalServer};
pub(crate) use subscribers::{SEND_BUFFER, Subscribers};

const LINE_MAX: usize = 1024 * 1024;
