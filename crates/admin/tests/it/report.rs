//! `roadweave report` of a file that is not there.

use std::process::Command;

#[test]
fn a_file_that_is_not_there_is_told_and_the_rest_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut report = Command::new(env!("CARGO_BIN_EXE_roadweave-admin"));
    let output = report.args(["report", "nothing.toml"]).current_dir(&folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("nothing.toml") && said.contains("goes on without it"), "{said}");
    assert!(folder.path().join("roadweave-report/doctor.json").exists());
}
