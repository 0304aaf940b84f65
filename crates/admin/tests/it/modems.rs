//! `roadweave modems` with a D-Bus, a client, and a ModemManager that is hostile, dies and returns.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use roadweave_linux::netns::wait_within;

use crate::common::*;
use serde_json::{Value, json};

const ROOT: &str = "/org/freedesktop/ModemManager1";

fn vehicle() -> Option<(Vehicle, Process)> {
    let is_there = is_installed("dbus-daemon", &["dbus-daemon", "--version"])
        && is_installed("busctl", &["busctl", "--version"])
        && is_installed("python3-gi", &["/usr/bin/python3", "-c", "import gi"]);
    if !is_there {
        return None;
    }
    let of = Vehicle::new();
    let config = format!(
        "<busconfig><type>session</type><listen>{}</listen><auth>EXTERNAL</auth>\
         <policy context=\"default\"><allow send_destination=\"*\"/><allow own=\"*\"/>\
         <allow receive_sender=\"*\"/></policy></busconfig>",
        of.bus()
    );
    std::fs::write(of.path("bus.conf"), config).unwrap();
    let mut bus = Command::new("dbus-daemon");
    bus.arg("--nofork").arg("--nopidfile").arg("--config-file").arg(of.path("bus.conf"));
    let bus = Process(bus.stderr(Stdio::null()).spawn().unwrap());
    wait_within(WAIT_MAX, "the bus does not come", || of.path("bus").exists());
    Some((of, bus))
}

fn start_manager(of: &Vehicle) -> Process {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/modem_manager.py");
    let mut command = Command::new("/usr/bin/python3");
    of.start(command.arg(program).arg(of.bus()).arg(of.path("objects")), "manager")
}

fn modem(number: u32, interface: &str, operator: &str, rsrp: Value) -> Vec<(String, Value)> {
    let bearer = format!("{ROOT}/Bearer/{number}");
    let sim = format!("{ROOT}/SIM/{number}");
    let signal = json!({ "Rate": 0, "Lte": { "rsrp": rsrp, "rsrq": -11.5, "snr": "NaN" } });
    let modem = json!({
        "org.freedesktop.ModemManager1.Modem": {
            "AccessTechnologies": 1 << 14, "Bearers": [bearer], "Sim": sim,
        },
        "org.freedesktop.ModemManager1.Modem.Modem3gpp": { "OperatorName": operator },
        "org.freedesktop.ModemManager1.Modem.Signal": signal,
    });
    let properties = json!({ "apn": "internet" });
    let of_bearer = json!({
        "org.freedesktop.ModemManager1.Bearer": {
            "Connected": true, "Interface": interface, "Properties": properties,
        },
    });
    let of_sim = json!({ "org.freedesktop.ModemManager1.Sim": { "SimIdentifier": "89490200" } });
    vec![(format!("{ROOT}/Modem/{number}"), modem), (bearer, of_bearer), (sim, of_sim)]
}

fn objects(modems: &[Vec<(String, Value)>]) -> Value {
    Value::Object(modems.iter().flatten().cloned().collect())
}

#[test]
fn modems_that_come_and_go_and_a_manager_that_restarts_are_reported() {
    let Some((of, _bus)) = vehicle() else { return };
    let _modems = of.start_modems(&[]);
    of.wait_for_words("ModemManager does not answer: ", 1);
    let (first, second) =
        (modem(0, "wwan0", "Some", json!(-95.5)), modem(1, "wwan1", "Other", json!(-110.0)));
    of.set("objects", &objects(&[first.clone(), second.clone()]));
    let manager = start_manager(&of);
    let facts = json!({
        "operator": "Some", "technology": "lte", "rsrp_dbm": -95.5, "rsrq_db": -11.5,
        "iccid": "89490200", "apn": "internet",
    });
    assert_eq!(of.wait("wwan0"), facts);
    of.wait("wwan1");
    assert!(of.read("manager").contains("Setup 5"), "a signal that nobody measures is measured");
    of.set("objects", &objects(std::slice::from_ref(&second)));
    of.wait("wwan1");
    let before = of.reported().len();
    of.wait("wwan1");
    assert!(of.reported()[before..].iter().all(|reported| reported["uplink"] == "wwan1"));
    drop(manager);
    of.wait_for_words("reporting the modems again", 1);
    of.wait_for_words("trying again", 2);
    sleep(Duration::from_secs(6));
    of.wait_for_words("trying again", 2);
    of.set("objects", &objects(&[first]));
    let _manager = start_manager(&of);
    of.wait("wwan0");
}

#[test]
fn what_a_firmware_says_reaches_the_client_bounded_and_legible_or_not_at_all() {
    let Some((of, _bus)) = vehicle() else { return };
    let long = "\u{1b}[2J\u{7}".to_owned() + &"ü".repeat(100_000);
    let hostile = modem(0, "wwan0", &long, json!("NaN"));
    let odd = modem(1, "../../dev/null", "", json!("-Infinity"));
    let mut many: Vec<_> = (2..60).map(|n| modem(n, &format!("w{n}"), "", json!(1e9))).collect();
    many.extend([hostile, odd]);
    many.push(vec![(format!("{ROOT}/Modem/x"), json!({ "a": {}, "b": { "c": 7 } }))]);
    of.set("objects", &objects(&many));
    let _manager = start_manager(&of);
    let _modems = of.start_modems(&[]);
    let facts = of.wait("wwan0");
    let operator = facts["operator"].as_str().unwrap().to_owned();
    assert!(operator.starts_with("[2Jüü") && operator.chars().count() == 64, "{operator}");
    assert_eq!(facts["rsrp_dbm"], Value::Null);
    of.wait("wwan0");
    let names: std::collections::BTreeSet<String> =
        of.reported().iter().map(|reported| reported["uplink"].to_string()).collect();
    assert!(names.len() <= 16 && !names.iter().any(|name| name.contains("null")), "{names:?}");
}
