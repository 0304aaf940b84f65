//! Exit codes: 0 for success, 1 for a failure at run time, 2 for input that the user must correct,
//! 141 when the reader of the output left before its end, as `head` does.

use std::fmt;
use std::process::ExitCode;

use crate::out::{self, OutputError};

/// An error in the user's input: a file or an option.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(String);

impl BadInput {
    /// Takes over the message of `error`.
    pub fn new(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// Prints an error with its causes and chooses the exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if !is_reader_gone(error) {
        out::note(format_args!("roadweave: {}", format!("{error:#}").trim_end()));
    }
    code(error)
}

/// The exit code of an error.
pub fn code(error: &anyhow::Error) -> ExitCode {
    if is_reader_gone(error) {
        return ExitCode::from(READER_GONE);
    }
    ExitCode::from(if error.is::<BadInput>() { 2 } else { 1 })
}

/// Whether standard output lost its reader; such an error is not printed, as with SIGPIPE.
pub fn is_reader_gone(error: &anyhow::Error) -> bool {
    OutputError::among(error).is_some_and(OutputError::is_reader_gone)
}

/// Prints what clap has to say, help or an error, and chooses the exit code.
pub fn report_arguments(error: &clap::Error) -> ExitCode {
    use std::io::IsTerminal as _;

    let colours = |is_terminal: bool| is_terminal && std::env::var_os("NO_COLOR").is_none();
    let text = |colours| match colours {
        true => error.render().ansi().to_string(),
        false => error.render().to_string(),
    };
    if error.use_stderr() {
        out::coloured(text(colours(std::io::stderr().is_terminal())).trim_end());
    } else if let Err(error) = out::print(text(colours(std::io::stdout().is_terminal()))) {
        return report(&error.into());
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Ends the program after pending output is written.
pub fn now(code: i32) -> ! {
    out::flush();
    std::process::exit(code)
}

/// 128 + SIGPIPE, as shells report it.
const READER_GONE: u8 = 141;
