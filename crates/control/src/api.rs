//! The REST interface, `/api/v1`.
//!
//! ```text
//! request ─► guard: address, who, tenant, role, idempotency, time ─► handler ─► store
//!              ▲                                                        │
//!            routes, the one table of what there is and who may ◄───────┘
//!              └─► openapi, tests
//! ```
//!
//! Start reading at [`routes`]: the router, the OpenAPI document, the table of roles and the tests
//! that walk all routes are made from it.

pub mod answer;
mod cookie;
mod guard;
mod handlers;
pub mod limit;
pub mod openapi;
pub mod password;
pub mod problem;
pub mod route;
pub mod routes;
pub mod schema;
pub mod watchers;

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::{HeaderValue, header};
use axum::response::Response;
use axum::{Extension, Router};

pub use guard::Caller;
pub use problem::Problem;

use crate::authority::Authority;
use crate::metrics::Metrics;
use crate::oidc::Oidc;
use crate::outbox::Outbox;
use crate::store::Store;
use limit::Limits;
use password::Passwords;
use watchers::Watchers;

/// What all requests share.
#[derive(Debug)]
pub struct App {
    /// The database.
    pub store: Arc<Store>,
    /// Who signs.
    pub authority: Arc<Authority>,
    /// What has changed.
    pub outbox: Arc<Outbox>,
    /// Who may ask how often.
    pub limits: Limits,
    /// Hashes of passwords.
    pub passwords: Passwords,
    /// Figures.
    pub metrics: Arc<Metrics>,
    /// Who watches.
    pub watchers: Watchers,
    /// Where people sign in who have no password here.
    pub oidc: Option<Oidc>,
}

/// The address that a request came from; whoever serves puts it into each request.
#[derive(Clone, Copy, Debug)]
pub struct RemoteAddress(pub IpAddr);

impl App {
    /// An interface to `store`.
    pub fn new(
        store: Arc<Store>,
        authority: Arc<Authority>,
        outbox: Arc<Outbox>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (limits, passwords) = (Limits::default(), Passwords::default());
        let (watchers, oidc) = (Watchers::default(), None);
        Self { store, authority, outbox, limits, passwords, metrics, watchers, oidc }
    }

    /// Sets the OpenID Connect issuer at which people may sign in, if there is one.
    #[must_use]
    pub fn with_issuer(self, oidc: Option<Oidc>) -> Self {
        Self { oidc, ..self }
    }
}

/// All routes, and an answer to what is none.
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
        .fallback(async || Problem::not_found("there is nothing at this address"))
        .method_not_allowed_fallback(async || {
            Problem::new(405, "method-not-allowed", "this address does not know the method")
        })
        .layer(Extension(description))
        .layer(axum::middleware::map_response(with_headers))
        .with_state(())
}

/// What every answer carries, against those who would frame, sniff or keep it.
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
