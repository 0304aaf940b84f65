//! One session as qlog: what is new in a reading becomes events.
//!
//! ```text
//! reading ─► differs from what was written? ─► records: RS, JSON, line feed (RFC 7464)
//! ```
//!
//! Each file begins with the full state and can be read alone. Sources:
//! draft-ietf-quic-qlog-quic-events-13 for the namespace `quic`,
//! draft-ietf-quic-qlog-main-schema-14 for the file, docs/operate.md for the namespace `roadweave`.

mod events;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use roadweave_node::status::{RoleStatus, Status};
use roadweave_proto::peer_text;
use roadweave_tunnel::{LaneStats, PathStatusReport, SessionStatus};
use serde::Serialize;
use serde_json::{Value, json};

use super::Now;

const QUIC_EVENTS: &str = "urn:ietf:params:qlog:events:quic-13";
/// docs/operate.md.
pub(super) const ROADWEAVE_EVENTS: &str = "urn:uuid:7eb38b91-2d14-4e82-9bd4-54f522e857c2";
const COUNTERS_EVERY: Duration = Duration::from_secs(1);
const THINGS_MAX: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum UplinkState {
    Present,
    Paused,
    Portal,
    Gone,
}

pub(super) type Uplinks = BTreeMap<String, UplinkState>;

pub(super) fn uplinks(status: &Status) -> Uplinks {
    let RoleStatus::Client(client) = &status.role else { return Uplinks::new() };
    let all = client.uplinks.iter().map(|uplink| {
        let state = match uplink.portal {
            Some(_) => UplinkState::Portal,
            None => UplinkState::Present,
        };
        (uplink.name.clone(), state)
    });
    let paused = client.paused.iter().map(|name| (name.clone(), UplinkState::Paused));
    let all: Uplinks = all.chain(paused).collect();
    all.into_iter().take(THINGS_MAX).collect()
}

#[derive(Clone, Copy, Debug)]
pub(super) struct StatusReading<'a> {
    pub(super) session: &'a SessionStatus,
    pub(super) uplinks: &'a Uplinks,
}

#[derive(Clone, Debug)]
pub(super) struct About {
    pub(super) role: &'static str,
    pub(super) instance: String,
    pub(super) is_new: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Beginning {
    pub(super) part: u64,
    pub(super) readings_lost: u64,
}

#[derive(Debug)]
pub(super) struct Trace {
    about: About,
    peer: String,
    group: String,
    zero: Now,
    reported: ReportedCounters,
    seen: BTreeMap<u32, (u64, u64)>,
}

#[derive(Debug, Default)]
struct ReportedCounters {
    paths: BTreeMap<u32, PathStatusReport>,
    lanes: Vec<LaneStats>,
    uplinks: Uplinks,
    path_counters: BTreeMap<u32, Value>,
    lane_counters: BTreeMap<usize, Value>,
    counted: Option<Duration>,
}

impl Trace {
    pub(super) fn new(about: About, session: &SessionStatus, now: Now) -> Self {
        let who = match session.public_key.as_str() {
            "" => &session.peer,
            key => key,
        };
        let group = format!("{}@{}", peer_text(who.as_bytes()), timestamp(now.wall));
        let peer = peer_text(session.peer.as_bytes());
        let (reported, seen) = (ReportedCounters::default(), BTreeMap::new());
        Self { about, peer, group, zero: now, reported, seen }
    }

    /// There is no session number, but within one no counter decreases, and path 0 does not return.
    pub(super) fn is_of(&self, session: &SessionStatus) -> bool {
        let goes_on = |path: &PathStatusReport| match self.seen.get(&path.id) {
            Some((sent, received)) => {
                path.counters.packets_sent >= *sent && path.counters.packets_received >= *received
            }
            None => path.id != 0 || self.seen.is_empty(),
        };
        session.paths.iter().all(goes_on)
    }

    pub(super) fn begin(
        &mut self,
        now: Now,
        reading: &StatusReading<'_>,
        how: Beginning,
    ) -> Vec<u8> {
        self.reported = ReportedCounters::default();
        let mut records = Records::at(self.time(now));
        records.push(&self.header(how.part));
        let began = match (how.part, self.about.is_new) {
            (1, true) => "joined",
            (1, false) => "running",
            _ => "continued",
        };
        let mut data = json!({ "reason": began, "part": how.part });
        if how.readings_lost > 0 {
            data["readings_lost"] = json!(how.readings_lost);
        }
        records.event("roadweave:trace_started", None, data);
        if began == "joined" {
            records.event("quic:connection_started", None, events::started(reading.session));
        }
        self.record_changes(now, reading, &mut records);
        records.bytes
    }

    pub(super) fn updates(&mut self, now: Now, reading: &StatusReading<'_>) -> Vec<u8> {
        let mut records = Records::at(self.time(now));
        self.record_changes(now, reading, &mut records);
        records.bytes
    }

    pub(super) fn close(&mut self, now: Now, reason: Option<&str>) -> Vec<u8> {
        let mut records = Records::at(self.time(now));
        self.record_counters(&mut records);
        let mut data = json!({ "trigger": "unspecified" });
        if let Some(reason) = reason {
            data["reason"] = json!(peer_text(reason.as_bytes()));
        }
        records.event("quic:connection_closed", None, data);
        records.bytes
    }

    /// Milliseconds since the first reading; the clock of the run is monotonic.
    fn time(&self, now: Now) -> f64 {
        events::millis(now.run.saturating_sub(self.zero.run).as_secs_f64() * 1000.0)
    }

    fn header(&self, part: u64) -> Value {
        let title = match part {
            1 => self.peer.clone(),
            _ => format!("{}, part {part}", self.peer),
        };
        let instance = peer_text(self.about.instance.as_bytes());
        json!({
            "file_schema": "urn:ietf:params:qlog:file:sequential",
            "serialization_format": "application/qlog+json-seq",
            "title": title,
            "description": concat!("roadweave qlog ", env!("CARGO_PKG_VERSION")),
            "trace": {
                "title": title,
                "common_fields": {
                    "group_id": self.group,
                    "time_format": "relative_to_epoch",
                    "reference_time": {
                        "clock_type": "monotonic",
                        "epoch": "unknown",
                        "wall_clock_time": timestamp(self.zero.wall),
                    },
                },
                "vantage_point": { "name": instance, "type": self.about.role },
                "event_schemas": [QUIC_EVENTS, ROADWEAVE_EVENTS],
            },
        })
    }

    fn record_changes(&mut self, now: Now, reading: &StatusReading<'_>, records: &mut Records) {
        let paths = &reading.session.paths[..reading.session.paths.len().min(THINGS_MAX)];
        self.record_uplinks(reading.uplinks, records);
        let gone = |id: &u32| !paths.iter().any(|path| path.id == *id);
        let gone: Vec<u32> = self.reported.paths.keys().copied().filter(gone).collect();
        for id in gone {
            if let Some(before) = self.reported.paths.remove(&id) {
                self.reported.record_path_counters(&before, records);
                events::path_is_gone(&before, records);
            }
            self.reported.path_counters.remove(&id);
        }
        for path in paths {
            let before = self.reported.paths.insert(path.id, path.clone());
            events::path(before.as_ref(), path, records);
        }
        let lanes = &reading.session.stats.lanes;
        self.reported.lanes = lanes[..lanes.len().min(THINGS_MAX)].to_vec();
        let is_due = |at: Duration| now.run.saturating_sub(at) >= COUNTERS_EVERY;
        if self.reported.counted.is_none_or(is_due) {
            self.reported.counted = Some(now.run);
            self.record_counters(records);
        }
        let packets = |path: &PathStatusReport| {
            (path.id, (path.counters.packets_sent, path.counters.packets_received))
        };
        self.seen = paths.iter().map(packets).collect();
    }

    fn record_uplinks(&mut self, uplinks: &Uplinks, records: &mut Records) {
        let before = std::mem::replace(&mut self.reported.uplinks, uplinks.clone());
        let is_gone = |name: &&String| !uplinks.contains_key(*name);
        let gone = before.keys().filter(is_gone).map(|name| (name, &UplinkState::Gone));
        for (name, state) in gone.chain(uplinks) {
            if before.get(name) != Some(state) {
                let data = json!({ "uplink": peer_text(name.as_bytes()), "state": state });
                records.event("roadweave:uplink_updated", None, data);
            }
        }
    }

    fn record_counters(&mut self, records: &mut Records) {
        let paths = std::mem::take(&mut self.reported.paths);
        paths.values().for_each(|path| self.reported.record_path_counters(path, records));
        self.reported.paths = paths;
        for (number, lane) in self.reported.lanes.iter().enumerate() {
            let data = events::lane_counters(number, lane);
            if self.reported.lane_counters.get(&number) != Some(&data) {
                records.event("roadweave:lane_counters", None, data.clone());
                self.reported.lane_counters.insert(number, data);
            }
        }
    }
}

impl ReportedCounters {
    fn record_path_counters(&mut self, path: &PathStatusReport, records: &mut Records) {
        let data = events::path_counters(path);
        if self.path_counters.get(&path.id) != Some(&data) {
            records.event("roadweave:path_counters", Some(path.id), data.clone());
            self.path_counters.insert(path.id, data);
        }
    }
}

fn timestamp(wall: SystemTime) -> String {
    let at = Timestamp::try_from(wall).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{at:.3}")
}

#[derive(Debug)]
pub(super) struct Records {
    time: f64,
    bytes: Vec<u8>,
}

#[derive(Serialize)]
struct TraceEvent<'a> {
    time: f64,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tuple: Option<String>,
    data: Value,
}

impl Records {
    const fn at(time: f64) -> Self {
        Self { time, bytes: Vec::new() }
    }

    fn event(&mut self, name: &str, path: Option<u32>, data: Value) {
        let tuple = path.map(|id| id.to_string());
        self.push(&TraceEvent { time: self.time, name, tuple, data });
    }

    /// JSON escapes control characters in texts, so RS and line feed separate records.
    fn push(&mut self, record: &impl Serialize) {
        let text = serde_json::to_vec(record).expect("keys are texts");
        self.bytes.push(0x1e);
        self.bytes.extend(text);
        self.bytes.push(b'\n');
    }
}
