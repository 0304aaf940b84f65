//! The integration tests of this crate, a module each.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod bad_speedtest;
mod common;
mod embed;
mod figure5;
mod out_of_turn;
mod race;
mod router_order;
mod shards;
