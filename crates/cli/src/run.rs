//! `roadweave client`, `roadweave server` and `roadweave router`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use roadweave_device::{
    ClientOptions, RouterOptions, ServerOptions, UplinkSelector, run_client, run_router, run_server,
};
use roadweave_tunnel::{RouterConfig, ServerConfig};

use crate::config::{self, ClientFile, RouterFile, ServerFile};
use crate::exit::BadInput;
use crate::init::random;
use crate::out;

/// Runs the client, in the vehicle.
#[derive(Debug, clap::Args)]
pub struct ClientArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/roadweave/client.toml")]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
}

/// Runs the server.
#[derive(Debug, clap::Args)]
pub struct ServerArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/roadweave/server.toml")]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
}

/// Runs a redundant router: every packet on every link, not encrypted, the same on both sides.
#[derive(Debug, clap::Args)]
pub struct RouterArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/roadweave/router.toml")]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
}

impl ClientArgs {
    /// # Errors
    /// When the file is broken, or the system does not let the client run.
    pub fn run(&self) -> Result<()> {
        let file: ClientFile = config::load(&self.config).map_err(BadInput::new)?;
        if self.check {
            return in_order(&self.config);
        }
        let identity = file.private_key.identity().map_err(BadInput::new)?;
        Ok(run_client(ClientOptions {
            lanes: file.lane_configs(),
            policies: file.policies(),
            routes: file.route_options(),
            memory_max: file.limits.client_memory_mb.bytes(),
            name: file.name,
            servers: file.server.names(),
            server_key: file.server.public_key,
            identity: Arc::new(identity),
            transport: file.transport.to_config(random()?),
            tun: file.tun.to_settings(),
            masquerade: file.routes.masquerade,
            dns: file.dns,
            state_directory: file.state_directory,
            forward_between_uplinks: file.uplinks.forward,
            uplinks: UplinkSelector {
                include: file.uplinks.include,
                exclude: file.uplinks.exclude,
            },
        })?)
    }
}

impl ServerArgs {
    /// # Errors
    /// When the file is broken, or the system does not let the server run.
    pub fn run(&self) -> Result<()> {
        let file: ServerFile = config::load(&self.config).map_err(BadInput::new)?;
        if self.check {
            return in_order(&self.config);
        }
        let identity = file.private_key.identity().map_err(BadInput::new)?;
        let tun = file.tun.to_settings();
        let path = self.config.clone();
        let reload = move || {
            config::load::<ServerFile>(&path)
                .map(|file| file.peers())
                .map_err(|error| error.to_string())
        };
        Ok(run_server(ServerOptions {
            config: ServerConfig {
                transport: file.transport.to_config(random()?),
                lanes: file.lane_configs(),
                gateways: file.addresses.iter().map(ipnet::IpNet::addr).collect(),
                mtu: tun.mtu,
                clients_reach_clients: file.clients_reach_clients,
                memory_max: file.limits.memory_mb.bytes(),
                client_memory_max: file.limits.client_memory_mb.bytes(),
            },
            identity: Arc::new(identity),
            peers: file.peers(),
            listen: file.listen,
            addresses: file.addresses,
            tun,
            masquerade: file.masquerade,
            denied: file.deny_destinations,
            allowed: file.allow_destinations.iter().map(|to| (to.network, to.port)).collect(),
            state_directory: file.state_directory,
            reload: Box::new(reload),
        })?)
    }
}

impl RouterArgs {
    /// # Errors
    /// When the file is broken, or the system does not let the router run.
    pub fn run(&self) -> Result<()> {
        let file: RouterFile = config::load(&self.config).map_err(BadInput::new)?;
        if self.check {
            return in_order(&self.config);
        }
        let (sockets, links) = file.links();
        Ok(run_router(RouterOptions {
            config: RouterConfig {
                vni: file.vni.get() as u32,
                epoch: u32::from_be_bytes(random()?),
                hello_begin_us: u32::from_be_bytes(random()?),
                order: file.order(),
                links,
                inner_sources: (!file.accept_sources.is_empty()).then_some(file.accept_sources),
            },
            sockets,
            addresses: file.addresses,
            tun: file.tun.to_settings(),
            into_tunnel: file.into_tunnel,
        })?)
    }
}

fn in_order(file: &std::path::Path) -> Result<()> {
    Ok(out::line(format_args!("{} is in order", file.display()))?)
}
