//! Runs before every handler: checks caller, tenant, role and rates, and bounds the time.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{DefaultBodyLimit, RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodRouter;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::route::{Needs, Route};
use super::{App, Problem, RemoteAddress, Result};
use crate::clock::now_ms;
use crate::connection_limits::{WebPlace, network};
use crate::keys;
use crate::model::{ApiKey, Login, Person, Role, Tenant};
use crate::store::{Actor, IdempotencyState, Once, Store, StoreError, Stored};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub tenant: String,
    pub name: String,
    pub role: Role,
    pub host: bool,
    pub device: Option<String>,
    /// The hash of the login's secret, if the caller is logged in.
    pub login: Option<String>,
    pub once: Option<Once>,
}

impl Caller {
    pub fn actor(&self) -> Actor {
        Actor { name: format!("{}/{}", self.tenant, self.name), once: self.once.clone() }
    }

    /// 404 for another tenant, as for a missing one; else 403.
    pub fn may(&self, tenant: &str, role: Role) -> Result<()> {
        let at_home = self.tenant == tenant;
        let as_host = self.host && self.role == Role::Owner;
        if !(at_home || as_host) {
            return Err(Problem::not_found(format!("there is no tenant \"{tenant}\"")));
        }
        if self.role < role {
            let detail = format!("this needs the role {role:?}, and yours is {:?}", self.role);
            return Err(Problem::forbidden(detail.to_lowercase()));
        }
        Ok(())
    }
}

#[derive(Clone)]
struct Guard {
    app: Arc<App>,
    name: &'static str,
    needs: Needs,
}

pub(super) fn guarded(app: &Arc<App>, route: Route) -> MethodRouter {
    let guard = Guard { app: Arc::clone(app), name: route.name, needs: route.needs };
    route
        .handler
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(from_fn_with_state(guard, watch))
        .with_state(Arc::clone(app))
}

async fn watch(
    State(guard): State<Guard>,
    params: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
    next: Next,
) -> Response {
    let begun = Instant::now();
    let work = admit(&guard, params.ok(), request, next);
    let late =
        || Problem::new(504, "late", "the request took too long; check whether it took effect");
    let response = match tokio::time::timeout(DEADLINE, work).await {
        Ok(Ok(response)) => response,
        Ok(Err(problem)) => problem.into_response(),
        Err(_) => late().into_response(),
    };
    let seconds = begun.elapsed().as_secs_f64();
    guard.app.metrics.answered(guard.name, response.status().as_u16(), seconds);
    response
}

async fn admit(
    guard: &Guard,
    params: Option<RawPathParams>,
    mut request: Request,
    next: Next,
) -> Result<Response> {
    let app = &guard.app;
    let remote = request.extensions().get::<RemoteAddress>().map(|remote| network(remote.0));
    let remote = remote
        .ok_or_else(|| Problem::new(500, "internal", "the address of the peer is unknown"))?;
    let fit = |all: &RawPathParams| all.iter().all(|(_, it)| (1..=128).contains(&it.len()));
    let params = params.filter(fit).ok_or_else(Problem::nothing)?;
    if guard.needs == Needs::Password && !app.limits.logins.take(remote, Instant::now()) {
        app.metrics.refuse("login-rate");
        return Err(Problem::too_often());
    }
    if matches!(guard.needs, Needs::Nothing | Needs::Password) {
        return Ok(next.run(request).await);
    }
    let secret = secret(request.headers());
    let caller = match known(app, remote, secret).await {
        Err(problem) if problem.status == 429 => {
            app.metrics.refuse("stranger-rate");
            return Err(problem);
        }
        caller => caller?,
    };
    let place = request.extensions().get::<Arc<WebPlace>>();
    if !place.is_none_or(|place| place.admit()) {
        app.metrics.refuse("connections-of-web");
        return Err(Problem::new(503, "busy", "the limit of connections is reached"));
    }
    let key = format!("{}/{}", caller.tenant, caller.name);
    if !app.limits.callers.take(key, Instant::now()) {
        app.metrics.refuse("caller-rate");
        return Err(Problem::too_often());
    }
    let param = |name| params.iter().find(|(key, _)| *key == name).map(|(_, value)| value);
    match guard.needs {
        Needs::Role(role) => caller.may(param("tenant").unwrap_or(&caller.tenant), role)?,
        Needs::Host(role) if !caller.host || caller.role < role => {
            return Err(Problem::forbidden("only owners of the tenant that runs this controller"));
        }
        _ => {}
    }
    if let Some(device) = &caller.device
        && guard.needs != Needs::Authenticated
        && param("device") != Some(&**device)
    {
        return Err(Problem::forbidden("this key is for one box only"));
    }
    if caller.login.is_some() && is_foreign(&request) {
        app.metrics.refuse("cross-site");
        return Err(Problem::forbidden("a page of another site sent this request"));
    }
    request.extensions_mut().insert(caller.clone());
    let once = request.headers().get("idempotency-key").cloned();
    match once.filter(|_| request.method() == Method::POST) {
        Some(key) => once_only(app, caller, &key, request, next).await,
        None => Ok(next.run(request).await),
    }
}

/// Whether a page of another site sends a changing request, by `Sec-Fetch-Site`.
fn is_foreign(request: &Request) -> bool {
    let changes = !request.method().is_safe();
    let site = request.headers().get("sec-fetch-site").and_then(|it| it.to_str().ok());
    changes && site.is_some_and(|site| site != "same-origin")
}

enum Secret {
    Key,
    Login,
}

fn secret(headers: &HeaderMap) -> Option<(Secret, String)> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|it| it.to_str().ok());
    let key = bearer.and_then(|it| it.strip_prefix("Bearer ")).map(|it| (Secret::Key, it));
    let secret = key.or_else(|| cookie(headers, COOKIE).map(|it| (Secret::Login, it)));
    secret.map(|(kind, it)| (kind, keys::hash(it)))
}

/// Authenticates the secret. Beyond an address's guesses only recently valid ones are looked up.
async fn known(app: &App, remote: IpAddr, secret: Option<(Secret, String)>) -> Result<Caller> {
    let (limits, now) = (&app.limits, Instant::now());
    let (kind, hash) = secret.unzip();
    let hash = hash.unwrap_or_default();
    if !limits.secrets.has(&hash) && limits.strangers.is_spent(&remote, now) {
        return Err(Problem::too_often());
    }
    let caller = match kind {
        Some(Secret::Key) => with_key(app, &hash).await,
        Some(Secret::Login) => with_login(app, &hash).await,
        None => Err(Problem::unknown()),
    };
    match &caller {
        Ok(_) => limits.secrets.add(hash),
        Err(problem) if problem.status == 401 => {
            limits.secrets.remove(&hash);
            if !limits.strangers.take(remote, now) {
                return Err(Problem::too_often());
            }
        }
        Err(_) => {}
    }
    caller
}

async fn with_login(app: &App, hash: &str) -> Result<Caller> {
    let login = app.store.find::<Login>("hash", hash).await.map_err(unknown)?;
    if login.record.expires_ms <= now_ms() {
        return Err(Problem::unknown());
    }
    let person = app.store.get::<Person>(&login.tenant, &login.record.person).await;
    let person = person.map_err(unknown)?;
    let vouched = |subject: &String| {
        app.oidc.as_ref().is_some_and(|oidc| oidc.vouches_for(&login.tenant, subject))
    };
    if !person.record.subject.as_ref().is_none_or(vouched) {
        return Err(Problem::unknown());
    }
    Ok(Caller { login: Some(login.record.hash), ..of_person(app, &person).await? })
}

pub(super) async fn of_person(app: &App, person: &Stored<Person>) -> Result<Caller> {
    let (name, role) = (format!("person:{}", person.record.id), person.record.settings.role);
    caller(app, person.tenant.clone(), name, role).await
}

async fn with_key(app: &App, hash: &str) -> Result<Caller> {
    let key = app.store.find::<ApiKey>("hash", hash).await.map_err(unknown)?;
    let settings = key.record.settings;
    if settings.expires_ms.is_some_and(|at| at <= now_ms()) {
        return Err(Problem::unknown());
    }
    let caller = caller(app, key.tenant, format!("key:{}", key.record.id), settings.role).await?;
    Ok(Caller { device: settings.device, ..caller })
}

async fn caller(app: &App, tenant: String, name: String, role: Role) -> Result<Caller> {
    let host = app.store.get::<Tenant>(&tenant, &tenant).await.map_err(unknown)?.record.host;
    Ok(Caller { tenant, name, role, host, device: None, login: None, once: None })
}

fn unknown(error: StoreError) -> Problem {
    match error {
        StoreError::NotFound { .. } => Problem::unknown(),
        error => error.into(),
    }
}

#[derive(Serialize, Deserialize)]
struct StoredAnswer {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

/// Acts once for each idempotency key, and repeats the stored answer.
async fn once_only(
    app: &App,
    caller: Caller,
    key: &HeaderValue,
    request: Request,
    next: Next,
) -> Result<Response> {
    let bad = || Problem::new(400, "idempotency-key", "1 to 128 visible characters");
    let key = key.to_str().ok().filter(|key| (1..=128).contains(&key.len())).ok_or_else(bad)?;
    let (parts, body) = request.into_parts();
    let too_large = |_| Problem::new(413, "too-large", format!("at most {BODY_MAX} bytes"));
    let body = to_bytes(body, BODY_MAX).await.map_err(too_large)?;
    let text = format!("{} {} {}", parts.method, parts.uri, URL_SAFE_NO_PAD.encode(&body));
    let fingerprint = keys::hash(&text);
    let (tenant, actor) = (caller.tenant.clone(), caller.name.clone());
    let once = Once { tenant, actor, key: key.to_owned(), at_ms: now_ms() };
    let mut request = Request::from_parts(parts, Body::from(body));
    request.extensions_mut().insert(Caller { once: Some(once.clone()), ..caller });
    // Runs to its end even if the caller disconnects or the request times out.
    let acting = tokio::spawn(act(Arc::clone(&app.store), once, fingerprint, request, next));
    let broken = |_| Problem::new(500, "internal", "the controller's log has the details");
    acting.await.map_err(broken)?
}

async fn act(
    store: Arc<Store>,
    once: Once,
    fingerprint: String,
    request: Request,
    next: Next,
) -> Result<Response> {
    match once.note(&store, &fingerprint).await? {
        IdempotencyState::New => {}
        IdempotencyState::UnderWay => {
            return Err(Problem::conflict("a request with this Idempotency-Key is still running"));
        }
        IdempotencyState::OtherRequest => {
            return Err(Problem::invalid("this Idempotency-Key was used for another request"));
        }
        IdempotencyState::Acted => {
            let detail = "the request was carried out, but its answer is lost: check its effect";
            return Err(Problem::conflict(detail));
        }
        IdempotencyState::Answered(text) => return repeated(&text),
    }
    let (parts, body) = next.run(request).await.into_parts();
    let body = to_bytes(body, ANSWER_MAX).await.unwrap_or_default();
    let stored = parts.status.is_success().then(|| encode_answer(&parts, &body));
    if let Err(error) = once.store_answer(&store, stored.as_deref()).await {
        tracing::warn!(%error, "cannot store an answer for repeated requests");
    }
    Ok(Response::from_parts(parts, Body::from(body)))
}

fn encode_answer(parts: &axum::http::response::Parts, body: &Bytes) -> String {
    let of = |name: &header::HeaderName| {
        let value = parts.headers.get(name)?.to_str().ok()?;
        Some((name.to_string(), value.to_owned()))
    };
    let headers = [header::CONTENT_TYPE, header::ETAG, header::LOCATION].iter().filter_map(of);
    let stored = StoredAnswer {
        status: parts.status.as_u16(),
        headers: headers.collect(),
        body: String::from_utf8_lossy(body).into_owned(),
    };
    serde_json::to_string(&stored).unwrap_or_default()
}

fn repeated(text: &str) -> Result<Response> {
    let broken = || Problem::new(500, "altered", "cannot read the stored answer");
    let stored: StoredAnswer = serde_json::from_str(text).map_err(|_| broken())?;
    let status = StatusCode::from_u16(stored.status).map_err(|_| broken())?;
    let mut response = (status, stored.body).into_response();
    for (name, value) in stored.headers {
        let name = header::HeaderName::try_from(name).map_err(|_| broken())?;
        response.headers_mut().insert(name, value.parse().map_err(|_| broken())?);
    }
    response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
    Ok(response)
}

pub(super) const BODY_MAX: usize = 64 * 1024;
const ANSWER_MAX: usize = 256 * 1024;
const DEADLINE: Duration = Duration::from_secs(15);

/// The prefix makes browsers accept it from this host over HTTPS alone.
pub(super) const COOKIE: &str = "__Host-roadweave";

pub(super) fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|it| it.to_str().ok());
    let mut each = cookies.flat_map(|line| line.split(';')).map(str::trim);
    each.find_map(|one| one.strip_prefix(name)?.strip_prefix('='))
}
