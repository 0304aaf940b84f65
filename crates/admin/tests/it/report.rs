//! `roadweave report` of a file that is not there.

use std::process::Command;

#[test]
fn a_missing_file_is_reported_and_the_rest_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut report = Command::new(env!("CARGO_BIN_EXE_roadweave-admin"));
    report.args(["report", "nothing.toml", "--log-file", "log"]).current_dir(&folder);
    let output = report.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("nothing.toml") && said.contains("continues without it"), "{said}");
    for (name, part) in [
        ("config.toml", "# left out: "),
        ("log.txt", "cannot be opened"),
        ("doctor.json", "\"clock\""),
    ] {
        let path = folder.path().join("roadweave-report").join(name);
        assert!(std::fs::read_to_string(path).unwrap().contains(part), "{name}");
    }
}
