//! Who meets whom, and when, in several tests.

use std::net::SocketAddr;

use roadweave_identity::Identity;
use roadweave_quic::Epoch;

pub(crate) fn identity(seed: u8) -> Identity {
    Identity::from_seed([seed; 32])
}

pub(crate) fn server_address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 4433))
}

pub(crate) fn client_address() -> SocketAddr {
    SocketAddr::from(([100, 64, 0, 1], 10_000))
}

#[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
pub(crate) fn epoch() -> Epoch {
    Epoch::new(std::time::Instant::now())
}
