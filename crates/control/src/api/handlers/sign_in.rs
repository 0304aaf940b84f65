//! Signing in at the issuer: the redirect there, and the return.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::sessions::{begin_session, with_cookie};
use crate::api::answer::{Body, Query};
use crate::api::guard::cookie;
use crate::api::{App, Problem, Result};
use crate::clock::now_ms;
use crate::keys;
use crate::model::{Person, PersonSettings};
use crate::oidc::{Oidc, OidcError, Pending, SignedIn};
use crate::store::{Actor, KeptAnswer, Once, Stored, found};

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

/// What the issuer has handed to a program.
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
    // `SameSite=Lax`, since the redirect comes from the issuer's site. A foreign page gains
    // nothing: the cookie counts only with its `state`.
    let cookie = format!("{COOKIE}={sealed}; {ATTRIBUTES}; Max-Age=600");
    Ok(with_cookie((StatusCode::CREATED, Json(SignIn { url })).into_response(), &cookie))
}

pub async fn callback(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Query(said): Query<Returned>,
) -> Result<Response> {
    let (Some(code), Some(state)) = (said.code, said.state) else {
        let why = said.error.unwrap_or_else(|| "it hands out no code".to_owned());
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
    let begun_here = cookie(headers, COOKIE)
        .and_then(|sealed| app.store.keys.decrypt(CONTEXT, sealed))
        .and_then(|text| serde_json::from_str::<Pending>(&text).ok())
        .filter(|pending| pending.is_program() == is_program && pending.is_of(state));
    let pending = begun_here.ok_or_else(|| {
        refused(app, "it was not begun here, or more than 10 minutes ago; sign in again")
    })?;
    once(app, oidc, &pending).await?;
    let who = oidc.finish(pending, code).await.map_err(|error| problem(app, error))?;
    let person = admit(app, oidc, &who).await?;
    let response = begin_session(app, &person).await?;
    Ok(with_cookie(response, &format!("{COOKIE}=; {ATTRIBUTES}; Max-Age=0")))
}

/// Refuses a state that was used before, at any replica.
async fn once(app: &App, oidc: &Oidc, pending: &Pending) -> Result<()> {
    let (tenant, actor) = (oidc.tenant().to_owned(), "sign-in".to_owned());
    let it = Once { tenant, actor, key: keys::hash(&pending.state), at_ms: now_ms() };
    match app.store.note_request(&it, "").await? {
        KeptAnswer::New => Ok(app.store.keep_answer(&it, Some("used")).await?),
        _ => Err(refused(app, "it was used before; sign in again")),
    }
}

/// Creates or updates the person by the issuer's claims. Without a role the person and their
/// sessions are removed.
async fn admit(app: &App, oidc: &Oidc, who: &SignedIn) -> Result<Stored<Person>> {
    let (tenant, id) = (oidc.tenant(), who.id());
    let actor = Actor::new(format!("{tenant}/person:{id}"));
    let mut change = app.store.change(actor, now_ms()).await?;
    let before = found(change.get::<Person>(tenant, &id).await)?;
    if before.as_ref().is_some_and(|it| it.record.subject.as_deref() != Some(&*who.subject)) {
        return Err(Problem::conflict("there is another user of this name"));
    }
    let role = match who.role {
        Ok(role) => role,
        Err(why) => {
            let after = json!({ "subject": who.subject, "title": who.title, "why": why });
            let about = (&Value::Null, &after);
            change.audit(tenant, "refuse", ("sign-in", &id), about).await?;
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
    let none = || Problem::not_found("nobody signs in by OpenID Connect here: [oidc] is not set");
    app.oidc.as_ref().ok_or_else(none)
}

fn refused(app: &App, why: &str) -> Problem {
    app.metrics.refuse("sign-in");
    tracing::info!(why, "somebody may not sign in");
    Problem::new(401, "sign-in", why.to_owned())
}

fn problem(app: &App, error: OidcError) -> Problem {
    app.metrics.refuse("sign-in");
    match error {
        OidcError::Busy => Problem::new(503, "busy", "too many sign in at once; try again"),
        OidcError::Issuer(why) => {
            tracing::warn!(why, "the issuer cannot be asked; passwords still count");
            Problem::new(502, "issuer", "the issuer does not answer as it should; try again later")
        }
        error => {
            tracing::info!(%error, "somebody may not sign in");
            Problem::new(401, "sign-in", "what the issuer says of you does not hold; sign in again")
        }
    }
}

const COOKIE: &str = "__Host-roadweave-sign-in";
const ATTRIBUTES: &str = "Path=/; Secure; HttpOnly; SameSite=Lax";
const CONTEXT: &str = "sign in";
