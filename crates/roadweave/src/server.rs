//! `roadweave server`.

use std::path::PathBuf;

use anyhow::Result;
use ipnet::IpNet;
use roadweave_config::{ForwardFields, ServerFile, ServerStreams};
use roadweave_device::fleet::Membership;
use roadweave_device::{
    Destinations, Forward, HostOptions, ServerOptions, ServerReload, ServingOptions, random_bytes,
    run_server,
};
use roadweave_fleet::Role;
use roadweave_terminal::exit::BadInput;
use roadweave_tunnel::ServerConfig;

use crate::member::{self, Source};
use crate::run::{in_order, tun_settings};
use crate::source::{SERVER_FILE, in_fleet, warn_of};

/// Runs the server.
#[derive(Debug, clap::Args)]
pub struct ServerArgs {
    /// The configuration file; after `roadweave join` none has to be there
    #[arg(long, value_name = "FILE", default_value = SERVER_FILE)]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
    /// Use this instead of state_directory in the file
    #[arg(long, value_name = "FOLDER")]
    state_directory: Option<PathBuf>,
}

impl ServerArgs {
    /// # Errors
    /// When the file is broken, or the system does not let the server run.
    pub fn run(&self) -> Result<()> {
        let source = Source::new(&self.config, self.state_directory.as_deref());
        let mut file: ServerFile = source.read_as().map_err(BadInput::new)?;
        member::check(&source.path, &file.private_key, &file.state_directory)?;
        if self.check {
            return in_order(&source.path, &file);
        }
        warn_of(&file);
        let membership = Membership::open(&file.state_directory, Role::Proxy)?;
        let identity =
            member::identity(&source.path, file.private_key.take(), membership.as_ref())?;
        let fleet = membership.map(|membership| in_fleet(membership, file.fleet.offline_max()));
        let tun = tun_settings(&file.tun);
        let (files, shards) = (source.files(), file.shards());
        let key = identity.public_key();
        let reload = source.reload(file.clone(), key, &SERVER_RELOADS, |file| Ok(of_file(file)));
        let streams = file.streams.as_ref();
        Ok(run_server(ServerOptions {
            config: ServerConfig {
                transport: file.transport.to_config(random_bytes()?),
                lanes: file.lane_configs(),
                gateways: file.addresses.clone(),
                mtu: tun.mtu,
                streams: streams.map(ServerStreams::to_config),
                speedtest: file.speedtest.limits(),
                clients_reach_clients: file.clients_reach_clients,
                memory_max: file.limits.memory_mb.bytes(),
                client_memory_max: file.limits.client_memory_mb.bytes(),
            },
            serving: ServingOptions {
                identity,
                listen: file.listen,
                metrics: file.metrics.as_ref().map(|metrics| metrics.listen),
                of_file: of_file(&file),
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
                tun,
                marks: file.packet_marks.into(),
                masquerade: file.masquerade,
                clients_reach_clients: file.clients_reach_clients,
                client_connections: file.client_connections.get() as u32,
            },
            shards,
        })?)
    }
}

/// The fields that a server reads again. Others need a restart.
const SERVER_RELOADS: [&str; 5] =
    ["peers", "deny_destinations", "allow_destinations", "forwards", "fleet.accept"];

fn of_file(file: &ServerFile) -> ServerReload {
    let destinations = Destinations {
        denied: file.deny_destinations.clone(),
        allowed: file.allow_destinations.iter().map(|to| (to.network, to.port)).collect(),
        forwards: file.forwards.iter().map(|it| forward(it, it.near(&file.peers))).collect(),
    };
    let (peers, accepted) = (file.peers(), file.fleet.accept.clone());
    ServerReload { peers, destinations, accepted, ..ServerReload::default() }
}

fn forward(fields: &ForwardFields, near: Vec<IpNet>) -> Forward {
    Forward {
        tcp: fields.protocol.has_tcp(),
        udp: fields.protocol.has_udp(),
        ports: fields.ports(),
        to: fields.to,
        to_ports: fields.to_ports(),
        near,
    }
}
