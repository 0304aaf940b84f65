//! Starts a proxy: clients' sessions end here, and legs lead to their anchors. A proxy has no
//! device and needs no privileges: it changes no routes, filters or interfaces.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use roadweave_config::{ProxyFile, ProxyStreams, lane_configs};
use roadweave_linux::privileges::{self, Needs};
use roadweave_linux::{DeviceError, UdpOptions, UplinkSocket, random_bytes};
use roadweave_proto::Marks;
use roadweave_quic::Epoch;
use roadweave_tunnel::{PeerTable, Server, ServerConfig};

use super::event_loop::take_instance;
use super::server::Clients;
use super::serving::open_by;
use super::serving::role::{self, Ground, Served};
use super::{DriverError, MemberOptions, needed_files};
use crate::reset_salt::reset_salt;

/// Runs a proxy until SIGINT or SIGTERM.
pub fn run_proxy(options: MemberOptions<ProxyFile>) -> Result<(), DriverError> {
    role::run(start(options)?)
}

fn start(options: MemberOptions<ProxyFile>) -> Result<Served<Clients>, DriverError> {
    let (file, serving) = options.split();
    let mut config = ServerConfig {
        transport: file.transport.to_config(random_bytes()?),
        lanes: lane_configs(&file.lanes),
        gateways: Vec::new(),
        mtu: file.mtu_bytes.get() as u16,
        streams: ProxyStreams::to_config(file.streams.as_ref(), &file.lanes),
        speedtest: file.speedtest.limits(),
        clients_reach_clients: false,
        memory_max: file.limits.memory_mb.bytes(),
        client_memory_max: file.limits.client_memory_mb.bytes(),
    };
    let taken = take_instance(file.instance.as_str(), Marks::default())?;
    let socket = open_by(serving.listen, UplinkSocket::open)?;
    let mut ground = Ground::new(taken, &serving, vec![socket])?;
    ground.sockets.push(open_leg_socket()?);
    // Before the first thread starts: threads inherit the restrictions.
    privileges::restrict(&Needs {
        only_sockets: true,
        files: needed_files(&serving.files, &serving.state_directory),
        ..Needs::default()
    })?;
    let clients = Arc::new(PeerTable::new(serving.of_file.peers.clone()));
    config.transport.reset_salt = reset_salt(&serving.state_directory, ground.instance.name())?;
    let epoch = Epoch::new(ground.clock.epoch());
    let (proxy, identity) = (file.proxy_config(), serving.identity.clone());
    let server = Server::proxy(epoch, config, proxy, identity, clients.clone())?;
    Clients::start("proxy", ground, server, clients, serving)
}

fn open_leg_socket() -> Result<UplinkSocket, DeviceError> {
    let any = UdpOptions::server(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)));
    match UplinkSocket::open(&any) {
        Err(DeviceError::NoIpv6 { .. }) => {
            UplinkSocket::open(&UdpOptions::server(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))))
        }
        opened => opened,
    }
}
