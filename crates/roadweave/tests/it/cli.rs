//! The command line without privileges: help, files, mistakes in both, and broken output.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

use crate::common::PROGRAM;
use tempfile::TempDir;

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).env_remove("ROADWEAVE_LOG").current_dir("/");
    command
}

fn run_in(folder: &Path, arguments: &[&str]) -> Output {
    program(arguments).current_dir(folder).output().unwrap()
}

fn run(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn check_refused(output: &Output, code: i32, parts: &[&str]) {
    let errors = said(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{errors}");
    for part in parts {
        assert!(errors.contains(part), "{part:?} is not in:\n{errors}");
    }
    assert_eq!(said(&output.stdout), "");
}

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let output = run_in(folder.path(), &["init", "--server", "vpn.example:4433"]);
        assert!(output.status.success(), "{output:?}");
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn check_changed(&self, role: &str, line: &str, instead: &str) -> Output {
        let text = fs::read_to_string(self.path(&format!("{role}.toml"))).unwrap();
        let changed = match line {
            "" => format!("{text}{instead}\n"),
            line => {
                let old = text.lines().find(|known| known.starts_with(line)).unwrap();
                text.replacen(old, instead, 1)
            }
        };
        let path = self.path("changed.toml");
        fs::write(&path, changed).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        run_in(self.0.path(), &[role, "--check", "--config", "changed.toml"])
    }
}

#[test]
fn mistyped_words_are_refused_with_the_likely_one() {
    check_refused(&run(&["cleint"]), 2, &["unrecognized subcommand 'cleint'", "'client'"]);
    check_refused(&run(&["dmeo"]), 2, &["unrecognized subcommand 'dmeo'", "'demo'"]);
    check_refused(&run(&["--log", "a=b=c", "keygen"]), 2, &["--log a=b=c", "\"debug\""]);
    let output = run(&["show", "--watch=0"]);
    check_refused(&output, 2, &["'--watch <SECONDS>'", "0.1 to 3600 seconds"]);
}

fn alone() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (original, program) = (PROGRAM, folder.path().join("roadweave"));
    if fs::hard_link(original, &program).is_err() {
        fs::copy(original, &program).unwrap();
    }
    (folder, program)
}

fn write_program(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "#!/bin/sh\necho \"${0##*/} $* $ROADWEAVE_LOG\"; exit 7\n").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn commands_of_other_programs_run_as_ours() {
    let (folder, program) = alone();
    let run = |arguments: &[&str], path: &str| {
        let mut command = Command::new(&program);
        command.current_dir(folder.path()).args(arguments).env_remove("ROADWEAVE_LOG");
        command.env("PATH", path).output().unwrap()
    };
    let check = |arguments: &[&str], path: &str, expected: &str| {
        let output = run(arguments, path);
        assert_eq!((said(&output.stdout).as_str(), output.status.code()), (expected, Some(7)));
    };
    let bin = folder.path().join("bin");
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let parts = [
        "demo is a command of roadweave-lab",
        "neither beside this program nor in PATH",
        "package roadweave-bench",
    ];
    check_refused(&run(&["demo"], &path), 2, &parts);

    write_program(&bin.join("roadweave-hello"));
    check(&["hello", "--json", "x"], &path, "roadweave-hello --json x \n");
    check(&["--log", "debug", "hello"], &path, "roadweave-hello  debug\n");
    write_program(&bin.join("roadweave-lab"));
    check(&["demo", "--help"], &path, "roadweave-lab demo --help \n");
    // A program beside this one comes first: it has the same version.
    write_program(&folder.path().join("roadweave-lab"));
    check(&["lab", "run"], "/usr/bin:/bin", "roadweave-lab lab run \n");
    check(&["help", "lab", "run"], "/usr/bin:/bin", "roadweave-lab help lab run \n");
    // A wrong word after a command of this program runs no other program.
    write_program(&bin.join("roadweave-set"));
    write_program(&bin.join("roadweave-help"));
    for words in [&["set", "video", "stratgy", "xnc"][..], &["help", "dmeo"]] {
        assert_eq!(run(words, &path).status.code(), Some(2), "{words:?}");
    }
    // No program runs from the current folder or by a path.
    write_program(&folder.path().join("here/roadweave-other"));
    write_program(&folder.path().join("roadweave-/hello"));
    for (word, path) in [("other", ".:here::/bin"), ("/hello", "/bin"), ("-/hello", "/bin")] {
        let mut command = Command::new(&program);
        command.current_dir(folder.path().join("here")).env("PATH", path).arg(word);
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), said(&output.stdout).as_str()), (Some(2), ""), "{word}");
    }
}

#[test]
fn a_token_comes_as_a_word_or_from_a_file_that_others_may_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let from_file = ["join", "--token-file", "token", "--state-directory", "state"];
    check_refused(&run_in(folder.path(), &from_file), 2, &["token", "No such file"]);
    fs::write(&file, "rw1_damaged\n").unwrap();
    for (mode, part) in [(0o644, "chmod 600"), (0o600, "token is damaged"), (0o440, "damaged")] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        check_refused(&run_in(folder.path(), &from_file), 2, &[part]);
    }
}

#[test]
fn init_and_keygen_write_files_that_pass_the_check() {
    let files = Files::new();
    for name in ["client.toml", "server.toml"] {
        let mode = fs::metadata(files.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let keys = said(&run(&["keygen"]).stdout);
    let output = files.check_changed("client", "private_key", keys.lines().next().unwrap());
    assert!(output.status.success(), "{output:?}");
    let output = files.check_changed("server", "", "expires = 2020-01-31T00:00:00Z");
    assert_eq!(said(&output.stdout), "changed.toml is valid\n");
    let warning = said(&output.stderr);
    let expected = "warning: changed.toml: peer \"vehicle-1\" is no longer admitted";
    assert!(warning.starts_with(expected), "{warning}");

    let again = ["init", "--server", "2001:db8:1:2:3:4:5:6:4433"];
    let before = fs::read_to_string(files.path("client.toml")).unwrap();
    check_refused(&run_in(files.0.path(), &again), 2, &["vehicle-1", "choose another name"]);
    assert_eq!(fs::read_to_string(files.path("client.toml")).unwrap(), before);
    let output = run_in(files.0.path(), &[&again[..], &["--force"]].concat());
    assert!(output.status.success(), "{output:?}");
    let client = fs::read_to_string(files.path("client.toml")).unwrap();
    assert!(client.contains("addresses = [\"[2001:db8:1:2:3:4:5:6]:4433\"]"), "{client}");
    for (server, part) in
        [("vpn.example", "a port is missing; write host:port"), ("2001:db8::1", "without brackets")]
    {
        let output = run(&["init", "--server", server, "/nonexistent/roadweave"]);
        check_refused(&output, 2, &[server, part]);
    }
}

#[test]
fn files_that_are_broken_or_cannot_be_read_are_named() {
    let files = Files::new();
    for (role, line, instead, part) in [
        ("client", "", "[tun]\nmtu_bytes = 99", "line 20"),
        ("server", "listen", "listen = \"4433\"", "line 2"),
    ] {
        let output = files.check_changed(role, line, instead);
        check_refused(&output, 2, &["roadweave: changed.toml: ", part]);
    }
    fs::write(files.path("noise.toml"), [0xff, 0xfe, 0x00, 0x9f]).unwrap();
    fs::set_permissions(files.path("noise.toml"), fs::Permissions::from_mode(0o600)).unwrap();
    for (arguments, part) in [
        (&["missing.toml"][..], "cannot read missing.toml: No such file"),
        (&["missing.toml", "--check"], "cannot read missing.toml: No such file"),
        (&["."], "cannot read .: Is a directory"),
        (&["noise.toml"], "cannot read noise.toml"),
    ] {
        let output = run_in(files.0.path(), &[&["client", "--config"], arguments].concat());
        check_refused(&output, 2, &[part]);
        assert_eq!(said(&output.stderr).lines().count(), 1, "{output:?}");
    }
    let output = run_in(files.0.path(), &["show", "--json", "--socket", "nothing.sock"]);
    check_refused(&output, 1, &["nothing runs at nothing.sock: start it"]);
    assert_eq!(said(&output.stderr).lines().count(), 1);
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

fn broken() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

fn run_into(arguments: &[&str], output: Stdio) -> (ExitStatus, String) {
    let output = program(arguments).stdout(output).stderr(Stdio::piped()).output().unwrap();
    (output.status, String::from_utf8(output.stderr).unwrap())
}

const PRINT: [&[&str]; 3] = [&["keygen"], &["keygen", "--json"], &["client", "--help"]];

#[test]
fn a_full_output_is_an_error_and_a_reader_who_left_ends_the_program_as_sigpipe_does() {
    let expected = "roadweave: cannot write to standard output: No space left on device";
    for arguments in PRINT {
        let (status, said) = run_into(arguments, full());
        assert_eq!(status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.starts_with(expected) && said.ends_with('\n'), "{arguments:?}: {said:?}");
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
        let (status, said) = run_into(arguments, broken());
        assert_eq!((status.code(), said.as_str()), (Some(141), ""), "{arguments:?}");
    }
    // The standard library opens /dev/null in place of closed descriptors.
    let script = "exec 1>&- 2>&-; exec \"$0\" keygen";
    let status = Command::new("sh").args(["-c", script, PROGRAM]).status();
    assert_eq!(status.unwrap().code(), Some(0));
}

#[test]
fn an_error_that_cannot_be_printed_still_has_its_code() {
    for errors in [full, broken] {
        let unknown = program(&["cleint"]).stderr(errors()).status().unwrap();
        let missing =
            program(&["client", "--config", "/nowhere"]).stderr(errors()).status().unwrap();
        assert_eq!((unknown.code(), missing.code()), (Some(2), Some(2)));
        assert_eq!((unknown.signal(), missing.signal()), (None, None));
    }
}
