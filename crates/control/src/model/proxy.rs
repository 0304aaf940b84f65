//! Proxies and anchors, and pools of proxies.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{MILLION, Settings, at_most, public_key, slug, title, word};

/// Proxies that serve the same tenants at one site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Its name.
    pub id: String,
    /// What people write.
    pub settings: PoolSettings,
}

/// What people write of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PoolSettings {
    /// How the pool is called among people.
    pub title: String,
    /// The part of the world that it is in.
    pub region: String,
    /// The site: what fails together.
    pub site: String,
    /// The tenants that it serves besides its own.
    pub tenants: Vec<String>,
}

/// A machine that serves boxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Proxy {
    /// Its name.
    pub id: String,
    /// Whether the proxy is given boxes.
    pub state: ProxyState,
    /// The statement that admits its key.
    pub statement: Option<String>,
    /// The keys of the delegates between the root and its own.
    #[serde(default)]
    pub delegates: Vec<String>,
    /// What people write.
    pub settings: ProxySettings,
}

/// What a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProxyRole {
    /// Where boxes connect.
    Proxy,
    /// Where a tenant's packets leave.
    Anchor,
}

/// Whether a proxy is given boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProxyState {
    /// The proxy is given boxes.
    Active,
    /// The proxy is given no boxes, and those that it has move away.
    Draining,
    /// The proxy's key is admitted no more, for ever.
    Revoked,
}

/// What people write of a proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProxySettings {
    /// How the machine is called among people.
    #[serde(default)]
    pub title: String,
    /// Whether the machine is a proxy or an anchor.
    pub role: ProxyRole,
    /// Its public key.
    pub public_key: String,
    /// Where boxes reach it: addresses with ports.
    #[schema(value_type = Vec<String>)]
    pub addresses: Vec<std::net::SocketAddr>,
    /// The pool that it is in.
    pub pool: Option<String>,
    /// The most boxes that it is given; any, if absent.
    #[schema(maximum = 1000000)]
    pub devices_max: Option<u32>,
}

records! {
    Pool: "pool", "pool" => |_it| [];
    Proxy: "proxy", "proxy", key |it| it.settings.public_key => |it| [
        "public_key": &it.settings.public_key,
        "pool": it.settings.pool.clone(),
        "state": word(&it.state)
    ];
}

impl Settings for PoolSettings {
    fn validate(&self) -> Result<(), String> {
        title("title", &self.title)?;
        title("region", &self.region)?;
        title("site", &self.site)?;
        if self.tenants.len() > TENANTS_MAX {
            return Err(format!("tenants: at most {TENANTS_MAX}"));
        }
        self.tenants.iter().try_for_each(|it| slug(it).map_err(|why| format!("tenants: {why}")))
    }
}

impl Settings for ProxySettings {
    fn validate(&self) -> Result<(), String> {
        title("title", &self.title)?;
        public_key(&self.public_key)?;
        if self.addresses.is_empty() || self.addresses.len() > ADDRESSES_MAX {
            return Err(format!("addresses: 1 to {ADDRESSES_MAX}, as 192.0.2.1:4433"));
        }
        at_most("devices_max", self.devices_max, MILLION)?;
        self.pool.as_deref().map_or(Ok(()), |pool| slug(pool).map_err(|why| format!("pool: {why}")))
    }
}

const TENANTS_MAX: usize = 1000;
const ADDRESSES_MAX: usize = 8;
