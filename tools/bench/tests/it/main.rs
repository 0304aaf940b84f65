//! The integration tests of this crate, a module each.

#![allow(clippy::disallowed_methods, reason = "programs, sockets and real time")]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod cli;
#[path = "../../../../crates/roadweave/tests/it/common/daemon.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod daemon;
mod figures;
mod lab;
mod qoe;
mod record;
mod stack;
mod trace;
