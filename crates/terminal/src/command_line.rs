//! Common to the command lines of all programs: the log option, and the exit code of a command.

use std::process::ExitCode;

use crate::{exit, logging, out};

/// The option that says what is logged.
#[derive(Clone, Debug, clap::Args)]
pub struct LogOption {
    /// What to log: error, warn, info, debug or trace, also by module (roadweave_tunnel=debug)
    #[arg(
        long = "log",
        global = true,
        default_value = logging::DEFAULT,
        env = "ROADWEAVE_LOG",
        value_name = "LEVEL"
    )]
    filter: String,
    /// The format of log lines
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        env = "ROADWEAVE_LOG_FORMAT",
        value_name = "FORMAT"
    )]
    log_format: logging::LogFormat,
}

impl LogOption {
    /// Starts the log and runs `command`; reports its error and chooses the exit code.
    pub fn run(&self, command: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
        self.run_reporting(command, exit::report)
    }

    /// As [`run`](Self::run), but the callback reports the error and chooses the exit code.
    pub fn run_reporting(
        &self,
        command: impl FnOnce() -> anyhow::Result<()>,
        report: impl FnOnce(&anyhow::Error) -> ExitCode,
    ) -> ExitCode {
        match logging::start(&self.filter, self.log_format).and_then(|()| command()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => report(&error),
        }
    }
}

/// Prints a command line error or the help, and chooses the exit code.
pub fn refuse(error: &clap::Error) -> ExitCode {
    let opened = logging::open().map(|_| exit::report_arguments(error));
    opened.unwrap_or_else(|error| exit::report(&error))
}

/// Writes pending output and returns `code`.
pub fn finish(code: ExitCode) -> ExitCode {
    out::flush();
    code
}
