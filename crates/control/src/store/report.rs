//! The latest report of each box, its sessions, and its figures over time, in three resolutions.
//!
//! ```text
//! every 10 s, kept 2 days ─► means of a minute, 30 days ─► means of an hour, 400 days
//! ```

use std::collections::BTreeMap;

use roadweave_fleet::RecordId;
use roadweave_identity::PublicKey;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::Row as _;
use sqlx::any::AnyRow;
use utoipa::ToSchema;

use super::sql::{query, reader, values};
use super::{Result, Store, StoreError};

/// The last report of a box.
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

/// The last report of a box. [`StoreError::NotFound`] before the first.
pub async fn latest(store: &Store, tenant: &str, device: &str) -> Result<Report> {
    let sql = "SELECT * FROM report WHERE tenant = $1 AND device = $2";
    let row = store.row(sql, values![tenant, device]).await?;
    let absent = || StoreError::NotFound { kind: "report", id: device.to_owned() };
    let row = row.ok_or_else(absent)?;
    let body: String = row.try_get("body")?;
    Ok(Report {
        device: row.try_get("device")?,
        at_ms: row.try_get("at_ms")?,
        report: serde_json::from_str(&body).unwrap_or_default(),
    })
}

pub async fn sessions(
    store: &Store,
    tenant: &str,
    device: &str,
    limit: u32,
) -> Result<Vec<BoxSession>> {
    let rows = store.rows(SESSIONS, values![tenant, device, i64::from(limit)]).await?;
    rows.iter().map(session).collect()
}

pub async fn placed(store: &Store) -> Result<BTreeMap<RecordId, PublicKey>> {
    let mut placed = BTreeMap::new();
    for row in store.rows(PLACED, vec![]).await? {
        if let Ok(key) = row.try_get::<String, _>("proxy")?.parse() {
            placed.insert((row.try_get("tenant")?, row.try_get("device")?), key);
        }
    }
    Ok(placed)
}

reader!(session, BoxSession: device, attachment, proxy, from_ms, to_ms, reason);

const PLACED: &str = "SELECT session.tenant, session.device, proxy.public_key AS proxy \
                      FROM session JOIN tenant ON tenant.host = 1 \
                      JOIN proxy ON proxy.id = session.proxy \
                      AND proxy.tenant IN (session.tenant, tenant.tenant) \
                      WHERE session.to_ms IS NULL";
const SESSIONS: &str = "SELECT * FROM session WHERE tenant = $1 AND device = $2 \
                        ORDER BY attachment DESC LIMIT $3";

/// The figures of a box at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sample {
    /// The box.
    pub device: String,
    /// The time that it stands for begins here, milliseconds since 1970.
    pub at_ms: i64,
    /// The figures by name, in base units.
    pub figures: BTreeMap<String, f64>,
}

pub const STEPS_MS: [i64; 3] = [10_000, 60_000, 3_600_000];

pub async fn store_samples(store: &Store, samples: &[(String, Sample)]) -> Result<()> {
    add_samples(store, STEPS_MS[0], samples).await
}

async fn add_samples(store: &Store, step: i64, samples: &[(String, Sample)]) -> Result<()> {
    let mut transaction = store.begin().await?;
    for (tenant, sample) in samples {
        let figures = serde_json::to_string(&sample.figures)
            .map_err(|error| StoreError::Internal(error.to_string()))?;
        let at_ms = sample.at_ms - sample.at_ms.rem_euclid(step);
        let values = values![step, at_ms, figures, tenant, &sample.device];
        query(ADD, values).execute(&mut *transaction).await?;
    }
    Ok(transaction.commit().await?)
}

pub async fn samples(
    store: &Store,
    (tenant, device): (&str, &str),
    step_ms: i64,
    (from_ms, to_ms): (i64, i64),
    limit: u32,
) -> Result<Vec<Sample>> {
    let values = values![tenant, device, step_ms, from_ms, to_ms, i64::from(limit)];
    let rows = store.rows(OF_DEVICE, values).await?;
    rows.iter().map(|row| Ok(sample(row)?.1)).collect()
}

/// Writes the means of finer figures, for each time that has ended.
pub async fn roll_up(store: &Store, now_ms: i64) -> Result<()> {
    for pair in STEPS_MS.windows(2) {
        let &[fine, coarse] = pair else { continue };
        let end = now_ms - now_ms.rem_euclid(coarse);
        let sql = "SELECT COALESCE(MAX(at_ms), 0) FROM sample WHERE step_ms = $1";
        let last = store.scalar(sql, values![coarse]).await?;
        let from = (last + coarse).max(end - ROLL_UP_MAX * coarse);
        for begin in (from..end).step_by(usize::try_from(coarse).unwrap_or(usize::MAX)) {
            roll_up_one(store, fine, coarse, begin).await?;
        }
    }
    Ok(())
}

async fn roll_up_one(store: &Store, fine: i64, coarse: i64, begin: i64) -> Result<()> {
    let rows = store.rows(OF_TIME, values![fine, begin, begin + coarse]).await?;
    let mut sums: BTreeMap<(String, String), BTreeMap<String, (f64, f64)>> = BTreeMap::new();
    for row in &rows {
        let (tenant, sample) = sample(row)?;
        let sums = sums.entry((tenant, sample.device)).or_default();
        for (name, figure) in sample.figures {
            let (sum, count) = sums.entry(name).or_default();
            *sum += figure;
            *count += 1.0;
        }
    }
    let means = sums.into_iter().map(|((tenant, device), sums)| {
        let mean = |(name, (sum, count))| (name, sum / count);
        (tenant, Sample { device, at_ms: begin, figures: sums.into_iter().map(mean).collect() })
    });
    add_samples(store, coarse, &means.collect::<Vec<_>>()).await
}

fn sample(row: &AnyRow) -> Result<(String, Sample)> {
    let figures: String = row.try_get("figures")?;
    let sample = Sample {
        device: row.try_get("device")?,
        at_ms: row.try_get("at_ms")?,
        figures: serde_json::from_str(&figures).unwrap_or_default(),
    };
    Ok((row.try_get("tenant")?, sample))
}

/// The most minutes, and hours, to catch up after a pause.
const ROLL_UP_MAX: i64 = 120;
const ADD: &str = "INSERT INTO sample (tenant, device, step_ms, at_ms, figures) \
                   SELECT tenant, id, $1, $2, $3 FROM device WHERE tenant = $4 AND id = $5 \
                   ON CONFLICT (tenant, device, step_ms, at_ms) \
                   DO UPDATE SET figures = excluded.figures";
const OF_DEVICE: &str = "SELECT tenant, device, at_ms, figures FROM sample \
                         WHERE tenant = $1 AND device = $2 AND step_ms = $3 \
                         AND at_ms >= $4 AND at_ms < $5 ORDER BY at_ms LIMIT $6";
const OF_TIME: &str = "SELECT tenant, device, at_ms, figures FROM sample \
                       WHERE step_ms = $1 AND at_ms >= $2 AND at_ms < $3";
