//! Changes: transactions with an audit line and an outbox line.

use std::collections::BTreeMap;

use serde_json::Value;
use sqlx::{Any, AssertSqlSafe, Row as _, SqlSafeStr, Transaction};

use super::record::{self, Stored};
use super::sql::{query, reads, values};
use super::{Database, Once, Result, Store, StoreError, audit};
use crate::model::{Column, Record, Scope};
use crate::rollback_guard::RollbackGuard;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    pub name: String,
    /// The idempotency key that the change is tied to.
    pub once: Option<Once>,
}

impl Actor {
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), once: None }
    }
}

/// A change in progress; dropped without [`Change::commit`] it is rolled back.
pub struct Change<'a> {
    pub(super) store: &'a Store,
    pub(super) transaction: Transaction<'static, Any>,
    pub(super) actor: Actor,
    pub(super) now_ms: i64,
    pub(super) ends: BTreeMap<String, (i64, String)>,
    sequence: i64,
    position: i64,
}

impl<'a> Change<'a> {
    pub(super) async fn begin(store: &'a Store, actor: Actor, now_ms: i64) -> Result<Self> {
        let mut transaction = store.begin().await?;
        // Read before the number is taken: another change may be recorded meanwhile.
        let seen = store.rollback_guard.change();
        let sequence: i64 = sqlx::query_scalar(NEXT).fetch_one(&mut *transaction).await?;
        RollbackGuard::check_change(sequence.saturating_sub(1), seen)?;
        let (ends, position) = (BTreeMap::new(), 0);
        Ok(Self { store, transaction, actor, now_ms, ends, sequence, position })
    }

    pub fn number(&self) -> i64 {
        self.sequence
    }

    reads!(self: &mut Self, self.transaction, self.store.keys);

    pub(super) async fn execute(
        &mut self,
        sql: impl SqlSafeStr,
        values: Vec<Column>,
    ) -> Result<u64> {
        Ok(query(sql, values).execute(&mut *self.transaction).await?.rows_affected())
    }

    pub async fn all<R: Record>(&mut self, tenant: &str) -> Result<Vec<Stored<R>>> {
        let sql = format!("{} WHERE tenant = $1 ORDER BY id", record::select::<R>());
        let rows = self.rows(AssertSqlSafe(sql), values![tenant]).await?;
        rows.iter().map(|row| record::read(&self.store.keys, row)).collect()
    }

    pub async fn count<R: Record>(&mut self, tenant: &str) -> Result<i64> {
        let table = R::TABLE;
        let sql = format!("SELECT COUNT(*) FROM {table} WHERE tenant = $1 AND state <> 'revoked'");
        self.scalar(AssertSqlSafe(sql), values![tenant]).await
    }

    /// [`StoreError::Taken`]: name or key exists; [`StoreError::Reference`]: a record is missing.
    pub async fn insert<R: Record>(&mut self, tenant: &str, record: R) -> Result<Stored<R>> {
        let stored =
            Stored { tenant: tenant.to_owned(), version: 1, changed_ms: self.now_ms, record };
        if let Some(key) = stored.record.public_key() {
            // A shared key would let a tenant revoke another tenant's member.
            if self.owner_of_key(key).await?.is_some() {
                let text = "the key already belongs to a box, proxy, anchor or delegate";
                return Err(StoreError::Taken(text.to_owned()));
            }
        }
        let (body, seal) = self.sealed(&stored)?;
        let columns = stored.record.columns();
        let names: String = R::COLUMNS.iter().map(|name| format!(", {name}")).collect();
        let places: String = (0..columns.len()).map(|at| format!(", ${}", at + 7)).collect();
        let sql = format!(
            "INSERT INTO {} (tenant, id, version, changed_ms, body, seal{names}) \
             VALUES ($1, $2, $3, $4, $5, $6{places})",
            R::TABLE
        );
        let id = stored.record.id();
        let mut values = values![tenant, id, stored.version, stored.changed_ms, body, seal];
        values.extend(columns);
        let done = self.execute(AssertSqlSafe(sql), values).await;
        done.map_err(|error| match error {
            StoreError::Taken(_) => StoreError::Taken(format!(
                "a {} with this name or key exists already (\"{id}\")",
                R::KIND
            )),
            StoreError::Reference(_) => StoreError::Reference(format!(
                "the {} \"{id}\" refers to something that its tenant does not have",
                R::KIND
            )),
            error => error,
        })?;
        let after = stored.record.shown();
        self.trace::<R>(&stored, "create", &Value::Null, &after).await?;
        Ok(stored)
    }

    /// Replaces a record. [`StoreError::Changed`] if the stored version is not that of `before`.
    pub async fn update<R: Record>(&mut self, before: &Stored<R>, record: R) -> Result<Stored<R>> {
        let stored = Stored {
            tenant: before.tenant.clone(),
            version: before.version + 1,
            changed_ms: self.now_ms,
            record,
        };
        let (body, seal) = self.sealed(&stored)?;
        let sets = R::COLUMNS.iter().zip(8..).map(|(name, at)| format!(", {name} = ${at}"));
        let sets: String = sets.collect();
        let sql = format!(
            "UPDATE {} SET version = $1, changed_ms = $2, body = $3, seal = $4{sets} \
             WHERE tenant = $5 AND id = $6 AND version = $7",
            R::TABLE
        );
        let Stored { tenant, version, changed_ms, .. } = &stored;
        let id = stored.record.id();
        let mut values = values![*version, *changed_ms, body, seal, tenant, id, before.version];
        values.extend(stored.record.columns());
        let done = self.execute(AssertSqlSafe(sql), values).await?;
        self.check_found::<R>(done, tenant, id).await?;
        let (old, new) = (before.record.shown(), stored.record.shown());
        self.trace::<R>(&stored, "update", &old, &new).await?;
        Ok(stored)
    }

    async fn check_found<R: Record>(&mut self, rows: u64, tenant: &str, id: &str) -> Result<()> {
        if rows > 0 {
            return Ok(());
        }
        let current = self.get::<R>(tenant, id).await?.version;
        Err(StoreError::Changed { kind: R::KIND, id: id.to_owned(), current })
    }

    /// Removes a record. [`StoreError::Reference`] if another record refers to it.
    pub async fn remove<R: Record>(&mut self, before: &Stored<R>) -> Result<()> {
        let id = before.record.id();
        let sql =
            format!("DELETE FROM {} WHERE tenant = $1 AND id = $2 AND version = $3", R::TABLE);
        let values = values![&before.tenant, id, before.version];
        let done = self.execute(AssertSqlSafe(sql), values).await;
        let done = done.map_err(|error| match error {
            StoreError::Reference(_) => StoreError::Reference(format!(
                "cannot remove the {} \"{id}\": something still refers to it",
                R::KIND
            )),
            error => error,
        })?;
        self.check_found::<R>(done, &before.tenant, id).await?;
        self.trace::<R>(before, "delete", &before.record.shown(), &Value::Null).await
    }

    async fn trace<R: Record>(
        &mut self,
        stored: &Stored<R>,
        action: &str,
        before: &Value,
        after: &Value,
    ) -> Result<()> {
        let (tenant, id) = (&stored.tenant, stored.record.id());
        audit::append(self, tenant, action, (R::KIND, id), (before, after)).await?;
        self.publish(tenant, R::KIND, id, stored.version).await
    }

    pub async fn publish(
        &mut self,
        tenant: &str,
        kind: &str,
        subject: &str,
        version: i64,
    ) -> Result<()> {
        self.position += 1;
        let (sequence, position, at_ms) = (self.sequence, self.position, self.now_ms);
        let values = values![sequence, position, at_ms, tenant, kind, subject, version];
        self.execute(PUSH, values).await.map(drop)
    }

    /// Commits; returns the change's number. [`StoreError::Refused`] if a repetition has begun.
    pub async fn commit(mut self) -> Result<i64> {
        if let Some(once) = &self.actor.once {
            once.act(&mut self.transaction).await?;
        }
        if matches!(self.store.database, Database::Postgres(_)) {
            self.execute("NOTIFY roadweave_change", vec![]).await?;
        }
        self.transaction.commit().await?;
        self.store.rollback_guard.record_change(self.sequence);
        for (tenant, (serial, hash)) in self.ends {
            self.store.audit_checkpoints.record(&tenant, serial, hash);
        }
        Ok(self.sequence)
    }

    fn sealed<R: Record>(&self, stored: &Stored<R>) -> Result<(String, String)> {
        let body = serde_json::to_string(&stored.record)
            .map_err(|error| StoreError::Internal(error.to_string()))?;
        let of = (&*stored.tenant, stored.record.id(), stored.version, stored.changed_ms);
        let seal = record::with_parts::<R, _>(of, &body, |parts| self.store.keys.seal(parts));
        Ok((body, seal))
    }

    pub async fn end_logins(&mut self, tenant: &str, person: &str) -> Result<()> {
        let sql = "DELETE FROM login WHERE tenant = $1 AND person = $2";
        self.execute(sql, values![tenant, person]).await.map(drop)
    }

    pub async fn owner_of_key(&mut self, public_key: &str) -> Result<Option<String>> {
        let row = self.row(OWNER, values![public_key]).await?;
        Ok(row.map(|row| row.try_get("tenant")).transpose()?)
    }

    pub async fn next_config(&mut self, tenant: &str, scope: &Scope) -> Result<i64> {
        let sql = "SELECT COALESCE(MAX(number), 0) FROM config WHERE tenant = $1 AND scope = $2";
        Ok(self.scalar(sql, values![tenant, scope.to_string()]).await? + 1)
    }
}

const NEXT: &str = "UPDATE counter SET value = value + 1 WHERE name = 'change' RETURNING value";
const PUSH: &str = "INSERT INTO change (sequence, position, at_ms, tenant, kind, subject, version) \
                    VALUES ($1, $2, $3, $4, $5, $6, $7)";
const OWNER: &str = "SELECT tenant FROM device WHERE public_key = $1 \
                     UNION SELECT tenant FROM proxy WHERE public_key = $1 \
                     UNION SELECT tenant FROM delegate WHERE public_key = $1";
