//! The drivers of client, server and router: one event loop ([`event_loop`]), and what each does
//! beyond it.
//!
//! ```text
//! run_client ─► ClientRole ─┐
//! run_server ─► ServerRole ─┼─► Driver<N: Node>: Poller, signals, requests ─► tunnel::turn ─► Edge
//! run_proxy  ─► ProxyRole  ─┤
//! run_anchor ─► AnchorRole ─┤
//! run_router ─► RouterRole ─┘                                                (TUN, sockets, clock)
//! ```

mod anchor;
mod cadence;
mod client;
mod client_filters;
mod courtesy;
mod debounce;
mod edge;
mod event_loop;
mod far_end;
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
mod tun_name;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{DeviceError, Routes, Tun};
use ipnet::IpNet;

pub use anchor::{AnchorOptions, run_anchor};
pub use client::{
    CandidateOptions, ClientOptions, ClientReload, ClientRouteOptions, LanStreamsOptions,
    ReloadClient, run_client,
};
pub use proxy::{ProxyOptions, run_proxy};
pub(crate) use repeat_limiter::RepeatLimiter;
pub use reread::Reread;
pub use router::{RouterOptions, RouterSocket, run_router};
pub use server::{ServerOptions, run_server};
pub use serving::reload::{Destinations, Reload, ServerReload};

/// Why a client or server could not start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The system refused.
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
    /// The TUN went away.
    #[error("the device {name} is gone: {source}")]
    TunGone {
        /// The name of the TUN.
        name: String,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// The TUN device of a client or server.
#[derive(Clone, Debug)]
pub struct TunSettings {
    /// The name of the interface.
    pub name: String,
    /// The largest inner packet, bytes.
    pub mtu: u16,
    /// Whether the kernel may hand over segments of up to 64 KB.
    pub offload: bool,
}

/// How often what strategies have learned is written to the state file.
const STATE_INTERVAL: Duration = Duration::from_secs(300);

/// What a daemon reads or writes again while it runs.
fn needed_files<'a>(files: &'a [PathBuf], state_directory: &'a Path) -> Vec<&'a Path> {
    files.iter().map(PathBuf::as_path).chain([state_directory]).collect()
}

/// Leads `prefixes` into the TUN. What the system refuses is told and left out.
fn lead_into_tun(routes: &mut Routes, tun: &Tun, prefixes: &[IpNet]) {
    lead_into(routes, tun.index(), prefixes);
}

/// Leads `prefixes` into the TUN with the index `tun`. What the system refuses is told and left
/// out.
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
