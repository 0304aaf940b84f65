//! Where a daemon's configuration lies unless it is told; after a join the file need not be there.

pub const CLIENT_FILE: &str = "/etc/roadweave/client.toml";
#[cfg(feature = "server")]
pub const SERVER_FILE: &str = "/etc/roadweave/server.toml";
#[cfg(feature = "server")]
pub const PROXY_FILE: &str = "/etc/roadweave/proxy.toml";
#[cfg(feature = "server")]
pub const ANCHOR_FILE: &str = "/etc/roadweave/anchor.toml";
