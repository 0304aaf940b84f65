//! Records below a revoked delegate. The delegate's key alone cuts them off wherever a chain is
//! checked; marking them shows it to people and frees their addresses.

use std::collections::BTreeSet;

use sqlx::AssertSqlSafe;

use super::record::{read, select};
use super::sql::values;
use super::{Actor, Change, Record, Result, Store, StoreError, Stored};
use crate::model::{Delegate, DelegateState, Device, DeviceState, Proxy, ProxyState};

/// A record with a revocable key, possibly signed for by delegates.
pub trait Revocable: Record {
    fn key(&self) -> &str {
        self.public_key().unwrap_or_default()
    }

    /// The delegates between the root and the record.
    fn above(&self) -> &[String];

    /// The record marked as revoked.
    fn revoked(self) -> Self;

    fn is_revoked(&self) -> bool {
        self.clone().revoked().columns() == self.columns()
    }

    /// Whether records of this type have addresses.
    const HAS_ADDRESSES: bool = false;

    /// Whether the record has one of these keys, or one of their delegates.
    fn is_by(&self, keys: &BTreeSet<String>) -> bool {
        let mut all = self.above().iter().map(String::as_str).chain([self.key()]);
        all.any(|key| keys.contains(key))
    }
}

impl Change<'_> {
    /// Marks a record as revoked and frees its addresses; false if it was already.
    /// [`Change::revoke`] revokes its key.
    pub async fn mark_revoked<R: Revocable>(&mut self, before: &Stored<R>) -> Result<bool> {
        if before.record.is_revoked() {
            return Ok(false);
        }
        if R::HAS_ADDRESSES {
            self.free(&before.tenant, before.record.id()).await?;
        }
        self.update(before, before.record.clone().revoked()).await?;
        Ok(true)
    }
}

impl Store {
    /// Marks a tenant's records that have one of the revoked `keys` or are below one, in changes of
    /// bounded size, so that others can write in between. Returns the number of newly marked
    /// records. Altered rows are skipped; after an error some are marked.
    pub async fn mark_revoked(
        &self,
        tenant: &str,
        keys: &BTreeSet<String>,
        actor: &Actor,
        now_ms: i64,
    ) -> Result<usize> {
        let delegates = self.mark::<Delegate>(tenant, keys, actor, now_ms).await?;
        let devices = self.mark::<Device>(tenant, keys, actor, now_ms).await?;
        let proxies = self.mark::<Proxy>(tenant, keys, actor, now_ms).await?;
        Ok(delegates + devices + proxies)
    }

    async fn mark<R: Revocable>(
        &self,
        tenant: &str,
        keys: &BTreeSet<String>,
        actor: &Actor,
        now_ms: i64,
    ) -> Result<usize> {
        let mut below = self.below::<R>(tenant, keys).await?;
        let mut count = 0;
        while !below.is_empty() {
            let rest = below.split_off(below.len().min(AT_ONCE));
            let mut change = self.change(actor.clone(), now_ms).await?;
            for id in &below {
                let before = match change.get::<R>(tenant, id).await {
                    Err(StoreError::Altered { .. } | StoreError::NotFound { .. }) => continue,
                    other => other?,
                };
                count += usize::from(change.mark_revoked(&before).await?);
            }
            change.commit().await?;
            below = rest;
        }
        Ok(count)
    }

    async fn below<R: Revocable>(
        &self,
        tenant: &str,
        keys: &BTreeSet<String>,
    ) -> Result<Vec<String>> {
        let sql = format!("{} WHERE tenant = $1 AND state <> 'revoked'", select::<R>());
        let rows = self.rows(AssertSqlSafe(sql), values![tenant]).await?;
        let mut names = Vec::new();
        for row in &rows {
            match read::<R>(&self.keys, row) {
                Ok(Stored { record, .. }) if record.is_by(keys) => {
                    names.push(record.id().to_owned());
                }
                Ok(_) | Err(StoreError::Altered { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(names)
    }
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
