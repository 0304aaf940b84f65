//! Delegates, which sign for others where the root key is elsewhere.

use axum::response::Response;
use roadweave_fleet::Chain;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::admission::not_ours;
use super::records::insert_in;
use crate::api::answer::{Asked, Body};
use crate::api::{Problem, Result};
use crate::model::{Delegate, DelegateState};
use crate::store::{Change, StoreError};

/// A delegate that a root, or a delegate above it, has signed.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDelegate {
    /// The chain that leads to it, as JSON, without its private key.
    chain: String,
}

pub async fn create(asked: Asked, Body(new): Body<NewDelegate>) -> Result<Response> {
    let Asked { app, tenant, .. } = &asked;
    let chain = serde_json::from_str::<Chain>(&new.chain)
        .map_err(|error| Problem::invalid(format!("chain: {error}")))?;
    let admitted = app.authority.follow(&chain);
    let admitted = admitted.map_err(|why| Problem::invalid(format!("chain: {why}")))?;
    let text =
        serde_json::to_string(&chain).map_err(|error| Problem::invalid(error.to_string()))?;
    let delegate = Delegate::of(&admitted, text, tenant).map_err(Problem::invalid)?;
    if delegate.shared && !asked.is_of_host() {
        return Err(Problem::forbidden(
            "only the tenant that runs this controller has delegates for all tenants",
        ));
    }
    not_ours(app, &delegate.public_key)?;
    let mut change = asked.change().await?;
    if change.is_revoked(&delegate.public_key).await? {
        return Err(Problem::conflict("the key was revoked"));
    }
    for key in &delegate.delegates {
        above(&mut change, tenant, key).await?;
    }
    insert_in(&asked, change, delegate).await
}

/// Refuses a delegate below one that is unknown or revoked.
async fn above(change: &mut Change<'_>, tenant: &str, key: &str) -> Result<()> {
    let is_revoked = change.is_revoked(key).await?;
    match change.find::<Delegate>("public_key", key).await {
        Ok(found) if found.tenant != tenant => {}
        Ok(found) if found.record.state == DelegateState::Active && !is_revoked => return Ok(()),
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
