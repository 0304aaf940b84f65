//! The state published to all streams: trust lists and revocations, which proxies may return.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use roadweave_fleet::{Head, Published, Revocation, RevocationError, Revocations, Signed};

use crate::authority::{Authority, NotSigned};
use crate::clock::now_ms;
use crate::rollback_guard::RollbackGuard;
use crate::store::{Actor, Store, StoreError, revocation};

#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the revocations in the database were altered: {0}")]
    Altered(String),
    #[error(transparent)]
    NotSigned(#[from] NotSigned),
    #[error("the controller's key cannot be used for TLS: {0}")]
    Tls(String),
}

impl From<RevocationError> for PublishError {
    fn from(error: RevocationError) -> Self {
        Self::Altered(error.to_string())
    }
}

/// Verifies the chain from its beginning: an altered or shortened one is not signed.
pub(super) async fn published(
    store: &Store,
    authority: &Authority,
) -> Result<Published, PublishError> {
    let epoch = store.epoch().await?;
    let seen = store.rollback_guard.revocations();
    let mut entries: Vec<Revocation> = Vec::new();
    loop {
        let after = i64::try_from(entries.len()).unwrap_or(i64::MAX);
        let rows = revocation::list(store, None, after, AT_ONCE).await?;
        for row in &rows {
            let entry = serde_json::from_str(&row.entry);
            entries.push(entry.map_err(|error| PublishError::Altered(error.to_string()))?);
        }
        if rows.len() < AT_ONCE as usize {
            break;
        }
    }
    let last = entries.last();
    let serial = last.map_or(0, |last| i64::try_from(last.serial).unwrap_or(i64::MAX));
    let hash = last.map_or(String::new(), |last| last.hash().into());
    let head = authority.head(epoch, serial, &hash)?;
    let mut revocations = Revocations::default();
    revocations.extend(&entries, &head, [authority.controller().public_key()])?;
    let at_seen = usize::try_from(seen.serial - 1).ok().and_then(|at| entries.get(at));
    let at_seen = at_seen.map(|entry| String::from(entry.hash()));
    RollbackGuard::check_revocations(&seen, at_seen.as_deref())?;
    let trust = authority.trust(epoch)?;
    store.rollback_guard.record_revocations(serial, &hash);
    let rollback_guard = Arc::clone(&store.rollback_guard);
    // In the background: a hanging disk must not delay revocations.
    tokio::task::spawn_blocking(move || rollback_guard.save());
    Ok(Published { trust, revocations, head })
}

/// Restores revocations that the database, an older copy, lacks, from a proxy's complete chain.
pub(super) async fn restore(
    (store, authority): (&Store, &Authority),
    (tenant, actor): (&str, &Actor),
    entries: &[Revocation],
    head: &Signed<Head>,
) -> Result<(), &'static str> {
    // Only a complete chain signed by this controller counts.
    let mut theirs = Revocations::default();
    let controller = authority.controller().public_key();
    theirs.extend(entries, head, [controller]).map_err(|_| "its revocations are invalid")?;
    take_back(store, (tenant, actor), entries).await.map_err(|error| {
        tracing::error!(%error, "cannot store revocations that a proxy returned");
        "cannot store revocations"
    })
}

async fn take_back(
    store: &Store,
    (tenant, actor): (&str, &Actor),
    entries: &[Revocation],
) -> Result<(), StoreError> {
    let mut change = store.change(actor.clone(), now_ms()).await?;
    let mut of: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in entries {
        let key = entry.key.to_string();
        if revocation::is_revoked(&mut change, &key).await? {
            continue;
        }
        let owner = change.owner_of_key(&key).await?.unwrap_or_else(|| tenant.to_owned());
        revocation::append(&mut change, &owner, &key, WHY).await?;
        of.entry(owner).or_default().insert(key);
    }
    if !of.is_empty() {
        let count: usize = of.values().map(BTreeSet::len).sum();
        tracing::warn!(count, "a proxy returned revocations that the database did not have");
        change.commit().await?;
    }
    for (owner, keys) in of {
        revocation::mark_all(store, &owner, &keys, actor, now_ms()).await?;
    }
    Ok(())
}

const WHY: &str = "revoked before the database was restored, according to a proxy";
const AT_ONCE: u32 = 1000;
