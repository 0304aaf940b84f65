//! The events of paths and lanes and their fields.

use std::net::{IpAddr, SocketAddr};

use roadweave_proto::peer_text;
use roadweave_tunnel::{LaneStats, PathStatusReport, SessionStatus};
use serde_json::{Map, Value, json};

use super::Records;

pub(super) fn started(session: &SessionStatus) -> Value {
    let remote = session.paths.iter().find_map(|path| path.remote.as_deref());
    json!({ "local": {}, "remote": endpoint(remote) })
}

pub(super) fn path(
    before: Option<&PathStatusReport>,
    now: &PathStatusReport,
    records: &mut Records,
) {
    let id = now.id;
    let uplink = now.uplink.as_ref().map(|name| peer_text(name.as_bytes()));
    if before.is_none_or(|before| (&before.remote, &before.uplink) != (&now.remote, &now.uplink)) {
        let mut data = json!({ "tuple_id": id.to_string(), "path_id": id });
        data["tuple_remote"] = endpoint(now.remote.as_deref());
        insert(&mut data, "uplink", uplink.clone());
        records.event("quic:tuple_assigned", Some(id), data);
    }
    if before.is_none_or(|before| before.status != now.status) {
        let mut data = json!({ "path_id": id, "new": now.status.name() });
        insert(&mut data, "uplink", uplink.clone());
        insert(&mut data, "old", before.map(|before| before.status.name()));
        records.event("roadweave:path_status_updated", Some(id), data);
    }
    if before.is_none_or(|before| before.mtu_bytes != now.mtu_bytes) {
        let mut data = json!({ "new": now.mtu_bytes });
        insert(&mut data, "old", before.map(|before| before.mtu_bytes));
        records.event("quic:mtu_updated", Some(id), data);
    }
    let policy = |path: &PathStatusReport| (path.priority, path.weight);
    if before.is_none_or(|before| policy(before) != policy(now)) {
        let data = json!({ "path_id": id, "priority": now.priority, "weight": now.weight });
        records.event("roadweave:path_policy_updated", Some(id), data);
    }
    let old = before.map(metrics).unwrap_or_default();
    let mut new = metrics(now);
    new.retain(|name, value| old.get(name) != Some(value));
    if !new.is_empty() {
        records.event("quic:recovery_metrics_updated", Some(id), Value::Object(new));
    }
}

/// A tuple without addresses is abandoned.
pub(super) fn path_is_gone(before: &PathStatusReport, records: &mut Records) {
    let id = before.id;
    let mut data = json!({ "path_id": id, "old": before.status.name(), "new": "gone" });
    let uplink = before.uplink.as_ref().map(|name| peer_text(name.as_bytes()));
    insert(&mut data, "uplink", uplink);
    records.event("roadweave:path_status_updated", Some(id), data);
    let data = json!({ "tuple_id": id.to_string(), "path_id": id });
    records.event("quic:tuple_assigned", Some(id), data);
}

fn metrics(path: &PathStatusReport) -> Map<String, Value> {
    let mut data = json!({
        "smoothed_rtt": millis(path.smoothed_rtt_ms),
        "min_rtt": millis(path.min_rtt_ms),
        "rtt_variance": millis(path.rtt_deviation_ms),
        "congestion_window": path.congestion_window_bytes,
        "bytes_in_flight": path.bytes_in_flight,
    });
    insert(&mut data, "pacing_rate", path.pacing_rate_bps);
    data.as_object().cloned().unwrap_or_default()
}

pub(super) fn path_counters(path: &PathStatusReport) -> Value {
    let mut data = json!(path.counters);
    for unwritten in ["datagrams_received", "feedback_sent", "feedback_received"] {
        data.as_object_mut().map(|counters| counters.remove(unwritten));
    }
    data["path_id"] = path.id.into();
    data["loss"] = millis(path.loss.into()).into();
    data
}

pub(super) fn lane_counters(number: usize, lane: &LaneStats) -> Value {
    let LaneStats { sent, received, .. } = lane;
    json!({
        "lane": number,
        "name": peer_text(lane.name.as_bytes()),
        "strategy": peer_text(lane.strategy.as_bytes()),
        "sent_packets": sent.sent_packets,
        "sent_bytes": sent.sent_bytes,
        "source_datagrams": sent.source_datagrams,
        "duplicate_datagrams": sent.duplicate_datagrams,
        "coded_datagrams": sent.coded_datagrams,
        "lost_packets": sent.recovery.lost,
        "spurious_losses": sent.recovery.spurious,
        "abandoned_packets": sent.recovery.abandoned,
        "peer_delivered_packets": lane.peer_delivered,
        "peer_restored_packets": lane.peer_recovered,
        "peer_missing_packets": lane.peer_missing,
        "delivered_packets": received.delivered_packets,
        "delivered_bytes": received.delivered_bytes,
        "restored_packets": received.recovered,
        "late_packets": received.order.late_packets,
    })
}

/// `TupleEndpointInfo`; empty without an address.
fn endpoint(address: Option<&str>) -> Value {
    match address.and_then(|text| text.parse::<SocketAddr>().ok()) {
        None => json!({}),
        Some(address) => match address.ip().to_canonical() {
            IpAddr::V4(ip) => json!({ "ip_v4": ip, "port_v4": address.port() }),
            IpAddr::V6(ip) => json!({ "ip_v6": ip, "port_v6": address.port() }),
        },
    }
}

/// Rounds to a microsecond; smaller changes are no events.
pub(super) fn millis(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn insert(data: &mut Value, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        data[name] = value.into();
    }
}
