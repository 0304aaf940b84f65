//! An example of each role's status with every field that there is, held against the schema.
//!
//! What a status leaves out when it is empty is filled here by name and not by `..default()`, so
//! that a new field of that kind does not compile until it is here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roadweave_proto::{Delays, DropReason, PathStatus, Priority, Rate};
use roadweave_quic::PathStats;
use roadweave_tunnel::{
    CandidatePlace, EncoderTarget, LaneStats, LegStatus, LinkCounters, LinkStatus, LoadStats,
    MemoryStats, OrderStats, PairReport, PairState, PathStatusReport, Portal, ReceiveStats,
    RoundTrips, SendStats, SessionStats, TenantStats,
};
use serde_json::{Map, Value, json};

use super::*;
use crate::golden::assert_golden;

/// One of each role.
pub(crate) fn statuses() -> Vec<Status> {
    let roles = [
        RoleStatus::Client(client()),
        RoleStatus::Server(server()),
        RoleStatus::Router(router()),
        RoleStatus::Proxy(proxy()),
        RoleStatus::Anchor(anchor()),
    ];
    let status = |role| Status {
        name: "bus".to_owned(),
        version: "0.1.0".to_owned(),
        uptime_seconds: 12.5,
        tun: "rw0".to_owned(),
        device: DeviceCounters {
            packets_read: 5,
            bytes_read: 700,
            packets_written: 6,
            bytes_written: 800,
        },
        log: LogCounters { lines_lost: 29 },
        drops: drops(),
        fleet: Some(fleet()),
        role,
    };
    roles.into_iter().map(status).collect()
}

fn examples() -> Vec<Value> {
    statuses().iter().map(|status| serde_json::to_value(status).expect("JSON")).collect()
}

fn drops() -> DropCounters {
    let mut drops = DropCounters::default();
    DropReason::ALL.iter().for_each(|reason| drops.count(*reason));
    drops
}

fn delays() -> Delays {
    let mut delays = Delays::default();
    for ms in [0, 4, 61, 62, 2_500] {
        delays.add(Duration::from_millis(ms));
    }
    delays
}

fn counts(name: &str) -> BTreeMap<String, u64> {
    [(name.to_owned(), 3)].into()
}

fn client() -> ClientStatus {
    let pair = PairReport {
        server: "192.0.2.1:4433".to_owned(),
        state: PairState::Session,
        attempts: 1,
        rest_seconds: Some(1.5),
        last: Some("nobody answered".to_owned()),
    };
    let portal = Portal { url: Some("http://login.example/".to_owned()) };
    let uplink = UplinkReport {
        name: "wwan0".to_owned(),
        heard: true,
        rank: 2,
        portal: Some(portal),
        servers: vec![pair],
    };
    let modem = ModemFacts {
        operator: Some("An \"Operator\"".to_owned()),
        technology: Some("5g-nsa".to_owned()),
        rsrp_dbm: Some(-95.0),
        rsrq_db: Some(-11.0),
        sinr_db: Some(12.5),
        rssi_dbm: Some(-63.0),
        iccid: Some("8949020000012345678".to_owned()),
        apn: Some("internet".to_owned()),
    };
    let candidate = CandidateReport {
        name: "fra-1".to_owned(),
        site: "frankfurt".to_owned(),
        public_key: "key".to_owned(),
        place: CandidatePlace::InUse,
        last_resort: false,
        figure_ms: Some(17.5),
        measured_seconds_ago: Some(3.0),
        rest_seconds: Some(1.5),
        last: Some("refused".to_owned()),
    };
    ClientStatus {
        sessions: vec![session()],
        no_session: Some("no uplink".to_owned()),
        uplinks: vec![uplink],
        paused: vec!["wwan1".to_owned()],
        conflicts: [("wlan0".to_owned(), "its address".to_owned())].into(),
        outside: [("wwan0".to_owned(), vec!["192.168.8.1/32".to_owned()])].into(),
        modems: [("wwan0".to_owned(), modem)].into(),
        candidates: vec![candidate],
        suppressed_notices: 0,
        streams: Some(streams()),
    }
}

fn session() -> SessionStatus {
    SessionStatus {
        peer: "192.0.2.1:4433".to_owned(),
        public_key: "key".to_owned(),
        addresses: vec!["10.77.0.2".to_owned()],
        paths: vec![path()],
        stats: stats(),
    }
}

fn stats() -> SessionStats {
    let load = LoadStats { sent_datagrams: 3, ..LoadStats::default() };
    let memory =
        MemoryStats { decoder_bytes: 3_210_000, reorder_bytes: 654_000, ..MemoryStats::default() };
    SessionStats { lanes: vec![lane()], memory, load, drops: drops() }
}

fn path() -> PathStatusReport {
    let mut counters = PathStats::default();
    (counters.bytes_sent, counters.bytes_received) = (2_500_000, 1_700_000);
    (counters.packets_sent, counters.packets_received) = (2_000, 1_500);
    counters.datagrams_lost = 4;
    PathStatusReport {
        id: 1,
        uplink: Some("wwan0".to_owned()),
        remote: Some("192.0.2.1:4433".to_owned()),
        status: PathStatus::Usable,
        smoothed_rtt_ms: 61.5,
        min_rtt_ms: 60.0,
        rtt_deviation_ms: 1.0,
        loss: 0.25,
        congestion_window_bytes: 24_000,
        bytes_in_flight: 0,
        pacing_rate_bps: Some(8_000_000),
        mtu_bytes: 1_400,
        ecn: roadweave_quic::EcnMarking::Lost,
        priority: Priority::Primary,
        weight: 1,
        rate_limit_bps: Some(2_500_000),
        day_bytes: Some(30),
        daily_cap_bytes: Some(40),
        month_bytes: Some(50),
        monthly_cap_bytes: Some(60),
        redundancy_left_bytes: Some(70),
        round_trips: delays(),
        counters,
    }
}

fn lane() -> LaneStats {
    let target =
        EncoderTarget { frame_bytes: 9_000, bitrate: Rate::from_bps(5_000_000), renewals: 1 };
    let order = OrderStats {
        order: "even".to_owned(),
        waited_packets: 77,
        late_packets: 41,
        timeouts: 706,
        wait_us: 62_340,
        ..OrderStats::default()
    };
    LaneStats {
        name: "real-time".to_owned(),
        strategy: "xnc".to_owned(),
        deadline_ms: Some(100),
        sent: SendStats { inner_packets: 6, drops: drops(), ..SendStats::default() },
        encoder: Some(target),
        redundancy: 0.125,
        received: ReceiveStats {
            delivered_packets: 4,
            recovered: 2,
            order,
            excess_delays: delays(),
            drops: drops(),
            ..Default::default()
        },
        peer_delivered: 5,
        peer_recovered: 1,
        peer_missing: 0,
    }
}

fn streams() -> StreamsStatus {
    StreamsStatus {
        connections: 1,
        accepted: 4,
        ends: counts("closed"),
        http: counts("requests"),
        source: Some("client".to_owned()),
        split: Some(SplitStatus { taken: 3, obstacle: Some("nft is missing".to_owned()) }),
    }
}

fn totals() -> Totals {
    Totals {
        paths: PathStatus::ALL.map(|status| (status, 1)).into(),
        round_trips: Some(RoundTrips { p50_ms: 40.0, p90_ms: 60.0, p99_ms: 80.0 }),
        sessions: 2,
        standbys: 3,
        draining: true,
    }
}

fn server() -> ServerStatus {
    let absent = AbsentClient { reason: "it was silent".to_owned(), ..AbsentClient::default() };
    ServerStatus {
        sessions: vec![session()],
        absent: vec![absent],
        totals: totals(),
        memory_bytes: 4_096,
        refusals: [("unknown-key".to_owned(), 31), ("unknown-name".to_owned(), 0)].into(),
        shards: [(true, 0), (false, 7)]
            .map(|(runs, failures)| ShardStatus { runs, sessions: 3, failures, handed_over: 9 })
            .into(),
        streams: Some(streams()),
    }
}

fn router() -> RouterRoleStatus {
    let link = LinkStatus {
        id: 0,
        uplink: "eth1".to_owned(),
        remote: Some("192.0.2.1:6081".to_owned()),
        status: PathStatus::Usable,
        smoothed_rtt_ms: Some(12.5),
        min_rtt_ms: Some(12.0),
        rtt_deviation_ms: Some(0.5),
        round_trips: delays(),
        lost: 2,
        adopted_ratio: 0.75,
        counters: LinkCounters {
            packets_sent: 2_000,
            bytes_sent: 2_500_000,
            packets_received: 1_500,
            bytes_received: 1_700_000,
            adopted: 123_619,
            duplicates: 11,
            ..LinkCounters::default()
        },
    };
    let status = RouterStatus {
        paths: vec![link],
        peer_packets: 170_445,
        peer_packets_lost: 4,
        peer_restarts: 1,
        stats: stats(),
    };
    let socket = SocketStatus {
        listen: "0.0.0.0:6081".to_owned(),
        interface: Some("eth1".to_owned()),
        open: true,
        sends: Some(1),
        receives: Some(1),
        send_failures: Some(0),
    };
    let (peer, addresses) = ("the other router".to_owned(), vec!["10.77.0.2".to_owned()]);
    RouterRoleStatus {
        sessions: vec![RouterSession { peer, addresses, status }],
        sockets: vec![socket],
    }
}

fn leg() -> LegStatus {
    let remote = Some("192.0.2.9:4433".to_owned());
    LegStatus {
        public_key: "key".to_owned(),
        remote,
        is_up: true,
        smoothed_rtt_ms: 12.5,
        loss: 0.25,
        attachments: 3,
        drops: drops(),
        ..LegStatus::default()
    }
}

fn tenants() -> BTreeMap<String, TenantStats> {
    let (packets_up, bytes_up, packets_down, bytes_down) = (5, 700, 6, 800);
    let stats = TenantStats { packets_up, bytes_up, packets_down, bytes_down, drops: drops() };
    [("acme".to_owned(), stats)].into()
}

fn proxy() -> ProxyRoleStatus {
    ProxyRoleStatus {
        sessions: vec![session()],
        totals: totals(),
        memory_bytes: 4_096,
        refusals: counts("unknown-key"),
        passing: ProxyStatus { legs: vec![leg()], tenants: tenants() },
    }
}

fn anchor() -> AnchorRoleStatus {
    let passing = AnchorStatus {
        legs: vec![("fra-1".to_owned(), leg())],
        tenants: tenants(),
        refusals: counts("unknown-key"),
    };
    AnchorRoleStatus { passing, streams: Some(streams()) }
}

fn fleet() -> FleetStatus {
    let document = |outcome: &str, why: Option<&str>| DocumentStatus {
        kind: "configuration".to_owned(),
        version: "1.7".to_owned(),
        outcome: outcome.to_owned(),
        why: why.map(str::to_owned),
    };
    FleetStatus {
        name: "bus-12".to_owned(),
        role: "box".to_owned(),
        tenant: "north".to_owned(),
        controller: Some("fleet.example:4400 over wwan0".to_owned()),
        away_seconds: Some(3.5),
        away_why: Some("it did not answer".to_owned()),
        documents: vec![document("refused", Some("line 3")), document("on trial", None)],
        pinned: vec!["uplinks.include".to_owned()],
        revocations: 2,
        ..FleetStatus::default()
    }
}

fn schema() -> Value {
    serde_json::from_str(include_str!("../../../../docs/show.schema.json")).expect("JSON")
}

#[test]
fn what_each_role_shows_is_in_its_golden_file() {
    for example in examples() {
        let name = format!("show-{}.json", example["role"].as_str().expect("a role"));
        let text = serde_json::to_string_pretty(&example).expect("JSON") + "\n";
        assert_golden(&name, &text);
    }
}

#[test]
fn the_status_of_each_role_is_as_the_schema_says() {
    let examples = examples();
    let Some(said) = schema::otherwise(&examples.iter().collect::<Vec<_>>()) else { return };
    assert!(said.is_empty(), "{said}");
}

/// A field that was added without a word in the schema, or that has another type.
#[test]
fn what_the_schema_does_not_know_is_refused() {
    let wrong = [
        ("", json!(1)),
        ("/sessions/0", json!(1)),
        ("/sessions/0/paths/0/counters", json!(1)),
        ("/sessions/0/lanes/0/received/drops", json!(1)),
        ("/fleet/documents/0", json!(1)),
    ];
    let mut client = examples().remove(0);
    let mut broken: Vec<Value> = Vec::new();
    for (place, value) in wrong {
        let mut client = client.clone();
        client.pointer_mut(place).expect(place)["novelty"] = value;
        broken.push(client);
    }
    client["uptime_seconds"] = json!("long");
    broken.push(client);
    let Some(said) = schema::otherwise(&broken.iter().collect::<Vec<_>>()) else { return };
    for number in 1..=broken.len() {
        assert!(said.contains(&format!("document {number}, ")), "{number}:\n{said}");
    }
}

#[test]
fn every_field_of_the_schema_is_in_an_example() {
    let schema = schema();
    let mut seen = BTreeSet::new();
    for example in &examples() {
        let role = example["role"].as_str().expect("a role");
        note_seen(&schema, &schema["$defs"][role], example, &mut seen);
    }
    let mut known = BTreeSet::new();
    each_field(&schema["$defs"], &mut |field| {
        known.insert(std::ptr::from_ref(field));
        if field.get("description").is_some() {
            assert!(seen.contains(&std::ptr::from_ref(field)), "no example has {field}");
        }
    });
    assert!(known.len() > 250, "{}", known.len());
}

#[test]
fn every_field_has_a_description_and_every_number_a_unit() {
    let schema = schema();
    each_field(&schema["$defs"], &mut |field| {
        let described = field.get("description").is_some_and(|it| it.is_string());
        let is_common = field["$ref"].as_str().is_some_and(|it| it.contains("/common/"));
        assert!(described || is_common, "{field}");
        let kind = field["type"].to_string();
        let is_number = kind.contains("integer") || kind.contains("number");
        assert_eq!(is_number, field.get("x-unit").is_some(), "{field}");
    });
    for (name, object) in schema["$defs"].as_object().expect("an object") {
        let is_strict = object["additionalProperties"] == json!(false);
        assert!(is_strict || name == "common", "{name} takes any field");
    }
}

/// Calls `visit` with the schema of each field below `schema`, and of the values of maps.
fn each_field<'a>(schema: &'a Value, visit: &mut impl FnMut(&'a Value)) {
    for (key, below) in schema.as_object().into_iter().flatten() {
        if key == "properties" {
            below.as_object().into_iter().flat_map(Map::values).for_each(&mut *visit);
        }
        each_field(below, visit);
    }
}

/// Notes in `seen` the schemas of the fields that `value` has.
fn note_seen<'a>(
    root: &'a Value,
    schema: &'a Value,
    value: &Value,
    seen: &mut BTreeSet<*const Value>,
) {
    seen.insert(std::ptr::from_ref(schema));
    if let Some(reference) = schema["$ref"].as_str() {
        note_seen(root, root.pointer(&reference[1..]).expect(reference), value, seen);
    }
    for choice in schema["oneOf"].as_array().into_iter().flatten() {
        note_seen(root, choice, value, seen);
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let field = schema["properties"].get(key).or_else(|| schema.get("additionalProperties"));
        if let Some(field) = field {
            note_seen(root, field, value, seen);
        }
    }
    for (place, value) in value.as_array().into_iter().flatten().enumerate() {
        note_seen(root, &schema["items"], value, seen);
        if let Some(item) = schema["prefixItems"].get(place) {
            note_seen(root, item, value, seen);
        }
    }
}
