//! Invented readings, and what is written of them.

use std::fs;

use roadweave_node::status::Status;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::tests::{client, server};

fn one() -> Value {
    client(&[(0, "wwan0", "usable")])
}

struct TestRun {
    folder: TempDir,
    log: Log,
    seconds: f64,
}

impl TestRun {
    fn new() -> Self {
        Self::with(1 << 20, 8)
    }

    fn with(bytes_max: u64, files_max: usize) -> Self {
        let folder = TempDir::new().unwrap();
        let files = Files::open(folder.path(), TraceLimits { bytes_max, files_max }).unwrap();
        Self { folder, log: Log::new(files, None, files_max), seconds: 0.0 }
    }

    fn now(&self) -> Now {
        let run = Duration::from_secs_f64(self.seconds);
        Now { run, wall: UNIX_EPOCH + Duration::from_secs(1_790_000_000) + run }
    }

    fn take(&mut self, status: &Value) {
        let status: Status = serde_json::from_value(status.clone()).unwrap();
        self.seconds += 0.1;
        self.log.take(self.now(), &status).unwrap();
    }

    fn files(&self) -> Vec<Vec<Value>> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths.iter().map(|path| records(&fs::read(path).unwrap())).collect()
    }

    fn events(&self, from: usize) -> Vec<Value> {
        self.files().pop().unwrap().split_off(1 + from)
    }

    fn events_after(before: &Value, change: impl FnOnce(&mut Value)) -> Vec<Value> {
        let mut run = Self::new();
        run.take(before);
        let count = run.events(0).len();
        let mut after = before.clone();
        change(&mut after);
        run.take(&after);
        run.events(count)
    }
}

/// RFC 7464: a record begins with RS and ends with a line feed.
fn records(bytes: &[u8]) -> Vec<Value> {
    assert!(bytes.is_empty() || bytes.ends_with(b"\n"), "the last record is cut off");
    let mut parts = bytes.split(|byte| *byte == 0x1e);
    assert_eq!(parts.next(), Some(&b""[..]));
    parts.map(|record| serde_json::from_slice(record).unwrap()).collect()
}

fn names(events: &[Value]) -> String {
    let names =
        events.iter().map(|event| event["name"].as_str().unwrap().split_once(':').unwrap().1);
    names.collect::<Vec<_>>().join(" ")
}

fn data(events: &[Value]) -> Vec<Value> {
    events.iter().map(|event| event["data"].clone()).collect()
}

#[test]
fn a_file_says_what_it_is_and_begins_with_all_that_holds() {
    let mut run = TestRun::new();
    run.take(&one());
    let golden = include_str!("../../tests/golden/qlog.jsonl");
    let golden = golden.replace("VERSION", env!("CARGO_PKG_VERSION"));
    let expected = golden.lines().map(|line| serde_json::from_str(line).unwrap());
    assert_eq!(run.files(), [expected.collect::<Vec<Value>>()]);
}

#[test]
fn each_change_of_a_path_is_one_event_with_what_has_changed() {
    let check = |change: Value, name: &str, data: Value| {
        let events_after = TestRun::events_after(&one(), |status| {
            for (field, value) in change.as_object().unwrap() {
                status["sessions"][0]["paths"][0][field] = value.clone();
            }
        });
        let expected = json!({ "time": 100.0, "name": name, "tuple": "0", "data": data });
        assert_eq!(events_after, [expected]);
    };
    let metrics = "quic:recovery_metrics_updated";
    check(json!({ "smoothed_rtt_ms": 70.1239 }), metrics, json!({ "smoothed_rtt": 70.124 }));
    check(
        json!({ "congestion_window_bytes": 9, "bytes_in_flight": 8, "pacing_rate_bps": 5_000_000 }),
        metrics,
        json!({ "congestion_window": 9, "bytes_in_flight": 8, "pacing_rate": 5_000_000 }),
    );
    check(
        json!({ "status": "suspect" }),
        "roadweave:path_status_updated",
        json!({ "path_id": 0, "uplink": "wwan0", "old": "usable", "new": "suspect" }),
    );
    check(json!({ "mtu_bytes": 1452 }), "quic:mtu_updated", json!({ "old": 1200, "new": 1452 }));
    check(
        json!({ "priority": "backup" }),
        "roadweave:path_policy_updated",
        json!({ "path_id": 0, "priority": "backup", "weight": 1 }),
    );
    let remote = json!({ "ip_v6": "2001:db8::1", "port_v6": 5 });
    check(
        json!({ "remote": "[2001:db8::1]:5" }),
        "quic:tuple_assigned",
        json!({ "tuple_id": "0", "path_id": 0, "uplink": "wwan0", "tuple_remote": remote }),
    );
}

#[test]
fn a_new_path_is_recorded_whole_and_one_that_goes_is_abandoned() {
    let both = client(&[(0, "wwan0", "usable"), (1, "wwan1", "validating")]);
    let events_after = TestRun::events_after(&one(), |status| *status = both.clone());
    let expected = "uplink_updated tuple_assigned path_status_updated mtu_updated \
                    path_policy_updated recovery_metrics_updated";
    assert_eq!(names(&events_after), expected);
    assert!(events_after[1..].iter().all(|event| event["tuple"] == "1"), "{events_after:#?}");
    let events_after = TestRun::events_after(&both, |status| *status = one());
    assert_eq!(names(&events_after), "uplink_updated path_status_updated tuple_assigned");
    let expected = [
        json!({ "uplink": "wwan1", "state": "gone" }),
        json!({ "path_id": 1, "uplink": "wwan1", "old": "validating", "new": "gone" }),
        json!({ "tuple_id": "1", "path_id": 1 }),
    ];
    assert_eq!(data(&events_after), expected);
}

#[test]
fn an_uplink_that_is_paused_or_wants_a_login_says_so() {
    let check = |change: fn(&mut Value), state: &str| {
        let events_after = TestRun::events_after(&one(), change);
        assert_eq!(data(&events_after), [json!({ "uplink": "wwan0", "state": state })]);
        assert_eq!(events_after[0]["tuple"], Value::Null);
    };
    check(|status| status["paused"] = json!(["wwan0"]), "paused");
    check(|status| status["uplinks"][0]["portal"] = json!({}), "portal");
}

#[test]
fn counters_are_recorded_once_a_second_as_they_are_even_when_they_go_back() {
    let mut status = one();
    let lane = |sent: u64| {
        let mut lane = json!(roadweave_tunnel::LaneStats::default());
        lane["name"] = json!("video");
        lane["sent"]["sent_packets"] = json!(sent);
        lane["received"]["recovered"] = json!(3);
        lane
    };
    status["sessions"][0]["lanes"] = json!([lane(7)]);
    let mut run = TestRun::new();
    run.take(&status);
    let begun = run.events(0);
    let first = begun.last().unwrap();
    assert_eq!(first["name"], "roadweave:lane_counters");
    let shown = ["lane", "name", "sent_packets", "restored_packets"].map(|it| &first["data"][it]);
    assert_eq!(json!(shown), json!([0, "video", 7, 3]));
    status["sessions"][0]["lanes"] = json!([lane(2)]);
    status["sessions"][0]["paths"][0]["counters"]["datagrams_lost"] = json!(1);
    (0..9).for_each(|_| run.take(&status));
    assert_eq!(run.events(begun.len()), [] as [Value; 0]);
    (0..2).for_each(|_| run.take(&status));
    let events_after = run.events(begun.len());
    assert_eq!(names(&events_after), "path_counters lane_counters");
    assert_eq!(events_after[0]["data"]["datagrams_lost"], 1);
    assert_eq!(events_after[1]["data"]["sent_packets"], 2);
}

#[test]
fn what_was_counted_in_the_last_second_is_recorded_at_the_end() {
    let both = client(&[(0, "wwan0", "usable"), (1, "wwan1", "usable")]);
    let mut run = TestRun::new();
    run.take(&both);
    let count = run.events(0).len();
    let mut status = both.clone();
    for path in status["sessions"][0]["paths"].as_array_mut().unwrap() {
        path["counters"]["suspicions"] = json!(1);
    }
    run.take(&status);
    status["sessions"][0]["paths"].as_array_mut().unwrap().pop();
    run.take(&status);
    status["sessions"] = json!([]);
    run.take(&status);
    let events_after = run.events(count);
    let expected =
        "path_counters path_status_updated tuple_assigned path_counters connection_closed";
    assert_eq!(names(&events_after), expected);
    let counted =
        [0, 3].map(|at| json!([events_after[at]["tuple"], events_after[at]["data"]["suspicions"]]));
    assert_eq!(counted, [json!(["1", 1]), json!(["0", 1])]);
}

#[test]
fn a_session_that_ends_is_closed_and_the_next_one_has_a_trace_of_its_own() {
    let check = |again: fn(&mut Value)| {
        let mut run = TestRun::new();
        run.take(&one());
        let mut status = one();
        again(&mut status);
        run.take(&status);
        let files = run.files();
        assert_eq!(files.len(), 2, "{files:#?}");
        assert_eq!(files[0].last().unwrap()["name"], "quic:connection_closed");
        assert_eq!(files[1][1]["data"], json!({ "reason": "joined", "part": 1 }));
        assert_eq!(files[1][2]["name"], "quic:connection_started");
        let remote = json!({ "ip_v4": "198.51.100.1", "port_v4": 4433 });
        assert_eq!(files[1][2]["data"], json!({ "local": {}, "remote": remote }));
        let group = |file: &[Value]| file[0]["trace"]["common_fields"]["group_id"].clone();
        assert_ne!(group(&files[0]), group(&files[1]));
    };
    check(|status| status["sessions"][0]["paths"][0]["counters"]["packets_sent"] = json!(3));
    check(|status| status["sessions"][0]["paths"][0]["counters"]["packets_received"] = json!(0));
    check(|status| status["sessions"][0]["public_key"] = json!("other"));
    let mut run = TestRun::new();
    run.take(&client(&[(3, "wwan0", "usable")]));
    run.take(&client(&[(3, "wwan0", "usable"), (4, "wwan1", "usable")]));
    assert_eq!(run.files().len(), 1);
    run.take(&client(&[(0, "wwan0", "usable")]));
    assert_eq!(run.files().len(), 2);
}

#[test]
fn the_reason_of_a_sessions_end_is_recorded_where_it_is_known() {
    let mut run = TestRun::new();
    run.take(&one());
    let mut status = one();
    status["sessions"] = json!([]);
    status["no_session"] = json!("the server \u{1b}[2J is away");
    run.take(&status);
    let last = |run: &TestRun| run.events(0).pop().unwrap()["data"].clone();
    let expected = json!({ "trigger": "unspecified", "reason": "the server \\u{1b}[2J is away" });
    assert_eq!(last(&run), expected);
    run.take(&one());
    run.log.instance_is_gone(run.now());
    let expected = json!({ "trigger": "unspecified", "reason": "the instance has ended" });
    assert_eq!(last(&run), expected);
    run.take(&one());
    assert_eq!(run.files().len(), 3);
}

#[test]
fn a_session_goes_on_in_another_file_that_begins_with_all_that_holds() {
    let mut run = TestRun::with(files::LAST + 4500, 3);
    let mut status = one();
    for window in 0..100 {
        status["sessions"][0]["paths"][0]["congestion_window_bytes"] = json!(window);
        run.take(&status);
    }
    let files = run.files();
    assert_eq!(files.len(), 3);
    for entry in fs::read_dir(run.folder.path()).unwrap() {
        assert!(entry.unwrap().metadata().unwrap().len() <= 4500);
    }
    let parts: Vec<_> =
        files.iter().map(|file| file[1]["data"]["part"].as_u64().unwrap()).collect();
    assert!(parts[0] > 1 && parts == [parts[0], parts[0] + 1, parts[0] + 2], "{parts:?}");
    let events = files.iter().flat_map(|file| &file[1..]);
    let times: Vec<_> = events.map(|event| event["time"].as_f64().unwrap()).collect();
    assert!(times.is_sorted() && times[0] > 0.0, "{times:?}");
    for file in &files {
        assert_eq!(file[1]["data"]["reason"], "continued");
        assert_eq!(file[3]["name"], "quic:tuple_assigned");
        assert_eq!(file[0]["trace"]["common_fields"], files[0][0]["trace"]["common_fields"]);
    }
}

#[test]
fn readings_that_are_lost_are_counted_in_the_file_that_comes_next() {
    let mut run = TestRun::new();
    let taken = run.folder.path().join("roadweave-1790000000100-000001-198.51.100.1_4433.sqlog");
    fs::create_dir(&taken).unwrap();
    (0..12).for_each(|_| run.take(&one()));
    fs::remove_dir(&taken).unwrap();
    let expected = json!({ "reason": "running", "part": 1, "readings_lost": 10 });
    assert_eq!(run.events(0)[0]["data"], expected);
}

#[test]
fn many_clients_or_paths_are_bounded() {
    let session = |number: u32| {
        let mut session = one()["sessions"][0].clone();
        session["peer"] = json!(format!("bus-{number:05}"));
        session
    };
    let mut run = TestRun::with(200_000, 4);
    run.take(&server((0..3000).map(session).collect()));
    assert_eq!((run.log.sessions.len(), run.files().len()), (4, 4));
    assert!(run.log.is_excess_logged);
    run.take(&server((1..3000).rev().map(session).collect()));
    let peers: Vec<_> = run.log.sessions.keys().map(|(peer, _)| peer.as_str()).collect();
    assert_eq!(peers, ["bus-00001", "bus-00002", "bus-00003", "bus-00004"]);
    assert_eq!(run.files().len(), 4);

    let long = "\u{1b}".repeat(1000);
    let paths: Vec<_> = (0..2000).map(|id| (id, long.as_str(), "usable")).collect();
    let mut run = TestRun::with(200_000, 4);
    run.take(&client(&paths));
    let file = fs::read_dir(run.folder.path()).unwrap().next().unwrap().unwrap();
    assert!(file.metadata().unwrap().len() < 100_000);
    assert_eq!(names(&run.events(0)).matches("mtu_updated").count(), 32);
}

#[test]
fn what_is_no_client_and_no_server_is_refused() {
    let mut status = one();
    status["role"] = json!("router");
    status["sessions"] = json!([]);
    status["sockets"] = json!([]);
    let mut run = TestRun::new();
    let error = run.log.take(run.now(), &serde_json::from_value(status).unwrap()).unwrap_err();
    let expected = "this instance is a router, which has no QUIC paths";
    assert_eq!(error.to_string(), expected);
}
