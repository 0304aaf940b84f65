//! Operations that all records share: list, get, create, replace, remove.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::admission::{not_ours, root_is_here};
use crate::api::answer::{
    Body, ListQuery, PageOf, Path, Query, cursor, etag, if_match, matches, record, shown,
};
use crate::api::{App, Caller, Problem};
use crate::clock::now_ms;
use crate::model::{
    Pool, PoolSettings, Proxy, ProxySettings, ProxyState, Rollout, RolloutSettings, RolloutState,
    Settings, slug,
};
use crate::store::{Change, Filter, Record};

/// A record to be made.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct New<S> {
    /// Its name: 1 to 63 of a-z, 0-9 and "-".
    pub id: String,
    /// What people write.
    pub settings: S,
}

/// A record that people create and change by its settings alone.
pub trait Managed: Record {
    type Settings: Settings + Serialize;

    fn make(
        app: &App,
        caller: &Caller,
        tenant: &str,
        new: New<Self::Settings>,
    ) -> Result<Self, Problem>;

    /// This record with other settings; an error if one of them cannot be changed.
    fn with(self, settings: Self::Settings) -> Result<Self, Problem>;
}

pub async fn list<R: Record>(
    State(app): State<Arc<App>>,
    Path(tenant): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    let wanted = [("state", &query.state), ("scope", &query.scope)];
    let mut equal = Vec::new();
    for (column, value) in wanted {
        let Some(value) = value else { continue };
        if !R::COLUMNS.contains(&column) {
            return Err(Problem::new(400, "query", format!("a {} has no {column}", R::KIND)));
        }
        equal.push((column, value.clone()));
    }
    let word = query.tag.as_ref().map(|tag| ("tags", tag.clone()));
    if word.is_some() && !R::COLUMNS.contains(&"tags") {
        return Err(Problem::new(400, "query", format!("a {} has no tags", R::KIND)));
    }
    let filter = Filter { equal, word, after: query.after()?, limit: query.limit() };
    let page = app.store.list::<R>(&tenant, &filter).await?;
    let items: Vec<Value> = page.items.iter().map(shown).collect();
    let next = page.next.as_deref().map(cursor);
    Ok(axum::Json(PageOf { items, next }).into_response())
}

pub async fn one<R: Record>(
    State(app): State<Arc<App>>,
    Path((tenant, id)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    found::<R>(&app, &tenant, &id, &headers).await
}

pub async fn found<R: Record>(
    app: &App,
    tenant: &str,
    id: &str,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    let stored = app.store.get::<R>(tenant, id).await?;
    let tag = etag(stored.version);
    if headers.get(header::IF_NONE_MATCH) == Some(&tag) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
    }
    Ok(record(StatusCode::OK, &stored))
}

pub async fn create<R: Managed>(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(tenant): Path<String>,
    Body(new): Body<New<R::Settings>>,
) -> Result<Response, Problem> {
    slug(&new.id).map_err(|why| Problem::invalid(format!("id: {why}")))?;
    new.settings.validate().map_err(Problem::invalid)?;
    let made = R::make(&app, &caller, &tenant, new)?;
    insert(&app, &caller, &tenant, made).await
}

pub async fn insert<R: Record>(
    app: &App,
    caller: &Caller,
    tenant: &str,
    new: R,
) -> Result<Response, Problem> {
    let change = app.store.change(caller.actor(), now_ms()).await?;
    insert_in(app, change, tenant, new).await
}

/// Inserts a record, commits the change and answers with the record.
pub async fn insert_in<R: Record>(
    app: &App,
    mut change: Change<'_>,
    tenant: &str,
    new: R,
) -> Result<Response, Problem> {
    let stored = change.insert(tenant, new).await?;
    change.commit().await?;
    app.outbox.hint();
    let mut response = record(StatusCode::CREATED, &stored);
    if let Ok(place) = HeaderValue::try_from(stored.record.id()) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

pub async fn replace<R: Managed>(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path((tenant, id)): Path<(String, String)>,
    headers: HeaderMap,
    Body(settings): Body<R::Settings>,
) -> Result<Response, Problem> {
    settings.validate().map_err(Problem::invalid)?;
    let seen = if_match(&headers)?;
    let mut change = app.store.change(caller.actor(), now_ms()).await?;
    let before = change.get::<R>(&tenant, &id).await?;
    matches(seen, &before)?;
    let after = change.update(&before, before.record.clone().with(settings)?).await?;
    change.commit().await?;
    app.outbox.hint();
    Ok(record(StatusCode::OK, &after))
}

pub async fn remove<R: Record>(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path((tenant, id)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let seen = if_match(&headers)?;
    let mut change = app.store.change(caller.actor(), now_ms()).await?;
    let before = change.get::<R>(&tenant, &id).await?;
    matches(seen, &before)?;
    change.remove(&before).await?;
    change.commit().await?;
    app.outbox.hint();
    Ok(StatusCode::NO_CONTENT)
}

impl Managed for Pool {
    type Settings = PoolSettings;

    fn make(
        _: &App,
        caller: &Caller,
        tenant: &str,
        new: New<PoolSettings>,
    ) -> Result<Self, Problem> {
        only_host_shares(caller, tenant, &new.settings)?;
        Ok(Self { id: new.id, settings: new.settings })
    }

    fn with(self, settings: PoolSettings) -> Result<Self, Problem> {
        if settings.tenants != self.settings.tenants {
            let detail = "tenants: whom a pool serves is said when it is made";
            return Err(Problem::conflict(detail));
        }
        Ok(Self { settings, ..self })
    }
}

/// Only the host tenant shares proxies: another tenant could take part in foreign traffic.
fn only_host_shares(caller: &Caller, tenant: &str, settings: &PoolSettings) -> Result<(), Problem> {
    if settings.tenants.is_empty() || caller.host && caller.tenant == tenant {
        return Ok(());
    }
    Err(Problem::forbidden("tenants: only the tenant that runs this controller shares its pools"))
}

impl Managed for Proxy {
    type Settings = ProxySettings;

    fn make(
        app: &App,
        caller: &Caller,
        tenant: &str,
        new: New<ProxySettings>,
    ) -> Result<Self, Problem> {
        root_is_here(app)?;
        not_ours(app, &new.settings.public_key)?;
        let (state, settings) = (ProxyState::Active, new.settings);
        let mut proxy =
            Self { id: new.id, state, statement: None, delegates: Vec::new(), settings };
        let shared = caller.host && caller.tenant == tenant;
        proxy.statement = app.authority.admit_proxy(tenant, shared, &proxy)?;
        Ok(proxy)
    }

    fn with(self, settings: ProxySettings) -> Result<Self, Problem> {
        let same = settings.public_key == self.settings.public_key;
        if !same || settings.role != self.settings.role {
            let detail = "public_key, role: these are for ever; revoke it and make another";
            return Err(Problem::conflict(detail));
        }
        Ok(Self { settings, ..self })
    }
}

impl Managed for Rollout {
    type Settings = RolloutSettings;

    fn make(_: &App, _: &Caller, _: &str, new: New<RolloutSettings>) -> Result<Self, Problem> {
        if !matches!(new.settings.state, RolloutState::Running | RolloutState::Paused) {
            return Err(Problem::invalid("state: a roll-out begins running or paused"));
        }
        let (id, wave, wave_since_ms, why) = (new.id, 0, now_ms(), None);
        Ok(Self { id, wave, wave_since_ms, why, settings: new.settings })
    }

    fn with(self, settings: RolloutSettings) -> Result<Self, Problem> {
        if settings.config != self.settings.config {
            return Err(Problem::conflict("config: make another roll-out for it"));
        }
        let over = matches!(self.settings.state, RolloutState::Done | RolloutState::Aborted);
        if over && settings.state == RolloutState::Running {
            return Err(Problem::conflict("state: it is over; make another roll-out"));
        }
        Ok(Self { settings, ..self })
    }
}
