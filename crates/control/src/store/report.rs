//! The latest report of each box, and its sessions.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::Row as _;
use utoipa::ToSchema;

use super::sql::{reader, values};
use super::{Result, Store, StoreError};

/// What a box said of itself last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Report {
    /// The box.
    pub device: String,
    /// When it came in, milliseconds since 1970.
    pub at_ms: i64,
    /// The versions in force and refused, errors, software, pinned fields, uplinks.
    pub report: Value,
}

/// A session of a box on a proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BoxSession {
    /// The box.
    pub device: String,
    /// The number of the attachment, which grows with every change of proxy.
    pub attachment: i64,
    /// The proxy.
    pub proxy: String,
    /// Since when, milliseconds since 1970.
    pub from_ms: i64,
    /// Until when; absent while it lasts.
    pub to_ms: Option<i64>,
    /// Why it ended.
    pub reason: Option<String>,
}

impl Store {
    /// The latest report of a box.
    pub async fn report(&self, tenant: &str, device: &str) -> Result<Report> {
        let sql = "SELECT * FROM report WHERE tenant = $1 AND device = $2";
        let row = self.row(sql, values![tenant, device]).await?;
        let absent = || StoreError::NotFound { kind: "report", id: device.to_owned() };
        let row = row.ok_or_else(absent)?;
        let body: String = row.try_get("body")?;
        Ok(Report {
            device: row.try_get("device")?,
            at_ms: row.try_get("at_ms")?,
            report: serde_json::from_str(&body).unwrap_or_default(),
        })
    }

    /// The sessions of a box, latest first.
    pub async fn sessions(
        &self,
        tenant: &str,
        device: &str,
        limit: u32,
    ) -> Result<Vec<BoxSession>> {
        let rows = self.rows(SESSIONS, values![tenant, device, i64::from(limit)]).await?;
        rows.iter().map(session).collect()
    }
}

/// A box and its current proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The tenant that the box belongs to.
    pub tenant: String,
    /// The box.
    pub device: String,
    /// The proxy's key.
    pub proxy: String,
}

impl Store {
    /// The current proxy of each box.
    pub async fn placed(&self) -> Result<Vec<Placed>> {
        self.rows(PLACED, vec![]).await?.iter().map(placed).collect()
    }
}

reader!(session, BoxSession: device, attachment, proxy, from_ms, to_ms, reason);
reader!(placed, Placed: tenant, device, proxy);

const PLACED: &str = "SELECT session.tenant, session.device, proxy.public_key AS proxy \
                      FROM session JOIN tenant ON tenant.host = 1 \
                      JOIN proxy ON proxy.id = session.proxy \
                      AND proxy.tenant IN (session.tenant, tenant.tenant) \
                      WHERE session.to_ms IS NULL";
const SESSIONS: &str = "SELECT * FROM session WHERE tenant = $1 AND device = $2 \
                        ORDER BY attachment DESC LIMIT $3";
