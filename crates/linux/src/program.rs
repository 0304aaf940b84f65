//! Runs external programs, with a timeout.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};

#[derive(Debug)]
pub(crate) enum Failure {
    NotStarted(io::Error),
    /// The program failed with this first line of errors, or was killed.
    Said(String),
}

/// Kills the program after `limit`. Input and errors are files in memory: nothing blocks on pipes.
pub(crate) fn run(command: &mut Command, input: &str, limit: Duration) -> Result<(), Failure> {
    let (status, mut errors) = run_to_end(command, input, limit).map_err(Failure::NotStarted)?;
    match status {
        Some(status) if status.success() => return Ok(()),
        Some(_) => {}
        None => {
            let why = format!("it did not end within {} s", limit.as_secs_f32());
            return Err(Failure::Said(why));
        }
    }
    let mut said = Vec::new();
    let _ = errors.rewind().and_then(|()| errors.take(SAID_MAX).read_to_end(&mut said));
    let said = String::from_utf8_lossy(&said);
    Err(Failure::Said(said.lines().next().unwrap_or("it gave no reason").to_owned()))
}

fn run_to_end(
    command: &mut Command,
    input: &str,
    limit: Duration,
) -> io::Result<(Option<ExitStatus>, File)> {
    let (mut given, errors) = (in_memory()?, in_memory()?);
    given.write_all(input.as_bytes())?;
    given.rewind()?;
    let mut child =
        command.stdin(given).stdout(Stdio::null()).stderr(errors.try_clone()?).spawn()?;
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((Some(status), errors));
        }
        if begin.elapsed() >= limit {
            let _ = child.kill();
            child.wait()?;
            return Ok((None, errors));
        }
        sleep(POLL);
    }
}

fn in_memory() -> io::Result<File> {
    Ok(memfd_create("roadweave", MemfdFlags::CLOEXEC)?.into())
}

const POLL: Duration = Duration::from_millis(1);
const SAID_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, input: &str, limit: Duration) -> Result<(), String> {
        match run(Command::new("sh").args(["-c", script]), input, limit) {
            Ok(()) => Ok(()),
            Err(Failure::Said(text)) => Err(text),
            Err(Failure::NotStarted(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn a_program_gets_its_input_and_says_why_it_fails() {
        let limit = Duration::from_secs(20);
        let long = "x".repeat(1 << 20);
        assert_eq!(shell("test $(wc -c) -eq 1048576", &long, limit), Ok(()));
        assert_eq!(shell("true", &long, limit), Ok(()), "it need not read it");
        let failed = shell("echo out; echo why >&2; echo more >&2; exit 3", "", limit);
        assert_eq!(failed, Err("why".to_owned()));
        let failed = run(&mut Command::new("/nowhere/program"), "", limit);
        assert!(matches!(failed, Err(Failure::NotStarted(_))), "{failed:?}");
    }

    #[test]
    fn a_program_that_hangs_is_ended_and_its_children_block_nothing() {
        let begin = Instant::now();
        let failed = shell("sleep 30", "", Duration::from_millis(50)).unwrap_err();
        assert!(failed.contains("did not end within 0.05 s"), "{failed}");
        assert_eq!(shell("sleep 10 & exit 0", "", Duration::from_secs(9)), Ok(()));
        assert!(begin.elapsed() < Duration::from_secs(9), "{:?}", begin.elapsed());
    }
}
