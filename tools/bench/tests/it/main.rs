//! The integration tests of this crate, one module each.

#![allow(clippy::disallowed_methods, reason = "programs, sockets and real time")]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod cli;
#[path = "../../../../crates/roadweave/tests/it/common/daemon.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod daemon;
mod figures;
#[path = "../../../../scripts/golden.rs"]
mod golden;
mod lab;
mod qoe;
mod record;
mod stack;
mod trace;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_roadweave-lab");

fn run(folder: &Path, words: &str) -> Output {
    let mut command = Command::new(PROGRAM);
    command.current_dir(folder).args(words.split_whitespace()).env_remove("ROADWEAVE_LOG");
    command.output().unwrap()
}

fn write(folder: &Path, name: &str, content: impl AsRef<[u8]>) {
    let file = folder.join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, content).unwrap();
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn printed(folder: &Path, words: &str) -> String {
    let output = run(folder, words);
    assert!(output.status.success(), "{words}: {}", said(&output.stderr));
    said(&output.stdout)
}

#[track_caller]
fn json(folder: &Path, words: &str) -> Value {
    serde_json::from_str(&printed(folder, &format!("{words} --json"))).unwrap()
}

/// Checks that the program rejects each of `lines` as invalid input and prints nothing, and
/// compares its errors with a golden file.
#[track_caller]
fn check_refused(golden: &str, folder: &Path, lines: &[&str]) {
    let root = folder.canonicalize().unwrap().display().to_string();
    let mut text = String::new();
    for words in lines {
        let output = run(folder, words);
        let errors = said(&output.stderr).replace(&root, "FOLDER");
        assert_eq!(output.status.code(), Some(2), "{words}: {errors}");
        assert_eq!(said(&output.stdout), "", "{words}");
        text += &format!("$ roadweave {words}\n{errors}\n");
    }
    golden::assert_golden(golden, &text);
}
