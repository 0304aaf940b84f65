//! Options of a client, and the part of them that a reload may change.

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

/// The part of the configuration that may change while the client runs.
#[derive(Clone, Debug)]
pub struct ClientReload {
    /// The lanes of the uplink direction.
    pub lanes: Vec<LaneConfig>,
    /// How uplinks may be used.
    pub policies: Vec<(UplinkMatch, UplinkPolicy)>,
    /// The order in which uplinks are tried.
    pub technologies: Technologies,
    /// Which interfaces are uplinks.
    pub uplinks: UplinkSelector,
    /// The page that is requested to detect captive portals; `None` disables the check.
    pub portal_probe: Option<ProbeUrl>,
    /// Traffic that leaves outside the tunnel though its destination is routed into it.
    pub excluded: Excluded,
}

/// A server that a client may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateOptions {
    /// Its addresses, tried in turn. Host names are looked up over each uplink, and again while the
    /// server does not answer.
    pub addresses: Vec<ServerName>,
    /// Its public key.
    pub key: PublicKey,
    /// Its display name.
    pub name: String,
    /// The failure domain of the server.
    pub site: String,
    /// The round trip from the server to where inner packets leave.
    pub to_anchor: Duration,
    /// Whether the server is chosen only if no other is available.
    pub last_resort: bool,
}

impl CandidateOptions {
    /// Converts a proxy that the fleet names.
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

/// How LAN connections are carried as streams.
#[derive(Clone, Debug)]
pub struct LanStreamsOptions {
    /// How streams are carried.
    pub config: StreamsConfig,
    /// The listeners for applications.
    pub entrance: EntranceSettings,
    /// Which connections are intercepted transparently, if any.
    pub split: Option<SplitRules>,
}

/// Reads the settings again that may change at run time.
pub type ReloadClient = Box<dyn FnMut() -> Result<Reread<ClientReload>, String>>;

/// Options of a client.
pub struct ClientOptions {
    /// The client's name, for the server's logs.
    pub name: String,
    /// Where metrics are served over HTTP, a loopback address.
    pub metrics: Option<SocketAddr>,
    /// The servers to choose from, the first is tried first. Empty only if the fleet names them.
    pub servers: Vec<CandidateOptions>,
    /// The client's key pair.
    pub identity: Arc<Identity>,
    /// Transport settings.
    pub transport: TransportConfig,
    /// The lanes of the uplink direction.
    pub lanes: Vec<LaneConfig>,
    /// How LAN connections are carried as streams, if at all.
    pub streams: Option<LanStreamsOptions>,
    /// Memory limit of the session, bytes.
    pub memory_max: usize,
    /// The TUN device.
    pub tun: TunSettings,
    /// The bits of packet and connection marks that this instance may use.
    pub marks: Marks,
    /// What is routed into the tunnel, and what is blocked.
    pub routes: ClientRouteOptions,
    /// Whether packets from behind this box get the client's inner address (source NAT).
    pub masquerade: bool,
    /// DNS resolvers of the machine during a session; empty to keep the machine's own.
    pub dns: Vec<IpAddr>,
    /// Which interfaces are uplinks.
    pub uplinks: UplinkSelector,
    /// The page that is requested to detect captive portals; `None` disables the check.
    pub portal_probe: Option<ProbeUrl>,
    /// Whether this box forwards from one uplink to another.
    pub forward_between_uplinks: bool,
    /// Policies of uplinks; the first match counts.
    pub policies: Vec<(UplinkMatch, UplinkPolicy)>,
    /// The order in which uplinks are tried.
    pub technologies: Technologies,
    /// Directory of the state files: what strategies learned, and the usage of metered uplinks.
    pub state_directory: PathBuf,
    /// Reads lanes, policies and uplinks again on SIGHUP. An error changes nothing.
    pub reload: ReloadClient,
    /// Further files that are read again later, such as the configuration.
    pub files: Vec<PathBuf>,
    /// Fleet membership, if any.
    pub fleet: Option<FleetOptions<ClientReload>>,
    /// Whether the fleet names the servers.
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

/// The routes of a client.
#[derive(Clone, Debug)]
pub struct ClientRouteOptions {
    /// Destinations that are routed into the tunnel.
    pub into_tunnel: Vec<IpNet>,
    /// What leaves outside the tunnel though it is within `into_tunnel`.
    pub excluded: Excluded,
    /// Whether packets for the tunnel are blocked before the first session.
    pub closed_before_join: bool,
    /// Whether packets for the tunnel stay blocked after an ordered stop.
    pub kill_switch: bool,
    /// Which private networks of the uplinks' own addresses are reached outside the tunnel.
    pub uplink_neighbours: UplinkNeighbours,
    /// What a server may grant: addresses, and prefixes that contain its inner addresses.
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
