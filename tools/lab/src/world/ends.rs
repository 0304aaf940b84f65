//! Creates the client and the servers of a world.

use std::net::IpAddr;
use std::sync::Arc;

use roadweave_identity::Identity;
use roadweave_quic::{Epoch, TransportConfig};
use roadweave_tunnel::{
    Candidate, Client, ClientConfig, Learned, MEMORY_MAX, Peer, PeerTable, Server, ServerConfig,
};

use super::{OtherServer, SERVER, Trust, WorldConfig, WorldError};
use crate::inner::VEHICLE;

pub(super) const NAME: &str = "vehicle";
const GATEWAY: [u8; 4] = [10, 77, 0, 1];

/// [`STRANGER`] belongs to neither side.
const CLIENT_KEY: [u8; 32] = [1; 32];
const SERVER_KEY: [u8; 32] = [2; 32];
const STRANGER: [u8; 32] = [9; 32];
const OTHER_GENERATION: u8 = 255;

pub(super) fn client(epoch: Epoch, world: &WorldConfig) -> Result<Client, WorldError> {
    let expected = if world.trust.server_is_right { SERVER_KEY } else { STRANGER };
    let server_key = Identity::from_seed(expected).public_key();
    let servers = world.strangers.servers.iter().map(|(at, _)| *at).chain([SERVER]);
    let config = ClientConfig {
        name: NAME.into(),
        candidates: vec![Candidate::only(server_key, servers.collect())],
        transport: transport(world, 1, 0),
        lanes: world.lanes_up.clone(),
        streams: world.streams.clone(),
        memory_max: MEMORY_MAX,
    };
    let mut client = Client::new(epoch, config, Arc::new(Identity::from_seed(CLIENT_KEY)))?;
    client.restore(Learned::from([(server_key.to_string(), world.learned.clone())]));
    client.on_time_of_day(Trust::UNIX_TIME, true);
    world.policies.iter().for_each(|(name, policy)| client.set_policy(name, *policy));
    Ok(client)
}

pub(super) fn other_server(
    epoch: Epoch,
    world: &WorldConfig,
    kind: OtherServer,
) -> Result<Server, WorldError> {
    let key = if kind == OtherServer::WrongKey { STRANGER } else { SERVER_KEY };
    // Lives of the right server count from 0.
    server_of(epoch, world, OTHER_GENERATION, STRANGER, key)
}

pub(super) fn server(
    epoch: Epoch,
    world: &WorldConfig,
    generation: u8,
) -> Result<Server, WorldError> {
    let known = if world.trust.client_is_known { CLIENT_KEY } else { STRANGER };
    server_of(epoch, world, generation, known, SERVER_KEY)
}

fn server_of(
    epoch: Epoch,
    world: &WorldConfig,
    generation: u8,
    known: [u8; 32],
    own: [u8; 32],
) -> Result<Server, WorldError> {
    let v6 = "fd77::2".parse::<IpAddr>().expect("it is written as RFC 5952 says");
    let addresses = vec![IpAddr::from(VEHICLE).into(), v6.into()];
    let peer = Peer::new(NAME, addresses);
    let peers = Arc::new(PeerTable::new([(Identity::from_seed(known).public_key(), peer)]));
    peers.set_unix_time(Trust::UNIX_TIME);
    let config = ServerConfig {
        streams: world.streams.clone(),
        speedtest: world.speedtest,
        lanes: world.lanes_down.clone(),
        memory_max: 8 * MEMORY_MAX,
        ..ServerConfig::new(transport(world, 2, generation), vec![IpAddr::from(GATEWAY).into()])
    };
    let identity = Arc::new(Identity::from_seed(own));
    let mut server = Server::new(epoch, config, identity, peers)?;
    let client_key = Identity::from_seed(known).public_key().to_string();
    server.restore(Learned::from([(client_key, world.learned.clone())]));
    Ok(server)
}

fn transport(world: &WorldConfig, side: u8, generation: u8) -> TransportConfig {
    let mut seed = [side; 32];
    seed[31] ^= generation;
    seed[..8].copy_from_slice(&world.seed.to_le_bytes());
    TransportConfig { congestion: world.congestion, ..TransportConfig::new(seed) }
}
