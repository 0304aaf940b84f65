//! Revoking a box, a proxy, an anchor, a delegate, or any key; and who has confirmed it.
//!
//! ```text
//! key ─► chain of revocations ─► streams: all cut it off ─► confirmed, or 2 s ─► answer
//!   └─► records marked in the background: its own, and those below a delegate
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::answer::{Asked, Body};
use crate::api::{Problem, Result};
use crate::clock::now_ms;
use crate::model::{Delegate, public_key};
use crate::store::{Confirmations, Revocable, Revocation, proxy_status, revocation};

/// Why something is revoked.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// For the log: at most 200 bytes on one line.
    reason: String,
}

/// A key to be revoked.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyAndReason {
    /// The key.
    public_key: String,
    /// For the log: at most 200 bytes on one line.
    reason: String,
}

/// A revocation and who has confirmed it.
#[derive(Deserialize, Serialize, ToSchema)]
pub struct Revoked {
    /// The revocation.
    revocation: Revocation,
    /// Who has the revocation in force, and who has not.
    #[serde(flatten)]
    confirmations: Confirmations,
    /// Who has confirmed, in words, as "12 of 13; fra-3 unreachable for 40 s".
    summary: String,
}

pub async fn member<R: Revocable>(asked: Asked, Body(why): Body<Reason>) -> Result<Json<Revoked>> {
    check_reason(&why.reason)?;
    let begun = Instant::now();
    let (mut change, before) = asked.open::<R>().await?;
    let revocation =
        revocation::add(&mut change, &asked.tenant, before.record.key(), &why.reason).await?;
    revocation::mark(&mut change, &before).await?;
    change.commit().await?;
    confirmed(&asked, revocation, begun).await
}

pub async fn delegate(asked: Asked, Body(why): Body<Reason>) -> Result<Json<Revoked>> {
    check_reason(&why.reason)?;
    let begun = Instant::now();
    let (mut change, before) = asked.open::<Delegate>().await?;
    let key = before.record.public_key;
    // This entry alone cuts off everything below the key.
    let revocation = revocation::add(&mut change, &asked.tenant, &key, &why.reason).await?;
    change.commit().await?;
    confirmed_and_below(&asked, key, revocation, begun).await
}

pub async fn key(asked: Asked, Body(what): Body<KeyAndReason>) -> Result<Json<Revoked>> {
    check_reason(&what.reason)?;
    public_key(&what.public_key).map_err(Problem::invalid)?;
    let begun = Instant::now();
    let mut change = asked.change().await?;
    let owner = change.owner_of_key(&what.public_key).await?;
    let ours = asked.app.authority.is_own(&what.public_key);
    let foreign =
        owner.is_none() && !asked.caller.host || owner.is_some_and(|it| it != asked.tenant);
    if foreign || ours {
        return Err(Problem::forbidden("the key does not belong to this tenant"));
    }
    let revocation =
        revocation::add(&mut change, &asked.tenant, &what.public_key, &what.reason).await?;
    change.commit().await?;
    confirmed_and_below(&asked, what.public_key, revocation, begun).await
}

pub async fn revocation(Asked { app, tenant, id, .. }: Asked) -> Result<Json<Revoked>> {
    let serial = id.parse().map_err(|_| Problem::nothing())?;
    let revocation = revocation::get(&app.store, &tenant, serial).await?;
    let confirmations = proxy_status::confirmations(&app.store, &tenant, serial, now_ms()).await?;
    let summary = confirmations.to_string();
    Ok(Json(Revoked { revocation, confirmations, summary }))
}

async fn confirmed_and_below(
    asked: &Asked,
    key: String,
    revocation: Revocation,
    begun: Instant,
) -> Result<Json<Revoked>> {
    tokio::join!(confirmed(asked, revocation, begun), mark_below(asked, key)).0
}

/// Marks all records with the revoked key or below it. It continues after the answer.
async fn mark_below(Asked { app, caller, tenant, .. }: &Asked, key: String) {
    let (store, outbox) = (Arc::clone(&app.store), Arc::clone(&app.outbox));
    let (tenant, actor) = (tenant.clone(), caller.actor());
    let marking = tokio::spawn(async move {
        let keys = BTreeSet::from([key]);
        if let Err(error) = revocation::mark_all(&store, &tenant, &keys, &actor, now_ms()).await {
            tracing::error!(tenant, %error, "not all keys below it are marked: revoke it again");
        }
        outbox.hint();
    });
    let _ = tokio::time::timeout(MARK_MAX, marking).await;
}

fn check_reason(reason: &str) -> Result<()> {
    let good = (1..=200).contains(&reason.len()) && !reason.chars().any(char::is_control);
    if good { Ok(()) } else { Err(Problem::invalid("reason: 1 to 200 bytes on one line")) }
}

async fn confirmed(
    Asked { app, tenant, .. }: &Asked,
    revocation: Revocation,
    begun: Instant,
) -> Result<Json<Revoked>> {
    app.outbox.hint();
    loop {
        let all =
            proxy_status::confirmations(&app.store, tenant, revocation.serial, now_ms()).await;
        let late = begun.elapsed() > CONFIRM_MAX;
        match all {
            Ok(confirmations) if late || confirmations.is_complete() => {
                app.metrics.revocation_seconds.observe(begun.elapsed().as_secs_f64());
                let summary = confirmations.to_string();
                return Ok(Json(Revoked { revocation, confirmations, summary }));
            }
            Err(error) if late => return Err(error.into()),
            _ => tokio::time::sleep(CONFIRM_POLL).await,
        }
    }
}

const MARK_MAX: Duration = Duration::from_secs(5);
const CONFIRM_MAX: Duration = Duration::from_secs(2);
const CONFIRM_POLL: Duration = Duration::from_millis(25);
