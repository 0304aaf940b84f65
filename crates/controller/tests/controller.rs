//! The program as a user starts it: makes a controller, serves, refuses what cannot be.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, missing_docs, reason = "tests")]

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn controller(words: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave-controller"));
    command.args(words).arg("--folder").arg(folder).env_remove("ROADWEAVE_LOG");
    command
}

fn run(words: &[&str], folder: &Path) -> Output {
    controller(words, folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A port that was free a moment ago.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Makes a controller on a free port; returns that.
fn init(folder: &Path) -> u16 {
    let port = port();
    let address = format!("127.0.0.1:{port}");
    let output = run(&["init", "--address", &address, "--listen", &address], folder);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.contains("password: ") && said.contains("--fingerprint "), "{said}");
    port
}

struct Running(Child);

impl Running {
    fn start(folder: &Path, port: u16) -> Self {
        let child = controller(&["run"], folder).stderr(Stdio::null()).spawn().unwrap();
        let running = Self(child);
        let end = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "it does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        running
    }

    /// Asks it to stop, and waits.
    fn stop(mut self) -> bool {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.0.wait().unwrap().success()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_controller_is_made_once_serves_alone_and_stops_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("controller");
    let port = init(&place);
    for (name, mode) in [("controller.key", 0o600), ("root.key", 0o600), ("controller.toml", 0o600)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let found = fs::metadata(place.join(name)).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode, "{name}");
    }
    let again = run(&["init", "--address", "x:1"], &place);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("already"), "{}", text(&again.stderr));
    let key = fs::read_to_string(place.join("controller.key")).unwrap();
    let other = run(&["init", "--keep", "--address", "x:1"], &place);
    assert_eq!(other.status.code(), Some(2));
    assert!(text(&other.stderr).contains("other addresses"), "{}", text(&other.stderr));
    let kept = run(&["init", "--keep", "--address", &format!("127.0.0.1:{port}")], &place);
    assert!(kept.status.success(), "{}", text(&kept.stderr));
    assert_eq!(fs::read_to_string(place.join("controller.key")).unwrap(), key);
    let running = Running::start(&place, port);
    let second = run(&["run"], &place);
    assert_eq!(second.status.code(), Some(2));
    assert!(text(&second.stderr).contains("another roadweave-controller works in"));
    assert!(running.stop());
}

#[test]
fn the_root_of_an_earlier_try_is_not_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let keygen = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave-controller"));
        let made = command.arg("keygen").arg(folder.path().join(name)).output().unwrap();
        text(&made.stdout).trim().to_owned()
    };
    let (one, other) = (keygen("one.key"), keygen("other.key"));
    let address = ["init", "--address", "x:1"];
    let refused = |words: &[&str], place: &Path, part: &str| {
        let output = run(&[&address[..], words].concat(), place);
        let errors = text(&output.stderr);
        assert!(output.status.code() == Some(2) && errors.contains(part), "{words:?}: {errors}");
    };
    let place = folder.path().join("held");
    fs::create_dir(&place).unwrap();
    fs::copy(folder.path().join("one.key"), place.join("root.key")).unwrap();
    refused(&["--root", &one], &place, "root.key is there already");
    let place = folder.path().join("elsewhere");
    let made = run(&[&address[..], &["--root", &one]].concat(), &place);
    assert!(made.status.success(), "{}", text(&made.stderr));
    refused(&["--keep", "--root", &other], &place, &one);
    for words in [&["--keep", "--root", &one][..], &["--keep"]] {
        assert!(run(&[&address[..], words].concat(), &place).status.success(), "{words:?}");
    }
    fs::remove_file(place.join("controller.toml")).unwrap();
    refused(&["--root", &other], &place, &one);
    refused(&[], &place, "root.pub is there already");
}

#[test]
fn a_backup_is_restored_beside_its_keys_and_an_older_copy_is_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("controller");
    init(&place);
    let file = folder.path().join("fleet.backup");
    let file = file.to_str().unwrap();
    let made = run(&["backup", file], &place);
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert_eq!(run(&["backup", file], &place).status.code(), Some(2));
    let full = run(&["restore", file], &place);
    assert_eq!(full.status.code(), Some(2), "{}", text(&full.stderr));
    assert!(text(&full.stderr).contains("empty database"));
    let old = folder.path().join("old.db");
    fs::rename(place.join("roadweave.db"), &old).unwrap();
    let restored = run(&["restore", file], &place);
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    assert!(text(&restored.stdout).contains("the epoch is 2"), "{}", text(&restored.stdout));
    // The database of before comes back: it is told, and not served.
    fs::rename(&old, place.join("roadweave.db")).unwrap();
    for name in ["roadweave.db-wal", "roadweave.db-shm"] {
        let _ = fs::remove_file(place.join(name));
    }
    let refused = run(&["run"], &place);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("older copy"), "{}", text(&refused.stderr));
    // Another controller's backup is none of this one's.
    let other = folder.path().join("other");
    init(&other);
    fs::remove_file(other.join("roadweave.db")).unwrap();
    let foreign = run(&["restore", file], &other);
    assert_eq!(foreign.status.code(), Some(2));
    assert!(text(&foreign.stderr).contains("another key"), "{}", text(&foreign.stderr));
}

#[test]
fn what_is_wrong_is_said_in_one_line_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("controller");
    let nothing = run(&["run"], &place);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(text(&nothing.stderr).contains("roadweave-controller init makes one"));
    init(&place);
    let config = place.join("controller.toml");
    let good = fs::read_to_string(&config).unwrap();
    let check = |config_text: &str, parts: &[&str]| {
        fs::write(&config, config_text).unwrap();
        let output = run(&["run"], &place);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        for part in parts {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
    };
    check(&good.replace("database = ", "databse = "), &["controller.toml", "databse", "line 6"]);
    check(&good.replace("roadweave.db", "mysql://x"), &["line 6", "mysql://x"]);
    check("addresses = [\"fleet\"]\n", &["line 1", "host:port"]);
    check("addresses = []\n", &["addresses: 1 to 8"]);
    let oidc = |fields: &str| format!("{good}\n[oidc]\nclient_id = \"x\"\n{fields}\n");
    let issuer = "issuer = \"https://login.example.org\"\nroles = { ops = \"operator\" }";
    let plain = issuer.replace("https", "http");
    check(&oidc(&plain), &["oidc.issuer", "https://"]);
    check(&oidc(&issuer.replace("{ ops = \"operator\" }", "{}")), &["oidc.roles"]);
    check(&oidc(&issuer.replace("operator", "king")), &["king", "operator"]);
    check(&oidc(&format!("{issuer}\nurl = \"fleet/\"")), &["oidc.url"]);
    check(&oidc(&format!("{issuer}\nclient_secret_file = \"none\"")), &["cannot read", "none"]);
    fs::write(place.join("none"), "secret\n").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(place.join("none"), open).unwrap();
    check(&oidc(&format!("{issuer}\nclient_secret_file = \"none\"")), &["chmod 600"]);
    fs::write(&config, &good).unwrap();
    let key = place.join("controller.key");
    fs::write(&key, "no key\n").unwrap();
    let output = run(&["run"], &place);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("controller.key"), "{}", text(&output.stderr));
}
