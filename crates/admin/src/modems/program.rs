//! The output of another program, bounded in bytes and in time.

use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use roadweave_linux::wait_readable;

pub(super) fn output(mut command: Command, timeout: Duration) -> Result<Vec<u8>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
    let deadline = Instant::now() + timeout;
    let ended = (|| {
        // A program that prints more gets a closed pipe.
        let answer = read(child.stdout.take()?, ANSWER_MAX, deadline)?;
        let complaint = read(child.stderr.take()?, COMPLAINT_MAX, deadline)?;
        Some((answer, complaint, wait(&mut child, deadline)?))
    })();
    let Some((answer, complaint, status)) = ended else {
        let _ = child.kill();
        // In a thread: even a killed child does not end while its driver hangs.
        spawn(move || child.wait());
        return Err(format!("{name} did not finish within {} s", timeout.as_secs()));
    };
    match status.success() {
        true => Ok(answer),
        false => {
            let complaint = String::from_utf8_lossy(&complaint);
            Err(complaint.lines().next().unwrap_or("unknown reason").to_owned())
        }
    }
}

fn wait(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait().ok()? {
            Some(status) => return Some(status),
            None if Instant::now() >= deadline => return None,
            None => sleep(NAP),
        }
    }
}

fn read(mut output: impl Read + AsFd, most: usize, deadline: Instant) -> Option<Vec<u8>> {
    let mut answer = Vec::new();
    let mut buffer = [0; 4_096];
    while answer.len() < most {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        if !wait_readable(&output, left).ok()? {
            continue;
        }
        match output.read(&mut buffer).ok()? {
            0 => break,
            length => answer.extend(&buffer[..length]),
        }
    }
    Some(answer)
}

const ANSWER_MAX: usize = 1 << 20;
const COMPLAINT_MAX: usize = 4_096;
const NAP: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_that_hangs_or_fails_is_no_more_than_a_reason() {
        let long = Duration::from_secs(20);
        assert_eq!(output(shell("printf ok"), long), Ok(b"ok".to_vec()));
        let failed = output(shell("echo no modem >&2; exit 1"), long);
        assert_eq!(failed, Err("no modem".to_owned()));
        for hanging in ["printf half; exec sleep 60", "exec >&-; sleep 60"] {
            let began = Instant::now();
            let refused = output(shell(hanging), Duration::from_secs(1));
            assert_eq!(refused, Err("sh did not finish within 1 s".to_owned()), "{hanging}");
            assert!(began.elapsed() < Duration::from_secs(30), "{hanging} is waited for");
        }
        let endless = output(shell("exec yes"), long).map(|answer| answer.len());
        assert!(endless.is_err(), "it ends by a signal, with nothing to say: {endless:?}");
        assert!(output(Command::new("no-such-program"), long).is_err());
    }
}
