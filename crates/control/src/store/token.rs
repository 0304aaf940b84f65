//! Joining by a token: as often as it allows, once for each key, counted at all delegates above.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use roadweave_fleet::gateway_of;
use sqlx::Row as _;

use super::sql::values;
use super::{Actor, Change, Result, Revocable, Store, StoreError, Stored, found};
use crate::authority::Authority;
use crate::keys;
use crate::model::{
    Delegate, Device, DeviceSettings, DeviceState, Proxy, ProxyRole, ProxySettings, ProxyState,
    Record, Settings as _, Tenant, Token, TokenRole, TokenSettings, slug,
};

#[derive(Clone, Debug)]
pub struct Enrolment {
    pub secret: String,
    pub public_key: String,
    pub name: Option<String>,
    pub delegated: Option<Delegated>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegated {
    pub tenant: String,
    pub keys: Vec<String>,
    pub tags: BTreeSet<String>,
    /// The whole chain, as JSON, with verified signatures.
    pub chain: String,
}

impl Store {
    /// Admits a box by a token; a known key costs no use. `authority` signs unless approval is
    /// needed. [`StoreError::Refused`]: an unknown, used up or expired token, or a revoked key.
    pub async fn enrol(
        &self,
        enrolment: &Enrolment,
        now_ms: i64,
        authority: &Authority,
    ) -> Result<Stored<Device>> {
        let (tenant, hash, mut change) = self.by_token(enrolment, now_ms).await?;
        let enrolled = change.enrol(&tenant, &hash, enrolment, authority).await?;
        change.commit().await?;
        Ok(enrolled)
    }

    /// Admits a proxy or an anchor that listens at `addresses`. Errors as of [`Store::enrol`].
    pub async fn enrol_proxy(
        &self,
        enrolment: &Enrolment,
        as_what: (ProxyRole, Vec<SocketAddr>),
        now_ms: i64,
        authority: &Authority,
    ) -> Result<Stored<Proxy>> {
        let (tenant, hash, mut change) = self.by_token(enrolment, now_ms).await?;
        let enrolled = change.enrol_proxy(&tenant, &hash, enrolment, as_what, authority).await?;
        change.commit().await?;
        Ok(enrolled)
    }

    async fn by_token(
        &self,
        enrolment: &Enrolment,
        now_ms: i64,
    ) -> Result<(String, String, Change<'_>)> {
        let hash = keys::hash(&enrolment.secret);
        let Some(token) = found(self.find::<Token>("hash", &hash).await)? else {
            return refused("the token is unknown");
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
        authority: &Authority,
    ) -> Result<Stored<Device>> {
        let known = self.known::<Device>(tenant, enrolment, |_| true, "another box").await?;
        if let Some(device) = known {
            return Ok(device);
        }
        let (token, statement, delegates) =
            self.take(tenant, hash, TokenRole::Box, enrolment).await?;
        let owner = self.get::<Tenant>(tenant, tenant).await?.record.settings;
        if self.count::<Device>(tenant).await? >= i64::from(owner.limits.devices_max) {
            return refused("the tenant has reached its limit of boxes");
        }
        let settings = DeviceSettings { tags: token.settings.tags, ..DeviceSettings::default() };
        let mut device = Device {
            id: self.free_name::<Device>(tenant, enrolment, "box").await?,
            public_key: enrolment.public_key.clone(),
            state: if token.settings.approval { DeviceState::Pending } else { DeviceState::Active },
            addresses: self.free_addresses(tenant, &owner.prefixes).await?,
            token: Some(token.id),
            pool: token.settings.pool,
            statement,
            delegates,
            settings,
        };
        if device.state == DeviceState::Active && device.statement.is_none() {
            device.statement = authority.admit_device(tenant, &device)?;
        }
        self.admit(tenant, device).await
    }

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
        authority: &Authority,
    ) -> Result<Stored<Proxy>> {
        let is_it = |proxy: &Proxy| proxy.settings.role == role;
        let known = self.known(tenant, enrolment, is_it, "another proxy or anchor").await?;
        if let Some(proxy) = known {
            return Ok(proxy);
        }
        let (wanted, fallback) = match role {
            ProxyRole::Proxy => (TokenRole::Proxy, "proxy"),
            ProxyRole::Anchor => (TokenRole::Anchor, "anchor"),
        };
        let (token, statement, delegates) = self.take(tenant, hash, wanted, enrolment).await?;
        if self.count::<Proxy>(tenant).await? >= PROXIES_MAX {
            return refused("the tenant has reached its limit of proxies");
        }
        let id = self.free_name::<Proxy>(tenant, enrolment, fallback).await?;
        let public_key = enrolment.public_key.clone();
        let (title, pool, devices_max) = (String::new(), token.settings.pool, None);
        let settings = ProxySettings { title, role, public_key, addresses, pool, devices_max };
        settings.validate().map_err(StoreError::Refused)?;
        let mut proxy = Proxy { id, state: ProxyState::Active, statement, delegates, settings };
        if proxy.statement.is_none() {
            let shared = self.get::<Tenant>(tenant, tenant).await?.record.host;
            proxy.statement = authority.admit_proxy(tenant, shared, &proxy)?;
        }
        self.insert(tenant, proxy).await
    }

    /// The record with the joining key, if it joined before. Refuses a revoked or foreign key.
    async fn known<R: Revocable>(
        &mut self,
        tenant: &str,
        enrolment: &Enrolment,
        is_it: impl Fn(&R) -> bool,
        other: &str,
    ) -> Result<Option<Stored<R>>> {
        let key = &enrolment.public_key;
        match found(self.find::<R>("public_key", key).await)? {
            Some(it) if it.tenant != tenant || !is_it(&it.record) => {
                refused(format!("the key belongs to {other}"))
            }
            Some(it) if it.record.is_revoked() => refused("the key was revoked"),
            None if self.is_revoked(key).await? => refused("the key was revoked"),
            known => Ok(known),
        }
    }

    /// Takes a use of the token and of its delegates.
    async fn take(
        &mut self,
        tenant: &str,
        hash: &str,
        role: TokenRole,
        enrolment: &Enrolment,
    ) -> Result<(Token, Option<String>, Vec<String>)> {
        let token = self.use_token(tenant, hash, role).await?.record;
        let said = enrolment.delegated.as_ref();
        let said = self.take_delegated(tenant, &token.settings, said).await?;
        let said = said.map(|it| (it.chain.clone(), it.keys.clone())).unzip();
        Ok((token, said.0, said.1.unwrap_or_default()))
    }

    /// Takes a use of each delegate that has signed for the key; `None` if the token has none.
    /// [`StoreError::Refused`] if one of them is used up, revoked, or not allowed to.
    async fn take_delegated<'d>(
        &mut self,
        tenant: &str,
        token: &TokenSettings,
        delegated: Option<&'d Delegated>,
    ) -> Result<Option<&'d Delegated>> {
        let (wanted, delegated) = match (&token.delegate, delegated) {
            (None, None) => return Ok(None),
            (Some(wanted), Some(delegated)) => (wanted, delegated),
            (None, Some(_)) => return refused("the token was made without a delegate"),
            (Some(wanted), None) => {
                return refused(format!(
                    "the token lacks its delegate {wanted}: use the text that `roadweave fleet \
                     token create --delegate` prints"
                ));
            }
        };
        let tags: BTreeSet<String> = token.tags.iter().cloned().collect();
        if delegated.tenant != tenant || delegated.tags != tags {
            return refused("the chain is for another tenant, or has other tags");
        }
        let Some(last) = delegated.keys.last() else {
            return refused("no delegate has signed it");
        };
        for key in &delegated.keys {
            let before = found(self.find::<Delegate>("public_key", key).await)?;
            let Some(before) = before.filter(|it| it.tenant == tenant) else {
                return refused(format!("no delegate of this tenant has the key {key}"));
            };
            let Delegate { id, uses, used, .. } = &before.record;
            // The record of a restored database may be older than the revocation.
            if before.record.is_revoked() || self.is_revoked(key).await? {
                return refused(format!("the delegate {id} was revoked"));
            }
            if uses.is_some_and(|most| *used >= most) {
                return refused(format!("the delegate {id} has reached its limit of keys"));
            }
            if key == last && id != wanted {
                return refused(format!("the token is for the delegate {wanted}, not {id}"));
            }
            let used = used.saturating_add(1);
            self.update(&before, Delegate { used, ..before.record.clone() }).await?;
        }
        Ok(Some(delegated))
    }

    async fn use_token(
        &mut self,
        tenant: &str,
        hash: &str,
        role: TokenRole,
    ) -> Result<Stored<Token>> {
        let before = self.find::<Token>("hash", hash).await?;
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

    pub async fn is_revoked(&mut self, public_key: &str) -> Result<bool> {
        let sql = "SELECT COUNT(*) FROM revocation WHERE public_key = $1";
        Ok(self.scalar(sql, values![public_key]).await? > 0)
    }

    /// The requested name if valid and free; else, unless a delegate signed it, a generated one.
    async fn free_name<R: Record>(
        &mut self,
        tenant: &str,
        enrolment: &Enrolment,
        fallback: &str,
    ) -> Result<String> {
        let made_up = || format!("{fallback}-{}", &keys::identifier()[..8]);
        let unsigned = || refused("the name is taken or invalid: choose another with --name");
        let Some(name) = enrolment.name.clone().filter(|name| slug(name).is_ok()) else {
            return if enrolment.delegated.is_some() { unsigned() } else { Ok(made_up()) };
        };
        match found(self.get::<R>(tenant, &name).await)? {
            None => Ok(name),
            Some(_) if enrolment.delegated.is_some() => unsigned(),
            Some(_) => Ok(made_up()),
        }
    }

    pub async fn free_addresses(&mut self, tenant: &str, of: &[IpNet]) -> Result<Vec<IpAddr>> {
        if of.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT address FROM address WHERE tenant = $1";
        let rows = self.rows(sql, values![tenant]).await?;
        let taken = rows.iter().map(|row| row.try_get::<String, _>("address"));
        let taken: HashSet<String> = taken.collect::<Result<_, _>>()?;
        let free = of.iter().map(|prefix| {
            let gateway = gateway_of(prefix).map(|it| it.addr());
            let others = prefix.hosts().skip_while(|host| Some(*host) <= gateway);
            let mut hosts = others.take(taken.len() + 1);
            hosts.find(|address| !taken.contains(&address.to_string())).ok_or_else(|| {
                StoreError::Refused(format!("the prefix {prefix} has no free address"))
            })
        });
        free.collect()
    }
}

fn refused<T>(why: impl Into<String>) -> Result<T> {
    Err(StoreError::Refused(why.into()))
}

const PROXIES_MAX: i64 = 1_000;
const USE: &str = "UPDATE token SET uses_left = uses_left - 1 \
                   WHERE tenant = $1 AND hash = $2 AND uses_left > 0 RETURNING uses_left";
