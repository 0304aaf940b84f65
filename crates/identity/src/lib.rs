//! Ed25519 keys, and TLS 1.3 between peers that know each other by their keys.
//!
//! ```text
//! Identity ──► public key, signatures, secrets derived for a purpose
//!     └──────► tls: raw public keys on both sides (RFC 7250), accepted by a PeerPolicy
//! ```
//!
//! Tunnels and the streams of the controller use the same keys. This crate reads no clock and opens
//! no socket; the TLS library takes ephemeral keys from the system.

mod keys;
mod peer_policy;
pub mod tls;

pub use keys::{Identity, InvalidKey, PublicKey, Signature, derive_secret};
pub use peer_policy::{PeerPolicy, Refusal};
