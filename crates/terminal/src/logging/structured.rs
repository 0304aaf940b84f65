//! Events with separate fields, for programs: lines of JSON, or journal entries.

use std::fmt;
use std::io;
use std::os::unix::net::UnixDatagram;

use roadweave_log::Lines;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::layer::Context;

/// systemd's native protocol.
const JOURNAL: &str = "/run/systemd/journal/socket";

pub(super) struct Structured {
    /// `None`: lines of JSON only.
    journal: Option<UnixDatagram>,
    lines: Lines,
}

impl Structured {
    pub(super) fn json(lines: Lines) -> Self {
        Self { journal: None, lines }
    }

    /// What the journal does not accept at once becomes a line of JSON. Fails without a journal.
    pub(super) fn journal(lines: Lines) -> io::Result<Self> {
        let journal = UnixDatagram::unbound()?;
        journal.connect(JOURNAL)?;
        journal.set_nonblocking(true)?;
        Ok(Self { journal: Some(journal), lines })
    }
}

impl<S: Subscriber> Layer<S> for Structured {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        if let Some(journal) = &self.journal
            && journal.send(&entry(level, target, &fields.0)).is_ok()
        {
            return;
        }
        self.lines.push(line(level, target, fields.0));
    }
}

#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }
}

fn line(level: Level, target: &str, mut fields: Map<String, Value>) -> Vec<u8> {
    let mut time = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let level = level.as_str().to_ascii_lowercase();
    for (name, value) in [("time", time), ("level", level), ("target", target.to_owned())] {
        fields.insert(name.to_owned(), value.into());
    }
    format!("{}\n", Value::Object(fields)).into_bytes()
}

/// An event as a journal entry. Each value is prefixed with its length, so it cannot forge a field.
fn entry(level: Level, target: &str, fields: &Map<String, Value>) -> Vec<u8> {
    let mut entry = Vec::new();
    let mut add = |name: &str, value: &str| {
        entry.extend_from_slice(name.as_bytes());
        entry.push(b'\n');
        entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
        entry.extend_from_slice(value.as_bytes());
        entry.push(b'\n');
    };
    // syslog(3).
    let priority = match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    };
    add("PRIORITY", priority);
    add("SYSLOG_IDENTIFIER", "roadweave");
    add("ROADWEAVE_TARGET", target);
    for (name, value) in fields {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match name.as_str() {
            "message" => add("MESSAGE", &text),
            name => {
                let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
                let name: String = name.chars().map(letter).collect();
                add(&format!("ROADWEAVE_{}", name.to_ascii_uppercase()), &text);
            }
        }
    }
    entry
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields() -> Map<String, Value> {
        let value = json!({
            "message": "two\nPRIORITY=0", "uplink": "a\u{1b}\"b", "after_seconds": 1.5,
            "level": "forged",
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_line_of_json_is_one_line_with_every_field() {
        let line = String::from_utf8(line(Level::WARN, "roadweave_node", fields())).unwrap();
        assert_eq!(line.matches('\n').count(), 1);
        assert!(!line.contains('\u{1b}'), "{line}");
        let mut read: Map<String, Value> = serde_json::from_str(&line).unwrap();
        let time = read.remove("time").unwrap();
        assert!(time.as_str().unwrap().ends_with('Z'), "{line}");
        let mut expected = fields();
        expected.insert("level".to_owned(), "warn".into());
        expected.insert("target".to_owned(), "roadweave_node".into());
        assert_eq!(read, expected);
    }

    #[test]
    fn no_value_begins_a_field_of_its_own_in_the_journal() {
        let mut rest = &entry(Level::WARN, "roadweave_node", &fields())[..];
        let mut read = Vec::new();
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let name = String::from_utf8(rest[..end].to_vec()).unwrap();
            let length = u64::from_le_bytes(rest[end + 1..end + 9].try_into().unwrap()) as usize;
            read.push((name, String::from_utf8(rest[end + 9..end + 9 + length].to_vec()).unwrap()));
            assert_eq!(rest[end + 9 + length], b'\n');
            rest = &rest[end + 10 + length..];
        }
        let has = |name: &str, value: &str| read.contains(&(name.to_owned(), value.to_owned()));
        assert!(has("PRIORITY", "4") && has("MESSAGE", "two\nPRIORITY=0"), "{read:?}");
        assert!(has("ROADWEAVE_AFTER_SECONDS", "1.5") && has("ROADWEAVE_LEVEL", "forged"));
    }
}
