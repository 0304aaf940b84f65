//! What a server runs with.

use std::sync::Arc;

use roadweave_config::{ServerFile, ServerStreams, lane_configs};
use roadweave_linux::random_bytes;
use roadweave_quic::ShardMap;
use roadweave_tunnel::{PeerTable, ServerConfig};

use crate::driver::serving::ServingOptions;
use crate::driver::serving::host::HostOptions;
use crate::driver::serving::role::Ground;
use crate::driver::{DriverError, MemberOptions};
use crate::reset_salt::reset_salt;

pub(in crate::driver) struct ServerOptions {
    pub(in crate::driver) config: ServerConfig,
    pub(in crate::driver) serving: ServingOptions,
    host: HostOptions,
    pub(in crate::driver) shards: u16,
}

impl ServerOptions {
    pub(super) fn of(options: MemberOptions<ServerFile>) -> Result<Self, DriverError> {
        let (file, serving) = options.split();
        let config = ServerConfig {
            transport: file.transport.to_config(random_bytes()?),
            lanes: lane_configs(&file.lanes),
            gateways: file.addresses.clone(),
            mtu: file.tun.mtu(),
            streams: file.streams.as_ref().map(ServerStreams::to_config),
            speedtest: file.speedtest.limits(),
            clients_reach_clients: file.clients_reach_clients,
            memory_max: file.limits.memory_mb.bytes(),
            client_memory_max: file.limits.client_memory_mb.bytes(),
        };
        let shards = file.shards.get() as u16;
        Ok(Self { config, serving, host: HostOptions::from(&file), shards })
    }

    pub(in crate::driver) fn open(
        &mut self,
        map: Option<&ShardMap>,
    ) -> Result<(Arc<PeerTable>, Ground), DriverError> {
        let Self { config: ServerConfig { streams, transport, .. }, serving, host, .. } = self;
        let clients = Arc::new(PeerTable::new(serving.of_file.peers.clone()));
        let ground = Ground::with_host(host, serving, &clients.peers(), streams, false, map)?;
        transport.reset_salt = reset_salt(&serving.state_directory, ground.instance.name())?;
        Ok((clients, ground))
    }
}
