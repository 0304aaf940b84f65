//! Removing proxies: each new pod is a new proxy, and old ones stay in the lists until they are
//! removed.

use axum::http::StatusCode;

use crate::api::answer::Asked;
use crate::api::{Problem, Result};
use crate::model::{Proxy, ProxyState};

/// Removes a proxy or anchor that was drained or revoked and is gone. Its key is not revoked: it
/// may join again by a token.
pub async fn remove(asked: Asked) -> Result<StatusCode> {
    let (mut change, before) = asked.edit::<Proxy>().await?;
    if before.record.state == ProxyState::Active {
        return Err(Problem::conflict("drain it first"));
    }
    if change.is_there(&asked.tenant, &asked.id).await? {
        return Err(Problem::conflict("it is connected: stop it first"));
    }
    asked.remove(change, &before).await
}
