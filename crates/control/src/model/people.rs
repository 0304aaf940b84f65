//! Tenants, which are isolated from each other, and who asks for them: people, programs, and links
//! that expire.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{MILLION, SPAN_MAX, Settings, at_most, public_key, slug, title};

/// What somebody may do; each may do what those before may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look.
    Viewer,
    /// Ask a vehicle for closer figures while looking.
    Crew,
    /// Enrol, configure, drain, revoke.
    Operator,
    /// Say who may do what, and read the audit log.
    Owner,
}

/// A person: with a password, or signed in by an issuer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Person {
    /// The name to log in by.
    pub id: String,
    /// What people write.
    pub settings: PersonSettings,
    /// The password's hash (argon2id); never in an answer.
    #[serde(default)]
    #[schema(ignore)]
    pub password: String,
    /// Whom the issuer vouches for, where the person signs in there: it says what the person may
    /// do.
    pub subject: Option<String>,
}

/// What people write of a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PersonSettings {
    /// How the person is called.
    #[serde(default)]
    pub title: String,
    /// What the person may do.
    pub role: Role,
}

/// A key for a program, or a link for somebody without account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiKey {
    /// Its name.
    pub id: String,
    /// The hash of the secret; never in an answer.
    #[schema(ignore)]
    pub hash: String,
    /// What people write.
    pub settings: ApiKeySettings,
}

/// What people write of an API key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeySettings {
    /// What the key is for, in words.
    #[serde(default)]
    pub title: String,
    /// What the bearer of the key may do.
    pub role: Role,
    /// Until when it is good, milliseconds since 1970; for ever, if absent.
    pub expires_ms: Option<i64>,
    /// The one box that it is for; only with the roles viewer and crew.
    pub device: Option<String>,
}

/// A login session of a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    /// Its name in the log.
    pub id: String,
    /// The hash of the secret in the cookie.
    pub hash: String,
    /// The name of the person who is logged in.
    pub person: String,
    /// When it expires, milliseconds since 1970.
    pub expires_ms: i64,
}

records! {
    Person: "person", "user", secret "password" => |_it| [];
    ApiKey: "api_key", "API key", secret "hash" => |it| ["hash": &it.hash];
    Login: "login", "session", secret "hash"
        => |it| ["hash": &it.hash, "person": &it.person, "expires_ms": it.expires_ms];
}

impl Settings for PersonSettings {
    fn validate(&self) -> Result<(), String> {
        title("title", &self.title)
    }
}

impl Settings for ApiKeySettings {
    fn validate(&self) -> Result<(), String> {
        title("title", &self.title)?;
        if let Some(device) = &self.device {
            slug(device).map_err(|why| format!("device: {why}"))?;
            if self.role > Role::Crew {
                return Err("device: a key for one box has the role viewer or crew".to_owned());
            }
        }
        Ok(())
    }
}

/// A fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    /// Its name.
    pub id: String,
    /// Whether the tenant runs this controller: its owners may do everything in every tenant.
    pub host: bool,
    /// What people write.
    pub settings: TenantSettings,
}

/// What people write of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TenantSettings {
    /// How the tenant is called among people.
    pub title: String,
    /// The inner networks that its boxes get addresses from.
    #[schema(value_type = Vec<String>)]
    pub prefixes: Vec<IpNet>,
    /// Where the tenant's packets leave.
    pub egress: Egress,
    /// How much the tenant may take.
    pub limits: Limits,
    /// The public half of the key that admits its boxes and proxies.
    pub root_key: Option<String>,
    /// Where the private half is, and so what a thief of the controller can do.
    pub lock: Lock,
    /// How long proxies serve boxes without having heard from the controller; for ever, if absent.
    #[schema(maximum = 315360000)]
    pub offline_max_s: Option<u32>,
}

/// Where packets leave the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Egress {
    /// At the proxy.
    #[default]
    Local,
    /// At the tenant's anchor.
    Anchor,
}

/// Where the root key is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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

/// What a tenant may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The most boxes.
    pub devices_max: u32,
    /// The most that it may send through shared proxies, megabits per second; any, if absent.
    #[schema(maximum = 1000000)]
    pub rate_mbps: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { devices_max: 10_000, rate_mbps: None }
    }
}

records! {
    Tenant: "tenant", "tenant" => |it| ["host": i64::from(it.host)];
}

impl Settings for TenantSettings {
    fn validate(&self) -> Result<(), String> {
        title("title", &self.title)?;
        if self.prefixes.len() > PREFIXES_MAX {
            return Err(format!("prefixes: at most {PREFIXES_MAX}"));
        }
        for (at, prefix) in self.prefixes.iter().enumerate() {
            if prefix.trunc() != *prefix {
                return Err(format!("prefixes: {prefix} has host bits; write {}", prefix.trunc()));
            }
            let short = if prefix.addr().is_ipv4() { 8..=30 } else { 32..=126 };
            if !short.contains(&prefix.prefix_len()) {
                let (least, most) = (short.start(), short.end());
                return Err(format!("prefixes: {prefix} must be between /{least} and /{most}"));
            }
            let overlaps = |other: &IpNet| other.contains(prefix) || prefix.contains(other);
            if let Some(other) = self.prefixes[..at].iter().find(|other| overlaps(other)) {
                return Err(format!("prefixes: {prefix} overlaps {other}"));
            }
        }
        self.root_key.as_deref().map_or(Ok(()), public_key)?;
        if !(1..=DEVICES_MAX).contains(&self.limits.devices_max) {
            return Err(format!("limits.devices_max: 1 to {DEVICES_MAX}"));
        }
        at_most("limits.rate_mbps", self.limits.rate_mbps, MILLION)?;
        at_most("offline_max_s", self.offline_max_s, SPAN_MAX)
    }
}

const PREFIXES_MAX: usize = 8;
const DEVICES_MAX: u32 = 100_000;
