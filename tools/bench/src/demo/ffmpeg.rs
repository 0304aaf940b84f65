//! Finds, checks and starts ffmpeg, and forwards its error messages.

use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FfmpegError {
    #[error("ffmpeg is not installed; install it with: apt-get install -y ffmpeg")]
    Missing,
    #[error(
        "this ffmpeg has no libx264 encoder; install Debian's or Ubuntu's: apt-get install -y ffmpeg"
    )]
    NoX264,
    #[error("cannot run ffmpeg: {0}")]
    Io(#[from] io::Error),
    #[error("ffmpeg could not {task} ({status}): {complaint}")]
    Failed { task: &'static str, status: ExitStatus, complaint: String },
}

/// A command line without terminal input that prints only errors.
pub fn command() -> Command {
    let mut command = Command::new("ffmpeg");
    command.args(["-hide_banner", "-nostdin", "-nostats", "-loglevel", "error", "-y"]);
    command
}

pub fn check() -> Result<(), FfmpegError> {
    let output = Command::new("ffmpeg")
        .args(["-hide_banner", "-nostdin", "-encoders"])
        .output()
        .map_err(not_started)?;
    let encoders = String::from_utf8_lossy(&output.stdout);
    if encoders.contains(" libx264 ") { Ok(()) } else { Err(FfmpegError::NoX264) }
}

pub fn version() -> Result<String, FfmpegError> {
    let output = Command::new("ffmpeg").arg("-version").output().map_err(not_started)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[derive(Debug)]
pub struct Running {
    pub child: Child,
    task: &'static str,
}

impl Running {
    /// Starts `command`; its standard error goes into the error of [`Running::finish`].
    pub fn start(task: &'static str, command: &mut Command) -> Result<Self, FfmpegError> {
        let child = command.stderr(Stdio::piped()).spawn().map_err(not_started)?;
        Ok(Self { child, task })
    }

    /// Waits for the end. At most a pipe's worth of standard error is kept while ffmpeg runs:
    /// callers that expect many errors, as of damaged pictures, pass `-loglevel fatal`.
    pub fn finish(self) -> Result<(), FfmpegError> {
        let output = self.child.wait_with_output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<_> = said.lines().collect();
        let complaint = lines[lines.len().saturating_sub(3)..].join("; ");
        Err(FfmpegError::Failed { task: self.task, status: output.status, complaint })
    }
}

fn not_started(error: io::Error) -> FfmpegError {
    match error.kind() {
        io::ErrorKind::NotFound => FfmpegError::Missing,
        _ => FfmpegError::Io(error),
    }
}
