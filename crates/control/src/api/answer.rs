//! Extractors for requests, and answers: records with their versions, pages, bodies.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::guard::BODY_MAX;
use super::{App, Caller, Problem, Result};
use crate::clock::now_ms;
use crate::model::Record;
use crate::store::{Change, Page, Stored};

pub struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        let kind = request.headers().get(header::CONTENT_TYPE);
        let kind = kind.and_then(|it| it.to_str().ok()).unwrap_or_default();
        if kind.split(';').next().unwrap_or_default().trim() != "application/json" {
            let detail = "send the body as application/json";
            return Err(Problem::new(415, "unsupported-media-type", detail));
        }
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|_| Problem::new(413, "too-large", format!("at most {BODY_MAX} bytes")))?;
        read(&bytes).map(Self)
    }
}

pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let query = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        match query {
            Ok(query) => Ok(Self(query.0)),
            Err(error) => Err(Problem::new(400, "query", error.body_text())),
        }
    }
}

pub struct Asked {
    pub app: Arc<App>,
    pub caller: Caller,
    pub tenant: String,
    pub id: String,
    pub headers: HeaderMap,
}

impl FromRequestParts<Arc<App>> for Asked {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let names = axum::extract::Path::<Vec<String>>::from_request_parts(parts, app).await;
        let names = names.map_err(|_| Problem::nothing())?.0;
        let caller = parts.extensions.get::<Caller>().cloned().ok_or_else(Problem::unknown)?;
        let name = |name: Option<&String>| name.cloned().unwrap_or_default();
        let (tenant, id) = (name(names.first()), name(names.last()));
        Ok(Self { app: Arc::clone(app), caller, tenant, id, headers: parts.headers.clone() })
    }
}

impl Asked {
    pub fn is_of_host(&self) -> bool {
        self.caller.host && self.caller.tenant == self.tenant
    }

    pub async fn change(&self) -> Result<Change<'_>> {
        Ok(self.app.store.change(self.caller.actor(), now_ms()).await?)
    }

    /// Begins a change of the record, whatever its version.
    pub async fn open<R: Record>(&self) -> Result<(Change<'_>, Stored<R>)> {
        let mut change = self.change().await?;
        let before = change.get::<R>(&self.tenant, &self.id).await?;
        Ok((change, before))
    }

    /// Begins a change of the record, if it has the version in `If-Match`.
    pub async fn edit<R: Record>(&self) -> Result<(Change<'_>, Stored<R>)> {
        let seen = if_match(&self.headers)?;
        let (change, before) = self.open::<R>().await?;
        matches(seen, &before)?;
        Ok((change, before))
    }

    pub async fn commit(&self, change: Change<'_>) -> Result<()> {
        change.commit().await?;
        self.app.outbox.hint();
        Ok(())
    }

    pub async fn insert<R: Record>(&self, mut change: Change<'_>, new: R) -> Result<Stored<R>> {
        let stored = change.insert(&self.tenant, new).await?;
        self.commit(change).await?;
        Ok(stored)
    }

    pub async fn update<R: Record>(
        &self,
        mut change: Change<'_>,
        before: &Stored<R>,
        after: R,
    ) -> Result<Response> {
        let after = change.update(before, after).await?;
        self.commit(change).await?;
        Ok(record(StatusCode::OK, &after))
    }

    pub async fn remove<R: Record>(
        &self,
        mut change: Change<'_>,
        before: &Stored<R>,
    ) -> Result<StatusCode> {
        change.remove(before).await?;
        self.commit(change).await?;
        Ok(StatusCode::NO_CONTENT)
    }
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => Problem::invalid(error.to_string()),
        _ => Problem::new(400, "malformed", format!("the body is not JSON: {error}")),
    })
}

pub fn shown<R: Record>(stored: &Stored<R>) -> Value {
    let mut value = stored.record.shown();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("version".to_owned(), stored.version.into());
        fields.insert("changed_ms".to_owned(), stored.changed_ms.into());
    }
    value
}

pub fn record<R: Record>(status: StatusCode, stored: &Stored<R>) -> Response {
    let mut response = (status, axum::Json(shown(stored))).into_response();
    response.headers_mut().insert(header::ETAG, etag(stored.version));
    response
}

pub fn etag(version: i64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{version}\"")).expect("digits in quotes are a header's value")
}

/// The version in `If-Match`, `None` for any; 428 without the header, 400 for a foreign ETag.
pub fn if_match(headers: &HeaderMap) -> Result<Option<i64>> {
    let Some(value) = headers.get(header::IF_MATCH) else {
        let detail = "If-Match is missing: send the ETag of a GET, such as \"7\"";
        return Err(Problem::new(428, "precondition-required", detail));
    };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    let number = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let number = number.and_then(|digits| digits.parse().ok());
    number
        .map(Some)
        .ok_or_else(|| Problem::new(400, "if-match", "If-Match is not the ETag of a GET"))
}

pub fn matches<R: Record>(seen: Option<i64>, stored: &Stored<R>) -> Result<()> {
    if seen.is_none_or(|seen| seen == stored.version) {
        return Ok(());
    }
    let (kind, id, version) = (R::KIND, stored.record.id(), stored.version);
    let detail = format!("the {kind} \"{id}\" has changed: it has version {version}");
    Err(Problem::new(412, "changed", detail))
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// The `next` of the last page.
    pub cursor: Option<String>,
    /// The largest number of items, 1 to 500.
    pub limit: Option<u32>,
    pub state: Option<String>,
    pub tag: Option<String>,
    /// Only items of this scope, as `tag-tram`.
    pub scope: Option<String>,
}

impl ListQuery {
    pub fn limit(&self) -> u32 {
        self.limit.unwrap_or(100).clamp(1, 500)
    }

    /// The name after which the page begins; 400 for a cursor that was not issued here.
    pub fn after(&self) -> Result<String> {
        let Some(cursor) = &self.cursor else { return Ok(String::new()) };
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        text.filter(|text| !text.contains('\0'))
            .ok_or_else(|| Problem::new(400, "cursor", "a cursor is the \"next\" of a page"))
    }
}

pub fn paged<R: Record>(page: &Page<Stored<R>>) -> Response {
    let items: Vec<Value> = page.items.iter().map(shown).collect();
    let next = page.next.as_deref().map(|after| URL_SAFE_NO_PAD.encode(after));
    axum::Json(PageOf { items, next }).into_response()
}

#[derive(Debug, Serialize)]
pub struct PageOf<T> {
    pub items: Vec<T>,
    /// The cursor of the next page; null at the end.
    pub next: Option<String>,
}
