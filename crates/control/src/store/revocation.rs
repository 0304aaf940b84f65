//! Revocations: one append-only numbered chain for all tenants. A delegate's key alone cuts off the
//! records below it wherever a chain is checked; marking them shows it and frees addresses.

use std::collections::BTreeSet;

use roadweave_fleet::Revocations;
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, Row as _};
use utoipa::ToSchema;

use super::record::{select, unaltered};
use super::sql::{query, reader, values};
use super::{Actor, Change, Result, Store, StoreError, Stored, address, audit};
use crate::authority::Authority;
use crate::model::{Delegate, DelegateState, Device, DeviceState, Proxy, ProxyState, Record};
use crate::rollback_guard::RollbackGuard;

/// A key that is admitted no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Revocation {
    /// Its number in the chain, which is that of all tenants.
    pub serial: i64,
    /// The tenant that the key belonged to.
    pub tenant: String,
    /// When, milliseconds since 1970.
    pub at_ms: i64,
    /// The key, base64.
    pub public_key: String,
    /// Why the key was revoked, for the log.
    pub reason: String,
    /// The signed entry, as proxies and anchors get it.
    pub entry: String,
    /// The chain's hash up to this one.
    pub hash: String,
}

pub async fn list(
    store: &Store,
    tenant: Option<&str>,
    after: i64,
    limit: u32,
) -> Result<Vec<Revocation>> {
    let sql = if tenant.is_some() { OF_TENANT } else { OF_ALL };
    let values = values![tenant.unwrap_or_default(), after, i64::from(limit)];
    let rows = store.rows(sql, values).await?;
    rows.iter().map(revocation).collect()
}

pub async fn get(store: &Store, tenant: &str, serial: i64) -> Result<Revocation> {
    let found = list(store, Some(tenant), serial.saturating_sub(1), 1).await?;
    found
        .into_iter()
        .find(|one| one.serial == serial)
        .ok_or_else(|| StoreError::NotFound { kind: "revocation", id: serial.to_string() })
}

/// Revokes a key; a revoked key keeps its revocation. [`StoreError::Refused`] beyond the
/// tenant's share, and [`StoreError::Older`] if the number belonged to a lost revocation.
pub async fn add(
    change: &mut Change<'_>,
    tenant: &str,
    key: &str,
    reason: &str,
) -> Result<Revocation> {
    match change.row(OF_KEY, values![key]).await? {
        Some(row) => revocation(&row),
        None => {
            check_share(change, tenant).await?;
            append(change, tenant, key, reason).await
        }
    }
}

/// Refuses a tenant with as many entries as room is left. The host tenant has a reserve.
async fn check_share(change: &mut Change<'_>, tenant: &str) -> Result<()> {
    let row = query(SHARE, values![tenant]).fetch_one(&mut *change.transaction).await?;
    let (own, all): (i64, i64) = (row.try_get("own")?, row.try_get("in_all")?);
    let is_host = row.try_get::<i64, _>("hosts")? > 0;
    if is_host || own < (ENTRIES_MAX - OF_HOST - all).max(0) {
        return Ok(());
    }
    let text = format!("the tenant has revoked {own} keys, which is its limit");
    Err(StoreError::Refused(text))
}

pub async fn append(
    change: &mut Change<'_>,
    tenant: &str,
    public_key: &str,
    reason: &str,
) -> Result<Revocation> {
    let seen = change.store.rollback_guard.revocations();
    let at_seen = change.row(HASH_AT, values![seen.serial]).await?;
    let at_seen: Option<String> = at_seen.map(|row| row.try_get(0)).transpose()?;
    RollbackGuard::check_revocations(&seen, at_seen.as_deref())?;
    let last = change.row(LAST, vec![]).await?;
    let (serial, previous) = match last {
        Some(row) => (row.try_get::<i64, _>("serial")? + 1, row.try_get("hash")?),
        None => (1, String::new()),
    };
    if serial > ENTRIES_MAX {
        let most = Revocations::MAX;
        let text = format!("cannot revoke more keys: the limit of {most} is reached");
        return Err(StoreError::Refused(text));
    }
    let (entry, hash) = Authority::revoke(public_key, serial, &previous)?;
    let values = values![tenant, serial, change.now_ms, public_key, reason, &entry, &hash];
    change.execute(ADD, values).await?;
    let made = Revocation {
        serial,
        tenant: tenant.to_owned(),
        at_ms: change.now_ms,
        public_key: public_key.to_owned(),
        reason: reason.to_owned(),
        entry,
        hash,
    };
    let after = serde_json::to_value(&made).unwrap_or_default();
    let name = serial.to_string();
    let nothing = serde_json::Value::Null;
    audit::append(change, tenant, "revoke", ("revocation", &name), (&nothing, &after)).await?;
    change.publish(tenant, "revocation", &name, serial).await?;
    Ok(made)
}

pub async fn is_revoked(change: &mut Change<'_>, public_key: &str) -> Result<bool> {
    let sql = "SELECT COUNT(*) FROM revocation WHERE public_key = $1";
    Ok(change.scalar(sql, values![public_key]).await? > 0)
}

reader!(revocation, Revocation: serial, tenant, at_ms, public_key, reason, entry, hash);

const ENTRIES_MAX: i64 = Revocations::MAX as i64;
const OF_HOST: i64 = ENTRIES_MAX / 16;
const SHARE: &str = "SELECT \
                     (SELECT COUNT(*) FROM revocation WHERE tenant = $1) AS own, \
                     (SELECT COUNT(*) FROM revocation) AS in_all, \
                     (SELECT COUNT(*) FROM tenant WHERE tenant = $1 AND host = 1) AS hosts";
const OF_TENANT: &str = "SELECT * FROM revocation WHERE tenant = $1 AND serial > $2 \
                         ORDER BY serial LIMIT $3";
const OF_ALL: &str = "SELECT * FROM revocation WHERE tenant > $1 AND serial > $2 \
                      ORDER BY serial LIMIT $3";
const OF_KEY: &str = "SELECT * FROM revocation WHERE public_key = $1";
const HASH_AT: &str = "SELECT hash FROM revocation WHERE serial = $1";
const LAST: &str = "SELECT * FROM revocation ORDER BY serial DESC LIMIT 1";
const ADD: &str = "INSERT INTO revocation (tenant, serial, at_ms, public_key, reason, entry, hash) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7)";

/// A record with a revocable key, possibly signed for by delegates.
pub trait Revocable: Record {
    fn key(&self) -> &str {
        self.public_key().unwrap_or_default()
    }

    fn above(&self) -> &[String];

    fn revoked(self) -> Self;

    fn is_revoked(&self) -> bool {
        self.clone().revoked().columns() == self.columns()
    }

    const HAS_ADDRESSES: bool = false;

    fn is_by(&self, keys: &BTreeSet<String>) -> bool {
        let mut all = self.above().iter().map(String::as_str).chain([self.key()]);
        all.any(|key| keys.contains(key))
    }
}

/// Marks a record as revoked and frees its addresses; [`add`] revokes the key.
pub async fn mark<R: Revocable>(change: &mut Change<'_>, before: &Stored<R>) -> Result<()> {
    if before.record.is_revoked() {
        return Ok(());
    }
    if R::HAS_ADDRESSES {
        address::release(change, &before.tenant, before.record.id()).await?;
    }
    change.update(before, before.record.clone().revoked()).await.map(drop)
}

/// Marks a tenant's records that have one of the revoked `keys` or are below one, in changes of
/// bounded size. Altered rows are skipped; after an error some are marked.
pub async fn mark_all(
    store: &Store,
    tenant: &str,
    keys: &BTreeSet<String>,
    actor: &Actor,
    now_ms: i64,
) -> Result<()> {
    mark_kind::<Delegate>(store, tenant, keys, actor, now_ms).await?;
    mark_kind::<Device>(store, tenant, keys, actor, now_ms).await?;
    mark_kind::<Proxy>(store, tenant, keys, actor, now_ms).await
}

async fn mark_kind<R: Revocable>(
    store: &Store,
    tenant: &str,
    keys: &BTreeSet<String>,
    actor: &Actor,
    now_ms: i64,
) -> Result<()> {
    let mut below = below::<R>(store, tenant, keys).await?;
    while !below.is_empty() {
        let rest = below.split_off(below.len().min(AT_ONCE));
        let mut change = store.change(actor.clone(), now_ms).await?;
        for id in &below {
            let before = match change.get::<R>(tenant, id).await {
                Err(StoreError::Altered { .. } | StoreError::NotFound { .. }) => continue,
                other => other?,
            };
            mark(&mut change, &before).await?;
        }
        change.commit().await?;
        below = rest;
    }
    Ok(())
}

async fn below<R: Revocable>(
    store: &Store,
    tenant: &str,
    keys: &BTreeSet<String>,
) -> Result<Vec<String>> {
    let sql = format!("{} WHERE tenant = $1 AND state <> 'revoked'", select::<R>());
    let rows = store.rows(AssertSqlSafe(sql), values![tenant]).await?;
    let all = unaltered::<R>(&store.keys, &rows)?.into_iter().map(|it| it.record);
    Ok(all.filter(|it| it.is_by(keys)).map(|it| it.id().to_owned()).collect())
}

impl Revocable for Delegate {
    fn above(&self) -> &[String] {
        &self.delegates
    }

    fn revoked(self) -> Self {
        Self { state: DelegateState::Revoked, ..self }
    }
}

impl Revocable for Device {
    const HAS_ADDRESSES: bool = true;

    fn above(&self) -> &[String] {
        &self.delegates
    }

    fn revoked(self) -> Self {
        Self { state: DeviceState::Revoked, addresses: Vec::new(), ..self }
    }
}

impl Revocable for Proxy {
    fn above(&self) -> &[String] {
        &self.delegates
    }

    fn revoked(self) -> Self {
        Self { state: ProxyState::Revoked, ..self }
    }
}

const AT_ONCE: usize = 200;
