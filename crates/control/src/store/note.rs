//! Reports of streams (proxies' status, boxes' reports and places), batched in few transactions.

use sqlx::Row as _;

use super::document::DocumentOutcome;
use super::sql::values;
use super::{Actor, Change, ProxyStatus, Report, Result, Store};

#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    Status(ProxyStatus),
    Report {
        tenant: String,
        report: Report,
        stream: String,
        connected: bool,
    },
    Outcome(DocumentOutcome),
    On {
        tenant: String,
        device: String,
        /// The proxy's key; `None` if the box is on none.
        proxy: Option<String>,
    },
    /// Boxes are on a proxy, which shows that it is alive.
    Witness {
        tenant: String,
        proxy: String,
    },
}

pub async fn store(store: &Store, notes: &[Note], now_ms: i64) -> Result<()> {
    let mut change = store.change(Actor::new("streams"), now_ms).await?;
    let mut has_outcomes = false;
    for note in notes {
        match note {
            Note::Status(status) => store_status(&mut change, status).await?,
            Note::Report { tenant, report, stream, connected } => {
                store_report(&mut change, tenant, report, (stream, *connected)).await?;
            }
            Note::Outcome(outcome) => has_outcomes |= outcome.store(&mut change).await?,
            Note::On { tenant, device, proxy } => {
                store_place(&mut change, tenant, device, proxy.as_deref()).await?;
            }
            Note::Witness { tenant, proxy } => {
                change.execute(WITNESS, values![now_ms, proxy, tenant]).await?;
            }
        }
    }
    if has_outcomes {
        let number = change.number();
        change.publish("", "outcomes", "", number).await?;
    }
    change.commit().await.map(drop)
}

async fn store_status(change: &mut Change<'_>, status: &ProxyStatus) -> Result<()> {
    let before = change.row(STATUS_BEFORE, values![&status.tenant, &status.proxy]).await?;
    let before: Option<(i64, i64)> = match before {
        Some(row) => Some((row.try_get("connected")?, row.try_get("serial")?)),
        None => None,
    };
    let ProxyStatus { tenant, proxy, seen_ms, serial, load, sessions, software, .. } = status;
    let ProxyStatus { connected, anchors, hash, stream, .. } = status;
    let anchors = serde_json::to_string(anchors).unwrap_or_else(|_| "{}".to_owned());
    let connected = i64::from(*connected);
    let values = values![
        connected, *seen_ms, *serial, *load, *sessions, software, anchors, tenant, proxy, hash,
        stream
    ];
    let done = change.execute(STATUS, values).await?;
    let is_other = before != Some((connected, *serial));
    publish_if(change, done > 0 && is_other, tenant, ("proxy-status", proxy)).await
}

async fn store_report(
    change: &mut Change<'_>,
    tenant: &str,
    report: &Report,
    (stream, connected): (&str, bool),
) -> Result<()> {
    let Report { device, at_ms, report } = report;
    let connected = i64::from(connected);
    let values = values![*at_ms, report.to_string(), tenant, device, stream, connected];
    let done = change.execute(REPORT, values).await?;
    publish_if(change, done > 0, tenant, ("report", device)).await
}

async fn store_place(
    change: &mut Change<'_>,
    tenant: &str,
    device: &str,
    proxy: Option<&str>,
) -> Result<()> {
    let (key, now_ms) = (proxy.unwrap_or_default(), change.now_ms);
    let ended = change.execute(LEAVE, values![now_ms, tenant, device, key]).await?;
    let begun = change.execute(ARRIVE, values![now_ms, key, tenant, device]).await?;
    publish_if(change, ended + begun > 0, tenant, ("session", device)).await
}

async fn publish_if(
    change: &mut Change<'_>,
    is_event: bool,
    tenant: &str,
    (kind, subject): (&str, &str),
) -> Result<()> {
    let number = change.number();
    if is_event { change.publish(tenant, kind, subject, number).await } else { Ok(()) }
}

const STATUS_BEFORE: &str =
    "SELECT connected, serial FROM proxy_status WHERE tenant = $1 AND proxy = $2";
/// The end of a stream does not count if a later stream has begun.
const STATUS: &str = "INSERT INTO proxy_status \
                      (tenant, proxy, connected, seen_ms, serial, load, sessions, software, \
                      anchors, hash, stream) \
                      SELECT tenant, id, $1, $2, $3, $4, $5, $6, $7, $10, $11 FROM proxy \
                      WHERE tenant = $8 AND id = $9 \
                      ON CONFLICT (tenant, proxy) DO UPDATE SET connected = excluded.connected, \
                      seen_ms = excluded.seen_ms, serial = excluded.serial, \
                      load = excluded.load, sessions = excluded.sessions, \
                      software = excluded.software, anchors = excluded.anchors, \
                      hash = excluded.hash, stream = excluded.stream \
                      WHERE excluded.connected = 1 OR proxy_status.stream = excluded.stream";
const REPORT: &str = "INSERT INTO report (tenant, device, at_ms, body, stream) \
                      SELECT tenant, id, $1, $2, $5 FROM device WHERE tenant = $3 AND id = $4 \
                      ON CONFLICT (tenant, device) \
                      DO UPDATE SET at_ms = excluded.at_ms, body = excluded.body, \
                      stream = excluded.stream \
                      WHERE CAST($6 AS BIGINT) = 1 OR report.stream = excluded.stream";
const LEAVE: &str = "UPDATE session SET to_ms = $1, reason = 'left' \
                     WHERE tenant = $2 AND device = $3 AND to_ms IS NULL AND NOT EXISTS \
                     (SELECT 1 FROM proxy WHERE proxy.public_key = $4 \
                     AND proxy.id = session.proxy)";
/// Only for a proxy that may serve the box: a box can claim any.
const ARRIVE: &str = "INSERT INTO session (tenant, device, attachment, proxy, from_ms) \
                      SELECT device.tenant, device.id, 1 + COALESCE((SELECT MAX(attachment) \
                      FROM session WHERE session.tenant = device.tenant \
                      AND session.device = device.id), 0), proxy.id, $1 \
                      FROM device JOIN proxy ON proxy.public_key = $2 \
                      JOIN tenant ON tenant.tenant = proxy.tenant \
                      WHERE device.tenant = $3 AND device.id = $4 \
                      AND (proxy.tenant = device.tenant OR tenant.host = 1) \
                      AND NOT EXISTS (SELECT 1 FROM session \
                      WHERE session.tenant = device.tenant AND session.device = device.id \
                      AND session.to_ms IS NULL)";
const WITNESS: &str = "INSERT INTO proxy_status (tenant, proxy, connected, seen_ms, serial, \
                       load, sessions, software, witnessed_ms) \
                       SELECT proxy.tenant, proxy.id, 0, 0, 0, NULL, 0, '', $1 FROM proxy \
                       JOIN tenant ON tenant.tenant = proxy.tenant \
                       WHERE proxy.public_key = $2 \
                       AND (proxy.tenant = $3 OR tenant.host = 1) ON CONFLICT (tenant, proxy) \
                       DO UPDATE SET witnessed_ms = excluded.witnessed_ms";
