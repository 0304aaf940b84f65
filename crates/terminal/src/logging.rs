//! The log: filter and formats. Goes to standard error, so that a command's output can be piped.

mod structured;

use std::io::{self, IsTerminal as _, Write};

use roadweave_log::Lines;
use tracing::level_filters::STATIC_MAX_LEVEL;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use self::structured::Structured;
use crate::exit::BadInput;
use crate::out;

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    #[default]
    Text,
    /// One object per line, with the fields of each event
    Json,
    /// Entries for systemd's journal, with the fields of each event
    Journald,
}

/// Starts the log; fails for a wrong filter and a missing journal.
pub fn start(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let lines = open()?;
    let asks_for_trace = asks_for_trace(filter);
    let filter = parse(filter)?;
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let text = (format == LogFormat::Text).then(|| {
        let lines = lines.clone();
        tracing_subscriber::fmt::layer()
            .with_ansi(colours)
            // The library would report these by `eprintln!`.
            .log_internal_errors(false)
            .with_writer(move || LogEvent { lines: lines.clone(), text: Vec::new() })
    });
    let structured = match format {
        LogFormat::Text => None,
        LogFormat::Json => Some(Structured::json(lines)),
        LogFormat::Journald => Some(Structured::journal(lines).map_err(|error| {
            BadInput::new(format!("--log-format journald: cannot write to the journal: {error}"))
        })?),
    };
    tracing_subscriber::registry().with(filter).with(text).with(structured).init();
    if asks_for_trace && STATIC_MAX_LEVEL < LevelFilter::TRACE {
        tracing::warn!(
            "level trace logs nothing: optimised builds leave it out, since it would slow down \
             every packet. Use a debug build (`cargo run`)"
        );
    }
    Ok(())
}

/// Opens standard error for remarks beside the log.
pub fn open() -> anyhow::Result<Lines> {
    out::open_log(Box::new(notice))
}

/// Checks each directive: the library takes every unknown word for the name of a module.
fn parse(filter: &str) -> Result<Targets, BadInput> {
    let filter = if filter.trim().is_empty() { DEFAULT } else { filter };
    let refused = |why: String| BadInput::new(format!("--log {filter}: {why}"));
    let (mut level, mut modules) = (None, Vec::new());
    for directive in filter.split(',').map(str::trim) {
        let (module, of_module) = match directive.split_once('=') {
            Some((module, level)) => (module.trim(), Some(level.trim())),
            None => (directive, None),
        };
        if of_module.is_some_and(|level| !is_level(level)) {
            return Err(refused(format!("{LEVELS}, not \"{}\"", of_module.unwrap_or_default())));
        }
        if of_module.is_none() && is_level(directive) {
            level = directive.parse::<LevelFilter>().ok();
        } else if is_known(module) {
            let level = of_module.and_then(|level| level.parse().ok());
            modules.push((module, level.unwrap_or(LevelFilter::TRACE)));
        } else {
            return Err(refused(match of_module {
                None => format!(
                    "\"{module}\" is neither a level nor a module of Roadweave; {LEVELS}, also for \
                     one module, as roadweave_tunnel=debug"
                ),
                Some(_) => {
                    format!(
                        "no module is called \"{module}\"; there are {}",
                        MODULES.replace(' ', ", ")
                    )
                }
            }));
        }
    }
    // With a level for one module only, the others stay at info.
    let base = level.unwrap_or(LevelFilter::INFO);
    let mut targets = Targets::new().with_default(base);
    // The QUIC library warns about packets that anyone may send, at any rate.
    if (LevelFilter::WARN..=LevelFilter::INFO).contains(&base) {
        targets = targets.with_target("noq_proto", LevelFilter::ERROR);
    }
    Ok(targets.with_targets(modules))
}

fn asks_for_trace(filter: &str) -> bool {
    filter.split([',', '=']).any(|word| word.trim().eq_ignore_ascii_case("trace"))
}

fn is_level(word: &str) -> bool {
    !word.is_empty() && word.parse::<LevelFilter>().is_ok()
}

fn is_known(module: &str) -> bool {
    let (name, of_crate) = match module.split_once("::") {
        Some((name, _)) => (name, false),
        None => (module, true),
    };
    let fits = |known: &str| known == name || of_crate && known.starts_with(name);
    !name.is_empty() && MODULES.split(' ').any(fits)
}

fn notice(lost: u64) -> Vec<u8> {
    let mut line = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut line));
    line +=
        &format!("  WARN roadweave::logging: lines of the log could not be written lost={lost}\n");
    line.into_bytes()
}

struct LogEvent {
    lines: Lines,
    text: Vec<u8>,
}

impl Write for LogEvent {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogEvent {
    fn drop(&mut self) {
        if !self.text.is_empty() {
            self.lines.push(one_event(&self.text));
        }
    }
}

/// Indents all lines but the first, so that none looks like another event.
fn one_event(text: &[u8]) -> Vec<u8> {
    let text = text.trim_ascii_end();
    let mut whole = Vec::with_capacity(text.len() + 1);
    for byte in text {
        match byte {
            b'\n' => whole.extend_from_slice(b"\n    "),
            b'\r' => {}
            byte => whole.push(*byte),
        }
    }
    whole.push(b'\n');
    whole
}

/// The default filter.
pub const DEFAULT: &str = "info";
const LEVELS: &str = r#"write "error", "warn", "info", "debug", "trace" or "off""#;
const MODULES: &str = "\
    roadweave roadweave_proto roadweave_coding roadweave_schedule roadweave_recovery \
    roadweave_quic roadweave_tunnel roadweave_config roadweave_linux roadweave_node roadweave_emulate \
    roadweave_record roadweave_lab roadweave_terminal roadweave_video roadweave_bench \
    roadweave_control roadweave_web sqlx noq_proto rustls";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_names_levels_and_modules_and_nothing_else() {
        let check = |filter: &str, expected: &str| {
            assert_eq!(parse(filter).unwrap().to_string(), expected, "{filter}");
        };
        check("", "noq_proto=error,info");
        check("WARN", "noq_proto=error,warn");
        check("debug", "debug");
        check("off", "off");
        check("roadweave_tunnel=debug", "roadweave_tunnel=debug,noq_proto=error,info");
        check("off,roadweave_tunnel=debug", "roadweave_tunnel=debug,off");
        check("error, roadweave_node::driver=trace", "roadweave_node::driver=trace,error");
        check("noq_proto=debug", "noq_proto=debug,info");

        let refused = |filter: &str, part: &str, levels: &str| {
            let error = parse(filter).unwrap_err().to_string();
            assert!([filter, part, levels].iter().all(|part| error.contains(part)), "{error}");
        };
        let levels = "\"debug\", \"trace\" or \"off\"";
        refused("infoo", "\"infoo\" is neither a level nor a module", levels);
        refused("info,verbose", "\"verbose\"", levels);
        refused("roadweave_tunnel=loud", "not \"loud\"", levels);
        refused("a=b=c", "not \"b=c\"", levels);
        refused("roadweave_tunel=debug", "\"roadweave_tunel\"; there are roadweave", "");
        assert!(parse("=debug").is_err() && parse("info,").is_err());
    }

    #[test]
    fn trace_is_asked_for_by_its_name() {
        for filter in ["trace", "info, Trace", "noq_proto=trace", "noq_proto= trace,info"] {
            assert!(asks_for_trace(filter), "{filter}");
        }
        for filter in ["debug", "roadweave_tunnel", "off", ""] {
            assert!(!asks_for_trace(filter), "{filter}");
        }
    }

    #[test]
    fn an_event_of_several_lines_cannot_be_taken_for_several_events() {
        let text =
            b"2026-11-22T10:00:00Z ERROR nothing was changed: line 7\r\n7 | mtu = 1\n  | ^\n";
        let expected =
            "2026-11-22T10:00:00Z ERROR nothing was changed: line 7\n    7 | mtu = 1\n      | ^\n";
        assert_eq!(String::from_utf8(one_event(text)).unwrap(), expected);
    }
}
