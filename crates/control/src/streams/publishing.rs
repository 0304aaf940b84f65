//! The state published to all streams: trust lists and revocations.

use std::sync::Arc;

use roadweave_fleet::{Published, Revocation, RevocationError, Revocations};

use crate::authority::{Authority, NotSigned};
use crate::rollback_guard::RollbackGuard;
use crate::store::{Store, StoreError};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
        let rows = store.revocations(None, after, AT_ONCE).await?;
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

const AT_ONCE: u32 = 1000;
