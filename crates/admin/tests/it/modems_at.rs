//! `roadweave modems` and modems on pseudo terminals: they answer, hang, flood, vanish, are taken.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use roadweave_linux::netns::wait_within;

use crate::common::*;
use serde_json::{Value, json};

fn vehicle() -> Option<Vehicle> {
    is_installed("python3", &["python3", "--version"]).then(|| {
        let of = Vehicle::new();
        fs::create_dir_all(of.path("dev")).unwrap();
        of
    })
}

fn plug(of: &Vehicle, interface: &str, usb: &str, ports: &[&str]) {
    let device = of.path("sys/devices").join(usb);
    for (number, port) in ports.iter().enumerate() {
        fs::create_dir_all(device.join(format!("{usb}:1.{number}")).join(port)).unwrap();
    }
    fs::write(device.join("idVendor"), "2c7c\n").unwrap();
    let part = device.join(format!("{usb}:1.9"));
    fs::create_dir_all(&part).unwrap();
    let class = of.path("sys/class/net").join(interface);
    fs::create_dir_all(&class).unwrap();
    symlink(part, class.join("device")).unwrap();
}

fn modem(of: &Vehicle, port: &str) -> Process {
    let link = of.path("dev").join(port);
    let _ = fs::remove_file(&link);
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/modem.py");
    let heard = of.path(&format!("{port}.heard"));
    let heard = File::options().create(true).append(true).open(heard).unwrap();
    let mut command = Command::new("python3");
    command.arg(program).arg(&link).arg(of.path(&format!("{port}.json")));
    let process = Process(command.stdout(heard).stderr(Stdio::null()).spawn().unwrap());
    wait_within(WAIT_MAX, "the modem does not come", || link.exists());
    process
}

fn healthy() -> Value {
    json!({
        "mode": "ok",
        "before": "\r\n+CREG: 1\r\n\r\nRING\r\n",
        "after": "\r\n+QIND: \"csq\",20,99\r\n",
        "answers": {
            "AT+CPIN?": ["+CPIN: READY"],
            "AT+QCCID": ["+QCCID: 89490200001234567890"],
            "AT+COPS?": ["+COPS: 0,0,\"Some, Operator\",7"],
            "AT+CSQ": ["+CSQ: 20,99"],
            "AT+CESQ": ["+CESQ: 99,99,255,255,20,46"],
            "AT+CGCONTRDP": [],
            "AT+CGDCONT?": ["+CGDCONT: 1,\"IPV4V6\",\"internet\""],
        },
    })
}

fn facts() -> Value {
    json!({
        "operator": "Some, Operator", "technology": "lte", "rsrp_dbm": -95.0, "rsrq_db": -10.0,
        "rssi_dbm": -73.0, "iccid": "89490200001234567890", "apn": "internet",
    })
}

#[test]
fn a_modem_is_found_and_asked_and_one_that_hangs_or_vanishes_is_reported_once() {
    let Some(of) = vehicle() else { return };
    plug(&of, "wwan0", "1-1", &["ttyUSB1", "ttyUSB2"]);
    of.set("ttyUSB1.json", &json!({ "mode": "silent" }));
    of.set("ttyUSB2.json", &healthy());
    let _positions = modem(&of, "ttyUSB1");
    let first = modem(&of, "ttyUSB2");
    let _modems = of.start_modems(&[]);
    assert_eq!(of.wait("wwan0"), facts());
    assert_eq!(of.wait("wwan0"), facts());
    assert_eq!(of.read("ttyUSB1.heard"), "AT\n", "what answers is asked from then on, it alone");
    assert_eq!(of.read("said"), "", "nothing is wrong");
    of.set("ttyUSB2.json", &json!({ "mode": "silent" }));
    of.wait_for_words("ttyUSB2: it does not answer AT commands; trying again", 1);
    sleep(Duration::from_secs(12));
    of.wait_for_words("trying again", 1);
    of.set("ttyUSB2.json", &healthy());
    assert_eq!(of.wait("wwan0"), facts());
    of.wait_for_words("reporting the modems again", 1);
    drop(first);
    of.wait_for_words("trying again", 2);
    let _modem = modem(&of, "ttyUSB2");
    assert_eq!(of.wait("wwan0"), facts());
}

#[test]
fn whatever_a_modem_says_is_bounded_and_costs_no_other_modem_anything() {
    let Some(of) = vehicle() else { return };
    for (number, mode) in ["ok", "flood", "silent"].into_iter().enumerate() {
        let port = format!("ttyUSB{number}");
        plug(&of, &format!("wwan{number}"), &format!("1-{number}"), &[&port]);
        of.set(&format!("{port}.json"), &json!({ "mode": mode }));
    }
    let mut hostile = healthy();
    hostile["before"] = json!("\u{1b}[2J\u{0}".to_owned() + &"x".repeat(3_000) + "\r\n");
    hostile["answers"]["AT+QCCID"] = json!(["+QCCID: 89; reboot"]);
    of.set("ttyUSB0.json", &hostile);
    let _all: Vec<Process> = (0..3).map(|number| modem(&of, &format!("ttyUSB{number}"))).collect();
    let _modems = of.start_modems(&[]);
    let mut expected = facts();
    expected.as_object_mut().unwrap().remove("iccid");
    assert_eq!(of.wait("wwan0"), expected);
    of.wait("wwan0");
    of.wait_for_words("wwan1: ", 1);
    of.wait_for_words("wwan2: ", 1);
    assert!(of.reported().iter().all(|it| it["uplink"] == "wwan0"), "{:?}", of.reported());
}

#[test]
fn a_port_that_another_program_has_is_left_to_it() {
    let Some(of) = vehicle() else { return };
    let mut held = healthy();
    held["mode"] = json!("held");
    of.set("ttyUSB5.json", &held);
    let _modem = modem(&of, "ttyUSB5");
    let port = of.path("dev/ttyUSB5");
    let _modems = of.start_modems(&["--at", &format!("wwan3={}", port.display())]);
    of.wait_for_words("ttyUSB5: another program uses it; trying again", 1);
    sleep(Duration::from_secs(6));
    assert_eq!(of.read("ttyUSB5.heard"), "", "nothing was said to it");
    of.set("ttyUSB5.json", &healthy());
    assert_eq!(of.wait("wwan3"), facts());
    let lock = File::open(&port).unwrap();
    lock.lock().unwrap();
    of.wait_for_words("ttyUSB5: another program uses it; trying again", 2);
    drop(lock);
    assert_eq!(of.wait("wwan3"), facts());
}

#[test]
fn where_no_port_takes_at_commands_uqmi_is_asked_and_wifi_the_kernel() {
    let Some(of) = vehicle() else { return };
    plug(&of, "wwan0", "1-1", &["usbmisc/cdc-wdm0"]);
    program(
        &of.path("bin/uqmi"),
        "[ \"$3\" = \"${0%/bin/*}/dev/cdc-wdm0\" ] || exit 1\n\
         case $4 in\n\
         --get-signal-info) echo '{ \"type\": \"lte\", \"rsrp\": -87, \"snr\": 17.500000 }';;\n\
         --get-serving-system) echo '{ \"plmn_description\": \"Some Operator\" }';;\n\
         *) echo '\"Not supported\"'; exit 1;;\n\
         esac",
    );
    fs::create_dir_all(of.path("proc/net")).unwrap();
    fs::write(of.path("proc/net/wireless"), "wlan0: 0000   55.  -55.  -256  0 0 0 0 0 0\n")
        .unwrap();
    let _modems = of.start_modems(&[]);
    let expected = json!({
        "operator": "Some Operator", "technology": "lte", "rsrp_dbm": -87.0, "sinr_db": 17.5,
    });
    assert_eq!(of.wait("wwan0"), expected);
    assert_eq!(of.wait("wlan0"), json!({ "rssi_dbm": -55.0 }));
    assert_eq!(of.read("said"), "");
}

fn program(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_device_that_is_none_and_a_name_that_none_has_are_refused_with_a_reason() {
    let refused = |words: &[&str], expected: &str| {
        let output = Command::new(PROGRAM).arg("modems").args(words).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(expected), "{words:?}: {said}");
    };
    refused(&["--at", "wwan0"], "wwan0=/dev/ttyUSB2");
    refused(&["--at", "../x=/dev/ttyUSB2"], "wwan0=/dev/ttyUSB2");
    refused(&["--at", "wwan0=ttyUSB2"], "wwan0=/dev/ttyUSB2");
    refused(&["--at", "wwan0=/dev/a", "--at", "wwan0=/dev/b"], "`wwan0` is given twice");
    let Some(of) = vehicle() else { return };
    fs::write(of.path("dev/ttyUSB2"), "").unwrap();
    let _modems =
        of.start_modems(&["--at", &format!("wwan0={}", of.path("dev/ttyUSB2").display())]);
    of.wait_for_words("ttyUSB2: it is not a serial device; trying again", 1);
}
