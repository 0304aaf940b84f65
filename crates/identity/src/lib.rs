//! Who is who: Ed25519 keys, and TLS 1.3 between those who know each other by them.
//!
//! ```text
//! Identity ──► public key, signatures, secrets derived for a purpose
//!     '──────► tls: raw public keys on both sides (RFC 7250), and a PeerPolicy that lets in
//! ```
//!
//! Tunnels and the controller's streams rest on the same keys. This crate reads no clock and opens
//! no socket; the ephemeral keys of handshakes come from the system's entropy inside the TLS
//! library.

mod keys;
mod peer_policy;
pub mod tls;

pub use keys::{Identity, InvalidKey, PublicKey, Signature, derive_secret};
pub use peer_policy::{PeerPolicy, Refusal};
