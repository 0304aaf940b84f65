//! The audit log: a chain in which each line proves those before it, by keyed hashes whose key is
//! not in the database: its writers can only truncate the log, which contradicts the checkpoints.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::Row as _;
use sqlx::any::AnyRow;
use utoipa::ToSchema;

use super::sql::{reader, values};
use super::{Change, Result, Store};
use crate::keys::StoreKeys;

/// A line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Its number within the tenant, from 1.
    pub serial: i64,
    /// When, milliseconds since 1970.
    pub at_ms: i64,
    /// Who: `person:NAME`, `key:NAME`, `token:NAME`, or `controller`.
    pub actor: String,
    /// What was done: create, update, delete, revoke, enrol, login.
    pub action: String,
    /// The kind of the record.
    pub kind: String,
    /// The name of the record.
    pub subject: String,
    /// The record before the change; null if there was none.
    pub before: Value,
    /// The record since the change; null if it is gone.
    pub after: Value,
    /// The link: a keyed hash of this line and the link before.
    pub hash: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainFault {
    #[error("line {0} of the audit log is not what the controller wrote")]
    Rewritten(i64),
    #[error("the audit log ends with line {found}, but had {expected} lines")]
    Cut { found: i64, expected: i64 },
}

pub async fn latest(
    store: &Store,
    tenant: &str,
    before: Option<i64>,
    limit: u32,
) -> Result<Vec<AuditEntry>> {
    let before = before.unwrap_or(i64::MAX);
    let rows = store.rows(LATEST, values![tenant, before, i64::from(limit)]).await?;
    rows.iter().map(entry).collect()
}

/// The number of lines and last hash, or the first fault. The checkpoint `seen` must be in it.
pub async fn verify(
    store: &Store,
    tenant: &str,
    seen: Option<(i64, String)>,
) -> Result<Result<(i64, String), ChainFault>> {
    let (mut serial, mut link) = (0, String::new());
    let mut seen_is_there = seen.as_ref().is_none_or(|(serial, _)| *serial == 0);
    loop {
        let rows = store.rows(ONWARDS, values![tenant, serial]).await?;
        for row in &rows {
            let entry = entry(row)?;
            serial += 1;
            if entry.serial != serial || !is_linked(&store.keys, tenant, &entry, &link) {
                return Ok(Err(ChainFault::Rewritten(serial)));
            }
            link = entry.hash;
            if let Some((at, hash)) = &seen
                && *at == serial
            {
                if *hash != link {
                    return Ok(Err(ChainFault::Rewritten(serial)));
                }
                seen_is_there = true;
            }
        }
        if rows.is_empty() {
            break;
        }
    }
    let head = head(store.row(HEAD, values![counter(tenant)]).await?)?;
    let expected = seen.map_or(0, |(at, _)| at).max(head.0);
    if !seen_is_there || head.0 > serial {
        return Ok(Err(ChainFault::Cut { found: serial, expected }));
    }
    if head.1 != link && head.0 == serial {
        return Ok(Err(ChainFault::Rewritten(serial)));
    }
    Ok(Ok((serial, link)))
}

pub async fn append(
    change: &mut Change<'_>,
    tenant: &str,
    action: &str,
    (kind, subject): (&str, &str),
    (before, after): (&Value, &Value),
) -> Result<()> {
    let (serial, link) = head(change.row(HEAD, values![counter(tenant)]).await?)?;
    let mut entry = AuditEntry {
        serial: serial + 1,
        at_ms: change.now_ms,
        actor: change.actor.name.clone(),
        action: action.to_owned(),
        kind: kind.to_owned(),
        subject: subject.to_owned(),
        before: before.clone(),
        after: after.clone(),
        hash: String::new(),
    };
    let parts = parts(tenant, &entry, &link);
    entry.hash = change.store.keys.link(&parts.each_ref().map(AsRef::as_ref));
    let sql = if serial == 0 { FIRST } else { NEXT };
    let AuditEntry { serial, at_ms, actor, hash, .. } = entry;
    let (before, after) = (before.to_string(), after.to_string());
    change.execute(sql, values![serial, &hash, counter(tenant)]).await?;
    let of = values![tenant, serial, at_ms, actor, action, kind, subject, before, after, &hash];
    change.execute(ADD, of).await?;
    change.ends.insert(tenant.to_owned(), (serial, hash));
    Ok(())
}

/// Whether there is or was a tenant of this name: the log of a removed tenant stays.
pub async fn has_log(change: &mut Change<'_>, tenant: &str) -> Result<bool> {
    Ok(head(change.row(HEAD, values![counter(tenant)]).await?)?.0 > 0)
}

fn head(row: Option<AnyRow>) -> Result<(i64, String)> {
    Ok(match row {
        Some(row) => (row.try_get("value")?, row.try_get("hash")?),
        None => (0, String::new()),
    })
}

fn counter(tenant: &str) -> String {
    format!("audit/{tenant}")
}

fn is_linked(keys: &StoreKeys, tenant: &str, entry: &AuditEntry, link: &str) -> bool {
    keys.is_linked(&parts(tenant, entry, link).each_ref().map(AsRef::as_ref), &entry.hash)
}

fn parts(tenant: &str, entry: &AuditEntry, link: &str) -> [String; 10] {
    [
        link.to_owned(),
        tenant.to_owned(),
        entry.serial.to_string(),
        entry.at_ms.to_string(),
        entry.actor.clone(),
        entry.action.clone(),
        entry.kind.clone(),
        entry.subject.clone(),
        entry.before.to_string(),
        entry.after.to_string(),
    ]
}

fn json(text: String) -> Value {
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

reader!(entry, AuditEntry: serial, at_ms, actor, action, kind, subject, hash;
        before: json("before_json"), after: json("after_json"));

const HEAD: &str = "SELECT value, hash FROM counter WHERE name = $1";
const FIRST: &str = "INSERT INTO counter (value, hash, name) VALUES ($1, $2, $3)";
const NEXT: &str = "UPDATE counter SET value = $1, hash = $2 WHERE name = $3";
const ADD: &str = "INSERT INTO audit (tenant, serial, at_ms, actor, action, kind, subject, \
                   before_json, after_json, hash) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
const LATEST: &str = "SELECT * FROM audit WHERE tenant = $1 AND serial < $2 \
                      ORDER BY serial DESC LIMIT $3";
const ONWARDS: &str = "SELECT * FROM audit WHERE tenant = $1 AND serial > $2 \
                       ORDER BY serial LIMIT 500";
