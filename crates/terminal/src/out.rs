//! Output of commands.
//!
//! Standard output carries results; a command that cannot write them fails ([`crate::exit`]).
//! Standard error carries the log and remarks, which never fail and never wait ([`roadweave_log`]).
//! `println!` and `eprintln!` panic when they cannot write, so clippy refuses them here.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;
use std::time::Duration;

use roadweave_log::{Lines, Notice};

/// Standard output cannot be written to.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub struct OutputError(io::Error);

impl OutputError {
    /// Finds it among the causes of an error.
    pub fn among(error: &anyhow::Error) -> Option<&Self> {
        error.chain().find_map(|cause| cause.downcast_ref())
    }

    /// Whether the reader has left.
    pub fn is_reader_gone(&self) -> bool {
        self.0.kind() == ErrorKind::BrokenPipe
    }
}

/// Prints a text as it is.
pub fn print(text: impl fmt::Display) -> Result<(), OutputError> {
    let mut out = io::stdout().lock();
    write!(out, "{text}").and_then(|()| out.flush()).map_err(OutputError)
}

/// Prints a line.
pub fn line(text: impl fmt::Display) -> Result<(), OutputError> {
    print(format_args!("{text}\n"))
}

/// Prints a value as indented JSON.
pub fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    Ok(line(serde_json::to_string_pretty(value)?)?)
}

/// Prints a value as one line of JSON.
pub fn json_line(value: &impl serde::Serialize) -> anyhow::Result<()> {
    Ok(line(serde_json::to_string(value)?)?)
}

/// Prints a remark on standard error, on its own line, with control characters escaped.
pub fn note(text: impl fmt::Display) {
    coloured(harmless(&text.to_string()));
}

/// As [`note`], with control sequences.
pub(crate) fn coloured(text: impl fmt::Display) {
    // Without an open log there is nowhere to print to.
    if let Some(lines) = LINES.get() {
        lines.push(format!("{text}\n").into_bytes());
    }
}

fn harmless(text: &str) -> String {
    let harmless = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\t');
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match harmless(letter) {
            true => shown.push(letter),
            false => shown.extend(letter.escape_default()),
        }
    }
    shown
}

/// Opens standard error; fails when the system lacks a thread or a descriptor.
pub fn open_log(notice: Notice) -> anyhow::Result<Lines> {
    let lines = roadweave_log::standard_error(notice)?;
    Ok(LINES.get_or_init(|| lines).clone())
}

/// Waits a moment until standard error is written.
pub fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush(LAST_WORDS, LAST_WORDS_MAX);
    }
}

static LINES: OnceLock<Lines> = OnceLock::new();
/// Limit while the reader of standard error takes nothing.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Limit while this machine is too busy to write.
const LAST_WORDS_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_message_quotes_does_nothing_to_a_terminal() {
        let shown = harmless("lanes.csv:1:1: `\x1b]0;owned\x07\u{9b}2J` is no time\n\tä");
        assert_eq!(shown, "lanes.csv:1:1: `\\u{1b}]0;owned\\u{7}\\u{9b}2J` is no time\n\tä");
        assert_eq!(harmless("\r"), "\\r");
    }

    #[test]
    fn a_failed_output_is_found_among_the_causes_and_nothing_else_is() {
        let gone = || io::Error::from(ErrorKind::BrokenPipe);
        let check = |error: anyhow::Error, expected: Option<bool>| {
            let found = OutputError::among(&error).map(OutputError::is_reader_gone);
            assert_eq!(found, expected, "{error:?}");
        };
        check(OutputError(gone()).into(), Some(true));
        check(anyhow::Error::from(OutputError(gone())).context("while drawing"), Some(true));
        check(OutputError(ErrorKind::StorageFull.into()).into(), Some(false));
        // A local socket whose other end has left.
        check(gone().into(), None);
        check(anyhow::anyhow!("no links"), None);
    }
}
