//! Logging in and out: with a password, or at the issuer by a redirect there and the return.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::api::answer::{Body, Query};
use crate::api::guard::{COOKIE, cookie, of_person};
use crate::api::{App, Caller, Problem, Result};
use crate::clock::{HOUR_MS, now_ms};
use crate::keys;
use crate::model::{Login, Person, PersonSettings, Role};
use crate::oidc::{Oidc, OidcError, Pending, SignedIn};
use crate::store::{Actor, IdempotencyState, Once, Stored, audit, found};

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

/// The caller.
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
        return Err(wrong_password());
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
        tracing::info!(tenant = wanted.tenant, user = wanted.user, "wrong password");
        return Err(wrong_password());
    }
    begin_session(&app, &person.ok_or_else(wrong_password)?).await
}

async fn begin_session(app: &App, person: &Stored<Person>) -> Result<Response> {
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
        return Err(Problem::conflict("an API key has no login to end; delete the key instead"));
    };
    let mut change = app.store.change(caller.actor(), now_ms()).await?;
    let login = change.find::<Login>("hash", hash).await?;
    change.remove(&login).await?;
    change.commit().await?;
    let cookie = format!("{COOKIE}=; {ATTRIBUTES}; Max-Age=0");
    Ok(with_cookie(StatusCode::NO_CONTENT.into_response(), &cookie))
}

fn with_cookie(mut response: Response, cookie: &str) -> Response {
    if let Ok(value) = HeaderValue::try_from(cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
    response
}

fn wrong_password() -> Problem {
    Problem::new(401, "wrong-password", "wrong tenant, name or password")
}

const LOGIN_MS: i64 = 12 * HOUR_MS;
const ATTRIBUTES: &str = "Path=/; Secure; HttpOnly; SameSite=Strict";

/// A request to sign in.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub struct BeginSignIn {
    /// The port of the person's own machine at which a program waits for the code, 1024 at least;
    /// absent in a browser, which comes back to the controller.
    loopback_port: Option<u16>,
}

/// Where to sign in.
#[derive(Deserialize, Serialize, ToSchema)]
pub struct SignIn {
    /// The issuer's page. The cookie of this answer must come back with what it hands out.
    url: String,
}

/// The issuer's answer to a program.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Code {
    /// The code.
    code: String,
    /// The state beside it.
    state: String,
}

#[derive(Deserialize)]
pub struct Returned {
    code: Option<String>,
    state: Option<String>,
    error: Option<String>,
}

pub async fn begin(
    State(app): State<Arc<App>>,
    Body(wanted): Body<BeginSignIn>,
) -> Result<Response> {
    let oidc = issuer(&app)?;
    if wanted.loopback_port.is_some_and(|port| port < 1024) {
        return Err(Problem::invalid("loopback_port: 1024 at least"));
    }
    let begun = oidc.begin(wanted.loopback_port).await;
    let (url, pending) = begun.map_err(|error| problem(&app, error))?;
    let text = serde_json::to_string(&pending).unwrap_or_default();
    let sealed = app.store.keys.encrypt(CONTEXT, &text);
    // `SameSite=Lax`, as the issuer redirects. Foreign pages gain nothing without its `state`.
    let cookie = format!("{SIGN_IN_COOKIE}={sealed}; {SIGN_IN_ATTRIBUTES}; Max-Age=600");
    Ok(with_cookie((StatusCode::CREATED, Json(SignIn { url })).into_response(), &cookie))
}

pub async fn callback(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Query(said): Query<Returned>,
) -> Result<Response> {
    let (Some(code), Some(state)) = (said.code, said.state) else {
        let why = said.error.unwrap_or_else(|| "the answer has no code".to_owned());
        let why: String = why.chars().filter(char::is_ascii_graphic).take(60).collect();
        return Err(refused(&app, &format!("the issuer says: {why}")));
    };
    let mut response = finish(&app, &headers, false, &code, &state).await?;
    // A fixed target: a `next` in the query is ignored.
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/"));
    Ok(response)
}

pub async fn redeem(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Body(said): Body<Code>,
) -> Result<Response> {
    finish(&app, &headers, true, &said.code, &said.state).await
}

async fn finish(
    app: &App,
    headers: &HeaderMap,
    is_program: bool,
    code: &str,
    state: &str,
) -> Result<Response> {
    let oidc = issuer(app)?;
    let begun_here = cookie(headers, SIGN_IN_COOKIE)
        .and_then(|sealed| app.store.keys.decrypt(CONTEXT, sealed))
        .and_then(|text| serde_json::from_str::<Pending>(&text).ok())
        .filter(|pending| pending.is_program() == is_program && pending.is_of(state));
    let pending = begun_here.ok_or_else(|| {
        refused(app, "the sign-in was not started here, or more than 10 minutes ago; sign in again")
    })?;
    once(app, oidc, &pending).await?;
    let who = oidc.finish(pending, code).await.map_err(|error| problem(app, error))?;
    let person = admit(app, oidc, &who).await?;
    let response = begin_session(app, &person).await?;
    Ok(with_cookie(response, &format!("{SIGN_IN_COOKIE}=; {SIGN_IN_ATTRIBUTES}; Max-Age=0")))
}

/// Refuses a state that was used before, at any replica.
async fn once(app: &App, oidc: &Oidc, pending: &Pending) -> Result<()> {
    let (tenant, actor) = (oidc.tenant().to_owned(), "sign-in".to_owned());
    let it = Once { tenant, actor, key: keys::hash(&pending.state), at_ms: now_ms() };
    match it.note(&app.store, "").await? {
        IdempotencyState::New => Ok(it.store_answer(&app.store, Some("used")).await?),
        _ => Err(refused(app, "the code was used before; sign in again")),
    }
}

/// Creates or updates the person by the claims; without a role removes person and sessions.
async fn admit(app: &App, oidc: &Oidc, who: &SignedIn) -> Result<Stored<Person>> {
    let (tenant, id) = (oidc.tenant(), who.id());
    let actor = Actor::new(format!("{tenant}/person:{id}"));
    let mut change = app.store.change(actor, now_ms()).await?;
    let before = found(change.get::<Person>(tenant, &id).await)?;
    if before.as_ref().is_some_and(|it| it.record.subject.as_deref() != Some(&*who.subject)) {
        return Err(Problem::conflict("another user has this name"));
    }
    let role = match who.role {
        Ok(role) => role,
        Err(why) => {
            let after = json!({ "subject": who.subject, "title": who.title, "why": why });
            let about = (&Value::Null, &after);
            audit::append(&mut change, tenant, "refuse", ("sign-in", &id), about).await?;
            if let Some(before) = &before {
                change.remove(before).await?;
            }
            change.commit().await?;
            return Err(refused(app, why));
        }
    };
    let settings = PersonSettings { title: who.title.clone(), role };
    let subject = Some(who.subject.clone());
    let person = Person { id, settings, password: String::new(), subject };
    let stored = match before {
        Some(before) if before.record == person => before,
        Some(before) => change.update(&before, person).await?,
        None => change.insert(tenant, person).await?,
    };
    change.commit().await?;
    Ok(stored)
}

fn issuer(app: &App) -> Result<&Oidc> {
    let none = || Problem::not_found("OpenID Connect is not configured: [oidc] is not set");
    app.oidc.as_ref().ok_or_else(none)
}

fn refused(app: &App, why: &str) -> Problem {
    app.metrics.refuse("sign-in");
    tracing::info!(why, "sign-in refused");
    Problem::new(401, "sign-in", why.to_owned())
}

fn problem(app: &App, error: OidcError) -> Problem {
    app.metrics.refuse("sign-in");
    match error {
        OidcError::Busy => Problem::new(503, "busy", "too many sign-ins at once; try again"),
        OidcError::Issuer(why) => {
            tracing::warn!(why, "cannot reach the issuer; passwords still work");
            Problem::new(502, "issuer", "the issuer gave an invalid answer; try again later")
        }
        error => {
            tracing::info!(%error, "sign-in refused");
            Problem::new(401, "sign-in", "the issuer's answer is invalid; sign in again")
        }
    }
}

const SIGN_IN_COOKIE: &str = "__Host-roadweave-sign-in";
const SIGN_IN_ATTRIBUTES: &str = "Path=/; Secure; HttpOnly; SameSite=Lax";
const CONTEXT: &str = "sign in";
