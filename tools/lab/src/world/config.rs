//! What a world is made of.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use roadweave_emulate::DuplexLink;
use roadweave_quic::CongestionControl;
use roadweave_tunnel::{ClientError, LaneConfig, SpeedtestLimits, StreamsConfig, UplinkPolicy};

use super::machine::Machine;
use super::strangers::Hostility;

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// The links, each with an uplink of the same name at the vehicle; at most 64.
    pub links: Vec<DuplexLink>,
    /// The lanes from the vehicle.
    pub lanes_up: Vec<LaneConfig>,
    /// The lanes to the vehicle; they may not name uplinks, which the server does not know.
    pub lanes_down: Vec<LaneConfig>,
    /// Streams between both ends, if there are any.
    pub streams: Option<StreamsConfig>,
    /// What the server allows of speed tests, if any.
    pub speedtest: Option<SpeedtestLimits>,
    /// The congestion control of every path, on both sides.
    pub congestion: CongestionControl,
    /// Decides all that is random in client and server; links have seeds of their own.
    pub seed: u64,
    /// Who trusts whom.
    pub trust: Trust,
    /// What the strategies at both ends have learned before, as JSON by the lane's name.
    pub learned: BTreeMap<String, String>,
    /// How links may be used that are not as any other, by their names.
    pub policies: BTreeMap<String, UplinkPolicy>,
    /// Who else there is.
    pub strangers: Strangers,
    /// The machine that both ends run on.
    pub machine: Machine,
}

impl WorldConfig {
    /// Of `links`, with the same lanes both ways, no streams, and nobody who is hostile.
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

/// Whether the two ends know each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trust {
    /// Whether the server knows the client's key.
    pub client_is_known: bool,
    /// Whether the server has the key that the client expects.
    pub server_is_right: bool,
    /// When the client's key expires, seconds since 1970; the world's time of day is
    /// [`Trust::UNIX_TIME`].
    pub expires_unix: Option<u64>,
}

impl Trust {
    /// The time of day in every world, seconds since 1970.
    pub const UNIX_TIME: u64 = 1_800_000_000;
}

impl Default for Trust {
    fn default() -> Self {
        Self { client_is_known: true, server_is_right: true, expires_unix: None }
    }
}

/// Why no world can be made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// No link, or too many.
    #[error("a world has 1 to {LINKS_MAX} links, not {0}")]
    Links(usize),
    /// The client or its lanes cannot be made.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The server cannot be made.
    #[error(transparent)]
    Server(#[from] roadweave_quic::ConfigError),
}

/// The most links of a world.
pub const LINKS_MAX: usize = 64;

/// Who there is beside the client, the server and the links.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strangers {
    /// What is the matter with a link, by its number.
    pub links: BTreeMap<usize, Hostility>,
    /// Further addresses that the client takes for its server's, before the right one.
    pub servers: Vec<(SocketAddr, OtherServer)>,
}

/// A server that is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OtherServer {
    /// The server does not know the client's key.
    Refuses,
    /// The server has another key than the client expects.
    WrongKey,
    /// The server speaks another version of QUIC.
    OtherVersion,
    /// The server does not answer.
    Silent,
}
