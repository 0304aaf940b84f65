//! Reliable byte streams over the lanes of a session: "streams" of XLINK (SIGCOMM 2021), carried by
//! a tunnel.
//!
//! ```text
//! user ─ open, write, finish ─► send buffer ─► poll_transmit ─► lane ─► ... ─► lane
//!                                    │         frames of one symbol, by priority │
//!                                    └── lost: timer, new session                │
//! user ◄─ read, poll_event ─── reassembly ◄────────────────── handle_symbol ◄────┘
//! ```
//!
//! [`Streams`] is one end of a session. Like all that a tunnel is made of it has no clock, no
//! sockets and no chance in it: its owner tells it the time, hands it the symbols that came, and
//! fetches those that are to leave. There are four kinds of methods:
//!
//! - the user's: [`open`](Streams::open), [`accept`](Streams::accept), [`write`](Streams::write),
//!   [`read`](Streams::read), [`finish`](Streams::finish), [`stop`](Streams::stop),
//!   [`reset`](Streams::reset), [`set_priority`](Streams::set_priority); and
//!   [`poll_event`](Streams::poll_event) tells the user what happened;
//! - what comes: [`handle_symbol`](Streams::handle_symbol);
//! - what leaves: [`poll_transmit`](Streams::poll_transmit), and how urgent that is, so that a lane
//!   may send what is under way and more urgent a second time before it:
//!   [`next_urgency`](Streams::next_urgency);
//! - time: [`poll_timeout`](Streams::poll_timeout), [`handle_timeout`](Streams::handle_timeout).
//!
//! A lane repairs what it loses for some hundreds of milliseconds, so that a stream rarely has to
//! send again; but a lane gives up, and a session may be replaced. So a receiver acknowledges by
//! stream and offset, and a sender takes for lost what is not acknowledged when the lane is surely
//! through with it ([`Timing`]), or when the owner says that there is a new session
//! ([`on_new_session`](Streams::on_new_session)).
//!
//! Memory is bounded by [`Config`], whatever the peer does: see [`Streams::memory_max`].
//!
//! Source: XLINK sections 4 to 6; RFC 9000 sections 2 to 4; RFC 9218. The frames are in
//! docs/wire.md.

mod closed;
mod config;
mod credit;
mod crowding;
mod error;
mod event;
mod handle;
mod index;
mod priority;
mod ranges;
mod receive;
mod ring;
mod send;
mod stream;
mod streams;
mod timeout;
mod transmit;

pub use config::{Config, Side, Stats, Timing};
pub use error::{HandleError, StreamError, Violation};
pub use event::Event;
pub use streams::Streams;

#[cfg(test)]
mod tests;
