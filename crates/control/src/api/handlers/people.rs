//! People, API keys, and tenants.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::records::insert_in;
use crate::api::answer::{Asked, Body, ListQuery, Query, paged, record, shown};
use crate::api::{App, Caller, Problem, Result};
use crate::clock::now_ms;
use crate::keys;
use crate::model::{
    ApiKey, ApiKeySettings, Person, PersonSettings, Role, Settings as _, Tenant, TenantSettings,
    slug,
};
use crate::store::{Filter, Page, Stored, audit};

/// A new person.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPerson {
    /// The name to log in by.
    id: String,
    /// The password, 12 to 256 characters.
    password: String,
    /// What people write.
    settings: PersonSettings,
}

/// A new password for a person.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPassword {
    /// The password, 12 to 256 characters.
    password: String,
}

/// A new API key.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewApiKey {
    /// Its name.
    id: String,
    /// What people write.
    settings: ApiKeySettings,
}

/// An API key that was made.
#[derive(Deserialize, Serialize, ToSchema)]
pub struct MadeApiKey {
    /// The secret, which is shown only once.
    secret: String,
    /// The key.
    #[schema(value_type = ApiKey)]
    key: Value,
}

pub async fn create(asked: Asked, Body(new): Body<NewPerson>) -> Result<Response> {
    slug(&new.id).map_err(|why| Problem::invalid(format!("id: {why}")))?;
    new.settings.validate().map_err(Problem::invalid)?;
    let password = asked.app.passwords.hash(&new.password).await?;
    let person = Person { id: new.id, settings: new.settings, password, subject: None };
    insert_in(&asked, asked.change().await?, person).await
}

pub async fn replace(asked: Asked, Body(settings): Body<PersonSettings>) -> Result<Response> {
    settings.validate().map_err(Problem::invalid)?;
    let (change, before) = asked.edit::<Person>().await?;
    is_ours(&before)?;
    if settings.role != Role::Owner {
        not_the_last_owner(&asked.app, &before).await?;
    }
    asked.update(change, &before, Person { settings, ..before.record.clone() }).await
}

pub async fn remove(asked: Asked) -> Result<StatusCode> {
    let (change, before) = asked.edit::<Person>().await?;
    not_the_last_owner(&asked.app, &before).await?;
    asked.remove(change, &before).await
}

fn is_ours(person: &Stored<Person>) -> Result<()> {
    match person.record.subject {
        None => Ok(()),
        Some(_) => Err(Problem::conflict(
            "the role of this user comes from their OpenID Connect issuer: change it there",
        )),
    }
}

/// Keeps an owner with a password for when the issuer is away. The caller holds the change lock.
async fn not_the_last_owner(app: &App, person: &Stored<Person>) -> Result<()> {
    if person.record.settings.role != Role::Owner || person.record.subject.is_some() {
        return Ok(());
    }
    let filter = Filter { limit: 10_000, ..Filter::default() };
    let all = app.store.list::<Person>(&person.tenant, &filter).await?.items;
    let others = all.iter().filter(|it| it.record.id != person.record.id);
    let is_owner = |it: &Person| it.settings.role == Role::Owner && it.subject.is_none();
    match others.filter(|it| is_owner(&it.record)).count() {
        0 => Err(Problem::conflict("this is the last owner; add another one first")),
        _ => Ok(()),
    }
}

pub async fn set_password(asked: Asked, Body(new): Body<NewPassword>) -> Result<StatusCode> {
    let password = asked.app.passwords.hash(&new.password).await?;
    let (mut change, before) = asked.open::<Person>().await?;
    is_ours(&before)?;
    change.update(&before, Person { password, ..before.record.clone() }).await?;
    change.end_logins(&asked.tenant, &asked.id).await?;
    asked.commit(change).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub async fn create_key(asked: Asked, Body(new): Body<NewApiKey>) -> Result<Response> {
    slug(&new.id).map_err(|why| Problem::invalid(format!("id: {why}")))?;
    new.settings.validate().map_err(Problem::invalid)?;
    let secret = format!("rwk_{}", keys::secret());
    let key = ApiKey { id: new.id, hash: keys::hash(&secret), settings: new.settings };
    let stored = asked.insert(asked.change().await?, key).await?;
    let made = MadeApiKey { secret, key: shown(&stored) };
    Ok((StatusCode::CREATED, Json(made)).into_response())
}

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

pub async fn list_tenants(
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

pub async fn create_tenant(
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
    if audit::has_log(&mut change, &new.id).await? {
        // The new owner could read the former tenant's log.
        let detail = "the name is or was another tenant's, whose audit log is kept: choose another";
        return Err(Problem::new(409, "taken", detail));
    }
    let tenant = Tenant { id: new.id.clone(), host: false, settings: new.settings };
    let stored = change.insert(&new.id, tenant).await?;
    change.insert(&new.id, owner).await?;
    change.commit().await?;
    app.outbox.hint();
    Ok(record(StatusCode::CREATED, &stored))
}

pub async fn remove_tenant(asked: Asked) -> Result<StatusCode> {
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
