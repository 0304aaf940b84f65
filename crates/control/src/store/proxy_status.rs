//! The status of proxies and anchors, confirmations of revocations, figures of a tenant's fleet.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use roadweave_fleet::records::ProxyStatus;
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, Row as _};
use utoipa::ToSchema;

use super::record::{read, select};
use super::sql::{reader, values};
use super::{Change, Result, Store};
use crate::model::Pool;

/// Who has a revocation in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Confirmations {
    /// Proxies and anchors that have the revocation in force.
    pub confirmed: Vec<String>,
    /// Proxies and anchors that have not confirmed the revocation.
    pub missing: Vec<Missing>,
}

/// A proxy or anchor that has not confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Missing {
    /// Its name.
    pub proxy: String,
    /// How long it was not heard, milliseconds; absent if it never was, 0 while its stream is up.
    pub unreachable_ms: Option<i64>,
}

impl Confirmations {
    pub fn is_complete(&self) -> bool {
        self.missing.iter().all(|it| it.unreachable_ms != Some(0))
    }
}

impl fmt::Display for Confirmations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (have, all) = (self.confirmed.len(), self.confirmed.len() + self.missing.len());
        write!(f, "{have} of {all}")?;
        for missing in self.missing.iter().take(SHOWN_MAX) {
            match missing.unreachable_ms {
                None => write!(f, "; {} has never connected", missing.proxy)?,
                Some(0) => write!(f, "; {} has not answered yet", missing.proxy)?,
                Some(ms) => write!(f, "; {} unreachable for {} s", missing.proxy, ms / 1000)?,
            }
        }
        match self.missing.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

pub async fn all(store: &Store, tenant: Option<&str>) -> Result<Vec<ProxyStatus>> {
    let rows = store.rows(STATUS, values![tenant.unwrap_or_default()]).await?;
    rows.iter().map(status).collect()
}

reader!(status, ProxyStatus: tenant, proxy, seen_ms, serial, hash, stream, load, sessions, software,
        witnessed_ms; connected: is_set("connected"), anchors: anchors("anchors"));

const fn is_set(number: i64) -> bool {
    number != 0
}

fn anchors(text: &str) -> BTreeMap<String, u32> {
    serde_json::from_str(text).unwrap_or_default()
}

/// Confirmations by the tenant's own proxies and anchors, and by those of the host for it.
pub async fn confirmations(
    store: &Store,
    tenant: &str,
    serial: i64,
    now_ms: i64,
) -> Result<Confirmations> {
    let rows = store.rows(GATES, values![tenant]).await?;
    let shared = shared_pools(store, tenant).await?;
    let mut all = Confirmations::default();
    for row in &rows {
        let (proxy, owner): (String, String) = (row.try_get("id")?, row.try_get("tenant")?);
        let pool: Option<String> = row.try_get("pool")?;
        if owner != tenant && !pool.is_some_and(|pool| shared.contains(&(owner, pool))) {
            continue;
        }
        let seen: Option<i64> = row.try_get("seen_ms")?;
        if row.try_get::<Option<i64>, _>("serial")?.is_some_and(|it| it >= serial) {
            all.confirmed.push(proxy);
            continue;
        }
        let connected = row.try_get::<Option<i64>, _>("connected")? == Some(1);
        let unreachable_ms = seen.map(|seen| {
            let silent = (now_ms - seen).max(1);
            // After a crash of the controller, `connected` may be stale.
            if connected && silent < SILENT_MAX_MS { 0 } else { silent }
        });
        all.missing.push(Missing { proxy, unreachable_ms });
    }
    Ok(all)
}

async fn shared_pools(store: &Store, tenant: &str) -> Result<BTreeSet<(String, String)>> {
    let sql = format!("{} {OF_HOST}", select::<Pool>());
    let rows = store.rows(AssertSqlSafe(sql), vec![]).await?;
    let pools = rows.iter().filter_map(|row| read::<Pool>(&store.keys, row).ok());
    let serving = pools.filter(|it| it.record.settings.tenants.iter().any(|it| it == tenant));
    Ok(serving.map(|it| (it.tenant, it.record.id)).collect())
}

pub async fn is_there(change: &mut Change<'_>, tenant: &str, proxy: &str) -> Result<bool> {
    let since_ms = change.now_ms - SILENT_MAX_MS;
    Ok(change.scalar(THERE, values![tenant, proxy, since_ms]).await? > 0)
}

const STATUS: &str = "SELECT * FROM proxy_status WHERE $1 IN ('', tenant) \
                      ORDER BY tenant, proxy";
const THERE: &str = "SELECT COUNT(*) FROM proxy_status WHERE tenant = $1 AND proxy = $2 \
                     AND connected = 1 AND seen_ms > $3";
const SHOWN_MAX: usize = 5;
const SILENT_MAX_MS: i64 = 25_000;
const OF_HOST: &str = "WHERE tenant IN (SELECT tenant FROM tenant WHERE host = 1)";
/// A confirmation counts only for this chain.
const GATES: &str = "SELECT proxy.id, proxy.tenant, proxy.pool, proxy_status.seen_ms, \
                     revocation.serial, proxy_status.connected FROM proxy \
                     JOIN tenant ON tenant.tenant = proxy.tenant \
                     LEFT JOIN proxy_status ON proxy_status.tenant = proxy.tenant \
                     AND proxy_status.proxy = proxy.id \
                     LEFT JOIN revocation ON revocation.serial = proxy_status.serial \
                     AND revocation.hash = proxy_status.hash \
                     WHERE proxy.state <> 'revoked' \
                     AND (proxy.tenant = $1 OR tenant.host = 1) ORDER BY proxy.id";

/// How a fleet is now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetState {
    /// Boxes that are admitted.
    pub active: i64,
    /// Boxes that wait for approval.
    pub pending: i64,
    /// Boxes that were revoked.
    pub revoked: i64,
    /// Boxes that are on a proxy.
    pub online: i64,
    /// Its proxies and anchors.
    pub proxies: Vec<ProxyStatus>,
}

pub async fn fleet_state(store: &Store, tenant: &str) -> Result<FleetState> {
    let proxies = all(store, Some(tenant)).await?;
    let mut state = FleetState { proxies, ..FleetState::default() };
    for row in store.rows(DEVICES, values![tenant]).await? {
        let count: i64 = row.try_get("count")?;
        match row.try_get::<String, _>("state")?.as_str() {
            "active" => state.active = count,
            "pending" => state.pending = count,
            _ => state.revoked = count,
        }
    }
    state.online = store.scalar(ONLINE, values![tenant]).await?;
    Ok(state)
}

const DEVICES: &str =
    "SELECT state, COUNT(*) AS count FROM device WHERE tenant = $1 GROUP BY state";
const ONLINE: &str = "SELECT COUNT(*) FROM session WHERE tenant = $1 AND to_ms IS NULL";
