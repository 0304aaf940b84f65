//! Boxes and proxies: admission, changes, reports.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::admission::{not_ours, root_is_here};
use super::records;
use crate::api::answer::{Body, PageOf, Path, Query, if_match, matches, record};
use crate::api::{App, Caller, Problem};
use crate::clock::now_ms;
use crate::model::{
    Device, DeviceSettings, DeviceState, Proxy, ProxyState, Settings as _, Tenant, public_key, slug,
};
use crate::store::{BoxSession, ProxyStatus, Report, Sample};

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

pub async fn one(
    State(app): State<Arc<App>>,
    Path((tenant, id)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    records::found::<Device>(&app, &tenant, &id, &headers).await
}

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(tenant): Path<String>,
    Body(new): Body<NewDevice>,
) -> Result<Response, Problem> {
    slug(&new.id).map_err(|why| Problem::invalid(format!("id: {why}")))?;
    public_key(&new.public_key).map_err(Problem::invalid)?;
    new.settings.validate().map_err(Problem::invalid)?;
    let mut change = app.store.change(caller.actor(), now_ms()).await?;
    let owner = change.get::<Tenant>(&tenant, &tenant).await?.record.settings;
    if change.count::<Device>(&tenant).await? >= i64::from(owner.limits.devices_max) {
        return Err(Problem::conflict("the tenant has as many boxes as it may"));
    }
    not_ours(&app, &new.public_key)?;
    if change.is_revoked(&new.public_key).await? {
        return Err(Problem::conflict("the key was revoked"));
    }
    root_is_here(&app)?;
    let mut device = Device {
        id: new.id,
        public_key: new.public_key,
        state: DeviceState::Active,
        addresses: change.free_addresses(&tenant, &owner.prefixes).await?,
        token: None,
        pool: None,
        statement: None,
        delegates: Vec::new(),
        settings: new.settings,
    };
    device.statement = app.authority.admit_device(&tenant, &device)?;
    let stored = change.admit(&tenant, device).await?;
    change.commit().await?;
    app.outbox.hint();
    Ok(record(StatusCode::CREATED, &stored))
}

/// The tags are in the signed statement, so a change of tags signs a new one.
pub async fn replace(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path((tenant, id)): Path<(String, String)>,
    headers: HeaderMap,
    Body(settings): Body<DeviceSettings>,
) -> Result<Response, Problem> {
    settings.validate().map_err(Problem::invalid)?;
    let seen = if_match(&headers)?;
    let mut change = app.store.change(caller.actor(), now_ms()).await?;
    let before = change.get::<Device>(&tenant, &id).await?;
    matches(seen, &before)?;
    let mut device = Device { settings, ..before.record.clone() };
    if device.state == DeviceState::Active && app.authority.admits() {
        device.statement = app.authority.admit_device(&tenant, &device)?;
    }
    let after = change.update(&before, device).await?;
    change.commit().await?;
    app.outbox.hint();
    Ok(record(StatusCode::OK, &after))
}

pub async fn approve(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path((tenant, id)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let mut change = app.store.change(caller.actor(), now_ms()).await?;
    let before = change.get::<Device>(&tenant, &id).await?;
    let mut device = before.record.clone();
    match device.state {
        DeviceState::Active => return Ok(record(StatusCode::OK, &before)),
        DeviceState::Revoked => return Err(Problem::conflict("it was revoked, for ever")),
        DeviceState::Pending => device.state = DeviceState::Active,
    }
    if device.statement.is_none() {
        root_is_here(&app)?;
        device.statement = app.authority.admit_device(&tenant, &device)?;
    }
    let after = change.update(&before, device).await?;
    change.commit().await?;
    app.outbox.hint();
    Ok(record(StatusCode::OK, &after))
}

pub async fn drain(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path((tenant, id)): Path<(String, String)>,
    Body(wanted): Body<Drain>,
) -> Result<Response, Problem> {
    let mut change = app.store.change(caller.actor(), now_ms()).await?;
    let before = change.get::<Proxy>(&tenant, &id).await?;
    let state = if wanted.drain { ProxyState::Draining } else { ProxyState::Active };
    if before.record.state == ProxyState::Revoked {
        return Err(Problem::conflict("it was revoked, for ever"));
    }
    if before.record.state == state {
        return Ok(record(StatusCode::OK, &before));
    }
    let after = change.update(&before, Proxy { state, ..before.record.clone() }).await?;
    change.commit().await?;
    app.outbox.hint();
    Ok(record(StatusCode::OK, &after))
}

pub async fn proxy_status(
    State(app): State<Arc<App>>,
    Path(tenant): Path<String>,
) -> Result<Json<PageOf<ProxyStatus>>, Problem> {
    let items = app.store.proxy_status(Some(&tenant)).await?;
    Ok(Json(PageOf { items, next: None }))
}

pub async fn watch(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path((tenant, id)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    let mut change = app.store.change(caller.actor(), now_ms()).await?;
    let device = change.get::<Device>(&tenant, &id).await?;
    change.tell(&tenant, "watch", &id, device.version).await?;
    change.commit().await?;
    app.outbox.hint();
    Ok(StatusCode::NO_CONTENT)
}

pub async fn report(
    State(app): State<Arc<App>>,
    Path((tenant, id)): Path<(String, String)>,
) -> Result<Json<Report>, Problem> {
    Ok(Json(app.store.report(&tenant, &id).await?))
}

pub async fn sessions(
    State(app): State<Arc<App>>,
    Path((tenant, id)): Path<(String, String)>,
) -> Result<Json<PageOf<BoxSession>>, Problem> {
    app.store.get::<Device>(&tenant, &id).await?;
    let items = app.store.sessions(&tenant, &id, 100).await?;
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
    State(app): State<Arc<App>>,
    Path((tenant, id)): Path<(String, String)>,
    Query(query): Query<SamplesQuery>,
) -> Result<Response, Problem> {
    let step = query.step_ms.unwrap_or(10_000);
    if !crate::store::STEPS_MS.contains(&step) {
        return Err(Problem::new(400, "query", "step_ms: 10000, 60000 or 3600000"));
    }
    let limit = query.limit.unwrap_or(500).clamp(1, 2000);
    let to = query.to_ms.unwrap_or(i64::MAX);
    let default_from = now_ms() - 360 * step;
    let from = query.cursor.or(query.from_ms).unwrap_or(default_from);
    app.store.get::<Device>(&tenant, &id).await?;
    let items = app.store.samples((&tenant, &id), step, (from, to), limit).await?;
    let full = items.len() == limit as usize;
    let next = items.last().filter(|_| full).map(|last| (last.at_ms + 1).to_string());
    Ok(Json(PageOf::<Sample> { items, next }).into_response())
}
