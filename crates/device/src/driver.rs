//! The event loops: they join the sans-IO tunnel with TUN, sockets and clock.
//!
//! ```text
//! Poller ─► TUN readable     ─► handle_inner                   ┐
//!        ─► socket readable  ─► handle_packet ─► inner ─► TUN  ├─► service ─► drain ─► sockets
//!        ─► timeout          ──────────────────────────────────┘
//!        ─► monitor, signals, control ─► uplinks, end, status
//! ```
//!
//! One thread does all of it. Work comes in batches: everything that is readable is taken first,
//! then the tunnel is serviced once, so that what leaves can leave in runs (GSO). What is complete
//! goes to the TUN before that: acknowledgements take longer to make than the packet that they are
//! for can wait.

mod client;
mod complaints;
mod granted;
mod guard;
mod pace;
mod resolver;
mod router;
mod server;
mod settings;
mod steering;
mod tun_name;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use roadweave_quic::{Ecn as QuicEcn, Outbox};
use roadweave_tunnel::RecvMeta;
use roadweave_types::{Instant, UplinkId};
use serde_json::{Value, json};

use crate::pauses::TURN_MAX;
use crate::{
    Clock, DeviceError, Ecn, Incoming, Outgoing, Poller, Prefix, Routes, SendOutcome, Token, Tun,
};

pub use client::{ClientOptions, ClientReload, ClientRouteOptions, ReloadClient, run_client};
pub use router::{RouterOptions, RouterSocket, run_router};
pub use server::{Destinations, Reload, ServerOptions, ServerReload, run_server};

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
        /// Its name.
        name: String,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// Takes what is readable from the TUN.
fn read_tun(tun: &mut Tun, handle: impl FnMut(&[u8])) -> Result<(), DriverError> {
    let taken = tun.read_batch(handle).map(drop);
    taken.map_err(|source| DriverError::TunGone { name: tun.name().to_owned(), source })
}

/// Discards what waits in the TUN after a pause, however old it is; returns how many packets that
/// were.
fn discard_inner(tun: &mut Tun) -> Result<u64, DriverError> {
    let mut packets = 0;
    for _ in 0..DISCARDS_MAX {
        let before = packets;
        read_tun(tun, |_| packets += 1)?;
        if packets == before {
            break;
        }
    }
    Ok(packets)
}

/// The TUN device of a client or server.
#[derive(Clone, Debug)]
pub struct TunSettings {
    /// Its name.
    pub name: String,
    /// The largest inner packet, bytes.
    pub mtu: u16,
    /// Whether the kernel may hand over segments of up to 64 KB.
    pub offload: bool,
}

const TUN: Token = Token(0);
const SIGNALS: Token = Token(1);
const CONTROL: Token = Token(2);
const MONITOR: Token = Token(3);
const ROUTERS: Token = Token(4);
/// How often what strategies have learned is written to the state file.
const STATE_INTERVAL: Duration = Duration::from_secs(300);
/// Batches that are discarded after a pause, at most: more than the kernel's queue holds.
const DISCARDS_MAX: usize = 64;
/// Sockets have this and the numbers after it.
const SOCKETS: u64 = 16;

/// Waits until something is ready, or until `timeout`, and no longer than a turn may take; returns
/// what is.
fn wait(
    poller: &mut Poller,
    clock: Clock,
    timeout: Option<Instant>,
) -> std::io::Result<Vec<Token>> {
    let timeout = timeout.and_then(|at| Clock::until(clock.now(), at)).unwrap_or(TURN_MAX);
    Ok(poller.wait(Some(timeout.min(TURN_MAX)))?.iter().map(|event| event.token).collect())
}

/// Hands everything in `outbox` to `send`, with the uplink it leaves by. Returns how many packets
/// `send` had no socket for.
///
/// A packet that the kernel does not take is counted by its socket and lost, as on the network: the
/// recovery knows what to do.
fn send_all(
    outbox: &Outbox,
    mut send: impl FnMut(Option<UplinkId>, &Outgoing<'_>) -> Option<SendOutcome>,
) -> u64 {
    let mut homeless = 0;
    for run in outbox.runs() {
        let outgoing = Outgoing {
            destination: run.route.destination,
            source: run.route.source,
            ecn: to_socket_ecn(run.route.ecn),
            contents: run.data,
            segment_size: run.segment_size,
        };
        if send(run.route.uplink, &outgoing).is_none() {
            homeless += run.packets().len() as u64;
        }
    }
    homeless
}

fn to_socket_ecn(ecn: Option<QuicEcn>) -> Ecn {
    match ecn {
        None => Ecn::NotCapable,
        Some(QuicEcn::Ect0) => Ecn::Ect0,
        Some(QuicEcn::Ect1) => Ecn::Ect1,
        Some(QuicEcn::Ce) => Ecn::CongestionExperienced,
    }
}

fn to_quic_ecn(ecn: Ecn) -> Option<QuicEcn> {
    match ecn {
        Ecn::NotCapable => None,
        Ecn::Ect0 => Some(QuicEcn::Ect0),
        Ecn::Ect1 => Some(QuicEcn::Ect1),
        Ecn::CongestionExperienced => Some(QuicEcn::Ce),
    }
}

/// How a packet came by `socket`.
fn meta(socket: UplinkId, incoming: &Incoming<'_>) -> RecvMeta {
    let Incoming { remote, local, ecn, .. } = *incoming;
    RecvMeta { socket, remote, local, ecn: to_quic_ecn(ecn) }
}

/// Writes inner packets to the TUN; returns how many it did not take.
fn write_inner(tun: &mut Tun, mut poll: impl FnMut() -> Option<Bytes>) -> u64 {
    let counts = tun.write_batch(std::iter::from_fn(&mut poll));
    (counts.full + counts.refused) as u64
}

/// The part of the status that client and server share.
fn status(role: &str, name: &str, tun: &Tun, uptime: Duration, rest: Value) -> Value {
    let device = tun.statistics();
    let mut status = json!({
        "role": role,
        "name": name,
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": uptime.as_secs_f64(),
        "tun": tun.name(),
        "device": {
            "packets_read": device.packets_read,
            "bytes_read": device.bytes_read,
            "packets_written": device.packets_written,
            "bytes_written": device.bytes_written,
        },
        "log": { "lines_lost": crate::log::lines_lost() },
    });
    if let (Value::Object(status), Value::Object(rest)) = (&mut status, rest) {
        status.extend(rest);
    }
    status
}

/// What a daemon reads or writes again while it runs.
fn needed_files<'a>(files: &'a [PathBuf], state_directory: &'a Path) -> Vec<&'a Path> {
    files.iter().map(PathBuf::as_path).chain([state_directory]).collect()
}

fn to_prefix(network: ipnet::IpNet) -> Prefix {
    Prefix::new(network.addr(), network.prefix_len())
}

fn to_network(prefix: Prefix) -> ipnet::IpNet {
    ipnet::IpNet::new(prefix.address(), prefix.length())
        .expect("a prefix is no longer than its address")
}

/// Leads `prefixes` into the TUN. What the system refuses is told and left out.
fn lead_into_tun(routes: &mut Routes, tun: &Tun, prefixes: &[Prefix]) {
    lead_into(routes, tun.index(), prefixes);
}

/// The same for the TUN with the index `tun`.
fn lead_into(routes: &mut Routes, tun: u32, prefixes: &[Prefix]) {
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
