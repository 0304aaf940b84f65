//! Configuration of a world.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use roadweave_emulate::DuplexLink;
use roadweave_quic::CongestionControl;
use roadweave_tunnel::{ClientError, LaneConfig, SpeedtestLimits, StreamsConfig, UplinkPolicy};

use super::machine::Machine;

#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Links, each with an uplink of the same name; at most 64.
    pub links: Vec<DuplexLink>,
    /// Lanes from the vehicle.
    pub lanes_up: Vec<LaneConfig>,
    /// Lanes to the vehicle; they must not name uplinks, which the server does not know.
    pub lanes_down: Vec<LaneConfig>,
    /// Byte streams, if enabled.
    pub streams: Option<StreamsConfig>,
    /// Limits of speed tests at the server, if enabled.
    pub speedtest: Option<SpeedtestLimits>,
    pub congestion: CongestionControl,
    /// Seed of client and server; links have their own.
    pub seed: u64,
    /// Whether client and server accept each other's keys.
    pub trust: Trust,
    /// State learned by strategies before, as JSON by lane name.
    pub learned: BTreeMap<String, String>,
    /// Policies of links by name, if not the default.
    pub policies: BTreeMap<String, UplinkPolicy>,
    /// Other servers and hostile networks.
    pub strangers: Strangers,
    pub machine: Machine,
}

impl WorldConfig {
    /// The same lanes both ways, no streams, nothing hostile.
    pub fn plain(links: Vec<DuplexLink>, lanes: Vec<LaneConfig>, seed: u64) -> Self {
        Self {
            links,
            lanes_up: lanes.clone(),
            lanes_down: lanes,
            streams: None,
            speedtest: None,
            congestion: CongestionControl::default(),
            seed,
            trust: Trust::default(),
            learned: BTreeMap::new(),
            policies: BTreeMap::new(),
            strangers: Strangers::default(),
            machine: Machine::default(),
        }
    }
}

/// Key knowledge of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trust {
    pub client_is_known: bool,
    /// Whether the server has the key expected by the client.
    pub server_is_right: bool,
}

impl Trust {
    /// The time of day in every world, seconds since 1970.
    pub const UNIX_TIME: u64 = 1_800_000_000;
}

impl Default for Trust {
    fn default() -> Self {
        Self { client_is_known: true, server_is_right: true }
    }
}

/// Why a world cannot be created.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    #[error("a world has 1 to {LINKS_MAX} links, not {0}")]
    Links(usize),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Server(#[from] roadweave_quic::ConfigError),
}

pub const LINKS_MAX: usize = 64;

/// Other servers and hostile networks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strangers {
    pub links: BTreeMap<usize, Hostility>,
    /// Further server addresses of the client, before the right one.
    pub servers: Vec<(SocketAddr, OtherServer)>,
}

/// An unusable server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OtherServer {
    /// Does not know the client's key.
    Refuses,
    /// Has an unexpected key.
    WrongKey,
    /// Speaks another version of QUIC.
    OtherVersion,
    /// Does not answer.
    Silent,
}

/// Hostility of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hostility {
    /// An observer reads packets and forges packets of the server.
    Stranger(Stranger),
    /// A captive portal: a server with another key answers for every address.
    Portal,
    /// Only handshakes pass.
    HandshakesOnly,
    /// After each handshake only this many packets of the vehicle pass.
    FirstPackets(u32),
}

/// Rates of forged packets to the vehicle, each as a share of the vehicle's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stranger {
    /// A close of the connection; some codes say that the client's key is unknown.
    pub close: f64,
    /// Random frames in an Initial packet.
    pub frames: f64,
    /// Version negotiation with unknown versions.
    pub versions: f64,
    /// A retry with an invalid token.
    pub retry: f64,
    /// A possible stateless reset.
    pub reset: f64,
    pub seed: u64,
}
