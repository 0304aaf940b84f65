//! The integration tests of this crate, a module each.

#![allow(clippy::disallowed_methods, reason = "programs, sockets and real time")]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod apart;
mod common;
mod filters;
mod network;
mod tun;
mod udp;
