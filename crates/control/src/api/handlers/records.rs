//! Operations that all records share: list, get, create, replace, remove.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::devices::{not_ours, root_is_here};
use crate::api::answer::{Asked, Body, ListQuery, Query, etag, paged, record};
use crate::api::{Problem, Result};
use crate::clock::now_ms;
use crate::model::{
    Device, DeviceSettings, DeviceState, Pool, PoolSettings, Proxy, ProxySettings, ProxyState,
    Record, Rollout, RolloutSettings, RolloutState, Settings, Tenant, TenantSettings, slug,
};
use crate::store::{Change, Filter};

/// A record to be made.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct New<S> {
    /// Its name: 1 to 63 of a-z, 0-9 and "-".
    pub id: String,
    /// What people write.
    pub settings: S,
}

pub trait Managed: Record {
    type Settings: Settings + Serialize;

    fn with(self, asked: &Asked, settings: Self::Settings) -> Result<Self>;
}

pub trait Made: Managed {
    fn make(asked: &Asked, new: New<Self::Settings>) -> Result<Self>;
}

pub async fn list<R: Record>(asked: Asked, Query(query): Query<ListQuery>) -> Result<Response> {
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
    Ok(paged(&asked.app.store.list::<R>(&asked.tenant, &filter).await?))
}

pub async fn one<R: Record>(asked: Asked) -> Result<Response> {
    let stored = asked.app.store.get::<R>(&asked.tenant, &asked.id).await?;
    let tag = etag(stored.version);
    if asked.headers.get(header::IF_NONE_MATCH) == Some(&tag) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response());
    }
    Ok(record(StatusCode::OK, &stored))
}

pub async fn create<R: Made>(asked: Asked, Body(new): Body<New<R::Settings>>) -> Result<Response> {
    slug(&new.id).map_err(|why| Problem::invalid(format!("id: {why}")))?;
    new.settings.validate().map_err(Problem::invalid)?;
    let made = R::make(&asked, new)?;
    insert_in(&asked, asked.change().await?, made).await
}

pub async fn insert_in<R: Record>(asked: &Asked, change: Change<'_>, new: R) -> Result<Response> {
    let stored = asked.insert(change, new).await?;
    let mut response = record(StatusCode::CREATED, &stored);
    if let Ok(place) = HeaderValue::try_from(stored.record.id()) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

pub async fn replace<R: Managed>(
    asked: Asked,
    Body(settings): Body<R::Settings>,
) -> Result<Response> {
    settings.validate().map_err(Problem::invalid)?;
    let (change, before) = asked.edit::<R>().await?;
    let after = before.record.clone().with(&asked, settings)?;
    asked.update(change, &before, after).await
}

pub async fn remove<R: Record>(asked: Asked) -> Result<StatusCode> {
    let (change, before) = asked.edit::<R>().await?;
    asked.remove(change, &before).await
}

impl Managed for Tenant {
    type Settings = TenantSettings;

    fn with(self, _: &Asked, settings: TenantSettings) -> Result<Self> {
        Ok(Self { settings, ..self })
    }
}

/// The tags are in the signed statement, so a change of tags signs a new one.
impl Managed for Device {
    type Settings = DeviceSettings;

    fn with(self, asked: &Asked, settings: DeviceSettings) -> Result<Self> {
        let mut device = Self { settings, ..self };
        let authority = &asked.app.authority;
        if device.state == DeviceState::Active && authority.admits() {
            device.statement = authority.admit_device(&asked.tenant, &device)?;
        }
        Ok(device)
    }
}

impl Managed for Pool {
    type Settings = PoolSettings;

    fn with(self, _: &Asked, settings: PoolSettings) -> Result<Self> {
        if settings.tenants != self.settings.tenants {
            let detail = "tenants: can be set only when the pool is created";
            return Err(Problem::conflict(detail));
        }
        Ok(Self { settings, ..self })
    }
}

impl Made for Pool {
    fn make(asked: &Asked, new: New<PoolSettings>) -> Result<Self> {
        // Only the host tenant shares proxies: another tenant could take part in foreign traffic.
        if !new.settings.tenants.is_empty() && !asked.is_of_host() {
            let detail = "tenants: only the tenant that runs this controller may share its pools";
            return Err(Problem::forbidden(detail));
        }
        Ok(Self { id: new.id, settings: new.settings })
    }
}

impl Managed for Proxy {
    type Settings = ProxySettings;

    fn with(self, _: &Asked, settings: ProxySettings) -> Result<Self> {
        let same = settings.public_key == self.settings.public_key;
        if !same || settings.role != self.settings.role {
            let detail = "public_key, role: cannot be changed; revoke it and create another";
            return Err(Problem::conflict(detail));
        }
        Ok(Self { settings, ..self })
    }
}

impl Made for Proxy {
    fn make(asked: &Asked, new: New<ProxySettings>) -> Result<Self> {
        let Asked { app, tenant, .. } = asked;
        root_is_here(app)?;
        not_ours(app, &new.settings.public_key)?;
        let (state, settings) = (ProxyState::Active, new.settings);
        let mut proxy =
            Self { id: new.id, state, statement: None, delegates: Vec::new(), settings };
        proxy.statement = app.authority.admit_proxy(tenant, asked.is_of_host(), &proxy)?;
        Ok(proxy)
    }
}

impl Made for Rollout {
    fn make(_: &Asked, new: New<RolloutSettings>) -> Result<Self> {
        if !matches!(new.settings.state, RolloutState::Running | RolloutState::Paused) {
            return Err(Problem::invalid("state: a new roll-out is running or paused"));
        }
        let (id, wave, wave_since_ms, why) = (new.id, 0, now_ms(), None);
        Ok(Self { id, wave, wave_since_ms, why, settings: new.settings })
    }
}

impl Managed for Rollout {
    type Settings = RolloutSettings;

    fn with(self, _: &Asked, settings: RolloutSettings) -> Result<Self> {
        if settings.config != self.settings.config {
            return Err(Problem::conflict("config: create another roll-out for it"));
        }
        let over = matches!(self.settings.state, RolloutState::Done | RolloutState::Aborted);
        if over && settings.state == RolloutState::Running {
            return Err(Problem::conflict("state: the roll-out has ended; create another one"));
        }
        Ok(Self { settings, ..self })
    }
}
