//! Delegates, who sign for others where the root key is elsewhere.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use roadweave_fleet::Chain;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::devices::{Reason, Revoked, check_reason, confirmed, enter, send_away, send_away_proxy};
use super::records::insert_in;
use crate::api::answer::{Body, Path};
use crate::api::{App, Caller, Problem};
use crate::clock::now_ms;
use crate::model::{Delegate, DelegateState, Device, DeviceState, Proxy, ProxyState};
use crate::store::{Change, StoreError};

/// A delegate that a root, or a delegate above it, has signed.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDelegate {
    /// The chain that leads to it, as JSON, without its private key.
    chain: String,
}

/// Puts a delegate in.
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(tenant): Path<String>,
    Body(new): Body<NewDelegate>,
) -> Result<Response, Problem> {
    let chain = serde_json::from_str::<Chain>(&new.chain)
        .map_err(|error| Problem::invalid(format!("chain: {error}")))?;
    let admitted = app.authority.follow(&chain);
    let admitted = admitted.map_err(|why| Problem::invalid(format!("chain: {why}")))?;
    let text =
        serde_json::to_string(&chain).map_err(|error| Problem::invalid(error.to_string()))?;
    let delegate = Delegate::of(&admitted, text, &tenant).map_err(Problem::invalid)?;
    if delegate.shared && !(caller.host && caller.tenant == tenant) {
        return Err(Problem::forbidden(
            "only the tenant that runs this controller has delegates for all tenants",
        ));
    }
    let mut change = app.store.change(caller.actor(), now_ms()).await?;
    if change.is_revoked(&delegate.public_key).await? {
        return Err(Problem::conflict("the key was revoked"));
    }
    for key in &delegate.delegates {
        above(&mut change, &tenant, key).await?;
    }
    insert_in(&app, change, &tenant, delegate).await
}

/// Refuses a delegate below one that is not known here or was revoked.
async fn above(change: &mut Change<'_>, tenant: &str, key: &str) -> Result<(), Problem> {
    match change.find::<Delegate>("public_key", key).await {
        Ok(found) if found.tenant != tenant => {}
        Ok(found) if found.record.state == DelegateState::Active => return Ok(()),
        Ok(found) => {
            let id = found.record.id;
            return Err(Problem::conflict(format!("the delegate {id} above it was revoked")));
        }
        Err(StoreError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let detail = format!("put in the delegate first that has signed it: its key is {key}");
    Err(Problem::conflict(detail))
}

/// Revokes a delegate and every key that it has signed for, itself or by delegates below it.
pub async fn revoke(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path((tenant, id)): Path<(String, String)>,
    Body(why): Body<Reason>,
) -> Result<Json<Revoked>, Problem> {
    check_reason(&why.reason)?;
    let begun = Instant::now();
    let mut change = app.store.change(caller.actor(), now_ms()).await?;
    let key = change.get::<Delegate>(&tenant, &id).await?.record.public_key;
    // Itself first: whatever it signs from here on is worth nothing.
    let mut last = enter(&mut change, &tenant, &key, &why.reason).await?;
    for before in change.all::<Delegate>(&tenant).await? {
        let delegate = &before.record;
        let is_below = delegate.public_key == key || delegate.delegates.contains(&key);
        if is_below && delegate.state == DelegateState::Active {
            last = enter(&mut change, &tenant, &delegate.public_key, &why.reason).await?;
            let state = DelegateState::Revoked;
            change.update(&before, Delegate { state, ..delegate.clone() }).await?;
        }
    }
    for device in change.all::<Device>(&tenant).await? {
        let is_below = device.record.delegates.contains(&key);
        if is_below && device.record.state != DeviceState::Revoked {
            last = send_away(&mut change, &device, &why.reason).await?;
        }
    }
    for proxy in change.all::<Proxy>(&tenant).await? {
        let is_below = proxy.record.delegates.contains(&key);
        if is_below && proxy.record.state != ProxyState::Revoked {
            last = send_away_proxy(&mut change, &proxy, &why.reason).await?;
        }
    }
    change.commit().await?;
    confirmed(&app, &tenant, last, begun).await
}
