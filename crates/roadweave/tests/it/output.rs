//! What the program prints where nobody can take it: full files, closed descriptors, readers who
//! left.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use roadweave_device::netns::Watch;

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave"));
    command.args(arguments).env_remove("ROADWEAVE_LOG").current_dir("/");
    command
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// A pipe whose reader has left.
fn broken() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

/// Runs it with this standard output; returns how it ended and what it said.
fn run(arguments: &[&str], output: Stdio) -> (ExitStatus, String) {
    let output = program(arguments).stdout(output).stderr(Stdio::piped()).output().unwrap();
    (output.status, String::from_utf8(output.stderr).unwrap())
}

/// Commands that print, with all ways of printing.
const PRINT: [&[&str]; 5] =
    [&["keygen"], &["keygen", "--json"], &["--help"], &["client", "--help"], &["init", "--help"]];

#[test]
fn a_full_output_is_an_error_that_says_so() {
    for arguments in PRINT {
        let (status, said) = run(arguments, full());
        assert_eq!(status.code(), Some(1), "{arguments:?}: {said}");
        let expected = "roadweave: cannot write to standard output: No space left on device";
        assert!(said.starts_with(expected), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
        assert!(said.ends_with('\n'), "{arguments:?}: {said:?}");
    }
}

#[test]
fn a_reader_who_leaves_ends_the_program_silently_as_sigpipe_does() {
    for arguments in PRINT {
        let (status, said) = run(arguments, broken());
        assert_eq!((status.code(), said.as_str()), (Some(141), ""), "{arguments:?}");
    }
}

/// The standard library opens /dev/null in their place.
#[test]
fn closed_descriptors_harm_nobody() {
    let script = "exec 1>&- 2>&-; exec \"$0\" keygen";
    let status = Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_roadweave")]).status();
    assert_eq!(status.unwrap().code(), Some(0));
}

#[test]
fn an_error_that_cannot_be_told_still_has_its_code() {
    for errors in [full, broken] {
        let unknown = program(&["cleint"]).stderr(errors()).status().unwrap();
        let missing =
            program(&["client", "--config", "/nowhere"]).stderr(errors()).status().unwrap();
        assert_eq!((unknown.code(), missing.code()), (Some(2), Some(2)));
        assert_eq!((unknown.signal(), missing.signal()), (None, None));
    }
    // One that is heard ends with its line.
    for arguments in
        [&["cleint"][..], &["client", "--config", "/nowhere"], &["--log", "x", "keygen"]]
    {
        let output = program(arguments).output().unwrap();
        assert!(output.stderr.ends_with(b"\n"), "{arguments:?}: {output:?}");
        assert!(!output.stderr.ends_with(b"\n\n"), "{arguments:?}: {output:?}");
    }
}

#[test]
fn a_reader_of_errors_who_does_not_read_delays_the_end_by_a_moment_only() {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut filling = writer.try_clone().unwrap();
    // More than any pipe holds by default; whoever comes second waits.
    let filler = std::thread::spawn(move || filling.write_all(&vec![b'.'; 1 << 20]));
    std::thread::sleep(Duration::from_millis(200));
    let begun = Watch::start();
    let status = program(&["client", "--config", "/nowhere"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(2));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(!filler.is_finished());
    drop(reader);
    filler.join().unwrap().unwrap_err();
}
