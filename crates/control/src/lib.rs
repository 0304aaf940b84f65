//! The controller of a fleet: its members, their configuration, and an audit log of all changes.
//!
//! ```text
//! browser, command line ─ HTTPS ─► api ──► store ──► SQLite | PostgreSQL
//!                                   ▲        │ every change also into the outbox
//!                             live, │        ▼
//! box, proxy, anchor ─ TLS ─► streams ◄─── outbox, read every 250 ms
//! ```
//!
//! It forwards no packets: without it the fleet keeps running by the documents on its disks. Start
//! reading at [`store`], then `api::routes`. [`controller`] and [`operator`] are the commands of
//! `roadweave-controller` and `roadweave-fleet`.

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
