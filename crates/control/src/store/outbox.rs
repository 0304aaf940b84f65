//! The outbox: all changes in order.

use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, Row as _};
use utoipa::ToSchema;

use super::sql::{query, reader, values};
use super::{Result, Store};

/// A line of the outbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// The change's number; those of one transaction share it.
    pub sequence: i64,
    /// Its place among those of one transaction.
    pub position: i64,
    /// When, milliseconds since 1970.
    pub at_ms: i64,
    /// The tenant of the changed record.
    pub tenant: String,
    /// The kind of the changed record.
    pub kind: String,
    /// The name of the changed record.
    pub subject: String,
    /// Its version since.
    pub version: i64,
}

pub async fn after(store: &Store, (sequence, position): (i64, i64)) -> Result<Vec<Changed>> {
    let rows = store.rows(AFTER, values![sequence, position]).await?;
    rows.iter().map(changed).collect()
}

pub async fn of_tenant(
    store: &Store,
    tenant: &str,
    (sequence, position): (i64, i64),
) -> Result<Vec<Changed>> {
    let rows = store.rows(OF_TENANT, values![sequence, position, tenant]).await?;
    rows.iter().map(changed).collect()
}

pub async fn first_change(store: &Store) -> Result<Option<i64>> {
    let sql = "SELECT sequence FROM change ORDER BY sequence LIMIT 1";
    Ok(store.row(sql, vec![]).await?.map(|row| row.try_get(0)).transpose()?)
}

/// Removes old lines of the outbox, and other rows that have expired.
pub async fn prune(store: &Store, now_ms: i64) -> Result<()> {
    for (table, keys, is_old, age_ms) in PRUNE {
        let sql = format!(
            "DELETE FROM {table} WHERE ({keys}) IN \
             (SELECT {keys} FROM {table} WHERE {is_old} LIMIT {PRUNE_AT_ONCE})"
        );
        loop {
            let mut transaction = store.begin().await?;
            let query = query(AssertSqlSafe(sql.clone()), values![now_ms - age_ms]);
            let done = query.execute(&mut *transaction).await?;
            transaction.commit().await?;
            if done.rows_affected() < PRUNE_AT_ONCE {
                break;
            }
        }
    }
    Ok(())
}

reader!(changed, Changed: sequence, position, at_ms, tenant, kind, subject, version);

pub const CHANGES_AT_ONCE: usize = 1000;
const AFTER: &str = "SELECT * FROM change \
                     WHERE sequence > $1 OR (sequence = $1 AND position > $2) \
                     ORDER BY sequence, position LIMIT 1000";
const OF_TENANT: &str = "SELECT * FROM change WHERE (sequence, position) > ($1, $2) \
                         AND tenant = $3 ORDER BY sequence, position LIMIT 1000";
const DAY_MS: i64 = 86_400_000;
const PRUNE_AT_ONCE: u64 = 1000;
const PRUNE: &[(&str, &str, &str, i64)] = &[
    ("change", "sequence, position", "at_ms < $1", 7 * DAY_MS),
    ("answer", "tenant, actor, idempotency_key", "at_ms < $1", DAY_MS),
    ("login", "tenant, id", "expires_ms < $1", 0),
    ("session", "tenant, device, attachment", "to_ms < $1", 400 * DAY_MS),
    ("sample", SAMPLE, "step_ms = 10000 AND at_ms < $1", 2 * DAY_MS),
    ("sample", SAMPLE, "step_ms = 60000 AND at_ms < $1", 30 * DAY_MS),
    ("sample", SAMPLE, "step_ms = 3600000 AND at_ms < $1", 400 * DAY_MS),
];
const SAMPLE: &str = "tenant, device, step_ms, at_ms";
