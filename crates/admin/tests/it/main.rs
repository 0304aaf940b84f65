//! The integration tests of this crate, a module each.

#![allow(clippy::disallowed_methods, reason = "programs, sockets and real time")]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;
mod full_disk;
mod hooks;
mod modems;
mod modems_at;
mod report;
mod top;
