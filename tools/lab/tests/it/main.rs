//! The integration tests of this crate, one module each.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod bad_days;
mod bound;
mod candidates;
mod chain;
mod chain_stream_states;
mod chain_streams;
mod crowd;
mod dice;
mod even;
mod expiry;
mod failover;
#[path = "../../../../crates/tunnel/tests/it/figure5/mod.rs"]
mod figure5;
mod frames;
mod hostile;
mod lanes;
mod late_machine;
mod memory;
mod mtu;
mod never_worse;
mod nodes;
mod outages;
mod pause;
mod policies;
mod portals;
mod random_world;
mod renewal;
mod requests;
mod router;
mod servers;
mod session;
mod speedtest;
mod standby;
mod storm;
mod strategies;
mod streams;
mod world;
