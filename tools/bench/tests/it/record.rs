//! Records emulated links in real time by the users' commands, and replays the recording.
//!
//! ```text
//!  vehicle ── slow, fast (roadweave emulate) ── cloud
//!  record client                                record server
//! ```

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use roadweave_emulate::Drive;
use roadweave_linux::netns::{NetNs, run_sandboxed};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::daemon::Daemon;

const LINKS: &str = "
[place]
near = 'vehicle'
far = 'cloud'
[[link]]
name = 'slow'
rate_kbps = 4000
rate_down_kbps = 8000
delay_ms = 40
[[link]]
name = 'fast'
rate_kbps = 20000
delay_ms = 15
";

struct Rig {
    vehicle: NetNs,
    server: Daemon,
    emulator: Daemon,
    /// Last, since the daemons write there.
    folder: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let vehicle = NetNs::create("vehicle").unwrap();
        let cloud = NetNs::create("cloud").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("emulate.toml");
        fs::write(&config, LINKS).unwrap();
        let mut emulate = Command::new(PROGRAM);
        emulate.args(["emulate", "--config"]).arg(&config);
        let emulator = Daemon::start(emulate, folder.path().join("emulate.log"));
        emulator.wait_for("ready");
        let mut record = cloud.command(PROGRAM);
        record.args(["record", "server"]);
        let server = Daemon::start(record, folder.path().join("server.log"));
        server.wait_for("listening");
        Self { vehicle, server, emulator, folder }
    }

    fn start_client(&self, words: &str) -> Child {
        let mut client = self.vehicle.command(PROGRAM);
        client.args(["record", "client", "--json", "--output"]);
        client.arg(self.drive()).args(words.split_whitespace());
        client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn drive(&self) -> std::path::PathBuf {
        self.folder.path().join("drive")
    }
}

fn summary(client: Child) -> Value {
    let output = client.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

fn check_direction(direction: &Value, capacity_bps: f64, delay_ms: f64) {
    let capacity = direction["capacity_bps"].as_f64().unwrap();
    // Real time on a busy machine; in virtual time the tolerance is 3 % and 2 ms.
    assert!((0.93..1.05).contains(&(capacity / capacity_bps)), "{direction:#}");
    let delay = direction["delay_ms_min"].as_f64().unwrap();
    assert!((delay_ms - 0.5..delay_ms + 5.0).contains(&delay), "{direction:#}");
}

fn serve_facts(socket: &Path, interface: &str, rsrp_dbm: f64) {
    let listener = UnixListener::bind(socket).unwrap();
    let status = json!({
        "role": "client", "modems": { interface: { "technology": "lte", "rsrp_dbm": rsrp_dbm } },
    });
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": status });
            let _ = stream.write_all(format!("{answer}\n").as_bytes());
        }
    });
}

#[test]
fn two_links_are_recorded_at_once_and_emulate_replays_them() {
    run_sandboxed(|| {
        let rig = Rig::new();
        let start = Instant::now();
        let socket = rig.folder.path().join("rw0.sock");
        serve_facts(&socket, "fast", -95.5);
        let client = rig.start_client(&format!(
            "--server 10.201.1.1 --interfaces slow,modem=fast --seconds 8 --cycle 4 --modems {}",
            socket.display()
        ));
        let summary = summary(client);
        assert!(start.elapsed() < Duration::from_secs(16), "{:?}", start.elapsed());

        let links = summary["links"].as_array().unwrap();
        let [slow, fast] = &links[..] else { panic!("{summary:#}") };
        assert_eq!((&slow["name"], &fast["name"]), (&"slow".into(), &"modem".into()));
        check_direction(&slow["up"], 4e6, 40.0);
        check_direction(&slow["down"], 8e6, 40.0);
        check_direction(&fast["up"], 20e6, 15.0);
        check_direction(&fast["down"], 20e6, 15.0);
        assert_eq!(slow["delay_clock"], "half-round-trip");
        assert_eq!(slow["entries_missing"], 0);
        let kept = fs::read(rig.drive().join("recording.json")).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&kept).unwrap(), summary);

        // The modem readings are beside the trace, and readers of the drive ignore them.
        assert_eq!(
            (&slow["modem"], &fast["modem"]["file"]),
            (&Value::Null, &"modem.modem.jsonl".into())
        );
        let samples = fs::read_to_string(rig.drive().join("modem.modem.jsonl")).unwrap();
        let samples: Vec<Value> =
            samples.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
        assert!(samples.len() >= 2, "{samples:?}");
        assert!(samples.is_sorted_by_key(|it| it["seconds"].as_f64()), "{samples:?}");
        let expected = json!({ "technology": "lte", "rsrp_dbm": -95.5 });
        assert!(samples.iter().all(|it| it["facts"] == expected), "{samples:?}");
        assert!(!rig.drive().join("slow.modem.jsonl").exists());

        let drive = Drive::read(&rig.drive()).unwrap();
        assert_eq!(
            drive.links.iter().map(|link| &link.name).collect::<Vec<_>>(),
            ["modem", "slow"]
        );
        assert_eq!(drive.length(), Some(Duration::from_secs(4)));
        let check = crate::json(rig.folder.path(), "emulate --drive drive --check");
        assert_eq!(check["links"][0]["mean_up_bps"], fast["up"]["capacity_bps"]);
        assert_eq!(check["links"][1]["mean_down_bps"], slow["down"]["capacity_bps"]);
        assert!(rig.server.log().contains("links=2"), "{}", rig.server.log());
        assert!(!rig.emulator.log().contains("WARN"), "{}", rig.emulator.log());
    });
}

#[test]
fn what_cannot_be_recorded_leaves_no_directory_and_an_interrupted_recording_what_it_has() {
    run_sandboxed(|| {
        let rig = Rig::new();
        let refused = |words: &str, parts: &[&str]| {
            let output = rig.start_client(words).wait_with_output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success(), "{errors}");
            assert!(parts.iter().all(|part| errors.contains(part)), "{parts:?}: {errors}");
            assert!(!rig.drive().exists(), "{words}");
        };
        refused("--server 10.201.1.1 --interfaces wwan7", &["wwan7"]);
        let silent = "--server 10.201.1.1:9 --interfaces slow";
        refused(silent, &["10.201.1.1:9 does not answer", "is `roadweave record server` running"]);
        let greedy = "--server 10.201.1.1 --interfaces slow --rate 900M";
        refused(greedy, &["longer or faster than the server allows"]);

        let client = rig.start_client(
            "--server 10.201.1.1 --interfaces slow --mode constant --rate 10M --direction up --seconds 60",
        );
        std::thread::sleep(Duration::from_secs(6));
        kill_process(Pid::from_child(&client), Signal::INT).unwrap();
        let summary = summary(client);
        assert_eq!(summary["mode"], "constant");
        let (up, down) = (&summary["links"][0]["up"], &summary["links"][0]["down"]);
        check_direction(up, 4e6, 40.0);
        assert!((1.0..5.0).contains(&up["seconds"].as_f64().unwrap()), "{summary:#}");
        assert_eq!(down.get("capacity_bps"), None);
        let csv = fs::read_to_string(rig.drive().join("slow.down.csv")).unwrap();
        assert!(csv.contains("not measured"), "{csv}");
    });
}
