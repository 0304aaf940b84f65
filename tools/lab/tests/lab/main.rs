//! The integration tests of this crate, one module each.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod apps;
mod bad_days;
mod bound;
mod candidates;
mod dice;
mod failover;
#[path = "../../../../crates/tunnel/tests/it/figure5/mod.rs"]
mod figure5;
mod hostile;
mod lanes;
mod late_machine;
mod many_clients;
mod memory;
mod never_worse;
mod nodes;
mod outages;
mod policies;
mod portals;
mod proxied;
mod proxied_stream_states;
mod proxied_streams;
mod random_world;
mod renewal;
mod router;
mod servers;
mod session;
mod speedtest;
mod standby;
mod storm;
mod streams;
mod world;
