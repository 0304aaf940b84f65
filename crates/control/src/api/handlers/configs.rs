//! Configurations, and their approval by people.

use axum::Json;
use axum::http::StatusCode;
use axum::response::Response;
use roadweave_fleet::{Approval, Digest, Signed, Target, toml_text};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::answer::{Asked, Body, record};
use crate::api::{Problem, Result};
use crate::model::{Config, ConfigSettings, Device, Scope, Settings as _};
use crate::store::{Change, revocation};

/// An approval to be signed, with its text.
#[derive(Deserialize, Serialize, ToSchema)]
pub struct Approvable {
    /// What is to be signed.
    #[schema(value_type = Object)]
    approval: Approval,
    /// The text that boxes get, which the person reads.
    text: String,
    /// Whether it is signed.
    approved: bool,
}

/// A person's word.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignedApproval {
    /// The approval in its envelope, as JSON.
    signature: String,
}

pub async fn create(asked: Asked, Body(settings): Body<ConfigSettings>) -> Result<Response> {
    settings.validate().map_err(Problem::invalid)?;
    let mut change = asked.change().await?;
    let number = change.next_config(&asked.tenant, &settings.scope).await?;
    let id = format!("{}-{number}", settings.scope);
    let config = Config { id, number, author: asked.caller.name.clone(), settings };
    if let Some(signature) = &config.settings.signature {
        check(&asked, &mut change, &config, signature).await?;
    }
    let stored = asked.insert(change, config).await?;
    Ok(record(StatusCode::CREATED, &stored))
}

pub async fn approval(Asked { app, tenant, id, .. }: Asked) -> Result<Json<Approvable>> {
    let config = app.store.get::<Config>(&tenant, &id).await?.record;
    let device = match &config.settings.scope {
        Scope::Device(id) => Some(app.store.get::<Device>(&tenant, id).await?.record),
        _ => None,
    };
    let (approval, text) = to_sign(&tenant, &config, device.as_ref())?;
    Ok(Json(Approvable { approval, text, approved: config.settings.signature.is_some() }))
}

pub async fn approve(asked: Asked, Body(said): Body<SignedApproval>) -> Result<Response> {
    let (mut change, before) = asked.open::<Config>().await?;
    check(&asked, &mut change, &before.record, &said.signature).await?;
    let mut config = before.record.clone();
    config.settings.signature = Some(said.signature);
    asked.update(change, &before, config).await
}

/// Refuses an approval that boxes would refuse: by another key, or for another text.
async fn check(
    Asked { app, tenant, .. }: &Asked,
    change: &mut Change<'_>,
    config: &Config,
    signature: &str,
) -> Result<()> {
    let signed: Signed<Approval> = serde_json::from_str(signature)
        .map_err(|error| Problem::invalid(format!("signature: {error}")))?;
    let approvers = app.authority.approvers();
    if approvers.is_empty() {
        return Err(Problem::conflict(
            "the trust list names no approvers (roadweave-controller trust --approver)",
        ));
    }
    let said = signed.verify_by(approvers);
    let (said, by) = said.map_err(|why| Problem::invalid(format!("signature: {why}")))?;
    if revocation::is_revoked(change, &by.to_string()).await? {
        return Err(Problem::invalid("signature: its key was revoked"));
    }
    let device = match &config.settings.scope {
        Scope::Device(id) => Some(change.get::<Device>(tenant, id).await?.record),
        _ => None,
    };
    match to_sign(tenant, config, device.as_ref())?.0 == said {
        true => Ok(()),
        false => Err(Problem::invalid("signature: it approves another configuration")),
    }
}

fn to_sign(tenant: &str, config: &Config, device: Option<&Device>) -> Result<(Approval, String)> {
    let unfit = |why: &dyn std::fmt::Display| Problem::invalid(why.to_string());
    let text = toml_text(config.settings.body.clone());
    let target = match (&config.settings.scope, device) {
        (Scope::Tag(tag), _) => Target::Tag(tag.parse().map_err(|why| unfit(&why))?),
        (Scope::Device(_), Some(device)) => {
            Target::Device(device.public_key.parse().map_err(|why| unfit(&why))?)
        }
        _ => Target::Tenant,
    };
    let approval = Approval {
        tenant: tenant.parse().map_err(|why| unfit(&why))?,
        target,
        number: config.number.unsigned_abs(),
        text: Digest::of([text.as_bytes()]),
    };
    Ok((approval, text))
}
