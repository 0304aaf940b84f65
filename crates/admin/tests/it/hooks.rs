//! `roadweave hooks` with a client that comes and goes, and with hostile and hanging programs.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use roadweave_linux::netns::{wait_or_show, wait_within};

use crate::common::*;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

struct World(TempDir);

impl World {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn wait(&self, name: &str, text: &str) {
        let state = || format!("{text} is not in {}\n{}", self.read(name), self.read("said"));
        wait_or_show(WAIT_MAX, state, || self.read(name).contains(text));
    }

    fn program(&self, name: &str, body: &str, mode: u32) {
        let path = self.path("hooks").join(name);
        fs::write(&path, format!("#!/bin/sh\ncd '{}'\n{body}\n", self.0.path().display())).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn set_uplinks(&self, uplinks: &[&str]) {
        let uplink = |name: &&str| json!({ "name": name, "heard": true, "servers": [] });
        let session = json!({
            "peer": "192.0.2.1:4433", "public_key": "", "addresses": ["10.77.0.2/32"],
            "lanes": [], "drops": {}, "paths": [],
        });
        let uplinks: Vec<_> = uplinks.iter().map(uplink).collect();
        let status = status("$(reboot)", 12.5, &[session], &uplinks);
        fs::write(self.path("new"), status.to_string()).unwrap();
        fs::rename(self.path("new"), self.path("answer")).unwrap();
    }

    fn serve(&self) {
        let (answer, began) = (self.path("answer"), Instant::now());
        serve(&self.path("rw0.sock"), move |_| {
            let mut status: Value = serde_json::from_slice(&fs::read(&answer).unwrap()).unwrap();
            status["uptime_seconds"] = json!(12.5 + began.elapsed().as_secs_f64());
            Some(status)
        });
    }
}

fn start(world: &World) -> Process {
    let mut hooks = Command::new(PROGRAM);
    hooks.args(["hooks", "--timeout", "1", "--socket"]).arg(world.path("rw0.sock"));
    hooks.arg(world.path("hooks")).env("ROADWEAVE_UPLINK", "forged").env("KEPT", "is");
    hooks.stdout(Stdio::null()).stderr(File::create(world.path("said")).unwrap());
    Process(hooks.spawn().unwrap())
}

fn wait_for_the_end_of(world: &World, file: &str) {
    world.wait(file, "\n");
    let pid = Pid::from_raw(world.read(file).trim().parse().unwrap()).unwrap();
    wait_within(WAIT_MAX, &format!("the end of {pid:?}"), || {
        test_kill_process(pid).is_err() || is_zombie(pid)
    });
}

fn is_zombie(pid: Pid) -> bool {
    let path = Path::new("/proc").join(pid.as_raw_nonzero().to_string()).join("stat");
    fs::read_to_string(path).is_ok_and(|stat| stat.contains(") Z "))
}

#[test]
fn programs_get_facts_one_after_another_and_none_outlives_its_time() {
    let world = World(tempfile::tempdir().unwrap());
    fs::create_dir(world.path("hooks")).unwrap();
    let report = "echo \"$#: $(env | grep -e ^ROADWEAVE_ -e ^KEPT | sort | tr '\\n' ' ')\"";
    world.program("join", &format!("{report} >>log\nsleep 300 & echo $! >left"), 0o700);
    world.program("leave", &format!("{report} >>log"), 0o722);
    world.program("uplink", &format!("{report} >>log"), 0o700);
    let mut hooks = start(&world);
    world.set_uplinks(&["wwan0", "a;b"]);
    sleep(Duration::from_millis(300));
    world.serve();
    let join = "0: KEPT=is ROADWEAVE_ADDRESSES=10.77.0.2/32 ROADWEAVE_EVENT=join \
                ROADWEAVE_SERVER=192.0.2.1:4433 ROADWEAVE_TUN=rw0 \n";
    let uplink = |name: &str, state: &str| {
        format!(
            "0: KEPT=is ROADWEAVE_EVENT=uplink ROADWEAVE_UPLINK={name} \
             ROADWEAVE_UPLINK_STATE={state} \n"
        )
    };
    world.wait("log", &format!("{join}{}", uplink("wwan0", "down")));
    world.wait("said", "\"a;b\" is not an interface name");
    wait_for_the_end_of(&world, "left");

    let slow = "sleep 300 & echo $! >child; echo $$ >slow; trap '' TERM; sleep 300";
    world.program("uplink", slow, 0o700);
    world.set_uplinks(&["wwan0", "wwan1"]);
    wait_for_the_end_of(&world, "slow");
    wait_for_the_end_of(&world, "child");
    world.wait("said", "/hooks/uplink after 1 s");
    world.program("uplink", &format!("{report} >>log; exit 3"), 0o700);
    world.set_uplinks(&["wwan0"]);
    world.wait("log", &uplink("wwan1", "gone"));
    world.wait("said", "exit status: 3");

    // Without a client the tunnel has ended; others could have written this program.
    fs::remove_file(world.path("rw0.sock")).unwrap();
    world.wait("said", "cannot run leave");
    world.wait("said", "users other than root and this user can write to it");
    assert!(!world.read("log").contains("EVENT=leave"), "{}", world.read("log"));

    let pid = Pid::from_raw(hooks.0.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(hooks.0.wait().unwrap().success());
}

#[test]
fn the_service_starts_what_the_program_has() {
    let unit = include_str!("../../../../deploy/systemd/roadweave-hooks@.service");
    let value = |field: &str| unit.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    let start = value("ExecStart=/usr/bin/roadweave ").replace("%i", "rw0");
    let output = Command::new(PROGRAM).args(start.split(' ')).arg("--help").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let output = Command::new(PROGRAM).args(["hooks", "/etc/passwd"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not a folder"), "{output:?}");
    let code = output.status.code().unwrap();
    assert_eq!(value("RestartPreventExitStatus="), code.to_string());
}
