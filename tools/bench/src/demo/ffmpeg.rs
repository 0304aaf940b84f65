//! ffmpeg as a tool: found, checked, started, and its complaints passed on.

use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};

/// Why ffmpeg did not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FfmpegError {
    /// There is no such program.
    #[error("ffmpeg is not installed; install it with: apt-get install -y ffmpeg")]
    Missing,
    /// This ffmpeg was built without the encoder.
    #[error(
        "this ffmpeg has no libx264 encoder; install Debian's or Ubuntu's: apt-get install -y ffmpeg"
    )]
    NoX264,
    /// The program could not be started or talked to.
    #[error("cannot run ffmpeg: {0}")]
    Io(#[from] io::Error),
    /// The program gave up.
    #[error("ffmpeg could not {task} ({status}): {complaint}")]
    Failed {
        /// What ffmpeg was to do.
        task: &'static str,
        /// How the program ended.
        status: ExitStatus,
        /// The last lines that it wrote.
        complaint: String,
    },
}

/// A command line that reads no terminal and only says what is wrong.
pub fn command() -> Command {
    let mut command = Command::new("ffmpeg");
    command.args(["-hide_banner", "-nostdin", "-nostats", "-loglevel", "error", "-y"]);
    command
}

/// Makes sure that ffmpeg is there and can encode H.264.
///
/// # Errors
/// [`FfmpegError::Missing`] or [`FfmpegError::NoX264`], both with the cure.
pub fn check() -> Result<(), FfmpegError> {
    let output = Command::new("ffmpeg")
        .args(["-hide_banner", "-nostdin", "-encoders"])
        .output()
        .map_err(not_started)?;
    let encoders = String::from_utf8_lossy(&output.stdout);
    if encoders.contains(" libx264 ") { Ok(()) } else { Err(FfmpegError::NoX264) }
}

/// Which ffmpeg there is, in its own words.
///
/// # Errors
/// [`FfmpegError::Missing`], or [`FfmpegError::Io`] when it cannot be started.
pub fn version() -> Result<String, FfmpegError> {
    let output = Command::new("ffmpeg").arg("-version").output().map_err(not_started)?;
    // With the configuration and the versions of its libraries.
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A running ffmpeg.
#[derive(Debug)]
pub struct Running {
    /// The process; its piped ends may be taken.
    pub child: Child,
    task: &'static str,
}

impl Running {
    /// Starts `command`, whose standard error is kept for the case that it fails.
    ///
    /// # Errors
    /// [`FfmpegError::Missing`], or [`FfmpegError::Io`] when it cannot be started.
    pub fn start(task: &'static str, command: &mut Command) -> Result<Self, FfmpegError> {
        let child = command.stderr(Stdio::piped()).spawn().map_err(not_started)?;
        Ok(Self { child, task })
    }

    /// Waits for its end. ffmpeg complains of damaged pictures too: at most a pipe's worth is kept
    /// while it runs, so callers that expect many complaints silence them with `-loglevel fatal`.
    ///
    /// # Errors
    /// [`FfmpegError::Failed`] with what it said.
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
