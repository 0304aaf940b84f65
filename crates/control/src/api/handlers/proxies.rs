//! Removing proxies: each new pod is a new proxy, and old ones stay in the lists until they are
//! removed.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};

use crate::api::answer::{Path, if_match, matches};
use crate::api::{App, Caller, Problem};
use crate::clock::now_ms;
use crate::model::{Proxy, ProxyState};

/// Removes a proxy or anchor that was drained or revoked and is gone. Its key is not revoked: it
/// may join again by a token.
pub async fn remove(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path((tenant, id)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let seen = if_match(&headers)?;
    let mut change = app.store.change(caller.actor(), now_ms()).await?;
    let before = change.get::<Proxy>(&tenant, &id).await?;
    matches(seen, &before)?;
    if before.record.state == ProxyState::Active {
        return Err(Problem::conflict("drain it first"));
    }
    if change.is_there(&tenant, &id).await? {
        return Err(Problem::conflict("it is connected: stop it first"));
    }
    change.remove(&before).await?;
    change.commit().await?;
    app.outbox.hint();
    Ok(StatusCode::NO_CONTENT)
}
