//! Errors of the interface, as RFC 9457 problems.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::authority::NotSigned;
use crate::store::StoreError;

/// An error as a client gets it (application/problem+json).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What kind of problem it is: a name that programs may go by.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in words.
    pub title: String,
    /// The status of HTTP.
    pub status: u16,
    /// What is wrong this time, and what would be right.
    pub detail: String,
}

pub type Result<T, E = Problem> = std::result::Result<T, E>;

impl Problem {
    pub fn new(status: u16, kind: &str, detail: impl Into<String>) -> Self {
        let code = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self {
            kind: format!("urn:roadweave:problem:{kind}"),
            title: code.canonical_reason().unwrap_or("Error").to_owned(),
            status,
            detail: detail.into(),
        }
    }

    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(404, "not-found", detail)
    }

    pub fn nothing() -> Self {
        Self::not_found("there is nothing at this address")
    }

    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(422, "invalid", detail)
    }

    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(409, "conflict", detail)
    }

    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(403, "forbidden", detail)
    }

    pub fn unknown() -> Self {
        Self::new(401, "unauthenticated", "log in, or send an API key as a bearer token")
    }

    pub fn too_often() -> Self {
        Self::new(429, "too-often", "too many tries from this address; wait a minute")
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let text = error.to_string();
        match error {
            StoreError::NotFound { .. } => Self::not_found(text),
            StoreError::Taken(_) => Self::new(409, "taken", text),
            StoreError::Reference(_) => Self::new(409, "reference", text),
            StoreError::Refused(_) => Self::new(409, "refused", text),
            StoreError::Changed { .. } => Self::new(412, "changed", text),
            StoreError::Full => Self::new(507, "full", text),
            // The database's own message may reveal internals.
            StoreError::Away(why) => {
                tracing::debug!(why, "a request failed: no database");
                Self::new(503, "database-away", "the database does not answer; try again")
            }
            StoreError::Older(_) => Self::new(503, "database-older", text),
            StoreError::Altered { .. } => Self::new(500, "altered", text),
            StoreError::Internal(why) | StoreError::Migration(why) => {
                tracing::error!(why, "the database refused a statement");
                Self::new(500, "internal", "the controller's log has the details")
            }
        }
    }
}

impl From<NotSigned> for Problem {
    fn from(error: NotSigned) -> Self {
        Self::invalid(error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_string(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        let hint = match self.status {
            401 => Some((header::WWW_AUTHENTICATE, "Bearer")),
            429 => Some((header::RETRY_AFTER, "60")),
            503 => Some((header::RETRY_AFTER, "2")),
            _ => None,
        };
        if let Some((name, value)) = hint {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}
