//! The signed documents of members, their outcomes, and the lease of the planning replica.

use roadweave_fleet::{Digest, Envelope, Kind, Version, Written};
use roadweave_identity::PublicKey;
use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::sql::{query, values};
use super::{Change, Result, Store, StoreError};
use crate::model::{Column, word};

#[derive(Clone, Debug)]
pub struct StoredDocument {
    pub of: (PublicKey, Kind),
    pub written: Written,
    /// The signed document, as JSON; for a table its signed head.
    pub envelope: String,
}

impl StoredDocument {
    pub fn opened(&self) -> Option<Envelope> {
        serde_json::from_str(&self.envelope).ok()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentOutcome {
    pub public_key: String,
    pub kind: String,
    pub version: (i64, i64),
    pub outcome: String,
}

pub async fn of_member(store: &Store, key: &PublicKey) -> Result<Vec<StoredDocument>> {
    let sql = "SELECT * FROM document WHERE public_key = $1";
    read(store, sql, values![key.to_string()]).await
}

pub async fn of_change(store: &Store, number: i64) -> Result<Vec<StoredDocument>> {
    read(store, "SELECT * FROM document WHERE number = $1", values![number]).await
}

/// All documents; those of another kind than `kind` without their envelope.
pub async fn all(store: &Store, kind: Kind) -> Result<Vec<StoredDocument>> {
    let sql = "SELECT public_key, kind, epoch, number, digest, about, outcome, \
               CASE WHEN kind = $1 THEN envelope ELSE '' END AS envelope FROM document";
    read(store, sql, values![word(&kind)]).await
}

/// The documents whose outcome the change `heard` has written, without their envelopes.
pub async fn heard(store: &Store, heard: i64) -> Result<Vec<StoredDocument>> {
    let sql = "SELECT public_key, kind, epoch, number, digest, about, outcome, \
               '' AS envelope FROM document WHERE heard = $1";
    read(store, sql, values![heard]).await
}

async fn read(
    store: &Store,
    sql: &'static str,
    values: Vec<Column>,
) -> Result<Vec<StoredDocument>> {
    let rows = store.rows(sql, values).await?;
    rows.iter().filter_map(|row| parse(row).transpose()).collect()
}

pub async fn store(change: &mut Change<'_>, documents: &[StoredDocument]) -> Result<()> {
    for part in documents.chunks(AT_ONCE) {
        let row = |at: usize| {
            let places: Vec<String> = (1..=7).map(|n| format!("${}", at * 7 + n)).collect();
            format!("({}, '', 0)", places.join(", "))
        };
        let rows: Vec<String> = (0..part.len()).map(row).collect();
        let mut values = Vec::new();
        for StoredDocument { of: (key, kind), written, envelope } in part {
            let Written { version, digest, about, .. } = written;
            let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            let (epoch, number) = (number(version.epoch), number(version.number));
            let (key, kind, digest) = (key.to_string(), word(kind), String::from(*digest));
            values.extend(values![key, kind, epoch, number, digest, about, envelope]);
        }
        let sql = format!("{KEEP} {} {OVER}", rows.join(", "));
        change.execute(AssertSqlSafe(sql), values).await?;
    }
    Ok(())
}

impl DocumentOutcome {
    /// Writes the outcome of a document, if that is still the current one.
    pub(super) async fn store(&self, change: &mut Change<'_>) -> Result<bool> {
        let Self { public_key, kind, version: (epoch, number), outcome } = self;
        let values = values![outcome, change.number(), public_key, kind, *epoch, *number];
        Ok(change.execute(OUTCOME, values).await? > 0)
    }
}

/// Takes or renews the planner's lease until `until_ms`; false if another replica holds it.
pub async fn lead(store: &Store, replica: &str, now_ms: i64, until_ms: i64) -> Result<bool> {
    let mut transaction = store.begin().await?;
    let done = query(LEAD, values![until_ms, replica, now_ms, until_ms + (until_ms - now_ms)])
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(done.rows_affected() > 0)
}

pub async fn progress(store: &Store, tenant: &str, rollout: &str) -> Result<Option<String>> {
    let sql = "SELECT body, seal FROM progress WHERE tenant = $1 AND rollout = $2";
    let row = store.row(sql, values![tenant, rollout]).await?;
    let Some(row) = row else { return Ok(None) };
    let (body, seal): (String, String) = (row.try_get("body")?, row.try_get("seal")?);
    match store.keys.is_sealed(&["progress", tenant, rollout, &body], &seal) {
        true => Ok(Some(body)),
        false => Err(StoreError::Altered { table: "progress", id: rollout.to_owned() }),
    }
}

/// Writes the progress of a roll-out. [`StoreError::Reference`] if there is no such roll-out.
pub async fn store_progress(
    change: &mut Change<'_>,
    tenant: &str,
    rollout: &str,
    body: &str,
) -> Result<()> {
    let seal = change.store.keys.seal(&["progress", tenant, rollout, body]);
    change.execute(PROGRESS, values![tenant, rollout, body, seal]).await.map(drop)
}

fn parse(row: &AnyRow) -> Result<Option<StoredDocument>, StoreError> {
    let text = |column| row.try_get::<String, _>(column);
    let number = |column| row.try_get::<i64, _>(column).map(i64::unsigned_abs);
    let (key, kind) = (text("public_key")?.parse(), serde_json::from_value(text("kind")?.into()));
    let (Ok(key), Ok(kind)) = (key, kind) else { return Ok(None) };
    let version = Version { epoch: number("epoch")?, number: number("number")? };
    let digest = Digest::try_from(text("digest")?).unwrap_or(Digest::ZERO);
    let outcome = serde_json::from_str(&text("outcome")?).ok();
    let written = Written { version, digest, about: text("about")?, outcome };
    Ok(Some(StoredDocument { of: (key, kind), written, envelope: text("envelope")? }))
}

const AT_ONCE: usize = 100;
const KEEP: &str = "INSERT INTO document \
                    (public_key, kind, epoch, number, digest, about, envelope, outcome, heard) \
                    VALUES";
const OVER: &str = "ON CONFLICT (public_key, kind) DO UPDATE SET epoch = excluded.epoch, \
                    number = excluded.number, digest = excluded.digest, about = excluded.about, \
                    envelope = excluded.envelope, outcome = '', heard = 0";
const OUTCOME: &str = "UPDATE document SET outcome = $1, heard = $2 WHERE public_key = $3 \
                       AND kind = $4 AND epoch = $5 AND number = $6 AND outcome <> $1";
const PROGRESS: &str = "INSERT INTO progress (tenant, rollout, body, seal) \
                        VALUES ($1, $2, $3, $4) ON CONFLICT (tenant, rollout) \
                        DO UPDATE SET body = excluded.body, seal = excluded.seal";
/// A lease far in the future was taken by a replica whose clock ran ahead; it does not count.
const LEAD: &str = "UPDATE counter SET value = $1, hash = $2 \
                    WHERE name = 'planner' AND (hash = $2 OR value < $3 OR value > $4)";
