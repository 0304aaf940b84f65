//! What another program prints, bounded in bytes and in time.

use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use roadweave_device::wait_readable;

/// The output of a program that takes no longer than `timeout`.
///
/// # Errors
/// Why there is none: the first line of its complaint, if it has one.
pub(super) fn output(mut command: Command, timeout: Duration) -> Result<Vec<u8>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
    let deadline = Instant::now() + timeout;
    let answer = read(&mut child, deadline);
    if answer.is_none() {
        let _ = child.kill();
    }
    let mut complaint = String::new();
    let status = match answer {
        Some(_) => {
            let output = child.stderr.take();
            let _ = output.map(|output| output.take(COMPLAINT_MAX).read_to_string(&mut complaint));
            child.wait()
        }
        None => child.wait(),
    };
    let status = status.map_err(|error| format!("{name}: {error}"))?;
    match answer {
        None => Err(format!("{name} takes longer than {} s", timeout.as_secs())),
        Some(answer) if status.success() => Ok(answer),
        Some(_) => Err(complaint.lines().next().unwrap_or("no reason is known").to_owned()),
    }
}

/// What a child prints until it ends or has said enough; `None` if it takes too long.
fn read(child: &mut Child, deadline: Instant) -> Option<Vec<u8>> {
    let mut answer = Vec::new();
    // One that has more to say is told by the end of its output.
    let mut output = child.stdout.take()?;
    let mut buffer = [0; 4_096];
    while answer.len() < ANSWER_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        if !wait_readable(output.as_fd(), left).ok()? {
            continue;
        }
        match output.read(&mut buffer).ok()? {
            0 => break,
            length => answer.extend(&buffer[..length]),
        }
    }
    Some(answer)
}

/// The most of an answer that is read, bytes.
const ANSWER_MAX: usize = 1 << 20;
/// The same of a complaint.
const COMPLAINT_MAX: u64 = 4_096;

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
        let second = Duration::from_secs(1);
        let long = Duration::from_secs(20);
        assert_eq!(output(shell("printf ok"), long), Ok(b"ok".to_vec()));
        let failed = output(shell("echo no modem >&2; exit 1"), long);
        assert_eq!(failed, Err("no modem".to_owned()));
        let began = Instant::now();
        let hanging = output(shell("printf half; exec sleep 60"), second);
        assert_eq!(hanging, Err("sh takes longer than 1 s".to_owned()));
        assert!(began.elapsed() < Duration::from_secs(30), "it is not waited for");
        let endless = output(shell("exec yes"), long).map(|answer| answer.len());
        assert!(endless.is_err(), "it ends by a signal, with nothing to say: {endless:?}");
        assert!(output(Command::new("no-such-program"), long).is_err());
    }
}
