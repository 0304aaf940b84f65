//! Event loops of all roles. [`event_loop`] is common; each role adds its own part.
//!
//! ```text
//! run_client ─► ClientRole  ─┐
//! run_server ─┐              ├─► Driver<N: Node>: Poller, signals, requests ─► tunnel::turn ─► Edge
//! run_proxy  ─┼► ServingRole ┤
//! run_anchor ─┘              │                                                (TUN, sockets, clock)
//! run_router ─► RouterRole  ─┘
//! ```

mod ack_coalescing;
mod anchor;
mod client;
mod client_filters;
mod debounce;
mod edge;
mod event_loop;
mod from_config;
mod granted;
mod proxy;
mod repeat_limiter;
mod requests;
mod reread;
mod resolver;
mod resolvers;
mod router;
mod server;
mod service_manager;
mod serving;
mod settings;
mod shards;
mod steering;
mod technology;
mod tun_name;
mod yield_policy;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use roadweave_linux::{DeviceError, FilterOptions, Forwarding, Routes, Tun};

use crate::fleet::Membership;
use ipnet::IpNet;
use roadweave_identity::Identity;
use roadweave_proto::Marks;

pub use anchor::run_anchor;
pub use client::run_client;
pub use proxy::run_proxy;
pub(crate) use repeat_limiter::RepeatLimiter;
pub use reread::{Reload, Reread};
pub use router::run_router;
pub use server::run_server;

/// Why a daemon failed to start or stopped.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// A system call failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The client's settings cannot be used.
    #[error(transparent)]
    Client(#[from] roadweave_tunnel::ClientError),
    /// The server's settings cannot be used.
    #[error(transparent)]
    Server(#[from] roadweave_quic::ConfigError),
    /// The router's settings cannot be used.
    #[error(transparent)]
    Router(#[from] roadweave_tunnel::RouterError),
    /// The TUN device was removed.
    #[error("the device {name} is gone: {source}")]
    TunGone {
        /// The TUN's name.
        name: String,
        /// The system error.
        source: std::io::Error,
    },
}

/// What a client, a server, a proxy or an anchor runs with; `F` is its configuration file.
pub struct MemberOptions<F> {
    /// The configuration, without the private key.
    pub file: F,
    /// The key pair.
    pub identity: Arc<Identity>,
    /// Reads the configuration again on SIGHUP. An error changes nothing.
    pub reload: Reload<F>,
    /// Further files that are read again later, such as the configuration.
    pub files: Vec<PathBuf>,
    /// Fleet membership, if any. It names a client's servers if its file names none.
    pub membership: Option<Membership>,
}

const STATE_INTERVAL: Duration = Duration::from_secs(300);

fn needed_files<'a>(files: &'a [PathBuf], state_directory: &'a Path) -> Vec<&'a Path> {
    files.iter().map(PathBuf::as_path).chain([state_directory]).collect()
}

fn filters_of(tun: &Tun, marks: Marks, forwarding: Forwarding) -> FilterOptions {
    FilterOptions { marks, ..FilterOptions::new(tun.name(), tun.mtu(), forwarding) }
}

fn lead_into(routes: &mut Routes, tun: u32, prefixes: &[IpNet]) {
    let mut without_ipv6 = false;
    for prefix in prefixes {
        match routes.route_into_tun(tun, &[*prefix]) {
            Ok(()) => {}
            Err(DeviceError::NoIpv6 { .. }) if without_ipv6 => {}
            Err(error) => {
                without_ipv6 |= matches!(error, DeviceError::NoIpv6 { .. });
                tracing::warn!("{error}");
            }
        }
    }
}
