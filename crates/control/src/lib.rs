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
//! reading at `store`, then `api::routes`. [`controller`] and [`operator`] are the commands of
//! `roadweave-controller` and `roadweave-fleet`.

#![allow(
    clippy::disallowed_methods,
    reason = "the controller reads the clock, listens, and starts threads"
)]

mod api;
mod authority;
mod certificate;
mod clock;
mod connection_limits;
pub mod controller;
mod files;
mod keys;
mod metrics;
mod model;
mod oidc;
pub mod operator;
mod outbox;
mod plan;
mod prompt;
mod rollback_guard;
mod serve;
mod store;
mod streams;
