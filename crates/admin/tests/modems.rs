//! `roadweave modems` between a D-Bus of its own, a ModemManager that says anything, dies and comes
//! back, and a client that listens.

#![allow(clippy::disallowed_methods, reason = "the test starts programs and waits")]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_roadweave-admin");
const WAIT_MAX: Duration = Duration::from_secs(60);
const ROOT: &str = "/org/freedesktop/ModemManager1";

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder with a bus, a client's socket, and what all of them say.
struct World {
    folder: TempDir,
    told: Arc<Mutex<Vec<Value>>>,
    _bus: Process,
}

impl World {
    /// `None` where there is no program for the bus, or for who is on it.
    fn new() -> Option<Self> {
        let has = |program: &str, words: &[&str]| {
            let mut command = Command::new(program);
            command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        let has_all = has("dbus-daemon", &["--version"])
            && has("busctl", &["--version"])
            && has("/usr/bin/python3", &["-c", "import gi"]);
        if !has_all {
            let is_required = std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_some();
            assert!(!is_required, "dbus-daemon, busctl or python3-gi is not installed");
            eprintln!("skipped: dbus-daemon, busctl or python3-gi is not installed");
            return None;
        }
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("bus");
        let config = format!(
            "<busconfig><type>session</type><listen>unix:path={}</listen><auth>EXTERNAL</auth>\
             <policy context=\"default\"><allow send_destination=\"*\"/><allow own=\"*\"/>\
             <allow receive_sender=\"*\"/></policy></busconfig>",
            path.display()
        );
        fs::write(folder.path().join("bus.conf"), config).unwrap();
        let mut bus = Command::new("dbus-daemon");
        bus.arg("--nofork").arg("--nopidfile").arg("--config-file");
        let bus = bus.arg(folder.path().join("bus.conf")).stderr(Stdio::null()).spawn().unwrap();
        let world = Self { folder, told: Arc::default(), _bus: Process(bus) };
        let began = Instant::now();
        while !path.exists() {
            assert!(began.elapsed() < WAIT_MAX, "the bus does not come");
            sleep(Duration::from_millis(20));
        }
        Some(world)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn bus(&self) -> String {
        format!("unix:path={}", self.path("bus").display())
    }

    fn start(&self, command: &mut Command, said: &str) -> Process {
        let said = File::options().create(true).append(true).open(self.path(said)).unwrap();
        Process(command.stdout(Stdio::null()).stderr(said).spawn().unwrap())
    }

    fn start_manager(&self) -> Process {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/modem_manager.py");
        let mut command = Command::new("/usr/bin/python3");
        self.start(command.arg(program).arg(self.bus()).arg(self.path("objects")), "manager")
    }

    fn start_modems(&self) -> Process {
        let mut command = Command::new(PROGRAM);
        command.args(["modems", "--bus", &self.bus(), "--socket"]).arg(self.path("rw0.sock"));
        // None of this machine's own modems.
        command.arg("--root").arg(self.folder.path());
        self.start(&mut command, "said")
    }

    /// What ModemManager has from now on.
    fn set(&self, objects: &Value) {
        fs::write(self.path("new"), objects.to_string()).unwrap();
        fs::rename(self.path("new"), self.path("objects")).unwrap();
    }

    /// Takes requests as a client does, and keeps what they say.
    fn serve(&self) {
        let listener = UnixListener::bind(self.path("rw0.sock")).unwrap();
        let told = Arc::clone(&self.told);
        spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                let request: Value = serde_json::from_str(&line).unwrap();
                assert_eq!(request["method"], "tell_modem");
                told.lock().unwrap().push(request["params"].clone());
                let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": { "told": true } });
                let _ = stream.write_all(format!("{answer}\n").as_bytes());
            }
        });
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The parameters of every request so far.
    fn told(&self) -> Vec<Value> {
        self.told.lock().unwrap().clone()
    }

    /// Waits until the client is told something new that fits.
    fn wait(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let (began, before) = (Instant::now(), self.told().len());
        loop {
            if let Some(told) = self.told().split_off(before).into_iter().find(&fits) {
                return told;
            }
            let said = (self.read("said"), self.read("manager"));
            assert!(began.elapsed() < WAIT_MAX, "{what}: {:?}\n{said:?}", self.told());
            sleep(Duration::from_millis(50));
        }
    }

    fn wait_for_words(&self, words: &str) {
        let began = Instant::now();
        while !self.read("said").contains(words) {
            assert!(began.elapsed() < WAIT_MAX, "{words}: {}", self.read("said"));
            sleep(Duration::from_millis(50));
        }
    }
}

/// A modem with a connected bearer over `interface`.
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
fn a_client_is_told_of_modems_that_come_and_go_and_of_a_manager_that_dies_and_comes_back() {
    let Some(world) = World::new() else { return };
    world.serve();
    let _modems = world.start_modems();
    world.wait_for_words("ModemManager does not answer: ");
    let (first, second) =
        (modem(0, "wwan0", "Some", json!(-95.5)), modem(1, "wwan1", "Other", json!(-110.0)));
    world.set(&objects(&[first.clone(), second.clone()]));
    let manager = world.start_manager();
    let told = world.wait("the first", |told| told["uplink"] == "wwan0");
    let facts = json!({
        "operator": "Some", "technology": "lte", "rsrp_dbm": -95.5, "rsrq_db": -11.5,
        "iccid": "89490200", "apn": "internet",
    });
    assert_eq!(told, json!({ "uplink": "wwan0", "facts": facts }));
    world.wait("the second", |told| told["uplink"] == "wwan1");
    assert!(world.read("manager").contains("Setup 5"), "a signal that nobody measures is measured");
    // The first vanishes.
    world.set(&objects(std::slice::from_ref(&second)));
    world.wait("a reading without it", |told| told["uplink"] == "wwan1");
    let before = world.told().len();
    world.wait("and another", |told| told["uplink"] == "wwan1");
    assert!(world.told()[before..].iter().all(|told| told["uplink"] == "wwan1"));
    // The manager dies, and nothing is told; it comes back.
    drop(manager);
    world.wait_for_words("the modems are told of again");
    let said = || world.read("said").matches("trying again").count();
    let began = Instant::now();
    while said() < 2 {
        assert!(began.elapsed() < WAIT_MAX, "{}", world.read("said"));
        sleep(Duration::from_millis(50));
    }
    sleep(Duration::from_secs(6));
    assert_eq!(said(), 2, "it is said once: {}", world.read("said"));
    world.set(&objects(&[first]));
    let _manager = world.start_manager();
    world.wait("the first again", |told| told["uplink"] == "wwan0");
}

#[test]
fn what_a_firmware_says_reaches_the_client_bounded_and_legible_or_not_at_all() {
    let Some(world) = World::new() else { return };
    world.serve();
    let long = "\u{1b}[2J\u{7}".to_owned() + &"ü".repeat(100_000);
    let hostile = modem(0, "wwan0", &long, json!("NaN"));
    let odd = modem(1, "../../dev/null", "", json!("-Infinity"));
    let mut many: Vec<_> = (2..60).map(|n| modem(n, &format!("w{n}"), "", json!(1e9))).collect();
    many.extend([hostile, odd]);
    many.push(vec![(format!("{ROOT}/Modem/x"), json!({ "a": {}, "b": { "c": 7 } }))]);
    world.set(&objects(&many));
    let _manager = world.start_manager();
    let _modems = world.start_modems();
    let told = world.wait("the hostile one", |told| told["uplink"] == "wwan0");
    let operator = told["facts"]["operator"].as_str().unwrap().to_owned();
    assert!(operator.starts_with("[2Jüü") && operator.chars().count() == 64, "{operator}");
    assert_eq!(told["facts"]["rsrp_dbm"], Value::Null);
    world.wait("another reading", |told| told["uplink"] == "wwan0");
    let names: std::collections::BTreeSet<String> =
        world.told().iter().map(|told| told["uplink"].to_string()).collect();
    assert!(names.len() <= 16 && !names.iter().any(|name| name.contains("null")), "{names:?}");
}
