//! Default paths of configuration files. After a join the file may be missing.

pub const CLIENT_FILE: &str = "/etc/roadweave/client.toml";
#[cfg(feature = "server")]
pub const SERVER_FILE: &str = "/etc/roadweave/server.toml";
#[cfg(feature = "server")]
pub const PROXY_FILE: &str = "/etc/roadweave/proxy.toml";
#[cfg(feature = "server")]
pub const ANCHOR_FILE: &str = "/etc/roadweave/anchor.toml";
