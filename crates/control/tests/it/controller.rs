//! The roadweave-controller program: init, run, backup, restore, and its refusals.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{CommandRunner, RunningController, text};

impl CommandRunner for Path {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave-controller"));
        command.args(words).arg("--folder").arg(self).env_remove("ROADWEAVE_LOG");
        command
    }
}

fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn refused(words: &[&str], folder: &Path, part: &str) -> String {
    let said = folder.refused(words);
    assert!(said.contains(part), "{words:?}: {said}");
    said
}

fn init(folder: &Path) -> u16 {
    let port = port();
    let address = format!("127.0.0.1:{port}");
    let said = folder.prints(&["init", "--address", &address, "--listen", &address]);
    assert!(said.contains("password: ") && said.contains("--fingerprint "), "{said}");
    port
}

fn made() -> (tempfile::TempDir, PathBuf, u16) {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("controller");
    let port = init(&place);
    (folder, place, port)
}

fn start(folder: &Path, port: u16) -> RunningController {
    RunningController::start(
        folder.command(&["run"]),
        SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
    )
}

fn stop(mut running: RunningController) -> bool {
    let pid = running.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    running.0.wait().unwrap().success()
}

#[test]
fn a_controller_is_made_once_serves_alone_and_stops_on_a_signal() {
    let (_folder, place, port) = made();
    for name in ["controller.key", "root.key", "controller.toml"] {
        let found = fs::metadata(place.join(name)).unwrap().permissions().mode();
        assert_eq!(found & 0o777, 0o600, "{name}");
    }
    refused(&["init", "--address", "x:1"], &place, "already");
    let key = fs::read_to_string(place.join("controller.key")).unwrap();
    place.prints(&["init", "--keep", "--address", &format!("127.0.0.1:{port}")]);
    assert_eq!(fs::read_to_string(place.join("controller.key")).unwrap(), key);
    let running = start(&place, port);
    refused(&["run"], &place, "another roadweave-controller uses");
    assert!(stop(running));
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
        refused(&[&address[..], words].concat(), place, part);
    };
    let place = folder.path().join("held");
    fs::create_dir(&place).unwrap();
    fs::copy(folder.path().join("one.key"), place.join("root.key")).unwrap();
    refused(&["--root", &one], &place, "root.key exists");
    let place = folder.path().join("elsewhere");
    place.prints(&[&address[..], &["--root", &one]].concat());
    refused(&["--keep", "--root", &other], &place, &one);
    for words in [&["--keep", "--root", &one][..], &["--keep"]] {
        place.prints(&[&address[..], words].concat());
    }
    fs::remove_file(place.join("controller.toml")).unwrap();
    refused(&["--root", &other], &place, &one);
    refused(&[], &place, "root.pub exists");
}

#[test]
fn a_backup_is_restored_beside_its_keys_and_an_older_copy_is_not_served() {
    let (folder, place, _) = made();
    let file = folder.path().join("fleet.backup");
    let file = file.to_str().unwrap();
    place.prints(&["backup", file]);
    refused(&["backup", file], &place, "");
    refused(&["restore", file], &place, "empty database");
    let old = folder.path().join("old.db");
    fs::rename(place.join("roadweave.db"), &old).unwrap();
    let restored = place.prints(&["restore", file]);
    assert!(restored.contains("the epoch is 2"), "{restored}");
    fs::rename(&old, place.join("roadweave.db")).unwrap();
    for name in ["roadweave.db-wal", "roadweave.db-shm"] {
        let _ = fs::remove_file(place.join(name));
    }
    refused(&["run"], &place, "older copy");
    place.prints(&["restore", "--aside", file]);
    assert_eq!(fs::read_to_string(place.join("epoch")).unwrap(), "3\n");
    let ahead = r#"{"epoch":3,"change":1000000,"revocations":{"serial":0,"hash":""}}"#;
    let lost = r#"{"epoch":3,"change":1,"revocations":{"serial":1,"hash":"x"}}"#;
    for (name, content, part) in [
        ("seen.json", ahead, "this controller has seen change 1000000"),
        ("seen.json", lost, "revocation 1, which this controller signed, is missing"),
        ("epoch", "2\n", "has started at most epoch 2"),
    ] {
        fs::write(place.join(name), content).unwrap();
        let said = refused(&["run"], &place, part);
        assert!(said.contains("roadweave-controller backup"), "it names the way out: {said}");
    }
    fs::remove_file(place.join("epoch")).unwrap();
    refused(&["run"], &place, "only init and restore");
    let other = folder.path().join("other");
    init(&other);
    fs::remove_file(other.join("roadweave.db")).unwrap();
    refused(&["restore", file], &other, "another key");
}

#[test]
fn what_is_wrong_is_said_in_one_line_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("controller");
    refused(&["run"], &place, "create one with roadweave-controller init");
    init(&place);
    let config = place.join("controller.toml");
    let good = fs::read_to_string(&config).unwrap();
    let check = |config_text: &str, parts: &[&str]| {
        fs::write(&config, config_text).unwrap();
        let said = refused(&["run"], &place, "");
        for part in parts {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
    };
    check(&good.replace("database = ", "databse = "), &["controller.toml", "databse", "line 6"]);
    check("addresses = [\"fleet\"]\n", &["line 1", "host:port"]);
    let oidc = |fields: &str| format!("{good}\n[oidc]\nclient_id = \"x\"\n{fields}\n");
    let issuer = "issuer = \"https://login.example.org\"\nroles = { ops = \"operator\" }";
    let plain = issuer.replace("https", "http");
    check("addresses = []\n", &["addresses: 1 to 8"]);
    check(&oidc(&plain), &["oidc.issuer", "https://"]);
    check(&oidc(&issuer.replace("operator", "king")), &["king", "operator"]);
    check(&oidc(&issuer.replace("{ ops = \"operator\" }", "{}")), &["oidc.roles"]);
    check(&oidc(&format!("{issuer}\nurl = \"fleet/\"")), &["oidc.url"]);
    check(&oidc(&format!("{issuer}\nclient_secret_file = \"none\"")), &["cannot read", "none"]);
    fs::write(place.join("none"), "secret\n").unwrap();
    fs::set_permissions(place.join("none"), fs::Permissions::from_mode(0o644)).unwrap();
    check(&oidc(&format!("{issuer}\nclient_secret_file = \"none\"")), &["chmod 600"]);
    fs::write(&config, &good).unwrap();
    fs::write(place.join("controller.key"), "no key\n").unwrap();
    refused(&["run"], &place, "controller.key");
}

#[test]
fn a_controller_that_is_kept_takes_new_addresses_and_another_database() {
    let (_folder, place, _) = made();
    let config = place.join("controller.toml");
    let before = fs::read_to_string(&config).unwrap();
    let own = format!("{before}\n# Ours.\n[oidc]\nissuer = \"https://x.example\"\n");
    let own = format!("{own}client_id = \"x\"\nroles = {{ ops = \"operator\" }}\n");
    fs::write(&config, own.replace("database = \"roadweave.db\"\n", "")).unwrap();
    let keep = |words: &[&str]| {
        let mut command = place.command(&[&["init", "--keep"], words].concat());
        let output = command.env_remove("ROADWEAVE_CONTROLLER_DATABASE").output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        (text(&output.stdout), fs::read_to_string(&config).unwrap())
    };
    let new = ["--address", "new.example:4400", "--address", "[2001:db8::1]:4400"];
    let (said, now) = keep(&new);
    assert!(said.contains("addresses are now new.example:4400 [2001:db8::1]:4400"), "{said}");
    assert!(!said.contains("database"), "{said}");
    assert!(now.contains("addresses = [\"new.example:4400\",\"[2001:db8::1]:4400\"]"), "{now}");
    for part in ["# Ours.", "issuer = \"https://x.example\"", "# A certificate for browsers"] {
        assert!(now.contains(part), "{now}");
    }
    let database = ["--database", "postgres://fleet:s3cret@db.example/fleet"];
    let (said, now) = keep(&[&new[..], &database].concat());
    assert!(said.contains("its database is now ") && !said.contains("s3cret"), "{said}");
    assert!(now.contains("database = \"postgres://fleet:s3cret@db.example/fleet\"\n"), "{now}");
    let (said, again) = keep(&new);
    assert!(said.trim_end().ends_with("keeping it") && again == now, "{said}{again}");
    let mut by_environment = place.command(&[&["init", "--keep"], &new[..]].concat());
    by_environment.env("ROADWEAVE_CONTROLLER_DATABASE", "other.db").output().unwrap();
    let now = fs::read_to_string(&config).unwrap();
    assert!(now.contains("database = \"other.db\"") && !now.contains("s3cret"), "{now}");
    assert_eq!(fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o600);
    let nine: Vec<&str> = ["--address", "x:1"].repeat(9);
    refused(&[&["init", "--keep"], &nine[..]].concat(), &place, "1 to 8");
    assert_eq!(fs::read_to_string(&config).unwrap(), now);
}

#[test]
fn a_backup_goes_and_comes_by_pipes_while_the_controller_runs_and_the_old_database_is_kept() {
    let (folder, place, port) = made();
    let running = start(&place, port);
    let made = place.run(&["backup", "-"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert!(made.stdout.starts_with(b"{\"format\":\"roadweave-backup\""));
    assert!(text(&made.stderr).contains("rows in standard output"), "{}", text(&made.stderr));
    assert!(!folder.path().join("-").exists());
    let restore =
        |input: &[u8], words: &[&str]| place.fed(&[&["restore", "-"], words].concat(), input);
    let locked = restore(&made.stdout, &["--aside"]);
    assert!(text(&locked.stderr).contains("another roadweave-controller uses"));
    assert!(stop(running));
    assert!(text(&restore(&made.stdout, &[]).stderr).contains("empty database"));
    let database = place.join("roadweave.db");
    let before = fs::read(&database).unwrap();
    for bad in [&made.stdout[..made.stdout.len() / 2], b"", b"{}\n"] {
        let refused = restore(bad, &["--aside"]);
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
        assert_eq!(fs::read(&database).unwrap(), before);
        assert!(!place.join("roadweave.db.epoch-1").exists());
    }
    let restored = restore(&made.stdout, &["--aside"]);
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    assert!(text(&restored.stdout).contains("the epoch is 2"), "{}", text(&restored.stdout));
    assert_eq!(fs::read(place.join("roadweave.db.epoch-1")).unwrap(), before);
    assert!(stop(start(&place, port)));
}
