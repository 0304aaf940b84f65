//! Revocations, the audit log, and changes and single boxes as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::{Stream, StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use utoipa::ToSchema;

use crate::api::answer::{Asked, PageOf, Query};
use crate::api::limit::WatcherPermit;
use crate::api::openapi::DocumentText;
use crate::api::{App, Result};
use crate::clock::now_ms;
use crate::model::Device;
use crate::outbox::Live;
use crate::store::{
    AuditEntry, CHANGES_AT_ONCE, Changed, FleetState, Revocation, STEPS_MS, Store, StoreError,
    audit, found, outbox, proxy_status, report, revocation,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinesQuery {
    cursor: Option<i64>,
    limit: Option<u32>,
}

/// Whether a log is what the controller wrote.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct Checked {
    /// Whether the log is what the controller wrote.
    good: bool,
    /// How many lines of the log are what the controller wrote.
    lines: Option<i64>,
    /// The problem.
    fault: Option<String>,
}

pub async fn revocations(
    Asked { app, tenant, .. }: Asked,
    Query(query): Query<LinesQuery>,
) -> Result<Json<PageOf<Revocation>>> {
    let limit = query.limit.unwrap_or(100).clamp(1, 500);
    let after = query.cursor.unwrap_or(0);
    let items = revocation::list(&app.store, Some(&tenant), after, limit).await?;
    let full = items.len() == limit as usize;
    let next = items.last().filter(|_| full).map(|last| last.serial.to_string());
    Ok(Json(PageOf { items, next }))
}

pub async fn audit(
    Asked { app, tenant, .. }: Asked,
    Query(query): Query<LinesQuery>,
) -> Result<Json<PageOf<AuditEntry>>> {
    let limit = query.limit.unwrap_or(100).clamp(1, 500);
    let items = audit::latest(&app.store, &tenant, query.cursor, limit).await?;
    let next = items.last().filter(|last| last.serial > 1).map(|last| last.serial.to_string());
    Ok(Json(PageOf { items, next }))
}

pub async fn check(Asked { app, tenant, .. }: Asked) -> Result<Json<Checked>> {
    let audit_checkpoints = &app.store.audit_checkpoints;
    let seen = audit_checkpoints.of(&tenant);
    Ok(Json(match audit::verify(&app.store, &tenant, seen).await? {
        Ok((lines, hash)) => {
            audit_checkpoints.record(&tenant, lines, hash);
            Checked { good: true, lines: Some(lines), fault: None }
        }
        Err(fault) => {
            tracing::error!(tenant, %fault, "the audit log is not what the controller wrote");
            Checked { good: false, lines: None, fault: Some(fault.to_string()) }
        }
    }))
}

pub async fn openapi(Extension(DocumentText(text)): Extension<DocumentText>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

pub async fn live(Asked { app, caller, tenant, headers, .. }: Asked) -> Result<Response> {
    let permit = WatcherPermit::take(&app, &caller)?;
    let changes = app.outbox.listen();
    let epoch = app.store.epoch().await?;
    let id = headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default());
    let found = match id {
        Some(id) => resumed(&app.store, epoch, id).await?,
        None => None,
    };
    let last = match found {
        Some(last) => last,
        None => (app.store.latest_change().await?, i64::MAX),
    };
    tracing::debug!(who = caller.name, tenant, "watches");
    let watcher = Watcher {
        is_lost: id.is_some() && found.is_none(),
        is_behind: id.is_some(),
        missed: Vec::new().into_iter(),
        last,
        epoch,
        changes,
        tenant,
        state_due: Some(Instant::now()),
        until: Instant::now() + LIVE_MAX,
        app,
        _permit: permit,
    };
    Ok(sent(stream::unfold(watcher, async |mut it| Some((it.next().await?, it)))))
}

pub async fn state(asked: Asked) -> Result<Json<FleetState>> {
    Ok(Json(proxy_status::fleet_state(&asked.app.store, &asked.tenant).await?))
}

/// After the last event the browser reconnects with its current rights.
fn sent(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let alive = KeepAlive::new().interval(Duration::from_secs(15));
    Sse::new(events.map(Ok::<_, Infallible>)).keep_alive(alive).into_response()
}

struct Watcher {
    is_lost: bool,
    is_behind: bool,
    missed: std::vec::IntoIter<Changed>,
    last: (i64, i64),
    epoch: i64,
    changes: broadcast::Receiver<Changed>,
    tenant: String,
    state_due: Option<Instant>,
    until: Instant,
    app: Arc<App>,
    _permit: WatcherPermit,
}

impl Watcher {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if std::mem::take(&mut self.is_lost) {
                let data = json!({ "missed": null }).to_string();
                return Some(Event::default().id(self.id()).event("lost").data(data));
            }
            if self.state_due.is_some_and(|due| due <= Instant::now()) {
                self.state_due = None;
                let state = proxy_status::fleet_state(&self.app.store, &self.tenant).await.ok()?;
                let data = serde_json::to_string(&state).unwrap_or_default();
                // The ID lets a watcher that is cut off before the first change resume here.
                return Some(Event::default().id(self.id()).event("state").data(data));
            }
            let until = self.state_due.unwrap_or(self.until).min(self.until);
            let change = match self.missed.next() {
                Some(change) => change,
                None if self.is_behind && self.until > Instant::now() => {
                    let more =
                        outbox::of_tenant(&self.app.store, &self.tenant, self.last).await.ok()?;
                    self.is_behind = more.len() >= CHANGES_AT_ONCE;
                    self.missed = more.into_iter();
                    continue;
                }
                None if self.is_behind => return None,
                None => match tokio::time::timeout_at(until, self.changes.recv()).await {
                    Ok(Ok(change)) => change,
                    Ok(Err(RecvError::Lagged(count))) => {
                        let data = json!({ "missed": count }).to_string();
                        return Some(Event::default().event("lost").data(data));
                    }
                    Err(_) if self.state_due.is_some() => continue,
                    Ok(Err(RecvError::Closed)) | Err(_) => return None,
                },
            };
            let at = (change.sequence, change.position);
            if change.tenant == self.tenant && at > self.last {
                self.last = at;
                if matches!(&*change.kind, "device" | "proxy" | "proxy-status" | "session") {
                    self.state_due.get_or_insert_with(|| Instant::now() + STATE_REST);
                }
                let data = serde_json::to_string(&change).unwrap_or_default();
                return Some(Event::default().id(self.id()).event("change").data(data));
            }
        }
    }

    fn id(&self) -> String {
        format!("{}-{}-{}", self.epoch, self.last.0, self.last.1)
    }
}

fn place(id: &str) -> Option<(i64, (i64, i64))> {
    let mut parts = id.splitn(3, '-').map(str::parse);
    let mut next = || parts.next()?.ok();
    Some((next()?, (next()?, next()?)))
}

/// The place of an event ID in the outbox, if everything after it is still there.
async fn resumed(store: &Store, epoch: i64, id: &str) -> Result<Option<(i64, i64)>, StoreError> {
    let Some((of, (sequence, position))) = place(id) else { return Ok(None) };
    let latest = store.latest_change().await?;
    let first = outbox::first_change(store).await?.unwrap_or(latest.saturating_add(1));
    let is_there = of == epoch
        && sequence <= latest
        && sequence.saturating_add(1) >= first
        && latest.saturating_sub(sequence) <= MISSED_MAX;
    Ok(is_there.then_some((sequence, position)))
}

const LIVE_MAX: Duration = Duration::from_secs(300);
const MISSED_MAX: i64 = 100_000;
const STATE_REST: Duration = Duration::from_secs(1);

pub async fn live_device(Asked { app, caller, tenant, id: device, .. }: Asked) -> Result<Response> {
    let permit = WatcherPermit::take(&app, &caller)?;
    // Subscribed before the first look, so that no change is lost between.
    let (changes, figures) = (app.outbox.listen(), app.outbox.figures());
    app.store.get::<Device>(&tenant, &device).await?;
    tracing::debug!(who = caller.name, tenant, device, "watches");
    let watcher = DeviceWatcher {
        app,
        tenant,
        device,
        changes,
        figures,
        waiting: vec![Look::Report, Look::Session],
        sampled_ms: now_ms(),
        looks: Instant::now() + FIGURES,
        until: Instant::now() + LIVE_MAX,
        _permit: permit,
    };
    Ok(sent(stream::unfold(watcher, async |mut it| Some((it.next().await?, it)))))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Session,
    Report,
    Sample,
}

struct DeviceWatcher {
    app: Arc<App>,
    tenant: String,
    device: String,
    changes: broadcast::Receiver<Changed>,
    figures: broadcast::Receiver<Live>,
    waiting: Vec<Look>,
    sampled_ms: i64,
    looks: Instant,
    until: Instant,
    _permit: WatcherPermit,
}

impl DeviceWatcher {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(look) = self.waiting.pop() {
                match self.look(look).await {
                    Ok(Some(event)) => return Some(event),
                    Ok(None) => continue,
                    Err(_) => return None,
                }
            }
            tokio::select! {
                change = self.changes.recv() => match change {
                    Ok(change) => self.on_change(&change),
                    Err(RecvError::Lagged(_)) => {
                        self.waiting = vec![Look::Report, Look::Session];
                    }
                    Err(RecvError::Closed) => return None,
                },
                figures = self.figures.recv() => match figures {
                    Ok(live) if live.tenant == self.tenant
                        && live.sample.device == self.device =>
                    {
                        (self.sampled_ms, self.looks) = (now_ms(), Instant::now() + FIGURES);
                        return Some(event("sample", &live.sample));
                    }
                    Ok(_) => {}
                    Err(RecvError::Lagged(count)) => {
                        return Some(event("lost", &json!({ "missed": count })));
                    }
                    Err(RecvError::Closed) => return None,
                },
                () = tokio::time::sleep_until(self.looks) => {
                    self.looks = Instant::now() + FIGURES;
                    self.waiting.push(Look::Sample);
                }
                () = tokio::time::sleep_until(self.until) => return None,
            }
        }
    }

    fn on_change(&mut self, change: &Changed) {
        if change.tenant != self.tenant || change.subject != self.device {
            return;
        }
        let look = match &*change.kind {
            "session" => Look::Session,
            "report" | "device" => Look::Report,
            _ => return,
        };
        if !self.waiting.contains(&look) {
            self.waiting.push(look);
        }
    }

    async fn look(&mut self, look: Look) -> Result<Option<Event>, StoreError> {
        let (store, tenant, device) = (&self.app.store, &*self.tenant, &*self.device);
        Ok(match look {
            Look::Session => {
                let sessions = report::sessions(store, tenant, device, 1).await?;
                sessions.first().map(|session| event("session", session))
            }
            Look::Report => {
                let report = found(report::latest(store, tenant, device).await)?;
                report.map(|report| event("report", &report))
            }
            Look::Sample => {
                let span = (self.sampled_ms, i64::MAX);
                let samples =
                    report::samples(store, (tenant, device), STEPS_MS[0], span, 10).await?;
                let last = samples.last();
                self.sampled_ms = last.map_or(self.sampled_ms, |last| last.at_ms + 1);
                last.map(|last| event("sample", last))
            }
        })
    }
}

fn event(name: &str, what: &impl Serialize) -> Event {
    Event::default().event(name).data(serde_json::to_string(what).unwrap_or_default())
}

const FIGURES: Duration = Duration::from_secs(10);
