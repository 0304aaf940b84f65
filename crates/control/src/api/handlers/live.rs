//! One box as server-sent events: its session, its report, its figures.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use axum::response::sse::Event;
use serde::Serialize;
use serde_json::json;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use super::changes::{LIVE_MAX, Watches, sent};
use crate::api::answer::Asked;
use crate::api::limit::WatcherPermit;
use crate::api::{App, Result};
use crate::clock::now_ms;
use crate::model::Device;
use crate::outbox::Live;
use crate::store::{Changed, STEPS_MS, StoreError, found};

pub async fn device(Asked { app, caller, tenant, id: device, .. }: Asked) -> Result<Response> {
    let permit = WatcherPermit::take(&app, &caller)?;
    // Subscribed before the first look, so that no change is lost between.
    let (changes, figures) = (app.outbox.listen(), app.outbox.figures());
    app.store.get::<Device>(&tenant, &device).await?;
    tracing::debug!(who = caller.name, tenant, device, "watches");
    let watcher = Watcher {
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
    Ok(sent(watcher))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Session,
    Report,
    Sample,
}

struct Watcher {
    app: Arc<App>,
    tenant: String,
    device: String,
    changes: Receiver<Changed>,
    figures: Receiver<Live>,
    waiting: Vec<Look>,
    sampled_ms: i64,
    looks: Instant,
    until: Instant,
    _permit: WatcherPermit,
}

impl Watches for Watcher {
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
                    Ok(line) => self.on_line(&line),
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
}

impl Watcher {
    fn on_line(&mut self, line: &Changed) {
        if line.tenant != self.tenant || line.subject != self.device {
            return;
        }
        let look = match &*line.kind {
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
                let sessions = store.sessions(tenant, device, 1).await?;
                sessions.first().map(|session| event("session", session))
            }
            Look::Report => {
                let report = found(store.report(tenant, device).await)?;
                report.map(|report| event("report", &report))
            }
            Look::Sample => {
                let span = (self.sampled_ms, i64::MAX);
                let samples = store.samples((tenant, device), STEPS_MS[0], span, 10).await?;
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
