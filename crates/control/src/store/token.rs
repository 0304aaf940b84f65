//! Joining by a token: as often as it allows, once for each key, counted at all delegates above.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use sqlx::Row as _;

use super::revocation::is_revoked;
use super::sql::values;
use super::{Actor, Change, Result, Revocable, Store, StoreError, Stored, address, found};
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

impl Enrolment {
    /// Admits a box by a token; a known key costs no use. `authority` signs unless approval is
    /// needed. [`StoreError::Refused`]: an unknown, used up or expired token, or a revoked key.
    pub async fn admit_box(
        &self,
        store: &Store,
        now_ms: i64,
        authority: &Authority,
    ) -> Result<Stored<Device>> {
        let mut joining = Joining::begin(self, store, now_ms, authority).await?;
        let admitted = joining.admit_box().await?;
        joining.change.commit().await?;
        Ok(admitted)
    }

    /// Admits a proxy or an anchor that listens at `addresses`. Errors as of
    /// [`Enrolment::admit_box`].
    pub async fn admit_proxy(
        &self,
        store: &Store,
        (role, addresses): (ProxyRole, Vec<SocketAddr>),
        now_ms: i64,
        authority: &Authority,
    ) -> Result<Stored<Proxy>> {
        let mut joining = Joining::begin(self, store, now_ms, authority).await?;
        let admitted = joining.admit_proxy(role, addresses).await?;
        joining.change.commit().await?;
        Ok(admitted)
    }
}

/// The change in which a key joins the tenant of its token.
struct Joining<'a> {
    change: Change<'a>,
    tenant: String,
    hash: String,
    enrolment: &'a Enrolment,
    authority: &'a Authority,
}

impl<'a> Joining<'a> {
    async fn begin(
        enrolment: &'a Enrolment,
        store: &'a Store,
        now_ms: i64,
        authority: &'a Authority,
    ) -> Result<Self> {
        let hash = keys::hash(&enrolment.secret);
        let Some(token) = found(store.find::<Token>("hash", &hash).await)? else {
            return refused("the token is unknown");
        };
        let actor = Actor::new(format!("token:{}", token.record.id));
        let change = store.change(actor, now_ms).await?;
        Ok(Self { change, tenant: token.tenant, hash, enrolment, authority })
    }

    async fn admit_box(&mut self) -> Result<Stored<Device>> {
        let known = self.known::<Device>(|_| true, "another box").await?;
        if let Some(device) = known {
            return Ok(device);
        }
        let (token, statement, delegates) = self.take(TokenRole::Box).await?;
        let owner = self.owner().await?.settings;
        if self.change.count::<Device>(&self.tenant).await? >= i64::from(owner.limits.devices_max) {
            return refused("the tenant has reached its limit of boxes");
        }
        let settings = DeviceSettings { tags: token.settings.tags, ..DeviceSettings::default() };
        let id = self.free_name::<Device>("box").await?;
        let mut device = Device {
            id,
            public_key: self.enrolment.public_key.clone(),
            state: if token.settings.approval { DeviceState::Pending } else { DeviceState::Active },
            addresses: address::free_of(&mut self.change, &self.tenant, &owner.prefixes).await?,
            token: Some(token.id),
            pool: token.settings.pool,
            statement,
            delegates,
            settings,
        };
        if device.state == DeviceState::Active && device.statement.is_none() {
            device.statement = self.authority.admit_device(&self.tenant, &device)?;
        }
        address::insert(&mut self.change, &self.tenant, device).await
    }

    async fn admit_proxy(
        &mut self,
        role: ProxyRole,
        addresses: Vec<SocketAddr>,
    ) -> Result<Stored<Proxy>> {
        let is_it = |proxy: &Proxy| proxy.settings.role == role;
        if let Some(proxy) = self.known(is_it, "another proxy or anchor").await? {
            return Ok(proxy);
        }
        let (wanted, fallback) = match role {
            ProxyRole::Proxy => (TokenRole::Proxy, "proxy"),
            ProxyRole::Anchor => (TokenRole::Anchor, "anchor"),
        };
        let (token, statement, delegates) = self.take(wanted).await?;
        if self.change.count::<Proxy>(&self.tenant).await? >= PROXIES_MAX {
            return refused("the tenant has reached its limit of proxies");
        }
        let id = self.free_name::<Proxy>(fallback).await?;
        let public_key = self.enrolment.public_key.clone();
        let (title, pool, devices_max) = (String::new(), token.settings.pool, None);
        let settings = ProxySettings { title, role, public_key, addresses, pool, devices_max };
        settings.validate().map_err(StoreError::Refused)?;
        let mut proxy = Proxy { id, state: ProxyState::Active, statement, delegates, settings };
        if proxy.statement.is_none() {
            let shared = self.owner().await?.host;
            proxy.statement = self.authority.admit_proxy(&self.tenant, shared, &proxy)?;
        }
        self.change.insert(&self.tenant, proxy).await
    }

    async fn owner(&mut self) -> Result<Tenant> {
        Ok(self.change.get::<Tenant>(&self.tenant, &self.tenant).await?.record)
    }

    /// The record with the joining key, if it joined before. Refuses a revoked or foreign key.
    async fn known<R: Revocable>(
        &mut self,
        is_it: impl Fn(&R) -> bool,
        other: &str,
    ) -> Result<Option<Stored<R>>> {
        let key = &self.enrolment.public_key;
        match found(self.change.find::<R>("public_key", key).await)? {
            Some(it) if it.tenant != self.tenant || !is_it(&it.record) => {
                refused(format!("the key belongs to {other}"))
            }
            Some(it) if it.record.is_revoked() => refused("the key was revoked"),
            None if is_revoked(&mut self.change, key).await? => refused("the key was revoked"),
            known => Ok(known),
        }
    }

    /// Takes a use of the token and of its delegates.
    async fn take(&mut self, role: TokenRole) -> Result<(Token, Option<String>, Vec<String>)> {
        let token = self.use_token(role).await?;
        let said = self.take_delegated(&token.settings).await?;
        let said = said.map(|it| (it.chain.clone(), it.keys.clone())).unzip();
        Ok((token, said.0, said.1.unwrap_or_default()))
    }

    /// Takes a use of each delegate that has signed for the key; `None` if the token has none.
    /// [`StoreError::Refused`] if one of them is used up, revoked, or not allowed to.
    async fn take_delegated(&mut self, token: &TokenSettings) -> Result<Option<&'a Delegated>> {
        let (wanted, delegated) = match (&token.delegate, &self.enrolment.delegated) {
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
        if delegated.tenant != self.tenant || delegated.tags != tags {
            return refused("the chain is for another tenant, or has other tags");
        }
        let Some(last) = delegated.keys.last() else {
            return refused("no delegate has signed it");
        };
        for key in &delegated.keys {
            let before = found(self.change.find::<Delegate>("public_key", key).await)?;
            let Some(before) = before.filter(|it| it.tenant == self.tenant) else {
                return refused(format!("no delegate of this tenant has the key {key}"));
            };
            let Delegate { id, uses, used, .. } = &before.record;
            // The record of a restored database may be older than the revocation.
            if before.record.is_revoked() || is_revoked(&mut self.change, key).await? {
                return refused(format!("the delegate {id} was revoked"));
            }
            if uses.is_some_and(|most| *used >= most) {
                return refused(format!("the delegate {id} has reached its limit of keys"));
            }
            if key == last && id != wanted {
                return refused(format!("the token is for the delegate {wanted}, not {id}"));
            }
            let used = used.saturating_add(1);
            self.change.update(&before, Delegate { used, ..before.record.clone() }).await?;
        }
        Ok(Some(delegated))
    }

    async fn use_token(&mut self, role: TokenRole) -> Result<Token> {
        let before = self.change.find::<Token>("hash", &self.hash).await?;
        if before.record.settings.role != role {
            return refused(match before.record.settings.role {
                TokenRole::Box => "the token is for boxes",
                TokenRole::Proxy => "the token is for proxies",
                TokenRole::Anchor => "the token is for anchors",
            });
        }
        if before.record.expires_ms.is_some_and(|at| at <= self.change.now_ms) {
            return refused("the token has expired");
        }
        let Some(row) = self.change.row(USE, values![&self.tenant, &self.hash]).await? else {
            return refused("the token is used up");
        };
        let mut record = before.record.clone();
        record.uses_left = row.try_get("uses_left")?;
        Ok(self.change.update(&before, record).await?.record)
    }

    /// The requested name if valid and free; else, unless a delegate signed it, a generated one.
    async fn free_name<R: Record>(&mut self, fallback: &str) -> Result<String> {
        let is_signed = self.enrolment.delegated.is_some();
        let name = self.enrolment.name.clone().filter(|name| slug(name).is_ok());
        if let Some(name) = name
            && found(self.change.get::<R>(&self.tenant, &name).await)?.is_none()
        {
            return Ok(name);
        }
        match is_signed {
            true => refused("the name is taken or invalid: choose another with --name"),
            false => Ok(format!("{fallback}-{}", &keys::identifier()[..8])),
        }
    }
}

fn refused<T>(why: impl Into<String>) -> Result<T> {
    Err(StoreError::Refused(why.into()))
}

const PROXIES_MAX: i64 = 1_000;
const USE: &str = "UPDATE token SET uses_left = uses_left - 1 \
                   WHERE tenant = $1 AND hash = $2 AND uses_left > 0 RETURNING uses_left";
