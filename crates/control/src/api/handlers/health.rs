//! Liveness, readiness and metrics. They need no key and hold nothing of any tenant.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

use crate::api::{App, Result};

pub fn router(app: &Arc<App>) -> Router {
    Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(Arc::clone(app))
}

async fn ready(State(app): State<Arc<App>>) -> Result<&'static str> {
    app.store.ping().await?;
    Ok("ready\n")
}

async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.metrics.text())
}
