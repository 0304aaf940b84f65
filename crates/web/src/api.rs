//! The interface of the page: what is seen, and two changes.
//!
//! ```text
//! GET  /api/v1/state?after=N   all that is known, with the samples behind number N
//! POST /api/v1/uplinks         {"uplink": "wwan0", "paused": true}
//! POST /api/v1/lanes           {"lane": "tcp", "strategy": "redundant"}
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use roadweave_linux::random_bytes;
use roadweave_node::ModemFacts;
use roadweave_node::history::Link;
use roadweave_node::local::{self, RequestError, SetStrategy, SetUplink};
use roadweave_node::status::{ClientStatus, RoleStatus};
use roadweave_proto::{PathStatus, Priority, Technology, peer_text};
use roadweave_tunnel::{LaneStats, PathStatusReport, STRATEGIES, Strategy};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::connections::Permit;
use crate::guard::{Answer, RequestRefusal, answer, let_in, named};
use crate::names::Names;
use crate::page;
use crate::samples::Rows;
use crate::token::Check;
use crate::watcher::{WatchedStatus, Watcher};

const BODY_MAX: usize = 4 * 1024;
const BODY_WAIT: Duration = Duration::from_secs(5);
const CHANGES_MAX: usize = 2;
const LIST_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Api {
    watcher: Watcher,
    names: Names,
    check: Check,
    read_only: bool,
    /// Identifies this run: if it changes, sample numbers begin again.
    run: String,
    changes: Arc<Semaphore>,
}

/// `State` of page/src/client.ts.
#[derive(Debug, Serialize)]
struct State<'a> {
    #[serde(flatten)]
    now: Value,
    samples: Rows<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UplinkChange {
    uplink: String,
    paused: bool,
}

impl Api {
    pub(crate) fn new(
        watcher: Watcher,
        names: Names,
        check: Check,
        read_only: bool,
    ) -> Result<Self> {
        let run = u64::from_ne_bytes(random_bytes()?);
        let changes = Arc::new(Semaphore::new(CHANGES_MAX));
        Ok(Self { watcher, names, check, read_only, run: format!("{run:016x}"), changes })
    }

    pub(crate) async fn answer(&self, place: &Permit, request: Request<Incoming>) -> Answer {
        let (parts, body) = request.into_parts();
        if let Err(refusal) = named(&parts, &self.names) {
            return refuse(refusal);
        }
        let path = parts.uri.path();
        let Some(of_api) = path.strip_prefix("/api/v1/") else {
            return match (&parts.method, page::file(path)) {
                (_, None) => fault(StatusCode::NOT_FOUND, "not found"),
                (&Method::GET | &Method::HEAD, Some(file)) => file,
                _ => wrong_method("GET"),
            };
        };
        if let Err(refusal) = let_in(&parts, &self.check) {
            return refuse(refusal);
        }
        place.is_known();
        match (of_api, &parts.method) {
            ("state", &Method::GET) => self.state(parts.uri.query().unwrap_or_default()),
            ("state", _) => wrong_method("GET"),
            ("uplinks" | "lanes", &Method::POST) => {
                let content_type = parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
                if content_type != Some(b"application/json") {
                    return fault(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send application/json");
                }
                if self.read_only {
                    return fault(StatusCode::FORBIDDEN, "this page only shows (--read-only)");
                }
                let done = match of_api {
                    "uplinks" => self.set_uplink(body).await,
                    _ => self.set_lane(body).await,
                };
                done.unwrap_or_else(|answer| answer)
            }
            ("uplinks" | "lanes", _) => wrong_method("POST"),
            _ => fault(StatusCode::NOT_FOUND, "not found"),
        }
    }

    fn state(&self, query: &str) -> Answer {
        self.watcher.look();
        let after = match query.strip_prefix("after=").map(str::parse) {
            None if query.is_empty() => 0,
            Some(Ok(after)) => after,
            _ => return fault(StatusCode::BAD_REQUEST, "after must be a number"),
        };
        let now_ms = self.watcher.elapsed_ms();
        let seen = self.watcher.seen();
        let state = self.state_of(&seen, after, now_ms, self.watcher.begun());
        json(StatusCode::OK, &state)
    }

    fn state_of<'a>(
        &'a self,
        seen: &'a WatchedStatus,
        after: u64,
        now_ms: u64,
        begun: Instant,
    ) -> State<'a> {
        let history = &seen.history;
        let now = begun + Duration::from_millis(now_ms);
        let ago = |at: Instant| now.saturating_duration_since(at).as_millis() as u64;
        let status = history.status.as_ref();
        let client = match status.map(|status| &status.role) {
            Some(RoleStatus::Client(client)) => Some(client),
            _ => None,
        };
        let session = client.and_then(|client| client.sessions.first());
        let (stalls, stalled) = history.stalls();
        let events = history.events.iter().take(LIST_MAX).zip(0..);
        let events = events.map(|((at, text), back)| {
            let number = history.events_added - back;
            json!({ "number": number, "ago_ms": ago(*at), "text": shown(text) })
        });
        let lanes = session.map_or(&[][..], |session| &session.stats.lanes[..]);
        let lanes = lanes.iter().filter(|lane| !lane.strategy.is_empty()).take(LIST_MAX);
        let lanes = lanes.map(|LaneStats { name, strategy, .. }| {
            json!({ "name": name, "shown": shown(name), "strategy": strategy })
        });
        let now = json!({
            "run": self.run,
            "now_ms": now_ms,
            "read_only": self.read_only,
            "away": history.away.as_deref().map(shown),
            "age_ms": history.read_at.map(ago),
            "name": status.map(|status| shown(&status.name)),
            "role": status.map(|status| status.role.name()),
            "uptime_s": status.map(|status| status.uptime_seconds as u64),
            "session": session.map(|session| shown(&session.peer)),
            "no_session": client.and_then(|it| it.no_session.as_deref()).map(shown),
            "target_bps": client.and_then(ClientStatus::encoder_target),
            "p99_ms": history.delay_p99_ms(),
            "stalls": stalls,
            "stalled_ms": stalled.as_millis() as u64,
            "links": client.map_or_else(|| json!([]), |client| links(client, seen)),
            "lanes": lanes.collect::<Value>(),
            "strategies": Strategy::plain_names(STRATEGIES).collect::<Value>(),
            "events": events.collect::<Value>(),
        });
        State { now, samples: seen.samples.after(after) }
    }

    async fn set_uplink(&self, body: Incoming) -> Result<Answer, Answer> {
        let UplinkChange { uplink, paused } = content(body).await?;
        let change = SetUplink { uplink, paused: Some(paused), ..SetUplink::default() };
        let socket = self.watcher.socket().to_owned();
        self.change(move || local::set_uplink(&socket, &change)).await
    }

    async fn set_lane(&self, body: Incoming) -> Result<Answer, Answer> {
        let change: SetStrategy = content(body).await?;
        let socket = self.watcher.socket().to_owned();
        self.change(move || local::set_strategy(&socket, &change)).await
    }

    async fn change(
        &self,
        ask: impl FnOnce() -> Result<Option<String>, RequestError> + Send + 'static,
    ) -> Result<Answer, Answer> {
        let busy = |_| fault(StatusCode::SERVICE_UNAVAILABLE, "another change is in progress");
        let permit = Arc::clone(&self.changes).try_acquire_owned().map_err(busy)?;
        let asking = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            ask()
        });
        Ok(match asking.await {
            Ok(Ok(notice)) => {
                json(StatusCode::OK, &json!({ "notice": notice.as_deref().map(shown) }))
            }
            Ok(Err(RequestError::Refused(error))) => {
                fault(StatusCode::CONFLICT, &shown(&error.message))
            }
            Ok(Err(error)) => fault(StatusCode::BAD_GATEWAY, &shown(&error.to_string())),
            Err(_) => fault(StatusCode::INTERNAL_SERVER_ERROR, "see the log"),
        })
    }
}

fn links(client: &ClientStatus, seen: &WatchedStatus) -> Value {
    let of = |(name, link): (&String, &Link)| {
        let path = client.paths().find(|path| path.uplink.as_ref() == Some(name));
        let technology = seen.technologies.get(name).copied().flatten();
        let modem = client.modems.get(name);
        json!({
            "name": name,
            "shown": shown(name),
            "status": link.status.map(PathStatus::name),
            "paused": link.is_paused,
            "portal": link.has_portal,
            "technology": technology.map(Technology::name),
            "signal_dbm": seen.levels.get(name).copied().or_else(|| rsrp(modem?)),
            "operator": modem.and_then(|facts| facts.operator.as_deref()).map(shown),
            "sent_bps": link.rates[0] as u64,
            "received_bps": link.rates[1] as u64,
            "round_trip_ms": link.status.map(|_| link.round_trip_ms),
            "loss": link.status.map(|_| link.loss),
            "left_bytes": link.left_bytes,
            "cap_bytes": path.and_then(PathStatusReport::nearest_cap).map(|(_, cap)| cap),
            "backup": path.is_some_and(|path| path.priority == Priority::Backup),
        })
    };
    seen.history.links.iter().take(LIST_MAX).map(of).collect()
}

fn rsrp(facts: &ModemFacts) -> Option<i32> {
    facts.rsrp_dbm.map(|power| power as i32)
}

/// Foreign text, bounded and without control and bidirectional characters.
fn shown(text: &str) -> String {
    peer_text(text.as_bytes())
}

async fn content<T: DeserializeOwned>(body: Incoming) -> Result<T, Answer> {
    let read = timeout(BODY_WAIT, Limited::new(body, BODY_MAX).collect()).await;
    let read = read.map_err(|_| fault(StatusCode::REQUEST_TIMEOUT, "the request took too long"))?;
    let too_large = |_| fault(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large");
    let bytes = read.map_err(too_large)?.to_bytes();
    let malformed = |_| fault(StatusCode::BAD_REQUEST, "the request is malformed");
    serde_json::from_slice(&bytes).map_err(malformed)
}

fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    let text = serde_json::to_vec(value).unwrap_or_default();
    answer(status, "application/json", Bytes::from(text))
}

fn fault(status: StatusCode, error: &str) -> Answer {
    json(status, &json!({ "error": error }))
}

fn refuse(refusal: RequestRefusal) -> Answer {
    fault(refusal.status, refusal.why)
}

fn wrong_method(allowed: &'static str) -> Answer {
    let mut answer = fault(StatusCode::METHOD_NOT_ALLOWED, "this method is not supported");
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}
