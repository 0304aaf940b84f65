//! The controller of a fleet: who may be in it, what each box shall do, and who does what with it.
//!
//! ```text
//! browser, command line ─ HTTPS ─► api ──► store ──► SQLite | PostgreSQL
//!                                   ▲        │ every change also into the outbox
//!                             live, │        ▼
//! box, proxy, anchor ─ TLS ─► streams ◄─── outbox, read every 250 ms
//! ```
//!
//! Nothing of it is on the way of a packet: the fleet goes on without it from documents on disk.
//! Start reading at [`store`], then `api::routes`. [`controller`] and [`operator`] are the commands
//! of `roadweave-controller` and `roadweave-fleet`.

#![allow(
    clippy::disallowed_methods,
    reason = "the controller reads the clock, listens, and starts threads"
)]

pub mod api;
pub mod authority;
pub mod certificate;
pub mod clock;
pub mod connection_limits;
pub mod controller;
pub mod floor;
pub mod heads;
pub mod keys;
pub mod metrics;
pub mod model;
pub mod oidc;
pub mod operator;
pub mod outbox;
pub mod plan;
mod prompt;
pub mod serve;
pub mod store;
pub mod streams;
