//! Options of a client, and the part of them that a reload may change.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::VerifiedServer;
use roadweave_identity::Identity;
use roadweave_proto::{Marks, ProbeUrl, ServerName, UplinkMatch, UplinkSelector};
use roadweave_quic::TransportConfig;
use roadweave_tunnel::{Candidate, LaneConfig, StreamsConfig, UplinkPolicy};

use super::super::{Reread, TunSettings};
use crate::filter::split::SplitRules;
use crate::fleet::FleetOptions;
use crate::streams::EntranceSettings;
use crate::{Excluded, RouteSettings, Technologies};

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
    /// The rest, without addresses.
    pub candidate: Candidate,
}

impl CandidateOptions {
    /// Converts a proxy that the fleet names.
    pub fn of_fleet(server: &VerifiedServer) -> Self {
        Self {
            addresses: server.addresses.iter().filter_map(|address| address.parse().ok()).collect(),
            candidate: Candidate {
                key: server.key,
                name: server.name.to_string(),
                site: server.site.as_ref().map(ToString::to_string).unwrap_or_default(),
                addresses: Vec::new(),
                to_anchor: Duration::from_micros(server.to_anchor_us.into()),
                last_resort: server.last_resort,
            },
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
    /// What is routed into the tunnel, and what is blocked; which interfaces are uplinks.
    pub routes: RouteSettings,
    /// Whether packets for the tunnel stay blocked after an ordered stop.
    pub kill_switch: bool,
    /// Whether packets from behind this box get the client's inner address (source NAT).
    pub masquerade: bool,
    /// DNS resolvers of the machine during a session; empty to keep the machine's own.
    pub dns: Vec<IpAddr>,
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
