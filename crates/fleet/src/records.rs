//! The records of a fleet behind its plan: people write `settings`, the controller the rest.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tenant {
    /// Its name.
    pub id: String,
    /// Whether the tenant runs this controller: its owners may do everything in every tenant.
    pub host: bool,
    /// The part that users edit.
    pub settings: TenantSettings,
}

/// The part of a tenant that users edit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TenantSettings {
    /// The display name of the tenant.
    pub title: String,
    /// The inner networks that its boxes get addresses from.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub prefixes: Vec<IpNet>,
    /// Where the tenant's packets leave.
    pub egress: Egress,
    /// The limits of the tenant.
    pub limits: Limits,
    /// The public half of the key that admits its boxes and proxies.
    pub root_key: Option<String>,
    /// Where the private half of the root key is, which limits what a stolen controller can do.
    pub lock: Lock,
    /// How long proxies serve boxes without contact to the controller, seconds; no limit if absent.
    #[cfg_attr(feature = "openapi", schema(maximum = 315360000))]
    pub offline_max_s: Option<u32>,
}

/// Where packets leave the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Egress {
    /// At the proxy.
    #[default]
    Local,
    /// At the tenant's anchor.
    Anchor,
}

/// Where the root key is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Lock {
    /// On the controller's disk.
    #[default]
    File,
    /// With the operator; pools and tokens are signed beforehand.
    Keys,
    /// With the operator, and configurations are signed by people too.
    Config,
}

/// Limits of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The maximum number of boxes.
    pub devices_max: u32,
    /// The maximum rate through shared proxies, megabits per second; unlimited if absent.
    #[cfg_attr(feature = "openapi", schema(maximum = 1000000))]
    pub rate_mbps: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { devices_max: 10_000, rate_mbps: None }
    }
}

/// A box: the device in a vehicle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Device {
    /// Its name.
    pub id: String,
    /// Its public key, which the box generated.
    pub public_key: String,
    /// Whether the box is admitted.
    pub state: DeviceState,
    /// Its inner addresses.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub addresses: Vec<IpAddr>,
    /// The token that it joined by.
    pub token: Option<String>,
    /// The pool of proxies that it uses, as set by that token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The statement that admits its key.
    pub statement: Option<String>,
    /// The keys of the delegates between the root and its own.
    #[serde(default)]
    pub delegates: Vec<String>,
    /// The part that users edit.
    pub settings: DeviceSettings,
}

/// Whether a box is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// The box waits for approval.
    Pending,
    /// The box's key is admitted.
    Active,
    /// The box's key is revoked permanently.
    Revoked,
}

/// The part of a box that users edit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct DeviceSettings {
    /// The display name of the box.
    pub title: String,
    /// Tags by which the box is found and configured.
    pub tags: Vec<String>,
    /// The networks behind it.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub prefixes: Vec<IpNet>,
}

/// A join token, which admits a number of boxes, proxies or anchors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Token {
    /// Its name.
    pub id: String,
    /// The hash of the secret; never in an answer.
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub hash: String,
    /// How many more boxes it admits.
    pub uses_left: i64,
    /// When it expires, milliseconds since 1970; never if absent.
    pub expires_ms: Option<i64>,
    /// The part that users edit.
    pub settings: TokenSettings,
}

/// The part of a token that users edit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TokenSettings {
    /// The purpose of the token, as text.
    pub title: String,
    /// How many boxes it admits.
    pub uses: u32,
    /// Its lifetime, seconds; unlimited if absent.
    #[cfg_attr(feature = "openapi", schema(maximum = 315360000))]
    pub lifetime_s: Option<u32>,
    /// The tags that boxes get.
    pub tags: Vec<String>,
    /// The pool of proxies that the boxes use.
    pub pool: Option<String>,
    /// Whether each box has to be approved.
    pub approval: bool,
    /// The role of members that join by the token.
    pub role: TokenRole,
    /// The delegate that signs for members, where the root key is elsewhere. Only the token's text
    /// has its private key.
    pub delegate: Option<String>,
}

/// The role of the members that a token admits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TokenRole {
    /// Boxes.
    #[default]
    Box,
    /// Proxies, into the pool that it names.
    Proxy,
    /// Anchors.
    Anchor,
}

impl Default for TokenSettings {
    fn default() -> Self {
        Self {
            title: String::new(),
            uses: 1,
            lifetime_s: Some(86_400),
            tags: Vec::new(),
            pool: None,
            approval: false,
            role: TokenRole::Box,
            delegate: None,
        }
    }
}

/// Proxies that serve the same tenants at one site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pool {
    /// Its name.
    pub id: String,
    /// The part that users edit.
    pub settings: PoolSettings,
}

/// The part of a pool that users edit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PoolSettings {
    /// The display name of the pool.
    pub title: String,
    /// Its region.
    pub region: String,
    /// Its site: machines that fail together.
    pub site: String,
    /// The tenants that it serves besides its own.
    pub tenants: Vec<String>,
}

/// A machine that serves boxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Proxy {
    /// Its name.
    pub id: String,
    /// Whether boxes are assigned to the proxy.
    pub state: ProxyState,
    /// The statement that admits its key.
    pub statement: Option<String>,
    /// The keys of the delegates between the root and its own.
    #[serde(default)]
    pub delegates: Vec<String>,
    /// The part that users edit.
    pub settings: ProxySettings,
}

/// The role of a server in a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProxyRole {
    /// Where boxes connect.
    Proxy,
    /// Where a tenant's packets leave.
    Anchor,
}

/// Whether boxes are assigned to a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProxyState {
    /// Boxes are assigned to the proxy.
    Active,
    /// No boxes are assigned to the proxy, and its boxes move away.
    Draining,
    /// The proxy's key is revoked permanently.
    Revoked,
}

/// The part of a proxy that users edit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ProxySettings {
    /// The display name of the machine.
    #[serde(default)]
    pub title: String,
    /// Whether the machine is a proxy or an anchor.
    pub role: ProxyRole,
    /// Its public key.
    pub public_key: String,
    /// Where boxes reach it: addresses with ports.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub addresses: Vec<SocketAddr>,
    /// The pool that it is in.
    pub pool: Option<String>,
    /// The maximum number of boxes assigned to it; unlimited if absent.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(maximum = 1000000))]
    pub devices_max: Option<u32>,
}

/// The status of a proxy or anchor, as its stream reports it to any replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProxyStatus {
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub proxy: String,
    /// Whether its stream is up.
    pub connected: bool,
    /// When it was last heard, milliseconds since 1970.
    pub seen_ms: i64,
    /// The last revocation that it has in force.
    pub serial: i64,
    /// The hash of that: of a chain that has forked it is another.
    #[serde(skip)]
    pub hash: String,
    /// The stream by which this is known.
    #[serde(skip)]
    pub stream: String,
    /// Its load, thousandths of its capacity.
    pub load: Option<i64>,
    /// How many sessions it has.
    pub sessions: i64,
    /// The version of its program.
    pub software: String,
    /// When a box last reported to be on it, milliseconds since 1970; 0 if none did.
    #[serde(default)]
    pub witnessed_ms: i64,
    /// The round trip to the anchor of each tenant that it serves, microseconds, as it reports.
    #[serde(default)]
    pub anchors: BTreeMap<String, u32>,
}

/// A version of a configuration. Once created, only its approval can change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Config {
    /// Its name: the scope and the number, as `tag-tram-7`.
    pub id: String,
    /// Its number among those of its scope, from 1.
    pub number: i64,
    /// Who wrote it.
    pub author: String,
    /// The part that users edit.
    pub settings: ConfigSettings,
}

/// The part of a configuration that users edit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ConfigSettings {
    /// Which boxes it is for.
    #[serde(default)]
    pub scope: Scope,
    /// The purpose of the configuration, as text.
    #[serde(default)]
    pub title: String,
    /// The fields of a box's file that it sets.
    pub body: Map<String, Value>,
    /// A person's signature, where the tenant's lock asks for one.
    pub signature: Option<String>,
}

/// Which boxes a configuration is for. The narrower one wins, field by field.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// All boxes of the tenant.
    #[default]
    Tenant,
    /// The boxes with this tag.
    Tag(String),
    /// The box of this name.
    Device(String),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tenant => f.write_str("tenant"),
            Self::Tag(tag) => write!(f, "tag-{tag}"),
            Self::Device(device) => write!(f, "device-{device}"),
        }
    }
}

/// A roll-out, which distributes a configuration to boxes, wave by wave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rollout {
    /// Its name.
    pub id: String,
    /// The wave that it is in, from 0.
    pub wave: u32,
    /// Since when, milliseconds since 1970.
    pub wave_since_ms: i64,
    /// Why it stopped, or who stopped it.
    pub why: Option<String>,
    /// The part that users edit.
    pub settings: RolloutSettings,
}

/// The part of a roll-out that users edit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RolloutSettings {
    /// The configuration.
    pub config: String,
    /// The share of boxes with the configuration after each wave, per cent, ascending to 100.
    #[serde(default = "all_at_once")]
    pub waves: Vec<u32>,
    /// How long a wave waits for silent boxes before the next, seconds.
    #[serde(default = "ten_minutes")]
    #[cfg_attr(feature = "openapi", schema(maximum = 315360000))]
    pub rest_s: u32,
    /// The share of refusals at which it stops by itself, per cent.
    #[serde(default = "five")]
    pub refusals_max: u32,
    /// Whether the roll-out continues.
    #[serde(default)]
    pub state: RolloutState,
}

/// Whether a roll-out continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RolloutState {
    /// The roll-out continues from wave to wave.
    #[default]
    Running,
    /// The roll-out stays in its wave.
    Paused,
    /// All boxes have the configuration.
    Done,
    /// The configuration is taken back.
    Aborted,
}

fn all_at_once() -> Vec<u32> {
    vec![100]
}

fn ten_minutes() -> u32 {
    600
}

fn five() -> u32 {
    5
}
