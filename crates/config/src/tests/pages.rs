//! The tables of fields in docs/, from the types: names, defaults, bounds and comments.

use std::collections::BTreeMap;
use std::fs;

use serde::Serialize;

use super::*;

/// The comment of each field, as `STRUCT::FIELD`, and whether a file must have the field.
fn comments() -> BTreeMap<String, (String, bool)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).expect("a folder") {
        let text = fs::read_to_string(entry.expect("a file").path()).unwrap_or_default();
        let (mut comment, mut attributes) = (String::new(), String::new());
        let (mut of, mut has_defaults) = ("", false);
        for line in text.lines().map(str::trim) {
            if let Some(more) = line.strip_prefix("///") {
                comment += more;
                continue;
            } else if line.starts_with("#[") {
                attributes += line;
                continue;
            }
            let has_default = attributes.contains("default");
            if let Some(rest) = line.strip_prefix("pub struct ") {
                (of, has_defaults) =
                    (rest.split([' ', '<', '(']).next().expect("a name"), has_default);
            } else if let Some((name, kind)) =
                line.strip_prefix("pub ").and_then(|it| it.split_once(':'))
            {
                let is_required = !has_defaults && !has_default && !kind.starts_with(" Option");
                found.insert(format!("{of}::{name}"), (comment.trim().to_owned(), is_required));
            }
            comment.clear();
            attributes.clear();
        }
    }
    found
}

/// The rows of a file's fields; `sample` is the shortest one with all tables that have defaults.
fn rows<T: DeserializeOwned + Serialize + Validate>(page: &str, sample: &str) -> Vec<String> {
    let file: T = read(sample).expect("complete");
    let mut values = BTreeMap::new();
    differing::flatten("", &toml::Value::try_from(&file).expect("writable"), &mut values);
    let comments = comments();
    let row = |Field { name, of, refusal, .. }: &Field| {
        let own = name.rsplit('.').next().expect("a name");
        let (comment, is_required) = &comments[&format!("{of}::{own}")];
        let other = comment.strip_prefix("As [`").and_then(|it| it.strip_suffix("`]."));
        let comment = other.map_or(comment, |it| &comments[it.trim_start_matches("crate::")].0);
        let text = linked(page, comment.trim_end_matches('.'));
        let (about, default) = match (text.split_once(". Default: "), values.get(name)) {
            (Some((about, default)), _) => (about, default.to_owned()),
            (None, _) if *is_required => (&*text, "required".to_owned()),
            (None, value) => (&*text, value.map_or("none".to_owned(), |it| format!("`{}`", it[0]))),
        };
        let mut bounds = bounds(refusal);
        let mut words = bounds.split('`').skip(1).step_by(2).peekable();
        if words.peek().is_some() && words.all(|it| about.contains(it) || default.contains(it)) {
            bounds.clear();
        }
        let (first, rest) = about.split_at(1);
        let is_word = rest.starts_with(|second: char| !second.is_uppercase());
        let first = if is_word { first.to_lowercase() } else { first.to_owned() };
        format!("| `{name}` | {default} | {bounds}{first}{rest} |")
    };
    let mut fields = fields::<T>();
    let is_further = |it: &&mut Field| it.of == "ServerFields" && it.name.starts_with("proxies");
    // A client's further servers have the fields of `server`: one row is enough.
    for it in fields.iter_mut().filter(is_further) {
        (it.name, it.of, it.refusal) = ("proxies".to_owned(), "ClientFile", String::new());
    }
    let mut rows: Vec<String> = fields.iter().map(row).collect();
    rows.dedup();
    rows
}

/// The bounds or words of a field, from the error of another value; empty if it has none.
fn bounds(refusal: &str) -> String {
    let from = [" is out of bounds, ", " variant ``, expected "];
    let Some((_, text)) = from.iter().find_map(|it| refusal.split_once(it)) else {
        return String::new();
    };
    let text = text.trim_start_matches("one of ").trim_end_matches(" is possible");
    let word = |word: &str| match word.parse::<i64>() {
        Ok(10_000..) => {
            let groups = word.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
            groups.collect::<Vec<_>>().join(",")
        }
        _ => word.to_owned(),
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ") + ": "
}

/// Makes links of words such as `fleet.md#metrics-over-http`, and shortens those within `page`.
fn linked(page: &str, text: &str) -> String {
    let word = |word: &str| {
        let target = word.trim_end_matches([',', ';', '.']);
        match target.split_once('#') {
            Some((file, _)) if file.ends_with(".md") && !file.contains('(') => {
                let words = if file == page { "below" } else { file };
                word.replacen(target, &format!("[{words}]({target})"), 1)
            }
            _ => word.to_owned(),
        }
    };
    let words: Vec<String> = text.split(' ').map(word).collect();
    words.join(" ").replace(&format!("]({page}#"), "](#")
}

/// Compares a page with the tables that follow from the types, each below a comment with its name.
fn check(page: &str, tables: &[(&str, Vec<String>)]) {
    let path = format!("{}/../../docs/{page}", env!("CARGO_MANIFEST_DIR"));
    let mut text = fs::read_to_string(path).expect(page);
    for (table, rows) in tables {
        let mark =
            format!("<!-- {table}: ROADWEAVE_GOLDEN=write cargo test -p roadweave-config -->\n");
        let (before, rest) = text.split_once(&mark).expect(table);
        let (_, after) = rest.split_once("\n\n").expect("text below the table");
        let head = "| field | default | what it is |\n|---|---|---|\n";
        text = [before, &mark, head, &rows.join("\n"), "\n\n", after].concat();
    }
    assert_golden(&format!("../../../../docs/{page}"), &text);
}

fn without(mut rows: Vec<String>, names: &[&str]) -> Vec<String> {
    rows.retain(|row| !names.iter().any(|name| row[3..].starts_with(name)));
    rows
}

#[test]
fn the_tables_of_client_and_server_follow_from_the_types() {
    let (page, lists) = ("configuration.md", "[[lanes]]\n[streams]\n");
    let policy = "[[uplinks.policies]]\nname = \"*\"\nmetered.billing_day = 1\n";
    let client = rows::<ClientFile>(page, &client(&format!("{lists}{policy}")));
    let server = without(rows::<ServerFile>(page, &server(lists)), &["peers.tenant"]);
    let (both, client): (Vec<_>, Vec<_>) = client.into_iter().partition(|row| server.contains(row));
    let server = server.into_iter().filter(|row| !both.contains(row)).collect();
    check(page, &[("client.toml", client), ("server.toml", server), ("both", both)]);
}

#[test]
fn the_tables_of_proxy_anchor_and_router_follow_from_the_types() {
    let page = "fleet.md";
    let anchor = format!("{{ addresses = [\"192.0.2.1:1\"], public_key = \"{KEY}\" }}");
    let tenant = format!("[streams]\n[[tenants]]\nname = \"a\"\nanchor = {anchor}\n");
    let proxy = rows::<ProxyFile>(page, &server(&tenant));
    let proxy = without(proxy, &["lanes.", "transport.", "limits.client"]);
    let anchor = rows::<AnchorFile>(page, &server("[streams]\n"));
    let anchor = without(anchor, &["devices.tenant", "transport.", "tun."]);
    check(page, &[("proxy.toml", proxy), ("anchor.toml", anchor)]);
    let link = "[[links]]\nname = \"a\"\nlisten = \"10.1.0.2:1\"\npeer = \"10.1.0.1:1\"\n";
    check("router.md", &[("router.toml", rows::<RouterFile>("router.md", link))]);
}
