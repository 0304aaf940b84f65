//! Tenants.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::answer::{Asked, Body, ListQuery, Query, paged, record};
use crate::api::{App, Caller, Problem, Result};
use crate::clock::now_ms;
use crate::model::{
    ApiKey, Person, PersonSettings, Role, Settings as _, Tenant, TenantSettings, slug,
};
use crate::store::Page;

/// A tenant with its first owner.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTenant {
    /// Its name.
    id: String,
    /// What people write.
    #[serde(default)]
    settings: TenantSettings,
    /// The name of its first owner.
    owner: String,
    /// The owner's password, 12 to 256 characters.
    password: String,
}

pub async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<ListQuery>,
) -> Result<Response> {
    let page = if caller.host && caller.role == Role::Owner {
        app.store.tenants(&query.after()?, query.limit()).await?
    } else {
        let own = app.store.get::<Tenant>(&caller.tenant, &caller.tenant).await?;
        Page { items: vec![own], next: None }
    };
    Ok(paged(&page))
}

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Body(new): Body<NewTenant>,
) -> Result<Response> {
    slug(&new.id).map_err(|why| Problem::invalid(format!("id: {why}")))?;
    slug(&new.owner).map_err(|why| Problem::invalid(format!("owner: {why}")))?;
    new.settings.validate().map_err(Problem::invalid)?;
    let password = app.passwords.hash(&new.password).await?;
    let settings = PersonSettings { title: String::new(), role: Role::Owner };
    let owner = Person { id: new.owner, settings, password, subject: None };
    let mut change = app.store.change(caller.actor(), now_ms()).await?;
    if change.has_log(&new.id).await? {
        // The new owner could read the former tenant's log.
        let detail = "there is or was a tenant of this name, whose audit log stays: take another";
        return Err(Problem::new(409, "taken", detail));
    }
    let tenant = Tenant { id: new.id.clone(), host: false, settings: new.settings };
    let stored = change.insert(&new.id, tenant).await?;
    change.insert(&new.id, owner).await?;
    change.commit().await?;
    app.outbox.hint();
    Ok(record(StatusCode::CREATED, &stored))
}

pub async fn remove(asked: Asked) -> Result<StatusCode> {
    let (mut change, before) = asked.edit::<Tenant>().await?;
    if before.record.host {
        return Err(Problem::conflict("this tenant runs the controller"));
    }
    for person in change.all::<Person>(&asked.tenant).await? {
        change.remove(&person).await?;
    }
    for key in change.all::<ApiKey>(&asked.tenant).await? {
        change.remove(&key).await?;
    }
    asked.remove(change, &before).await
}
