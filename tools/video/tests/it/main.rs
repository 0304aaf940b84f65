//! The integration tests of this crate, one module each.

#![allow(clippy::disallowed_methods, reason = "programs, sockets and real time")]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;
mod errors;
mod feedback;
mod hostile;
mod loopback;
mod renewal;
mod rtcp_flood;
mod srt;
