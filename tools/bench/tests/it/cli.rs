//! The command line of roadweave-lab, without privileges.

use std::fs::File;
use std::process::{Command, Output};

use serde_json::Value;

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave-lab"));
    command.args(arguments).env_remove("ROADWEAVE_LOG").current_dir("/");
    command
}

fn run(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Golden files of tools/manual have the help of all commands.
#[test]
fn help_and_version_of_the_workshop_are_printed() {
    for (word, part) in [("--help", "Usage: roadweave"), ("--version", "roadweave-lab 0.")] {
        let output = run(&[word]);
        assert!(output.status.success() && said(&output.stdout).contains(part), "{output:?}");
    }
}

#[test]
fn mistyped_commands_of_the_lab_are_refused_with_the_likely_one() {
    for (arguments, parts) in [
        (&["dmeo"][..], ["unrecognized subcommand 'dmeo'", "'demo'"]),
        (&["demo", "--secnods", "3"], ["'--secnods'", "'--seconds'"]),
    ] {
        let output = run(arguments);
        let text = said(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{parts:?}: {text}");
    }
}

#[test]
fn a_full_output_is_an_error_of_the_lab_too() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = program(&["emulate", "--synthetic", "lte", "--check", "--json"]);
    let output = command.stdout(full).output().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let expected = "roadweave: cannot write to standard output: No space left on device";
    assert!(said(&output.stderr).starts_with(expected), "{output:?}");
}

/// The names are those that scripts rely on.
#[test]
fn the_bench_of_the_coding_tells_its_figures_as_json() {
    let output = run(&["bench", "coding", "--seconds", "1", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let kernels = results["kernels"].as_array().unwrap();
    assert_eq!(kernels[0]["name"], "portable");
    for kernel in kernels {
        for pointer in [
            "/encode_bytes_per_second/4",
            "/encode_bytes_per_second/10",
            "/encode_bytes_per_second/32",
            "/encode_bytes_per_second/one_of_10",
            "/decode_bytes_per_second/10",
            "/decode_bytes_per_second/3_of_10",
            "/coded_packet_ns/10",
        ] {
            let figure = kernel.pointer(pointer).and_then(Value::as_f64);
            assert!(figure.is_some_and(|figure| figure > 0.0), "{pointer}: {kernel}");
        }
    }
}
