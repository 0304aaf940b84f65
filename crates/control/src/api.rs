//! The REST interface, `/api/v1`.
//!
//! ```text
//! request ─► guard: address, caller, tenant, role, idempotency, deadline ─► handler ─► store
//!              ▲
//!            routes, the one table of operations and permissions ─► openapi, tests
//! ```
//!
//! Start reading at [`routes`], the source of router, OpenAPI document, roles and tests of routes.

pub mod answer;
mod guard;
mod handlers;
pub mod limit;
pub mod openapi;
pub mod password;
pub mod problem;
pub mod route;
pub mod routes;

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::{HeaderValue, header};
use axum::response::Response;
use axum::{Extension, Router};

pub use guard::Caller;
pub use problem::{Problem, Result};

use crate::authority::Authority;
use crate::metrics::Metrics;
use crate::oidc::Oidc;
use crate::outbox::Outbox;
use crate::store::Store;
use limit::{RateLimits, Watchers};
use password::Passwords;

pub struct App {
    pub store: Arc<Store>,
    pub authority: Arc<Authority>,
    pub outbox: Arc<Outbox>,
    pub limits: RateLimits,
    pub passwords: Passwords,
    pub metrics: Arc<Metrics>,
    pub watchers: Watchers,
    pub oidc: Option<Oidc>,
}

#[derive(Clone, Copy, Debug)]
pub struct RemoteAddress(pub IpAddr);

impl App {
    pub fn new(store: Arc<Store>, authority: Authority) -> Self {
        Self {
            store,
            authority: Arc::new(authority),
            outbox: Outbox::new(),
            limits: RateLimits::default(),
            passwords: Passwords::default(),
            metrics: Arc::default(),
            watchers: Watchers::default(),
            oidc: None,
        }
    }
}

pub fn router(app: &Arc<App>) -> Router {
    let routes = routes::routes();
    let description = openapi::DocumentText(openapi::text(&routes).into());
    let mut router = Router::new();
    for route in routes {
        let path = format!("{}{}", route::PREFIX, route.path);
        router = router.route(&path, guard::guarded(app, route));
    }
    router
        .merge(handlers::health::router(app))
        .fallback(async || Problem::nothing())
        .method_not_allowed_fallback(async || {
            Problem::new(405, "method-not-allowed", "this address does not support the method")
        })
        .layer(Extension(description))
        .layer(axum::middleware::map_response(with_headers))
        .with_state(())
}

async fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (header::STRICT_TRANSPORT_SECURITY, "max-age=31536000"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
pub(crate) mod tests;
