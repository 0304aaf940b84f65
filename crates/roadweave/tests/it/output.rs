//! Output that cannot be written: full files, closed descriptors, pipes without a reader.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave"));
    command.args(arguments).env_remove("ROADWEAVE_LOG").current_dir("/");
    command
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

fn broken() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

fn run(arguments: &[&str], output: Stdio) -> (ExitStatus, String) {
    let output = program(arguments).stdout(output).stderr(Stdio::piped()).output().unwrap();
    (output.status, String::from_utf8(output.stderr).unwrap())
}

/// Commands that print in each way.
const PRINT: [&[&str]; 3] = [&["keygen"], &["keygen", "--json"], &["client", "--help"]];

#[test]
fn a_full_output_is_an_error_and_a_reader_who_left_ends_the_program_as_sigpipe_does() {
    let expected = "roadweave: cannot write to standard output: No space left on device";
    for arguments in PRINT {
        let (status, said) = run(arguments, full());
        assert_eq!(status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.starts_with(expected) && said.ends_with('\n'), "{arguments:?}: {said:?}");
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
        let (status, said) = run(arguments, broken());
        assert_eq!((status.code(), said.as_str()), (Some(141), ""), "{arguments:?}");
    }
    // The standard library opens /dev/null in place of closed descriptors.
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
}
