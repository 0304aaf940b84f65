//! Which changes are reported to programs, and when.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use roadweave_node::status::Status;
use serde_json::{Value, json};

use super::changes::UplinkState;
use super::*;
use crate::tests;

fn client(seconds: f64, server: Option<&str>, uplinks: &[(&str, &str)]) -> Value {
    let paths: Vec<_> = uplinks.iter().map(|(name, status)| (0, *name, *status)).collect();
    let mut client = tests::client(&paths);
    client["uptime_seconds"] = seconds.into();
    let Some(server) = server else {
        client["sessions"] = json!([]);
        return client;
    };
    client["sessions"][0]["peer"] = server.into();
    client["sessions"][0]["addresses"] = json!(["10.77.0.2/32", "$(reboot)", "fd77::2"]);
    client
}

fn changes_after(changes: &mut Changes, status: Option<&Value>, times: usize) -> Vec<String> {
    let now = status.and_then(|status| status["uptime_seconds"].as_f64());
    changes_at(changes, now.unwrap_or(0.0), status, times)
}

fn changes_at(
    changes: &mut Changes,
    now: f64,
    status: Option<&Value>,
    times: usize,
) -> Vec<String> {
    let status = status.map(|value| serde_json::from_value::<Status>(value.clone()).unwrap());
    for _ in 0..times {
        assert!(changes.take(Duration::from_secs_f64(now), status.as_ref()));
    }
    let words = |change: HookChange| match facts(&change) {
        Ok(facts) => facts.iter().map(|(name, is)| format!("{name}={is} ")).collect(),
        Err(why) => why,
    };
    std::iter::from_fn(|| changes.next()).map(words).collect()
}

const UP: &str = "EVENT=uplink UPLINK=wwan0 UPLINK_STATE=up ";
const SERVER: Option<&str> = Some("192.0.2.1:4433");
const JOIN: &str = "EVENT=join TUN=rw0 ADDRESSES=10.77.0.2/32 fd77::2/128 SERVER=192.0.2.1:4433 ";
const NOTHING: [&str; 0] = [];
const LEAVE: &str = "EVENT=leave TUN=rw0 ";

#[test]
fn a_change_counts_once_two_readings_say_so() {
    let mut changes = Changes::default();
    assert_eq!(changes_after(&mut changes, None, 3), NOTHING);
    let up = client(1.0, SERVER, &[("wwan0", "usable")]);
    assert_eq!(changes_after(&mut changes, Some(&up), 1), NOTHING);
    assert_eq!(changes_after(&mut changes, Some(&up), 1), [JOIN, UP]);
    let silent = client(2.0, None, &[("wwan0", "suspect")]);
    assert_eq!(changes_after(&mut changes, Some(&silent), 1), NOTHING);
    let up = client(3.0, SERVER, &[("wwan0", "usable")]);
    assert_eq!(changes_after(&mut changes, Some(&up), 5), NOTHING, "one reading is none");
}

#[test]
fn joins_leaves_and_restarts_are_reported() {
    let mut changes = Changes::default();
    let up = |seconds| client(seconds, SERVER, &[]);
    assert_eq!(changes_after(&mut changes, Some(&up(7.0)), 2), [JOIN]);
    assert_eq!(changes_after(&mut changes, Some(&up(8.0)), 2), NOTHING);
    assert_eq!(changes_at(&mut changes, 12.0, Some(&up(3.0)), 2), [JOIN]);
    // Also if its uptime is larger than at the last reading, because a program took long.
    assert_eq!(changes_at(&mut changes, 22.0, Some(&up(5.0)), 2), [JOIN]);
    assert_eq!(changes_at(&mut changes, 24.5, Some(&up(6.0)), 2), NOTHING);
    assert_eq!(changes_after(&mut changes, None, 2), [LEAVE]);
    assert_eq!(changes_after(&mut changes, Some(&up(9.0)), 2), [JOIN]);
    assert_eq!(changes_after(&mut changes, None, 1), NOTHING);
    assert_eq!(changes_after(&mut changes, Some(&up(99.0)), 2), [JOIN]);
    let elsewhere = client(100.0, Some("[2001:db8::1]:4433"), &[]);
    let join = JOIN.replace("192.0.2.1", "[2001:db8::1]");
    assert_eq!(changes_after(&mut changes, Some(&elsewhere), 2), [join]);
    let odd = client(101.0, Some("a; reboot"), &[]);
    let join = JOIN.replace("SERVER=192.0.2.1:4433 ", "");
    assert_eq!(changes_after(&mut changes, Some(&odd), 2), [join]);
}

#[test]
fn changes_of_an_uplink_are_reported() {
    let mut changes = Changes::default();
    let state = |state: &str| format!("EVENT=uplink UPLINK=wwan0 UPLINK_STATE={state} ");
    let value = client(1.0, SERVER, &[("wwan0", "suspect")]);
    assert_eq!(changes_after(&mut changes, Some(&value), 2)[1..], [state("down")]);
    let mut check = |value: &Value, word: &str| {
        assert_eq!(changes_after(&mut changes, Some(value), 2), [state(word)]);
    };
    let mut value = client(1.0, SERVER, &[("wwan0", "usable")]);
    check(&value, "up");
    let path = &mut value["sessions"][0]["paths"][0];
    (path["day_bytes"], path["daily_cap_bytes"]) = (10.into(), 10.into());
    check(&value, "held-back");
    value["sessions"][0]["paths"][0]["day_bytes"] = 0.into();
    check(&value, "up");
    value["paused"] = json!(["wwan0"]);
    check(&value, "held-back");
    let mut value = client(2.0, SERVER, &[("wwan0", "validating")]);
    value["uplinks"][0]["portal"] = json!({ "url": "http://login.example/$(reboot)" });
    check(&value, "portal");
    check(&client(2.0, SERVER, &[]), "gone");
    check(&client(3.0, SERVER, &[("wwan0", "usable")]), "up");
    assert_eq!(changes_after(&mut changes, None, 9), [LEAVE]);
    assert_eq!(
        changes_after(&mut changes, Some(&client(4.0, SERVER, &[])), 2)[1..],
        [state("gone")]
    );
}

#[test]
fn uplinks_are_reported_by_valid_names_and_bounded() {
    let mut changes = Changes::default();
    let names: Vec<String> = (0..1_000).map(|number| format!("w{number:03}")).collect();
    let uplinks: Vec<_> = names.iter().map(|name| (name.as_str(), "usable")).collect();
    assert_eq!(changes_after(&mut changes, Some(&client(1.0, None, &uplinks)), 2).len(), 64);
    for good in ["wwan0", "eth0.7", "enp3s0f1", "br-lan", "a@b:1"] {
        assert_eq!(interface(good).as_deref(), Ok(good));
    }
    let bad =
        ["", "-i", "..", "a b", "a;b", "$(a)", "a/b", "a\nb", "\u{e9}", "=", "0123456789abcdef"];
    for bad in bad {
        assert!(interface(bad).is_err(), "{bad}");
        assert!(facts(&HookChange::Uplink(bad.to_owned(), UplinkState::Up)).is_err(), "{bad}");
    }
    assert!(interface("\u{1b}[2J").unwrap_err().contains("\\u{1b}"));
}

#[test]
fn a_server_has_no_hooks() {
    let status = serde_json::from_value::<Status>(tests::server(Vec::new())).unwrap();
    assert!(!Changes::default().take(Duration::ZERO, Some(&status)));
}

#[test]
fn a_folder_that_others_could_change_or_choose_gives_no_program() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let open = |name: &str, mode: u32| {
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    for name in ["hooks", "theirs", "theirs/inner", "theirs/links"] {
        fs::create_dir(path(name)).unwrap();
    }
    fs::write(path("hooks/join"), "").unwrap();
    symlink("/usr/bin/env", path("hooks/leave")).unwrap();
    open("hooks/join", 0o700);
    let hooks = program::folder(&path("hooks")).unwrap();
    assert_eq!(program::find(&hooks, "join"), Ok(Some(hooks.join("join"))));
    assert_eq!(program::find(&hooks, "uplink"), Ok(None));
    assert!(program::find(&hooks, "leave").unwrap_err().contains("is not a file"), "a link");
    open("hooks", 0o777);
    assert!(program::find(&hooks, "join").unwrap_err().contains("users other than root"));
    assert!(program::folder(&path("hooks")).unwrap_err().contains("users other than root"));
    open("hooks", 0o700);
    open("theirs", 0o777);
    symlink(path("hooks"), path("theirs/link")).unwrap();
    symlink(path("theirs/inner"), path("inner")).unwrap();
    for name in ["theirs/link", "inner", "theirs/inner"] {
        assert!(
            program::folder(&path(name)).unwrap_err().contains("users other than root"),
            "{name}"
        );
    }
    assert!(program::folder(&path("hooks/join")).unwrap_err().contains("is not a folder"));
}
