//! The status of a running client, server or router: the event loop writes it, and `roadweave show`
//! reads it. The comments of the fields are also docs/show.schema.json.

#[cfg(test)]
pub(crate) mod examples;
#[cfg(test)]
mod schema;

use std::collections::BTreeMap;

use roadweave_proto::{DropCounters, Instant};
use roadweave_tunnel::{
    AnchorStatus, CandidateReport, PathStatusReport, ProxyStatus, RouterStatus, SessionStatus,
    Totals, UplinkReport,
};
use serde::{Deserialize, Serialize};

use crate::modem::ModemFacts;

/// The status of one instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// A client's own name, a server's address, a router's TUN.
    pub name: String,
    /// The version of the program.
    pub version: String,
    /// For how long it has run, seconds.
    pub uptime_seconds: f64,
    /// The name of its TUN.
    pub tun: String,
    /// What passed through the TUN.
    pub device: DeviceCounters,
    /// Counters of the log.
    pub log: LogCounters,
    /// Packets that were discarded outside of any session, by reason.
    pub drops: DropCounters,
    /// Its place in a fleet, if it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetStatus>,
    /// The part for its role.
    #[serde(flatten)]
    pub role: RoleStatus,
}

/// The part of a [`Status`] that differs from role to role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum RoleStatus {
    /// A client.
    Client(ClientStatus),
    /// A server.
    Server(ServerStatus),
    /// A redundant router.
    Router(RouterRoleStatus),
    /// A proxy.
    Proxy(ProxyRoleStatus),
    /// An anchor.
    Anchor(AnchorRoleStatus),
}

impl Default for RoleStatus {
    fn default() -> Self {
        Self::Client(ClientStatus::default())
    }
}

impl RoleStatus {
    /// The name of the role in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Client(_) => "client",
            Self::Server(_) => "server",
            Self::Router(_) => "router",
            Self::Proxy(_) => "proxy",
            Self::Anchor(_) => "anchor",
        }
    }

    /// The sessions over QUIC: a client's own, or those with clients.
    pub fn sessions(&self) -> &[SessionStatus] {
        match self {
            Self::Client(client) => &client.sessions,
            Self::Server(server) => &server.sessions,
            Self::Proxy(proxy) => &proxy.sessions,
            Self::Router(_) | Self::Anchor(_) => &[],
        }
    }

    /// Why no client should be sent here, if none should.
    pub fn unready(&self) -> Option<&'static str> {
        match self {
            Self::Server(ServerStatus { totals, .. })
            | Self::Proxy(ProxyRoleStatus { totals, .. })
                if totals.draining =>
            {
                Some("draining: no new clients are accepted")
            }
            Self::Proxy(role) if role.passing.legs.iter().all(|leg| !leg.is_up) => {
                Some("no anchor answers")
            }
            _ => None,
        }
    }
}

/// The status of a client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientStatus {
    /// Its session, if it has one.
    pub sessions: Vec<SessionStatus>,
    /// Why it has no session, as text.
    pub no_session: Option<String>,
    /// Its uplinks, and the state of the server's addresses over each.
    pub uplinks: Vec<UplinkReport>,
    /// Uplinks that are paused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paused: Vec<String>,
    /// Uplinks that are not used because one of their addresses has another owner, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub conflicts: BTreeMap<String, String>,
    /// The uplinks' own networks that are reached outside the tunnel, by the uplink's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outside: BTreeMap<String, Vec<String>>,
    /// The reports of its uplinks' modems, by the uplink's name; none is older than half a minute.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub modems: BTreeMap<String, ModemFacts>,
    /// The servers that it chooses from, if there is more than one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<CandidateReport>,
    /// Lines left out of the log because there were too many notices.
    pub suppressed_notices: u64,
    /// Connections of applications that are carried as streams, if there is a proxy for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<StreamsStatus>,
}

impl ClientStatus {
    /// The paths of its session.
    pub fn paths(&self) -> impl Iterator<Item = &PathStatusReport> + Clone {
        self.sessions.iter().flat_map(|session| &session.paths)
    }

    /// The smallest target of the lanes with an encoder, bits a second.
    pub fn encoder_target(&self) -> Option<u64> {
        let lanes = self.sessions.iter().flat_map(|session| &session.stats.lanes);
        lanes.filter_map(|lane| Some(lane.encoder.as_ref()?.bitrate.as_bps())).min()
    }
}

/// TCP connections of one end of the streams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamsStatus {
    /// Those that are open.
    pub connections: usize,
    /// All connections since the start, including open ones.
    pub accepted: u64,
    /// How the closed connections ended, by kind.
    pub ends: BTreeMap<String, u64>,
    /// How often plain HTTP had `requests`, `answers`, `players` (that reported their buffers) and
    /// `first-frames`; and why reading a connection stopped.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub http: BTreeMap<String, u64>,
    /// At a server: whose address connections leave with, `client` or `server`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// At a box: connections that it takes transparently, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<SplitStatus>,
}

impl StreamsStatus {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.connections += other.connections;
        self.accepted += other.accepted;
        let maps = [(&mut self.ends, &other.ends), (&mut self.http, &other.http)];
        for (counts, more) in maps {
            more.iter().for_each(|(name, times)| *counts.entry(name.clone()).or_default() += times);
        }
        self.source = self.source.take().or_else(|| other.source.clone());
    }
}

/// Connections of the LAN that a box takes transparently.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitStatus {
    /// All connections since the start.
    pub taken: u64,
    /// Why all new ones go through the tunnel instead, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
}

/// The status of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// The sessions of its clients, by the time they came; none in a summary.
    pub sessions: Vec<SessionStatus>,
    /// Clients that left since the start and are not back, the last one first, 4,096 at most; none
    /// in a summary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<AbsentClient>,
    /// All sessions together.
    #[serde(default)]
    pub totals: Totals,
    /// Bytes that all sessions hold.
    pub memory_bytes: u64,
    /// Refused clients, by kind.
    pub refusals: BTreeMap<String, u64>,
    /// Its shards, if it has more than one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<ShardStatus>,
    /// Connections of clients' streams, if the server accepts streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<StreamsStatus>,
}

/// A client whose session is over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AbsentClient {
    /// Its name in the configuration.
    pub peer: String,
    /// Its public key.
    pub public_key: String,
    /// For how long it has had no session, seconds.
    pub left_seconds_ago: f64,
    /// Why the session ended, as text.
    pub reason: String,
}

/// The status of one shard of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStatus {
    /// Whether it has answered.
    pub runs: bool,
    /// Its sessions.
    pub sessions: u64,
    /// How often it failed and was restarted.
    pub failures: u64,
    /// Packets of other shards that it received and handed over.
    pub handed_over: u64,
}

/// The status of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProxyRoleStatus {
    /// The sessions of its clients, by the time they came; none in a summary.
    pub sessions: Vec<SessionStatus>,
    /// All sessions together.
    #[serde(default)]
    pub totals: Totals,
    /// Bytes that all sessions hold.
    pub memory_bytes: u64,
    /// Refused clients and failed bindings, by kind.
    pub refusals: BTreeMap<String, u64>,
    /// Its legs and tenants.
    #[serde(flatten)]
    pub passing: ProxyStatus,
}

/// The status of an anchor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AnchorRoleStatus {
    /// Its legs and tenants, and its refusals.
    #[serde(flatten)]
    pub passing: AnchorStatus,
    /// Connections of clients' streams, if the anchor accepts streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<StreamsStatus>,
}

/// The status of a router.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouterRoleStatus {
    /// Its only session, with the other router.
    pub sessions: Vec<RouterSession>,
    /// Its sockets, in the order of the configuration.
    pub sockets: Vec<SocketStatus>,
}

/// The session of a router.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouterSession {
    /// The other end, in words.
    pub peer: String,
    /// This end's inner addresses.
    pub addresses: Vec<String>,
    /// Its links and its lane.
    #[serde(flatten)]
    pub status: RouterStatus,
}

/// One socket of a router. It counts from its last opening, and nothing while it is closed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SocketStatus {
    /// The address that it is bound to.
    pub listen: String,
    /// The interface that it is bound to.
    pub interface: Option<String>,
    /// Whether the socket is open.
    pub open: bool,
    /// System calls that sent.
    pub sends: Option<u64>,
    /// System calls that received.
    pub receives: Option<u64>,
    /// Datagrams that the kernel refused.
    pub send_failures: Option<u64>,
}

/// The status of a member of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetStatus {
    /// The name that it has in the fleet.
    pub name: String,
    /// The role that it has in the fleet.
    pub role: String,
    /// Its tenant.
    pub tenant: String,
    /// The address of the controller and the route to it, while connected.
    pub controller: Option<String>,
    /// Since when the stream is down, by the program's clock.
    #[serde(skip)]
    pub away_since: Option<Instant>,
    /// For how long the stream has been down, seconds.
    pub away_seconds: Option<f64>,
    /// Whether that counts from the program's start; the stream may have been down before.
    #[serde(default)]
    pub away_at_least: bool,
    /// Why the stream was down last.
    pub away_why: Option<String>,
    /// The controller's documents and their outcomes.
    pub documents: Vec<DocumentStatus>,
    /// Fields to which the program's own file gives other values than the controller.
    pub pinned: Vec<String>,
    /// The revoked keys that it knows.
    pub revocations: u64,
    /// Whether members are refused because no controller was reachable for too long.
    pub is_closed: bool,
    /// Whether the state cannot be written to the disk.
    pub is_unwritten: bool,
}

/// One document of a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentStatus {
    /// The document's kind.
    pub kind: String,
    /// The document's version: epoch and number.
    pub version: String,
    /// `in force`, `on trial`, `taken back` or `refused`.
    pub outcome: String,
    /// Why it is not in force.
    pub why: Option<String>,
}

/// What passed through a TUN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounters {
    /// Inner packets read.
    pub packets_read: u64,
    /// Bytes of the inner packets read.
    pub bytes_read: u64,
    /// Inner packets written.
    pub packets_written: u64,
    /// Bytes of the inner packets written.
    pub bytes_written: u64,
}

/// Counters of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCounters {
    /// Lines that could not be written.
    pub lines_lost: u64,
}
