//! Revocations that a proxy holds and the database lacks.

use std::collections::{BTreeMap, BTreeSet};

use roadweave_fleet::{Head, Revocation, Revocations, Signed};

use super::{Keeper, StreamPeer};
use crate::clock::now_ms;
use crate::store::{Actor, StoreError};

impl Keeper<'_> {
    /// Restores revocations that the database, an older copy, lacks.
    pub(super) async fn surplus(
        &mut self,
        entries: &[Revocation],
        head: &Signed<Head>,
    ) -> Result<(), &'static str> {
        if !matches!(self.peer, StreamPeer::Proxy { .. }) {
            return Err("only proxies hand revocations back");
        }
        // Only a complete chain signed by this controller counts.
        let mut theirs = Revocations::default();
        let controller = self.streams.authority.controller().public_key();
        theirs.extend(entries, head, [controller]).map_err(|_| "its revocations do not hold")?;
        let taken = self.take_back(entries).await;
        taken.map_err(|error| {
            tracing::error!(%error, "revocations that a proxy has handed back are not kept");
            "revocations are not kept"
        })
    }

    async fn take_back(&self, entries: &[Revocation]) -> Result<(), StoreError> {
        let StreamPeer::Proxy { tenant, .. } = &self.peer else { return Ok(()) };
        let actor = Actor::new(format!("stream:{}", self.name()));
        let mut change = self.streams.store.change(actor.clone(), now_ms()).await?;
        let mut of: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for entry in entries {
            let key = entry.key.to_string();
            if change.is_revoked(&key).await? {
                continue;
            }
            let owner = change.owner_of_key(&key).await?.unwrap_or_else(|| tenant.clone());
            change.revoke_again(&owner, &key, WHY).await?;
            of.entry(owner).or_default().insert(key);
        }
        if !of.is_empty() {
            let count: usize = of.values().map(BTreeSet::len).sum();
            tracing::warn!(count, "revocations came back that the database did not have");
            change.commit().await?;
        }
        for (owner, keys) in of {
            self.streams.store.mark_revoked(&owner, &keys, &actor, now_ms()).await?;
        }
        Ok(())
    }
}

/// Proxies do not know the reason.
const WHY: &str = "revoked before the database was restored: a proxy says so";
