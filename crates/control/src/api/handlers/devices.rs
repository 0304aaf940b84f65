//! Boxes and proxies: admission, changes, reports.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::answer::{Asked, Body, PageOf, Query, record};
use crate::api::{App, Problem, Result};
use crate::clock::now_ms;
use crate::model::{
    Device, DeviceSettings, DeviceState, Proxy, ProxyState, Settings as _, Tenant, public_key, slug,
};
use crate::store::{
    BoxSession, ProxyStatus, Report, Sample, address, proxy_status, report, revocation,
};

/// A box whose key is known.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDevice {
    /// Its name.
    id: String,
    /// Its public key.
    public_key: String,
    /// What people write.
    #[serde(default)]
    settings: DeviceSettings,
}

/// Whether a proxy is to be drained.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// False lets it take boxes again.
    drain: bool,
}

pub async fn create(asked: Asked, Body(new): Body<NewDevice>) -> Result<Response> {
    let Asked { app, tenant, .. } = &asked;
    slug(&new.id).map_err(|why| Problem::invalid(format!("id: {why}")))?;
    public_key(&new.public_key).map_err(Problem::invalid)?;
    new.settings.validate().map_err(Problem::invalid)?;
    let mut change = asked.change().await?;
    let owner = change.get::<Tenant>(tenant, tenant).await?.record.settings;
    if change.count::<Device>(tenant).await? >= i64::from(owner.limits.devices_max) {
        return Err(Problem::conflict("the tenant has reached its limit of boxes"));
    }
    not_ours(app, &new.public_key)?;
    if revocation::is_revoked(&mut change, &new.public_key).await? {
        return Err(Problem::conflict("the key was revoked"));
    }
    root_is_here(app)?;
    let mut device = Device {
        id: new.id,
        public_key: new.public_key,
        state: DeviceState::Active,
        addresses: address::free_of(&mut change, tenant, &owner.prefixes).await?,
        token: None,
        pool: None,
        statement: None,
        delegates: Vec::new(),
        settings: new.settings,
    };
    device.statement = app.authority.admit_device(tenant, &device)?;
    let stored = address::insert(&mut change, tenant, device).await?;
    asked.commit(change).await?;
    Ok(record(StatusCode::CREATED, &stored))
}

pub async fn approve(asked: Asked) -> Result<Response> {
    let (change, before) = asked.open::<Device>().await?;
    let mut device = before.record.clone();
    match device.state {
        DeviceState::Active => return Ok(record(StatusCode::OK, &before)),
        DeviceState::Revoked => return Err(Problem::conflict("its key was revoked for good")),
        DeviceState::Pending => device.state = DeviceState::Active,
    }
    if device.statement.is_none() {
        root_is_here(&asked.app)?;
        device.statement = asked.app.authority.admit_device(&asked.tenant, &device)?;
    }
    asked.update(change, &before, device).await
}

pub async fn drain(asked: Asked, Body(wanted): Body<Drain>) -> Result<Response> {
    let (change, before) = asked.open::<Proxy>().await?;
    let state = if wanted.drain { ProxyState::Draining } else { ProxyState::Active };
    if before.record.state == ProxyState::Revoked {
        return Err(Problem::conflict("its key was revoked for good"));
    }
    if before.record.state == state {
        return Ok(record(StatusCode::OK, &before));
    }
    asked.update(change, &before, Proxy { state, ..before.record.clone() }).await
}

pub async fn proxy_status(asked: Asked) -> Result<Json<PageOf<ProxyStatus>>> {
    let items = proxy_status::all(&asked.app.store, Some(&asked.tenant)).await?;
    Ok(Json(PageOf { items, next: None }))
}

pub async fn watch(asked: Asked) -> Result<StatusCode> {
    let (mut change, device) = asked.open::<Device>().await?;
    change.publish(&asked.tenant, "watch", &asked.id, device.version).await?;
    asked.commit(change).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub async fn report(asked: Asked) -> Result<Json<Report>> {
    Ok(Json(report::latest(&asked.app.store, &asked.tenant, &asked.id).await?))
}

pub async fn sessions(asked: Asked) -> Result<Json<PageOf<BoxSession>>> {
    let Asked { app, tenant, id, .. } = &asked;
    app.store.get::<Device>(tenant, id).await?;
    let items = report::sessions(&app.store, tenant, id, 100).await?;
    Ok(Json(PageOf { items, next: None }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplesQuery {
    step_ms: Option<i64>,
    from_ms: Option<i64>,
    to_ms: Option<i64>,
    limit: Option<u32>,
    cursor: Option<i64>,
}

pub async fn samples(
    Asked { app, tenant, id, .. }: Asked,
    Query(query): Query<SamplesQuery>,
) -> Result<Response> {
    let step = query.step_ms.unwrap_or(10_000);
    if !crate::store::STEPS_MS.contains(&step) {
        return Err(Problem::new(400, "query", "step_ms: 10000, 60000 or 3600000"));
    }
    let limit = query.limit.unwrap_or(500).clamp(1, 2000);
    let to = query.to_ms.unwrap_or(i64::MAX);
    let default_from = now_ms() - 360 * step;
    let from = query.cursor.or(query.from_ms).unwrap_or(default_from);
    app.store.get::<Device>(&tenant, &id).await?;
    let items = report::samples(&app.store, (&tenant, &id), step, (from, to), limit).await?;
    let full = items.len() == limit as usize;
    let next = items.last().filter(|_| full).map(|last| (last.at_ms + 1).to_string());
    Ok(Json(PageOf::<Sample> { items, next }).into_response())
}

pub(super) fn root_is_here(app: &App) -> Result<()> {
    if app.authority.admits() {
        return Ok(());
    }
    Err(Problem::conflict(
        "the root key is elsewhere, so this controller cannot sign a key: let it join with a token \
         of a delegate (roadweave fleet token create --delegate FILE)",
    ))
}

/// Refuses keys that the fleet depends on: a record with such a key could be revoked.
pub(super) fn not_ours(app: &App, key: &str) -> Result<()> {
    let approves = || app.authority.approvers().iter().any(|one| one.to_string() == key);
    match app.authority.is_own(key) || approves() {
        true => Err(Problem::conflict("the key is one of the controller's or of its root keys")),
        false => Ok(()),
    }
}

/// Its key is not revoked: it may join again by a token.
pub async fn remove_proxy(asked: Asked) -> Result<StatusCode> {
    let (mut change, before) = asked.edit::<Proxy>().await?;
    if before.record.state == ProxyState::Active {
        return Err(Problem::conflict("drain it first"));
    }
    if proxy_status::is_there(&mut change, &asked.tenant, &asked.id).await? {
        return Err(Problem::conflict("it is connected: stop it first"));
    }
    asked.remove(change, &before).await
}
