//! Tokens, by which boxes join, and delegates, which sign for others.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use roadweave_fleet::{Chain, Secret};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::devices::not_ours;
use super::records::insert_in;
use crate::api::answer::{Asked, Body, shown};
use crate::api::{Problem, Result};
use crate::clock::now_ms;
use crate::keys;
use crate::model::{Delegate, DelegateState, Settings as _, Token, TokenSettings, slug};
use crate::store::{Change, found, revocation};

/// A token to be made.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Its name; made up, if absent.
    id: Option<String>,
    /// What people write.
    #[serde(default)]
    settings: TokenSettings,
}

/// A token that was made.
#[derive(Deserialize, Serialize, ToSchema)]
pub struct MadeToken {
    /// The text for `roadweave join`, which is shown only once.
    join: String,
    /// The token.
    #[schema(value_type = Token)]
    token: Value,
}

pub async fn create(asked: Asked, Body(new): Body<NewToken>) -> Result<Response> {
    let Asked { app, tenant, .. } = &asked;
    let id = new.id.unwrap_or_else(keys::identifier);
    slug(&id).map_err(|why| Problem::invalid(format!("id: {why}")))?;
    new.settings.validate().map_err(Problem::invalid)?;
    let mut bytes = [0; 16];
    keys::fill(&mut bytes);
    let secret = Secret::from_bytes(bytes);
    let now = now_ms();
    let token = Token {
        id,
        hash: keys::hash(&String::from(secret)),
        uses_left: new.settings.uses.into(),
        expires_ms: new.settings.lifetime_s.map(|it| now + i64::from(it) * 1000),
        settings: new.settings,
    };
    let mut change = app.store.change(asked.caller.actor(), now).await?;
    let chain = match token.settings.delegate {
        Some(_) => Some(within_delegate(&mut change, tenant, &token.settings).await?),
        None if app.authority.admits() => None,
        None => {
            return Err(Problem::conflict(
                "delegate: the root key is elsewhere, so the token needs a delegate signed by the \
                 root (roadweave-controller delegate, then roadweave fleet delegate add)",
            ));
        }
    };
    let join = app.authority.join_token(tenant, secret, chain.as_ref())?;
    let stored = asked.insert(change, token).await?;
    Ok((StatusCode::CREATED, Json(MadeToken { join, token: shown(&stored) })).into_response())
}

/// Refuses a token if its delegate's tokens together exceed the grant. Returns the chain.
async fn within_delegate(
    change: &mut Change<'_>,
    tenant: &str,
    token: &TokenSettings,
) -> Result<Chain> {
    let name = token.delegate.as_deref().unwrap_or_default();
    let delegate = change.get::<Delegate>(tenant, name).await?.record;
    for key in delegate.delegates.iter().chain([&delegate.public_key]) {
        if revocation::is_revoked(change, key).await? {
            return Err(Problem::invalid(format!("delegate: {name} or one above it was revoked")));
        }
    }
    let others = change.all::<Token>(tenant).await?;
    let is_open = |it: &Token| it.expires_ms.is_none_or(|at| at > now_ms());
    let others = others.iter().map(|it| &it.record).filter(|it| is_open(it));
    let same = others.filter(|it| it.settings.delegate == token.delegate);
    let to_come = same.map(|it| it.uses_left.unsigned_abs()).sum();
    delegate.allows(token, to_come).map_err(Problem::invalid)?;
    serde_json::from_str(&delegate.statement).map_err(|why| Problem::invalid(why.to_string()))
}

/// A delegate that a root, or a delegate above it, has signed.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDelegate {
    /// The chain that leads to it, as JSON, without its private key.
    chain: String,
}

pub async fn create_delegate(asked: Asked, Body(new): Body<NewDelegate>) -> Result<Response> {
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
    if revocation::is_revoked(&mut change, &delegate.public_key).await? {
        return Err(Problem::conflict("the key was revoked"));
    }
    for key in &delegate.delegates {
        above(&mut change, tenant, key).await?;
    }
    insert_in(&asked, change, delegate).await
}

async fn above(change: &mut Change<'_>, tenant: &str, key: &str) -> Result<()> {
    let is_revoked = revocation::is_revoked(change, key).await?;
    let above = found(change.find::<Delegate>("public_key", key).await)?;
    match above.filter(|it| it.tenant == tenant).map(|it| it.record) {
        Some(it) if it.state == DelegateState::Active && !is_revoked => Ok(()),
        Some(it) => Err(Problem::conflict(format!("the delegate {} above it was revoked", it.id))),
        None => Err(Problem::conflict(format!(
            "first add the delegate that signed it: its key is {key}"
        ))),
    }
}
