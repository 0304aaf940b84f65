//! Reliable byte streams over a session's lanes: "streams" of XLINK (SIGCOMM 2021).
//!
//! ```text
//! user ─ open, write, finish ─► send buffer ─► poll_transmit ─► lane ─► ... ─► lane
//!                                    │         frames of one symbol, by priority │
//!                                    └── lost: timer, new session                │
//! user ◄─ read, poll_event ─── reassembly ◄────────────────── handle_symbol ◄────┘
//! ```
//!
//! [`Streams`] is one end of a session, without clock, sockets or chance (sans-IO). Its methods:
//!
//! - user: [`open`](Streams::open), [`accept`](Streams::accept), [`write`](Streams::write),
//!   [`read`](Streams::read), [`finish`](Streams::finish), [`stop`](Streams::stop),
//!   [`reset`](Streams::reset), [`set_priority`](Streams::set_priority),
//!   [`poll_event`](Streams::poll_event);
//! - input: [`handle_symbol`](Streams::handle_symbol);
//! - output: [`poll_transmit`](Streams::poll_transmit), and [`next_urgency`](Streams::next_urgency)
//!   so that a lane may repeat more urgent packets in flight first;
//! - time: [`poll_timeout`](Streams::poll_timeout), [`handle_timeout`](Streams::handle_timeout).
//!
//! A lane repairs losses for some hundreds of milliseconds. So the sender retransmits after that
//! ([`Timing`]) or after [`on_new_session`](Streams::on_new_session).
//!
//! Memory is bounded by [`Config`] for any peer: see [`Streams::memory_max`].
//!
//! Source: XLINK sections 4 to 6; RFC 9000 sections 2 to 4; RFC 9218; docs/wire.md.

mod closed;
mod config;
mod credit;
mod error;
mod event;
mod index;
mod priority;
mod ranges;
mod receive;
mod ring;
mod send;
mod stream;
mod streams;

pub use config::{Config, Side, Stats, Timing};
pub use error::{HandleError, StreamError, Violation};
pub use event::Event;
pub use streams::Streams;

#[cfg(test)]
mod tests;
