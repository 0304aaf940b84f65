//! Records links like CellNem and CellFusion, without sockets.
//!
//! ```text
//!  vehicle                                                    server
//!  RecordClient (one per link)                                RecordServer
//!   Sender   ── data until the queue is full, probes ───────>  Receiver ─ LogSender
//!   Receiver <─────────── the same, the other way ───────────  Sender         │
//!   Arrivals <─ LogReceiver <──────── reports, log ───────────────────────────┘
//!      └> LinkRecording: Traces up and down ─> NAME.csv, NAME.down.csv (docs/traces.md)
//! ```
//!
//! A [`RecordPlan`] defines the schedule of the measurements. Both sides take datagrams and the
//! time and yield datagrams, so that a recording can be tested over emulated links in virtual time;
//! `roadweave record` connects them to sockets. Capacity is measured by saturating the link, delay
//! and loss by small probes over the idle link: they cannot be measured at the same time (LoLa
//! section 4.2).

#![allow(missing_docs, reason = "the tools alone use it: a name may say it all")]

mod arrivals;
mod client;
mod endpoint;
mod error;
mod log;
mod measurement;
mod message;
mod plan;
mod receiver;
mod sender;
mod server;
mod token;

pub use client::{RecordClient, RecordPhase, RecordProgress};
pub use error::RecordError;
pub use measurement::{DelayClock, DirectionRecording, DirectionSummary, LinkRecording};
pub use message::RecordRefusal;
pub use plan::{PlanError, RecordMode, RecordPlan};
pub use server::{RecordLimits, RecordPeer, RecordServer, RecordServerStatistics};
pub use token::{RecordToken, TokenError};

#[cfg(test)]
mod tests;
