//! The integration tests of this crate, a module each.

#![allow(clippy::disallowed_methods, reason = "programs, sockets and real time")]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod anchor_names;
mod anchor_streams;
mod bad_days;
mod cli;
mod closed;
mod common;
mod dead_log;
mod dependencies;
mod descriptors;
mod doctor;
mod encoder;
mod enrolled;
mod excluded;
mod faults;
mod fleet;
mod forwards;
mod full_disk;
mod lookup;
mod peers;
mod placement;
mod policies;
mod portals;
mod privileges;
mod prometheus;
mod qlog;
mod readdressed;
mod reload;
mod renamed;
mod router;
mod service;
mod shards;
mod split;
mod strangers;
mod streams;
mod suspend;
mod tunnel;
