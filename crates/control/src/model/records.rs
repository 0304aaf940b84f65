//! The records that crates/fleet plans from: their columns, and bounds of what people write.

use ipnet::IpNet;
use roadweave_fleet::records::{
    Config, ConfigSettings, Device, DeviceSettings, Pool, PoolSettings, Proxy, ProxySettings,
    Rollout, RolloutSettings, Scope, Tenant, TenantSettings, Token, TokenRole, TokenSettings,
};
use roadweave_fleet::{INNER_NETWORKS_MAX, inner_lengths};

use super::{MILLION, SPAN_MAX, Settings, at_most, public_key, slug, tags, title, word};

records! {
    Tenant: "tenant", "tenant" => |it| ["host": i64::from(it.host)];
    Device: "device", "device", key |it| it.public_key => |it| [
        "public_key": &it.public_key,
        "state": word(&it.state),
        "tags": format!(",{},", it.settings.tags.join(","))
    ];
    Token: "token", "token", secret "hash" => |it| [
        "hash": &it.hash,
        "pool": it.settings.pool.clone(),
        "uses_left": it.uses_left
    ];
    Pool: "pool", "pool" => |_it| [];
    Proxy: "proxy", "proxy", key |it| it.settings.public_key => |it| [
        "public_key": &it.settings.public_key,
        "pool": it.settings.pool.clone(),
        "state": word(&it.state)
    ];
    Config: "config", "configuration"
        => |it| ["scope": it.settings.scope.to_string(), "number": it.number];
    Rollout: "rollout", "roll-out"
        => |it| ["config": &it.settings.config, "state": word(&it.settings.state)];
}

impl Settings for TenantSettings {
    fn validate(&self) -> Result<(), String> {
        title("title", &self.title)?;
        if self.prefixes.len() > INNER_NETWORKS_MAX {
            return Err(format!("prefixes: at most {INNER_NETWORKS_MAX}"));
        }
        for (at, prefix) in self.prefixes.iter().enumerate() {
            if prefix.trunc() != *prefix {
                return Err(format!("prefixes: {prefix} has host bits; write {}", prefix.trunc()));
            }
            let lengths = inner_lengths(prefix.addr());
            if !lengths.contains(&prefix.prefix_len()) {
                let (least, most) = (lengths.start(), lengths.end());
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

impl Settings for DeviceSettings {
    fn validate(&self) -> Result<(), String> {
        title("title", &self.title)?;
        tags(&self.tags)?;
        if self.prefixes.len() > NETWORKS_MAX {
            return Err(format!("prefixes: at most {NETWORKS_MAX}"));
        }
        match self.prefixes.iter().find(|prefix| prefix.trunc() != **prefix) {
            Some(prefix) => {
                Err(format!("prefixes: {prefix} has host bits; write {}", prefix.trunc()))
            }
            None => Ok(()),
        }
    }
}

impl Settings for TokenSettings {
    fn validate(&self) -> Result<(), String> {
        title("title", &self.title)?;
        tags(&self.tags)?;
        if !(1..=USES_MAX).contains(&self.uses) {
            return Err(format!("uses: 1 to {USES_MAX}"));
        }
        if self.role != TokenRole::Box && (self.approval || !self.tags.is_empty()) {
            return Err("role: only boxes have approval and tags".to_owned());
        }
        if self.lifetime_s == Some(0) {
            return Err("lifetime_s: at least 1".to_owned());
        }
        at_most("lifetime_s", self.lifetime_s, SPAN_MAX)?;
        for (field, name) in [("pool", &self.pool), ("delegate", &self.delegate)] {
            name.as_deref().map_or(Ok(()), slug).map_err(|why| format!("{field}: {why}"))?;
        }
        Ok(())
    }
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

impl Settings for ConfigSettings {
    fn validate(&self) -> Result<(), String> {
        title("title", &self.title)?;
        if let Scope::Tag(name) | Scope::Device(name) = &self.scope {
            slug(name).map_err(|why| format!("scope: {why}"))?;
        }
        let length = serde_json::to_string(&self.body).map_or(usize::MAX, |text| text.len());
        if length > BODY_MAX {
            return Err(format!("body: at most {BODY_MAX} bytes, so that it fits one frame"));
        }
        Ok(())
    }
}

impl Settings for RolloutSettings {
    fn validate(&self) -> Result<(), String> {
        let grows = self.waves.windows(2).all(|pair| pair[0] < pair[1]);
        let first = self.waves.first().is_some_and(|wave| *wave > 0);
        if !grows || !first || self.waves.last() != Some(&100) {
            return Err("waves: shares that grow to 100, as [5, 25, 100]".to_owned());
        }
        if self.refusals_max > 100 {
            return Err("refusals_max: 0 to 100".to_owned());
        }
        at_most("rest_s", Some(self.rest_s), SPAN_MAX)?;
        title("config", &self.config)
    }
}

const DEVICES_MAX: u32 = 100_000;
const NETWORKS_MAX: usize = 16;
const USES_MAX: u32 = 10_000;
const TENANTS_MAX: usize = 1000;
const ADDRESSES_MAX: usize = 8;
const BODY_MAX: usize = 48 * 1024;
