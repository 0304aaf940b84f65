//! Exit codes: 0 for success, 1 for what failed while it ran, 2 for what the user must mend.

use std::fmt;
use std::process::ExitCode;

/// An error in what the user wrote: a file or an option.
#[derive(Debug)]
pub struct BadInput(String);

impl BadInput {
    /// Takes over the message of `error`.
    pub fn new(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

/// Prints an error with its causes and chooses the exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    eprintln!("roadweave: {error:#}");
    ExitCode::from(if error.is::<BadInput>() { 2 } else { 1 })
}
