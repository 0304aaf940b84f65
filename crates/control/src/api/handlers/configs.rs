//! Configurations.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use crate::api::answer::{Body, Path, record};
use crate::api::{App, Caller, Problem};
use crate::clock::now_ms;
use crate::model::{Config, ConfigSettings, Settings as _};

/// Writes the next version of a scope's configuration.
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(tenant): Path<String>,
    Body(settings): Body<ConfigSettings>,
) -> Result<Response, Problem> {
    settings.validate().map_err(Problem::invalid)?;
    let mut change = app.store.change(caller.actor(), now_ms()).await?;
    let number = change.next_config(&tenant, &settings.scope).await?;
    let id = format!("{}-{number}", settings.scope);
    let config = Config { id, number, author: caller.name.clone(), settings };
    let stored = change.insert(&tenant, config).await?;
    change.commit().await?;
    app.outbox.hint();
    Ok(record(StatusCode::CREATED, &stored))
}
