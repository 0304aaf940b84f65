//! The settings of a server.

use ipnet::IpNet;
use roadweave_quic::TransportConfig;

use super::SpeedtestLimits;
use crate::lane::{LaneConfig, default_lanes};
use crate::session::MEMORY_MAX;
use crate::streams::StreamsConfig;

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The transport.
    pub transport: TransportConfig,
    /// The lanes of the downlink direction.
    pub lanes: Vec<LaneConfig>,
    /// The server's own inner addresses, with the length of the network behind each.
    pub gateways: Vec<IpNet>,
    /// The MTU of the TUN devices, bytes.
    pub mtu: u16,
    /// Streams, if the server takes them. A proxy relays those between its clients and their
    /// anchors, and uses only the lane.
    pub streams: Option<StreamsConfig>,
    /// Limits of speed tests, if they are allowed.
    pub speedtest: Option<SpeedtestLimits>,
    /// Whether clients may reach one another.
    pub clients_reach_clients: bool,
    /// The most bytes that all sessions may hold together.
    pub memory_max: usize,
    /// The most bytes that one session may hold.
    pub client_memory_max: usize,
}

impl ServerConfig {
    /// A server with these inner addresses and the lanes of [`default_lanes`]. Its clients cannot
    /// reach one another, its sessions share [`MEMORY_MAX`], its MTU suits links of 1,500 bytes.
    pub fn new(transport: TransportConfig, gateways: Vec<IpNet>) -> Self {
        Self {
            transport,
            lanes: default_lanes(),
            gateways,
            mtu: 1_360,
            streams: None,
            speedtest: None,
            clients_reach_clients: false,
            memory_max: MEMORY_MAX,
            client_memory_max: MEMORY_MAX,
        }
    }

    /// The settings of one of `count` shards: limits over all clients are divided.
    pub fn of_shard(&self, count: u16) -> Self {
        let mut config = self.clone();
        let share = |all: usize| (all / usize::from(count.max(1))).max(1);
        let transport = &mut config.transport;
        transport.half_open_max = share(transport.half_open_max);
        transport.retry_threshold = share(transport.retry_threshold);
        transport.half_open_per_source_max = share(transport.half_open_per_source_max);
        config.memory_max = share(config.memory_max);
        config.client_memory_max = config.client_memory_max.min(config.memory_max);
        config
    }
}
