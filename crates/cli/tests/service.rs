//! The unit of systemd: it starts what the program has, and takes no core from anybody.

#![allow(clippy::disallowed_methods, reason = "end-to-end tests start programs and wait")]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_roadweave");
/// What may stand for the instance.
const ROLES: [&str; 5] = ["client", "server", "proxy", "anchor", "router"];

fn unit() -> String {
    let file = "../../deploy/systemd/roadweave@.service";
    fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

fn value(unit: &str, field: &str) -> String {
    let value = |line: &str| Some(line.strip_prefix(field)?.strip_prefix('=')?.to_owned());
    unit.lines().find_map(value).unwrap_or_else(|| panic!("no {field}"))
}

#[test]
fn the_service_starts_what_the_program_has() {
    let start = value(&unit(), "ExecStart");
    let (program, arguments) = start.split_once(' ').unwrap();
    assert_eq!(program, "/usr/local/bin/roadweave");
    for role in ROLES {
        let arguments = arguments.replace("%i", role);
        let output = Command::new(PROGRAM).args(arguments.split(' ')).arg("--help").output();
        let output = output.unwrap();
        assert!(output.status.success(), "{role}: {output:?}");
    }
    // A file that is wrong is told by this code, and no further start mends it.
    let missing = ["client", "--check", "--config", "/nowhere/client.toml"];
    let code = Command::new(PROGRAM).args(missing).output().unwrap().status.code().unwrap();
    assert_eq!(value(&unit(), "RestartPreventExitStatus"), code.to_string());
}

#[test]
fn the_service_is_woken_soon_and_takes_no_core_from_anybody() {
    let unit = unit();
    assert!(value(&unit, "Nice").parse::<i32>().unwrap() < 0);
    let settings = unit.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(settings.filter(|line| line.starts_with("CPUScheduling")).count(), 0);
}

#[test]
fn systemd_understands_the_service() {
    let folder = tempfile::tempdir().unwrap();
    for role in ROLES {
        let file = folder.path().join(format!("roadweave@{role}.service"));
        fs::write(&file, unit().replace("/usr/local/bin/roadweave", PROGRAM)).unwrap();
        let output = Command::new("systemd-analyze").arg("verify").arg(&file).output();
        let output = match output {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // A write to the stream itself is not captured.
                let _ = writeln!(std::io::stderr(), "skipped: no systemd-analyze");
                return;
            }
            output => output.unwrap(),
        };
        let said = String::from_utf8_lossy(&output.stderr);
        let about_it: Vec<&str> = said.lines().filter(|line| line.contains("roadweave@")).collect();
        assert!(output.status.success() && about_it.is_empty(), "{said}");
    }
}
