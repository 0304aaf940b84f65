//! Logging in and out.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::answer::Body;
use crate::api::guard::{COOKIE, of_person};
use crate::api::{App, Caller, Problem, Result};
use crate::clock::{HOUR_MS, now_ms};
use crate::keys;
use crate::model::{Login, Person, Role};
use crate::store::{Actor, Stored, found};

/// A login.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LogIn {
    /// The tenant.
    tenant: String,
    /// The name.
    user: String,
    /// The password.
    password: String,
}

/// Who asks.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// The tenant.
    tenant: String,
    /// `person:NAME` or `key:NAME`.
    name: String,
    /// What the caller may do.
    role: Role,
    /// Whether the tenant runs this controller.
    host: bool,
    /// The one box that the caller may see.
    device: Option<String>,
}

pub async fn log_in(State(app): State<Arc<App>>, Body(wanted): Body<LogIn>) -> Result<Response> {
    let name = format!("{}/{}", wanted.tenant, wanted.user);
    if wanted.tenant.len() > 64 || wanted.user.len() > 64 {
        return Err(refused());
    }
    if !app.limits.names.take(name, Instant::now()) {
        app.metrics.refuse("login-rate");
        return Err(Problem::too_often());
    }
    let person = found(app.store.get::<Person>(&wanted.tenant, &wanted.user).await)?;
    // People of an issuer have no password here.
    let hash = person.as_ref().map(|it| it.record.password.clone());
    let hash = hash.filter(|hash| !hash.is_empty());
    if !app.passwords.verify(&wanted.password, hash).await? {
        app.metrics.refuse("password");
        tracing::info!(tenant = wanted.tenant, user = wanted.user, "a password did not fit");
        return Err(refused());
    }
    begin_session(&app, &person.ok_or_else(refused)?).await
}

pub(super) async fn begin_session(app: &App, person: &Stored<Person>) -> Result<Response> {
    let secret = keys::secret();
    let login = Login {
        id: keys::identifier(),
        hash: keys::hash(&secret),
        person: person.record.id.clone(),
        expires_ms: now_ms() + LOGIN_MS,
    };
    let actor = Actor::new(format!("{}/person:{}", person.tenant, person.record.id));
    let mut change = app.store.change(actor, now_ms()).await?;
    let hash = login.hash.clone();
    change.insert(&person.tenant, login).await?;
    change.commit().await?;
    app.limits.secrets.add(hash);
    let session = session(of_person(app, person).await?);
    let seconds = LOGIN_MS / 1000;
    let cookie = format!("{COOKIE}={secret}; {ATTRIBUTES}; Max-Age={seconds}");
    Ok(with_cookie((StatusCode::CREATED, Json(session)).into_response(), &cookie))
}

fn session(Caller { tenant, name, role, host, device, .. }: Caller) -> Session {
    Session { tenant, name, role, host, device }
}

pub async fn current(Extension(caller): Extension<Caller>) -> Json<Session> {
    Json(session(caller))
}

pub async fn log_out(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response> {
    let Some(hash) = &caller.login else {
        return Err(Problem::conflict("an API key is not logged in; delete it instead"));
    };
    let mut change = app.store.change(caller.actor(), now_ms()).await?;
    let login = change.find::<Login>("hash", hash).await?;
    change.remove(&login).await?;
    change.commit().await?;
    let cookie = format!("{COOKIE}=; {ATTRIBUTES}; Max-Age=0");
    Ok(with_cookie(StatusCode::NO_CONTENT.into_response(), &cookie))
}

pub(super) fn with_cookie(mut response: Response, cookie: &str) -> Response {
    if let Ok(value) = HeaderValue::try_from(cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
    response
}

/// The answer to a failed sign-in: equal for a wrong name and a wrong password.
fn refused() -> Problem {
    Problem::new(401, "wrong-password", "tenant, name and password do not belong together")
}

const LOGIN_MS: i64 = 12 * HOUR_MS;
const ATTRIBUTES: &str = "Path=/; Secure; HttpOnly; SameSite=Strict";
