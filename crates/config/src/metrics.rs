//! Figures over HTTP.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::values::listen;

/// Where figures are told over HTTP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsFields {
    /// The TCP address at which `/metrics`, `/healthz` and `/readyz` are answered, to anybody who
    /// reaches it.
    #[serde(deserialize_with = "listen")]
    pub listen: SocketAddr,
}
