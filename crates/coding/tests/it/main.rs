//! The integration tests of this crate, one module each.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod reference;
mod theorem;
