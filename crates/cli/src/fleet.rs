//! `roadweave proxy` and `roadweave anchor`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use roadweave_config::{AnchorFile, ProxyFile};
use roadweave_device::{
    AnchorOptions, Destinations, ProxyOptions, ServerReload, random_bytes, run_anchor, run_proxy,
};
use roadweave_identity::PublicKey;
use roadweave_terminal::exit::BadInput;
use roadweave_tunnel::{AnchorConfig, AnchorTenant, Peer, PeerTable, ServerConfig};

use crate::run::{in_order, tell_ignored, tun_settings, warn_of};

/// Runs a proxy: ends multipath, and passes inner packets on to the anchors of their tenants. It
/// needs no rights over its machine's network.
#[derive(Debug, clap::Args)]
pub struct ProxyArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/roadweave/proxy.toml")]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
}

/// Runs an anchor: holds the inner addresses of a tenant's clients, whichever proxies they are at.
#[derive(Debug, clap::Args)]
pub struct AnchorArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/roadweave/anchor.toml")]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
}

impl ProxyArgs {
    /// # Errors
    /// When the file is broken, or the system does not let the proxy run.
    pub fn run(&self) -> Result<()> {
        let mut file: ProxyFile = roadweave_config::load(&self.config).map_err(BadInput::new)?;
        if self.check {
            return in_order(&self.config, &file);
        }
        warn_of(&file);
        let identity = file.private_key.take_identity().map_err(BadInput::new)?;
        let reload = reload_proxy(self.config.clone(), file.clone(), identity.public_key());
        Ok(run_proxy(ProxyOptions {
            instance: file.instance.as_str().to_owned(),
            config: ServerConfig {
                transport: file.transport.to_config(random_bytes()?),
                lanes: file.lane_configs(),
                gateways: Vec::new(),
                mtu: file.mtu_bytes.get() as u16,
                clients_reach_clients: false,
                memory_max: file.limits.memory_mb.bytes(),
                client_memory_max: file.limits.client_memory_mb.bytes(),
            },
            proxy: file.proxy_config(),
            identity: Arc::new(identity),
            peers: file.peers(),
            listen: file.listen,
            metrics: file.metrics.as_ref().map(|metrics| metrics.listen),
            state_directory: file.state_directory,
            files: vec![self.config.clone()],
            reload: Box::new(reload),
        })?)
    }
}

impl AnchorArgs {
    /// # Errors
    /// When the file is broken, or the system does not let the anchor run.
    pub fn run(&self) -> Result<()> {
        let mut file: AnchorFile = roadweave_config::load(&self.config).map_err(BadInput::new)?;
        if self.check {
            return in_order(&self.config, &file);
        }
        warn_of(&file);
        let identity = file.private_key.take_identity().map_err(BadInput::new)?;
        let reload = reload_anchor(self.config.clone(), file.clone(), identity.public_key());
        let devices = Arc::new(PeerTable::new(file.devices()));
        let tenant = AnchorTenant {
            name: file.tenant.clone(),
            devices: devices.clone(),
            clients_reach_clients: file.clients_reach_clients,
            rate_limit: file.rate_limit(),
        };
        Ok(run_anchor(AnchorOptions {
            config: AnchorConfig {
                transport: file.transport.to_config(random_bytes()?),
                tenants: vec![tenant],
                leg_rate: file.leg_rate(),
            },
            identity: Arc::new(identity),
            devices,
            proxies: file.proxies(),
            listen: file.listen,
            metrics: file.metrics.as_ref().map(|metrics| metrics.listen),
            destinations: destinations(&file),
            tun: tun_settings(&file.tun),
            addresses: file.addresses,
            masquerade: file.masquerade,
            clients_reach_clients: file.clients_reach_clients,
            state_directory: file.state_directory,
            files: vec![self.config.clone()],
            reload: Box::new(reload),
        })?)
    }
}

/// Reads a proxy's file again; `started` is what it was started with.
fn reload_proxy(
    path: PathBuf,
    started: ProxyFile,
    key: PublicKey,
) -> impl FnMut() -> Result<Vec<(PublicKey, Peer)>, String> {
    move || {
        let mut file: ProxyFile =
            roadweave_config::load(&path).map_err(|error| error.to_string())?;
        warn_of(&file);
        let other_key = file.private_key.take_identity()?.public_key() != key;
        tell_ignored(&started, &file, &["peers"], other_key);
        Ok(file.peers())
    }
}

/// Reads an anchor's file again; `started` is what it was started with.
fn reload_anchor(
    path: PathBuf,
    started: AnchorFile,
    key: PublicKey,
) -> impl FnMut() -> Result<ServerReload, String> {
    const RELOADS: [&str; 4] = ["devices", "proxies", "deny_destinations", "allow_destinations"];
    move || {
        let mut file: AnchorFile =
            roadweave_config::load(&path).map_err(|error| error.to_string())?;
        warn_of(&file);
        let other_key = file.private_key.take_identity()?.public_key() != key;
        tell_ignored(&started, &file, &RELOADS, other_key);
        let destinations = destinations(&file);
        Ok(ServerReload { peers: file.devices(), destinations, proxies: file.proxies() })
    }
}

fn destinations(file: &AnchorFile) -> Destinations {
    Destinations {
        denied: file.deny_destinations.clone(),
        allowed: file.allow_destinations.iter().map(|to| (to.network, to.port)).collect(),
    }
}
