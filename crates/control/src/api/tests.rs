//! The interface from outside: requests and answers, on a real store.

mod delegates;
mod flows;
mod guarded;
mod resumed;
mod walks;
mod withdrawn;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use roadweave_identity::Identity;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;
use crate::authority::Root;
use crate::clock::now_ms;
use crate::keys;
use crate::model::{
    ApiKey, ApiKeySettings, Person, PersonSettings, Record, Role, Tenant, TenantSettings,
};
use crate::store::Actor;
use crate::store::tests::{World, identity, key, on_both_with, runtime, sqlite};

/// Has the host tenant `home`, `tram` and `ferry`, each with keys whose secret is `TENANT-ROLE`.
pub(crate) struct Api {
    router: Router,
    pub(crate) app: Arc<App>,
    world: World,
}

pub(crate) struct TestResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl TestResponse {
    pub(crate) fn etag(&self) -> String {
        self.headers["etag"].to_str().unwrap().to_owned()
    }
}

pub(crate) struct Ask<'a> {
    api: &'a Api,
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Option<String>,
    remote: IpAddr,
}

impl Api {
    pub(crate) async fn new() -> Self {
        Self::on(sqlite().await).await
    }

    async fn on(world: World) -> Self {
        Self::made(world, Root::Held(identity(8)), None).await
    }

    #[cfg(feature = "oidc")]
    pub(crate) async fn with_issuer(world: World, oidc: Oidc) -> Self {
        Self::made(world, Root::Held(identity(8)), Some(oidc)).await
    }

    #[cfg(feature = "oidc")]
    pub(crate) async fn replica(&self, oidc: Option<Oidc>) -> Self {
        let world = self.world.again().await;
        Self::bare(world, Root::Held(identity(8)), oidc)
    }

    fn bare(world: World, root: Root, oidc: Option<Oidc>) -> Self {
        let addresses = vec!["fleet.example.org:443".to_owned()];
        let authority = Authority::new(identity(7), root, addresses);
        let app = Arc::new(App { oidc, ..App::new(Arc::clone(&world.store), authority) });
        Self { router: router(&app), app, world }
    }

    async fn made(world: World, root: Root, oidc: Option<Oidc>) -> Self {
        let api = Self::bare(world, root, oidc);
        for (tenant, host) in [("home", true), ("tram", false), ("ferry", false)] {
            let prefixes = vec!["10.7.0.0/24".parse().unwrap()];
            let settings = TenantSettings { prefixes, ..TenantSettings::default() };
            api.insert(tenant, Tenant { id: tenant.to_owned(), host, settings }).await;
            for role in ROLES {
                let name = format!("{tenant}-{}", role_name(role));
                let settings =
                    ApiKeySettings { title: String::new(), role, expires_ms: None, device: None };
                let key = ApiKey { id: name.clone(), hash: keys::hash(&name), settings };
                api.insert(tenant, key).await;
            }
        }
        api
    }

    /// Starts the outbox, which sends only changes after its first reading.
    pub(crate) async fn follow(&self) {
        let mut changes = self.app.outbox.listen();
        tokio::spawn(Arc::clone(&self.app.outbox).follow(Arc::clone(&self.app.store)));
        for at in 0.. {
            let pool = json!({ "id": format!("told-{at}"), "settings": {} });
            assert_eq!(self.post_in("ferry", "/pools", pool).status().await, 201);
            if tokio::time::timeout(Duration::from_secs(2), changes.recv()).await.is_ok() {
                return;
            }
        }
    }

    async fn insert<R: Record>(&self, tenant: &str, record: R) {
        let mut change = self.app.store.change(Actor::new("test"), now_ms()).await.unwrap();
        change.insert(tenant, record).await.unwrap();
        change.commit().await.unwrap();
    }

    pub(crate) async fn person(&self, tenant: &str, id: &str, role: Role) {
        let settings = PersonSettings { title: String::new(), role };
        let password = password::hash(PASSWORD);
        let person = Person { id: id.to_owned(), settings, password, subject: None };
        self.insert(tenant, person).await;
    }

    pub(crate) fn ask(&self, method: &str, path: &str) -> Ask<'_> {
        Ask {
            api: self,
            method: method.parse().unwrap(),
            path: format!("/api/v1{path}"),
            headers: Vec::new(),
            body: None,
            remote: "192.0.2.1".parse().unwrap(),
        }
    }

    pub(crate) fn get(&self, path: &str) -> Ask<'_> {
        self.ask("GET", &format!("/tenants/tram{path}")).key("tram-owner")
    }

    fn post(&self, path: &str, body: Value) -> Ask<'_> {
        self.post_in("tram", path, body)
    }

    fn post_in(&self, tenant: &str, path: &str, body: Value) -> Ask<'_> {
        let ask = self.ask("POST", &format!("/tenants/{tenant}{path}"));
        ask.key(&format!("{tenant}-owner")).json(body)
    }

    pub(crate) fn delete(&self, path: &str, etag: &str) -> Ask<'_> {
        let ask = self.ask("DELETE", &format!("/tenants/tram{path}")).key("tram-owner");
        ask.header("if-match", etag)
    }

    async fn create(&self, path: &str, body: Value) -> Value {
        let answer = self.post(path, body).send().await;
        assert_eq!(answer.status, 201, "{path}: {}", answer.body);
        answer.body
    }

    async fn pool(&self, id: &str) {
        self.create("/pools", json!({ "id": id, "settings": {} })).await;
    }

    async fn device(&self, id: &str, seed: u8) {
        self.create("/devices", json!({ "id": id, "public_key": key(seed) })).await;
    }

    async fn revoke(&self, what: &str) -> TestResponse {
        let answer = self.post(&format!("{what}/revoke"), json!({ "reason": "lost" })).send().await;
        assert_eq!(answer.status, 200, "{what}: {}", answer.body);
        answer
    }

    async fn refuses(&self, path: &str, body: Value, status: u16, part: &str) {
        let answer = self.post(path, body).send().await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        let detail = answer.body["detail"].as_str().unwrap();
        assert!(detail.contains(part), "{path}: {detail}");
    }

    pub(crate) fn put(&self, path: &str, etag: &str, body: Value) -> Ask<'_> {
        let ask = self.ask("PUT", &format!("/tenants/tram{path}")).key("tram-owner");
        ask.header("if-match", etag).json(body)
    }

    pub(crate) async fn log_in(&self, tenant: &str, user: &str) -> String {
        let body = json!({ "tenant": tenant, "user": user, "password": PASSWORD });
        let answer = self.ask("POST", "/sessions").json(body).send().await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        let cookie = answer.headers["set-cookie"].to_str().unwrap();
        cookie.split(';').next().unwrap().to_owned()
    }
}

impl Ask<'_> {
    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn key(self, secret: &str) -> Self {
        self.header("authorization", format!("Bearer {secret}"))
    }

    pub(crate) fn json(mut self, body: Value) -> Self {
        self.body = Some(body.to_string());
        self.header("content-type", "application/json")
    }

    pub(crate) fn from(mut self, remote: &str) -> Self {
        self.remote = remote.parse().unwrap();
        self
    }

    async fn response(self) -> Response {
        let mut request = Request::builder().method(self.method).uri(self.path);
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        let body = self.body.map_or_else(Body::empty, Body::from);
        let request = request.extension(RemoteAddress(self.remote)).body(body).unwrap();
        self.api.router.clone().oneshot(request).await.unwrap()
    }

    pub(crate) async fn send(self) -> TestResponse {
        let (parts, body) = self.response().await.into_parts();
        let endless = parts.headers.get("content-type").is_some_and(|it| it == "text/event-stream");
        let body = if endless { Body::empty() } else { body };
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        let answer = TestResponse { status: parts.status.as_u16(), headers: parts.headers, body };
        if parts.status.is_client_error() || parts.status.is_server_error() {
            assert_eq!(answer.headers["content-type"], "application/problem+json");
            assert_eq!(answer.body["status"], answer.status);
            for field in ["type", "title", "detail"] {
                let text = answer.body[field].as_str().unwrap();
                assert!(!text.is_empty(), "{field}: {}", answer.body);
            }
        }
        assert_eq!(answer.headers["cache-control"], "no-store");
        answer
    }

    pub(crate) async fn status(self) -> u16 {
        self.send().await.status
    }
}

fn role_name(role: Role) -> String {
    format!("{role:?}").to_lowercase()
}

const ROLES: [Role; 4] = [Role::Viewer, Role::Crew, Role::Operator, Role::Owner];
pub(crate) const PASSWORD: &str = "correct horse battery";
