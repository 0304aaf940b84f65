//! A tenant's fleet in a few figures.

use serde::{Deserialize, Serialize};
use sqlx::Row as _;
use utoipa::ToSchema;

use super::sql::values;
use super::{ProxyStatus, Result, Store};

/// How a fleet is now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetState {
    /// Boxes that are admitted.
    pub active: i64,
    /// Boxes that wait for somebody to let them in.
    pub pending: i64,
    /// Boxes that were revoked.
    pub revoked: i64,
    /// Boxes that are on a proxy.
    pub online: i64,
    /// Its proxies and anchors.
    pub proxies: Vec<ProxyStatus>,
}

impl Store {
    /// The present state of a tenant's fleet.
    pub async fn fleet_state(&self, tenant: &str) -> Result<FleetState> {
        let proxies = self.proxy_status(Some(tenant)).await?;
        let mut state = FleetState { proxies, ..FleetState::default() };
        for row in self.rows(DEVICES, values![tenant]).await? {
            let count: i64 = row.try_get("count")?;
            match row.try_get::<String, _>("state")?.as_str() {
                "active" => state.active = count,
                "pending" => state.pending = count,
                _ => state.revoked = count,
            }
        }
        state.online = self.scalar(ONLINE, values![tenant]).await?;
        Ok(state)
    }
}

const DEVICES: &str =
    "SELECT state, COUNT(*) AS count FROM device WHERE tenant = $1 GROUP BY state";
const ONLINE: &str = "SELECT COUNT(*) FROM session WHERE tenant = $1 AND to_ms IS NULL";
