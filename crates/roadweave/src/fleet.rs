//! `roadweave proxy` and `roadweave anchor`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use roadweave_config::{AnchorFile, AnchorStreams, ProxyFile};
use roadweave_device::fleet::Membership;
use roadweave_device::{
    AnchorOptions, Destinations, HostOptions, ProxyOptions, ServerReload, ServingOptions,
    random_bytes, run_anchor, run_proxy,
};
use roadweave_fleet::Role;
use roadweave_terminal::exit::BadInput;
use roadweave_tunnel::{AnchorConfig, AnchorTenant, PeerTable, ServerConfig};

use crate::member::{self, Source};
use crate::run::{in_order, tun_settings};
use crate::source::{ANCHOR_FILE, PROXY_FILE, in_fleet, warn_of};

/// The fields that an anchor reads again. Others need a restart.
const ANCHOR_RELOADS: [&str; 5] =
    ["devices", "proxies", "deny_destinations", "allow_destinations", "fleet.accept"];
const NO_TENANTS: &str = "tenants is empty; write [[tenants]]";

/// Runs a proxy: ends multipath, and passes inner packets on to the anchors of their tenants. It
/// needs no rights over its machine's network.
#[derive(Debug, clap::Args)]
pub struct ProxyArgs {
    /// The configuration file; after `roadweave join` none has to be there
    #[arg(long, value_name = "FILE", default_value = PROXY_FILE)]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
    /// Use this instead of state_directory in the file
    #[arg(long, value_name = "FOLDER")]
    state_directory: Option<PathBuf>,
}

/// Runs an anchor: holds the inner addresses of a tenant's clients, whichever proxies they are at.
#[derive(Debug, clap::Args)]
pub struct AnchorArgs {
    /// The configuration file; after `roadweave join` none has to be there
    #[arg(long, value_name = "FILE", default_value = ANCHOR_FILE)]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
    /// Use this instead of state_directory in the file
    #[arg(long, value_name = "FOLDER")]
    state_directory: Option<PathBuf>,
}

impl ProxyArgs {
    /// # Errors
    /// When the file is broken, or the system does not let the proxy run.
    pub fn run(&self) -> Result<()> {
        let source = Source::new(&self.config, self.state_directory.as_deref());
        let mut file: ProxyFile = source.read_as().map_err(BadInput::new)?;
        member::check(&source.path, &file.private_key, &file.state_directory)?;
        if file.tenants.is_empty() && !Membership::is_there(&file.state_directory) {
            return Err(without_tenant(&source.path, NO_TENANTS));
        }
        if self.check {
            return in_order(&source.path, &file);
        }
        warn_of(&file);
        let membership = Membership::open(&file.state_directory, Role::Proxy)?;
        let identity =
            member::identity(&source.path, file.private_key.take(), membership.as_ref())?;
        let fleet = membership.map(|membership| in_fleet(membership, file.fleet.offline_max()));
        let files = source.files();
        let (key, is_member) = (identity.public_key(), fleet.is_some());
        let reload = source.reload(file.clone(), key, &["peers", "tenants"], move |file| {
            if file.tenants.is_empty() && !is_member {
                return Err(NO_TENANTS.to_owned());
            }
            Ok(of_proxy(file))
        });
        Ok(run_proxy(ProxyOptions {
            instance: file.instance.as_str().to_owned(),
            config: ServerConfig {
                transport: file.transport.to_config(random_bytes()?),
                lanes: file.lane_configs(),
                gateways: Vec::new(),
                mtu: file.mtu_bytes.get() as u16,
                streams: file.streams_config(),
                speedtest: file.speedtest.limits(),
                clients_reach_clients: false,
                memory_max: file.limits.memory_mb.bytes(),
                client_memory_max: file.limits.client_memory_mb.bytes(),
            },
            proxy: file.proxy_config(),
            serving: ServingOptions {
                identity,
                listen: file.listen,
                metrics: file.metrics.as_ref().map(|metrics| metrics.listen),
                of_file: of_proxy(&file),
                state_directory: file.state_directory,
                files,
                reload: Box::new(reload),
                fleet,
            },
        })?)
    }
}

impl AnchorArgs {
    /// # Errors
    /// When the file is broken, or the system does not let the anchor run.
    pub fn run(&self) -> Result<()> {
        let source = Source::new(&self.config, self.state_directory.as_deref());
        let mut file: AnchorFile = source.read_as().map_err(BadInput::new)?;
        member::check(&source.path, &file.private_key, &file.state_directory)?;
        if file.tenant.is_empty() && !Membership::is_there(&file.state_directory) {
            return Err(without_tenant(&source.path, "tenant is missing; write its name"));
        }
        if self.check {
            return in_order(&source.path, &file);
        }
        warn_of(&file);
        let membership = Membership::open(&file.state_directory, Role::Anchor)?;
        let identity =
            member::identity(&source.path, file.private_key.take(), membership.as_ref())?;
        let name = tenant_name(&source.path, &file, membership.as_ref())?;
        let fleet = membership.map(|membership| in_fleet(membership, file.fleet.offline_max()));
        let files = source.files();
        let key = identity.public_key();
        let reload = source.reload(file.clone(), key, &ANCHOR_RELOADS, |file| Ok(of_anchor(file)));
        let tenant = AnchorTenant {
            name,
            devices: Arc::new(PeerTable::new(file.devices())),
            clients_reach_clients: file.clients_reach_clients,
            rate_limit: file.rate_limit(),
        };
        let streams = file.streams.as_ref();
        Ok(run_anchor(AnchorOptions {
            config: AnchorConfig {
                transport: file.transport.to_config(random_bytes()?),
                tenants: vec![tenant],
                leg_rate: file.leg_rate(),
                streams: streams.map(AnchorStreams::to_config),
                memory_max: streams.map_or(0, AnchorStreams::memory_max),
            },
            serving: ServingOptions {
                identity,
                listen: file.listen,
                metrics: file.metrics.as_ref().map(|metrics| metrics.listen),
                of_file: of_anchor(&file),
                state_directory: file.state_directory,
                files,
                reload: Box::new(reload),
                fleet,
            },
            host: HostOptions {
                connects_per_second: streams
                    .map_or(1, |streams| streams.connects_per_second.get() as u32),
                http_ports: streams.map_or_else(Vec::new, |streams| streams.http_ports.clone()),
                addresses: file.addresses,
                tun: tun_settings(&file.tun),
                marks: file.packet_marks.into(),
                masquerade: file.masquerade,
                clients_reach_clients: file.clients_reach_clients,
                client_connections: file.client_connections.get() as u32,
            },
        })?)
    }
}

fn without_tenant(path: &Path, what: &str) -> anyhow::Error {
    let path = path.display();
    BadInput::new(format!("{path}: {what}, or join a fleet with `roadweave join`")).into()
}

/// The tenant of an anchor, from its file or from the join.
fn tenant_name(path: &Path, file: &AnchorFile, membership: Option<&Membership>) -> Result<String> {
    let of_fleet = membership.map(Membership::tenant);
    match of_fleet {
        Some(joined) if !file.tenant.is_empty() && file.tenant != joined => {
            let (path, tenant) = (path.display(), &file.tenant);
            let message =
                format!("{path}: tenant = \"{tenant}\", and the fleet says that it is {joined}'s");
            Err(BadInput::new(message).into())
        }
        Some(joined) if file.tenant.is_empty() => Ok(joined.to_owned()),
        None if file.tenant.is_empty() => Err(without_tenant(path, "tenant is missing")),
        _ => Ok(file.tenant.clone()),
    }
}

fn of_proxy(file: &ProxyFile) -> ServerReload {
    let (peers, tenants) = (file.peers(), file.proxy_config().tenants);
    ServerReload { peers, tenants, anchors: file.anchor_names(), ..ServerReload::default() }
}

fn of_anchor(file: &AnchorFile) -> ServerReload {
    let destinations = Destinations {
        denied: file.deny_destinations.clone(),
        allowed: file.allow_destinations.iter().map(|to| (to.network, to.port)).collect(),
        forwards: Vec::new(),
    };
    let (peers, proxies) = (file.devices(), file.proxies());
    let accepted = file.fleet.accept.clone();
    ServerReload { peers, destinations, proxies, accepted, ..ServerReload::default() }
}
