//! Removes secrets from a report.
//!
//! ```text
//! configuration: known fields ─► texts ─► without what looks like a secret
//! doctor, status: all texts ────────────► without what looks like a secret
//! log: each line up to a word such as `token` ─► without what looks like a secret
//! ```
//!
//! Only what is known to be harmless stays: comments, unknown fields and words as long as a key go.

use std::collections::BTreeSet;

use roadweave_config::{ClientFile, ServerFile, fields as of_file};
use roadweave_identity::PublicKey;
use serde_json::Value as Json;
use toml::{Table, Value};

const REMOVED: &str = "(removed)";
/// A key has 44 letters in base64, 64 in hexadecimal; a shorter piece is useless.
const KEY_MIN: usize = 24;
/// An address has at most eight words with colons between them; a key in pairs of digits has more.
const PAIRS_MIN: usize = 12;
/// Enough letters to distinguish public keys; if it is a private key, 208 bits of it stay unknown.
const PUBLIC_LEN: usize = 8;
/// In a log, the rest of a line behind one of these may be a secret.
const WORDS: &str = "\
    api-key api_key apikey authorization bearer cookie credential iccid passphrase passw \
    private psk pwd secret token";
const WORDS_OF_LOGS: [&str; 10] =
    ["key=", "pass ", "pass:", "pass=", "pin ", "pin:", "pin=", "puk ", "puk=", "sig="];
pub(super) fn config(text: &Result<String, String>) -> String {
    let read = text.as_ref().map_err(String::clone);
    match read.and_then(|text| text.parse::<Table>().map_err(|_| "it is not TOML".to_owned())) {
        Ok(table) => {
            let names = [of_file::<ClientFile>(), of_file::<ServerFile>()].concat();
            // The name of a customer is left out.
            let names = names.iter().map(|it| &it.name).filter(|name| *name != "peers.tenant");
            let known = names.flat_map(|name| name.split('.')).collect();
            let (table, left_out) = fields(&known, table);
            match left_out {
                0 => table.to_string(),
                _ => format!("# {left_out} unknown fields are left out\n{table}"),
            }
        }
        Err(why) => format!("# left out: {}\n", self::text(&why)),
    }
}

fn fields(known: &BTreeSet<&str>, table: Table) -> (Table, usize) {
    let (mut clear, mut left_out) = (Table::new(), 0);
    for (name, value) in table {
        if name == "private_key" {
            clear.insert(name, Value::String(REMOVED.to_owned()));
        } else if known.contains(name.as_str()) {
            let (value, inner) = self::value(known, &name, value);
            clear.insert(name, value);
            left_out += inner;
        } else {
            left_out += 1;
        }
    }
    (clear, left_out)
}

fn value(known: &BTreeSet<&str>, name: &str, value: Value) -> (Value, usize) {
    match value {
        Value::String(text) => (Value::String(named(name, &text)), 0),
        Value::Array(values) => {
            let values = values.into_iter().map(|value| self::value(known, name, value));
            let (values, left_out): (Vec<_>, Vec<_>) = values.unzip();
            (Value::Array(values), left_out.into_iter().sum())
        }
        Value::Table(table) => {
            let (table, left_out) = fields(known, table);
            (Value::Table(table), left_out)
        }
        other => (other, 0),
    }
}

pub(super) fn json(value: Json) -> Json {
    match value {
        Json::String(text) => Json::String(self::text(&text)),
        Json::Array(values) => values.into_iter().map(json).collect(),
        Json::Object(fields) => {
            let clear = |(name, value): (String, Json)| {
                let value = match value {
                    Json::String(text) => Json::String(named(&name, &text)),
                    _ if is_secret(&name) => Json::String(REMOVED.to_owned()),
                    other => json(other),
                };
                (text(&name), value)
            };
            fields.into_iter().map(clear).collect()
        }
        other => other,
    }
}

fn named(name: &str, text: &str) -> String {
    match name {
        "public_key" if text.parse::<PublicKey>().is_ok() => {
            format!("{}...", text.chars().take(PUBLIC_LEN).collect::<String>())
        }
        name if is_secret(name) => REMOVED.to_owned(),
        _ => self::text(text),
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    WORDS.split(' ').any(|word| name.contains(word))
}

pub(super) fn log(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let lower = line.to_ascii_lowercase();
        let words = WORDS.split(' ').chain(WORDS_OF_LOGS);
        let ends = words.filter_map(|word| Some(lower.find(word)? + word.len()));
        let mut clear = match ends.min() {
            Some(end) => format!("{} {REMOVED}", self::text(&line[..end]).trim_end()),
            None => self::text(line),
        };
        clear.push('\n');
        clear
    });
    lines.collect()
}

pub(super) fn unquoted(text: &str) -> String {
    let mut clear = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find(['"', '`', '\'']) {
        let (before, quoted) = rest.split_at(begin);
        clear += before;
        clear += REMOVED;
        let quote = quoted.chars().next().unwrap_or('"');
        // The quotation may contain quotes.
        rest = quoted.rfind(quote).filter(|end| *end > 0).map_or("", |end| &quoted[end + 1..]);
    }
    self::text(&(clear + rest))
}

pub(super) fn text(text: &str) -> String {
    // All that may be in a URL, and more (RFC 3986 section 2.2).
    let ends_address = |c: char| c.is_whitespace() || c.is_control() || "\"`<>".contains(c);
    let is_between = |c: char| c.is_whitespace() || c.is_control() || "\"'`<>()[]{},;|".contains(c);
    let mut clear = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let mut end = rest.find(is_between).unwrap_or(rest.len());
        if rest[..end].contains("://") {
            end = rest.find(ends_address).unwrap_or(rest.len());
        }
        let (piece, after) = rest.split_at(end);
        clear += &keyless(&anonymous(piece));
        let (between, after) =
            after.split_at(after.find(|c| !is_between(c)).unwrap_or(after.len()));
        clear.extend(between.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }));
        rest = after;
    }
    clear
}

fn anonymous(piece: &str) -> String {
    let Some((scheme, rest)) = piece.split_once("://") else {
        return match piece.rsplit_once('@') {
            Some((user, host)) if user.contains(':') => format!("{REMOVED}@{host}"),
            _ => piece.to_owned(),
        };
    };
    let scheme = scheme.rsplit_once('@').map_or(scheme, |(_, scheme)| scheme);
    let path = |rest: &str| rest.split(['?', '#', ';']).next().unwrap_or_default().to_owned();
    // A password may contain an `@`.
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{REMOVED}@{}", path(host)),
        None => format!("{scheme}://{}", path(rest)),
    }
}

fn keyless(piece: &str) -> String {
    // Base64, also as a URL or a JSON text escapes it.
    let is_of_a_key = |c: char| c.is_ascii_alphanumeric() || "+/=_-%\\".contains(c);
    if piece.split(':').count() >= PAIRS_MIN {
        return REMOVED.to_owned();
    }
    let mut clear = String::with_capacity(piece.len());
    let mut rest = piece;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_of_a_key(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        clear += if word.len() >= KEY_MIN { REMOVED } else { word };
        let (between, after) = after.split_at(after.find(is_of_a_key).unwrap_or(after.len()));
        clear += between;
        rest = after;
    }
    clear
}
