//! Joining by a token: as often as it allows, and once for each key.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use sqlx::Row as _;

use super::sql::values;
use super::{Actor, Change, Delegated, Record, Result, Store, StoreError, Stored};
use crate::authority::NotSigned;
use crate::keys;
use crate::model::{
    Device, DeviceSettings, DeviceState, Proxy, ProxyRole, ProxySettings, ProxyState,
    Settings as _, Tenant, Token, TokenRole, slug,
};

/// A request to join.
#[derive(Clone, Debug)]
pub struct Enrolment {
    /// The token's secret.
    pub secret: String,
    /// The box's public key.
    pub public_key: String,
    /// The requested name.
    pub name: Option<String>,
    /// The statement of the token's delegate.
    pub delegated: Option<Delegated>,
}

/// A joined box.
#[derive(Clone, Debug)]
pub struct Enrolled {
    /// The record of the box.
    pub device: Stored<Device>,
    /// Whether the same key had joined before, which costs no use.
    pub again: bool,
}

impl Store {
    /// Admits a box by a token; `admit` signs its statement, unless the token asks for approval.
    /// [`StoreError::Refused`] for an unknown, used up or expired token, or a revoked key.
    pub async fn enrol(
        &self,
        enrolment: &Enrolment,
        now_ms: i64,
        admit: impl Fn(&str, &Device) -> Result<Option<String>, NotSigned> + Send,
    ) -> Result<Enrolled> {
        let (tenant, hash, mut change) = self.by_token(enrolment, now_ms).await?;
        let enrolled = change.enrol(&tenant, &hash, enrolment, admit).await?;
        change.commit().await?;
        Ok(enrolled)
    }

    /// Admits a proxy or an anchor that listens at `addresses`; the second argument of `admit` says
    /// whether it may serve all tenants. Errors as of [`Store::enrol`].
    pub async fn enrol_proxy(
        &self,
        enrolment: &Enrolment,
        role: ProxyRole,
        addresses: Vec<SocketAddr>,
        now_ms: i64,
        admit: impl Fn(&str, bool, &Proxy) -> Result<Option<String>, NotSigned> + Send,
    ) -> Result<Stored<Proxy>> {
        let (tenant, hash, mut change) = self.by_token(enrolment, now_ms).await?;
        let as_what = (role, addresses);
        let enrolled = change.enrol_proxy(&tenant, &hash, enrolment, as_what, admit).await?;
        change.commit().await?;
        Ok(enrolled)
    }

    async fn by_token(
        &self,
        enrolment: &Enrolment,
        now_ms: i64,
    ) -> Result<(String, String, Change<'_>)> {
        let hash = keys::hash(&enrolment.secret);
        // Unknown tokens are refused without the lock of changes.
        let token = match self.find::<Token>("hash", &hash).await {
            Err(StoreError::NotFound { .. }) => {
                return Err(StoreError::Refused("the token is not known here".to_owned()));
            }
            other => other?,
        };
        let actor = Actor::new(format!("token:{}", token.record.id));
        Ok((token.tenant, hash, self.change(actor, now_ms).await?))
    }
}

impl Change<'_> {
    async fn enrol(
        &mut self,
        tenant: &str,
        hash: &str,
        enrolment: &Enrolment,
        admit: impl Fn(&str, &Device) -> Result<Option<String>, NotSigned>,
    ) -> Result<Enrolled> {
        let refused = |why: &str| Err(StoreError::Refused(why.to_owned()));
        match self.find::<Device>("public_key", &enrolment.public_key).await {
            Ok(device) if device.tenant != tenant => {
                return refused("the key belongs to another box");
            }
            Ok(device) if device.record.state == DeviceState::Revoked => {
                return refused("the key was revoked");
            }
            Ok(device) => return Ok(Enrolled { device, again: true }),
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        if self.is_revoked(&enrolment.public_key).await? {
            return refused("the key was revoked");
        }
        let token = self.use_token(tenant, hash, TokenRole::Box).await?;
        let said = enrolment.delegated.as_ref();
        let said = self.take_delegated(tenant, &token.record.settings, said).await?;
        let owner = self.get::<Tenant>(tenant, tenant).await?;
        let max = owner.record.settings.limits.devices_max;
        if self.count::<Device>(tenant).await? >= i64::from(max) {
            return refused("the tenant has as many boxes as it may");
        }
        let id = self.free_name::<Device>(tenant, enrolment, "box").await?;
        let state = match token.record.settings.approval {
            true => DeviceState::Pending,
            false => DeviceState::Active,
        };
        let addresses = self.free_addresses(tenant, &owner.record.settings.prefixes).await?;
        let mut device = Device {
            id,
            public_key: enrolment.public_key.clone(),
            state,
            addresses,
            token: Some(token.record.id),
            pool: token.record.settings.pool,
            statement: said.map(|it| it.chain.clone()),
            delegates: said.map(|it| it.keys.clone()).unwrap_or_default(),
            settings: DeviceSettings {
                tags: token.record.settings.tags,
                ..DeviceSettings::default()
            },
        };
        if device.state == DeviceState::Active && device.statement.is_none() {
            let signed = admit(tenant, &device);
            device.statement = signed.map_err(|why| StoreError::Refused(why.to_string()))?;
        }
        let device = self.admit(tenant, device).await?;
        Ok(Enrolled { device, again: false })
    }

    /// Inserts a device and its addresses; errors as of [`Change::insert`].
    pub async fn admit(&mut self, tenant: &str, device: Device) -> Result<Stored<Device>> {
        let stored = self.insert(tenant, device).await?;
        for address in &stored.record.addresses {
            let sql = "INSERT INTO address (tenant, address, device) VALUES ($1, $2, $3)";
            self.execute(sql, values![tenant, address.to_string(), &stored.record.id]).await?;
        }
        Ok(stored)
    }

    async fn enrol_proxy(
        &mut self,
        tenant: &str,
        hash: &str,
        enrolment: &Enrolment,
        (role, addresses): (ProxyRole, Vec<SocketAddr>),
        admit: impl Fn(&str, bool, &Proxy) -> Result<Option<String>, NotSigned>,
    ) -> Result<Stored<Proxy>> {
        let refused = |why: &str| Err(StoreError::Refused(why.to_owned()));
        match self.find::<Proxy>("public_key", &enrolment.public_key).await {
            Ok(proxy) if proxy.tenant != tenant || proxy.record.settings.role != role => {
                return refused("the key belongs to another proxy or anchor");
            }
            Ok(proxy) if proxy.record.state == ProxyState::Revoked => {
                return refused("the key was revoked");
            }
            Ok(proxy) => return Ok(proxy),
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        if self.is_revoked(&enrolment.public_key).await? {
            return refused("the key was revoked");
        }
        let wanted = match role {
            ProxyRole::Proxy => TokenRole::Proxy,
            ProxyRole::Anchor => TokenRole::Anchor,
        };
        let token = self.use_token(tenant, hash, wanted).await?.record;
        let said = enrolment.delegated.as_ref();
        let said = self.take_delegated(tenant, &token.settings, said).await?;
        if self.count::<Proxy>(tenant).await? >= PROXIES_MAX {
            return refused("the tenant has as many proxies as it may");
        }
        let fallback = if role == ProxyRole::Anchor { "anchor" } else { "proxy" };
        let id = self.free_name::<Proxy>(tenant, enrolment, fallback).await?;
        let public_key = enrolment.public_key.clone();
        let (pool, devices_max) = (token.settings.pool, None);
        let title = String::new();
        let settings = ProxySettings { title, role, public_key, addresses, pool, devices_max };
        settings.validate().map_err(StoreError::Refused)?;
        let (statement, delegates) = match said {
            Some(said) => (Some(said.chain.clone()), said.keys.clone()),
            None => (None, Vec::new()),
        };
        let mut proxy = Proxy { id, state: ProxyState::Active, statement, delegates, settings };
        if proxy.statement.is_none() {
            // Proxies of the host tenant serve all, as when people create them.
            let shared = self.get::<Tenant>(tenant, tenant).await?.record.host;
            let signed = admit(tenant, shared, &proxy);
            proxy.statement = signed.map_err(|why| StoreError::Refused(why.to_string()))?;
        }
        self.insert(tenant, proxy).await
    }

    async fn use_token(
        &mut self,
        tenant: &str,
        hash: &str,
        role: TokenRole,
    ) -> Result<Stored<Token>> {
        let before = self.find::<Token>("hash", hash).await?;
        let refused = |why: &str| Err(StoreError::Refused(why.to_owned()));
        if before.record.settings.role != role {
            return refused(match before.record.settings.role {
                TokenRole::Box => "the token is for boxes",
                TokenRole::Proxy => "the token is for proxies",
                TokenRole::Anchor => "the token is for anchors",
            });
        }
        if before.record.expires_ms.is_some_and(|at| at <= self.now_ms) {
            return refused("the token has expired");
        }
        let Some(row) = self.row(USE, values![tenant, hash]).await? else {
            return refused("the token is used up");
        };
        let mut record = before.record.clone();
        record.uses_left = row.try_get("uses_left")?;
        self.update(&before, record).await
    }

    /// Whether this key was revoked.
    pub async fn is_revoked(&mut self, public_key: &str) -> Result<bool> {
        let sql = "SELECT COUNT(*) FROM revocation WHERE public_key = $1";
        Ok(self.scalar(sql, values![public_key]).await? > 0)
    }

    /// The requested name, if it is valid and free; else a generated one, unless a delegate has
    /// signed for the name.
    async fn free_name<R: Record>(
        &mut self,
        tenant: &str,
        enrolment: &Enrolment,
        fallback: &str,
    ) -> Result<String> {
        let made_up = || format!("{fallback}-{}", &keys::identifier()[..8]);
        // A delegate's statement has the requested name.
        let unsigned = || {
            let text = "the name is taken, or is none: choose another with --name";
            Err(StoreError::Refused(text.to_owned()))
        };
        let Some(name) = enrolment.name.clone().filter(|name| slug(name).is_ok()) else {
            return if enrolment.delegated.is_some() { unsigned() } else { Ok(made_up()) };
        };
        match self.get::<R>(tenant, &name).await {
            Err(StoreError::NotFound { .. }) => Ok(name),
            Ok(_) if enrolment.delegated.is_some() => unsigned(),
            Ok(_) => Ok(made_up()),
            Err(error) => Err(error),
        }
    }

    /// A free address of each prefix of the tenant. [`StoreError::Refused`] if a prefix has none
    /// left.
    pub async fn free_addresses(
        &mut self,
        tenant: &str,
        prefixes: &[IpNet],
    ) -> Result<Vec<IpAddr>> {
        if prefixes.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT address FROM address WHERE tenant = $1";
        let rows = self.rows(sql, values![tenant]).await?;
        let taken = rows.iter().map(|row| row.try_get::<String, _>("address"));
        let taken: HashSet<String> = taken.collect::<Result<_, _>>()?;
        let free = prefixes.iter().map(|prefix| {
            // The first host of a prefix is the anchor. With IPv6 the address before it is reserved
            // too: the subnet-router anycast address (RFC 4291 section 2.6.1).
            let own = if prefix.addr().is_ipv4() { 1 } else { 2 };
            let mut hosts = prefix.hosts().skip(own).take(taken.len() + 1);
            hosts.find(|address| !taken.contains(&address.to_string())).ok_or_else(|| {
                StoreError::Refused(format!("the prefix {prefix} has no address left"))
            })
        });
        free.collect()
    }
}

const PROXIES_MAX: i64 = 1_000;
const USE: &str = "UPDATE token SET uses_left = uses_left - 1 \
                   WHERE tenant = $1 AND hash = $2 AND uses_left > 0 RETURNING uses_left";
