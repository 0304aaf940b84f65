//! What a client is started with, and what of it may change while it runs.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use roadweave_fleet::VerifiedServer;
use roadweave_identity::{Identity, PublicKey};
use roadweave_proto::{Marks, ProbeUrl, ServerName, UplinkMatch, UplinkSelector};
use roadweave_quic::TransportConfig;
use roadweave_tunnel::{LaneConfig, StreamsConfig, UplinkPolicy};

use super::super::{Reread, TunSettings};
use crate::filter::split::SplitRules;
use crate::fleet::FleetOptions;
use crate::streams::EntranceSettings;
use crate::{Excluded, RouteSettings, Technologies, UplinkNeighbours};

/// What of the configuration may change while the client runs.
#[derive(Clone, Debug)]
pub struct ClientReload {
    /// The lanes of the uplink direction.
    pub lanes: Vec<LaneConfig>,
    /// How uplinks may be used.
    pub policies: Vec<(UplinkMatch, UplinkPolicy)>,
    /// Which uplinks are tried first.
    pub technologies: Technologies,
    /// Which interfaces are uplinks.
    pub uplinks: UplinkSelector,
    /// The page by which an uplink shows that its network is open, if one is to be asked.
    pub portal_probe: Option<ProbeUrl>,
    /// What leaves outside the tunnel though it belongs into it.
    pub excluded: Excluded,
}

/// A server that a client may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateOptions {
    /// Its addresses, tried in turn. Names are looked up over each uplink, and again while the
    /// server does not answer.
    pub addresses: Vec<ServerName>,
    /// Its public key.
    pub key: PublicKey,
    /// What a person calls it.
    pub name: String,
    /// The site of the server: what fails together.
    pub site: String,
    /// The round trip from it to where inner packets leave.
    pub to_anchor: Duration,
    /// Whether the server should be chosen only when no other is there.
    pub last_resort: bool,
}

impl CandidateOptions {
    /// A proxy that the fleet names.
    pub fn of_fleet(server: &VerifiedServer) -> Self {
        Self {
            addresses: server.addresses.iter().filter_map(|address| address.parse().ok()).collect(),
            key: server.key,
            name: server.name.to_string(),
            site: server.site.as_ref().map(ToString::to_string).unwrap_or_default(),
            to_anchor: Duration::from_micros(server.to_anchor_us.into()),
            last_resort: server.last_resort,
        }
    }
}

/// Which connections of the LAN go as streams.
#[derive(Clone, Debug)]
pub struct LanStreamsOptions {
    /// How streams are carried.
    pub config: StreamsConfig,
    /// Where applications come in.
    pub entrance: EntranceSettings,
    /// Which connections end at this box without having asked for it, if any may.
    pub split: Option<SplitRules>,
}

/// Reads the client's configuration again.
pub type ReloadClient = Box<dyn FnMut() -> Result<Reread<ClientReload>, String>>;

/// What a client is started with.
pub struct ClientOptions {
    /// Its own name, for the server's logs.
    pub name: String,
    /// Where figures are told over HTTP, a loopback address.
    pub metrics: Option<SocketAddr>,
    /// The servers to choose from, the first is tried first; at least one, unless the fleet is to
    /// name them.
    pub servers: Vec<CandidateOptions>,
    /// The client's key pair.
    pub identity: Arc<Identity>,
    /// The transport.
    pub transport: TransportConfig,
    /// The lanes of the uplink direction.
    pub lanes: Vec<LaneConfig>,
    /// Which connections of the LAN go as streams, if any does.
    pub streams: Option<LanStreamsOptions>,
    /// The most bytes that the session may hold.
    pub memory_max: usize,
    /// The TUN device.
    pub tun: TunSettings,
    /// The bits of packet and connection marks that it may use.
    pub marks: Marks,
    /// What goes into the tunnel, and what is refused.
    pub routes: ClientRouteOptions,
    /// Whether what comes from behind this box gets the client's inner address.
    pub masquerade: bool,
    /// The resolvers of the machine for the time of a session; none: those that it has.
    pub dns: Vec<IpAddr>,
    /// Which interfaces are uplinks.
    pub uplinks: UplinkSelector,
    /// The page by which an uplink shows that its network is open; none: nothing is asked.
    pub portal_probe: Option<ProbeUrl>,
    /// Whether this box forwards from one uplink to another.
    pub forward_between_uplinks: bool,
    /// How uplinks may be used: the first that fits counts.
    pub policies: Vec<(UplinkMatch, UplinkPolicy)>,
    /// Which uplinks are tried first.
    pub technologies: Technologies,
    /// Where what strategies have learned is kept, and what metered uplinks have carried.
    pub state_directory: PathBuf,
    /// Reads lanes, policies and uplinks again, on SIGHUP; an error leaves everything as it is.
    pub reload: ReloadClient,
    /// Files that are read again later, as the configuration.
    pub files: Vec<PathBuf>,
    /// How the client takes part in a fleet, if it belongs to one.
    pub fleet: Option<FleetOptions<ClientReload>>,
    /// Whether the servers are those that the fleet names.
    pub follows_fleet: bool,
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOptions")
            .field("name", &self.name)
            .field("servers", &self.servers)
            .field("uplinks", &self.uplinks)
            .finish_non_exhaustive()
    }
}

/// What of a client's traffic goes where.
#[derive(Clone, Debug)]
pub struct ClientRouteOptions {
    /// Destinations that are routed into the tunnel.
    pub into_tunnel: Vec<IpNet>,
    /// What leaves outside it all the same.
    pub excluded: Excluded,
    /// Whether packets for the tunnel are refused before the first session.
    pub closed_before_join: bool,
    /// Whether packets for the tunnel stay refused after an ordered stop.
    pub kill_switch: bool,
    /// What of the private networks of the uplinks' own addresses is reached outside the tunnel.
    pub uplink_neighbours: UplinkNeighbours,
    /// What a server may grant: addresses, and prefixes that hold its own inner addresses.
    pub accept: Vec<IpNet>,
}

impl ClientOptions {
    pub(super) fn route_settings(&self) -> RouteSettings {
        RouteSettings {
            into_tunnel: self.routes.into_tunnel.clone(),
            excluded: self.routes.excluded.clone(),
            closed_before_join: self.routes.closed_before_join,
            uplink_neighbours: self.routes.uplink_neighbours,
            accept: self.routes.accept.clone(),
            selector: self.uplinks.clone(),
        }
    }
}
