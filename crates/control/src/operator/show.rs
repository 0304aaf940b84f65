//! Output for people: tables, a record's fields, and QR codes.

use anyhow::Result;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};
use roadweave_terminal::out;
use serde_json::Value;

use crate::clock::now_ms;

/// Each column is its head and the path of its value (`TITLE=settings.title`), between commas.
pub fn table(items: &[Value], columns: &str) -> Result<()> {
    let columns = || columns.split(", ").filter_map(|column| column.split_once('='));
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header(columns().map(|(head, _)| head));
    for item in items {
        table.add_row(columns().map(|(_, path)| at(item, path)));
    }
    for line in table.lines() {
        out::line(line.trim_end())?;
    }
    Ok(())
}

pub fn device(device: &Value, report: &Value, sessions: &[Value]) -> Vec<String> {
    let line = |name: &str, text: String| format!("{name:<14}{text}");
    let mut lines = vec![format!("{}: {}", at(device, "id"), at(device, "state"))];
    for (name, path) in [
        ("title", "settings.title"),
        ("tags", "settings.tags"),
        ("key", "public_key"),
        ("addresses", "addresses"),
        ("behind it", "settings.prefixes"),
    ] {
        lines.push(line(name, at(device, path)));
    }
    let session = match sessions.first() {
        None => "none yet".to_owned(),
        Some(last) if last["to_ms"].is_null() => {
            format!("on {} since {}", at(last, "proxy"), at(last, "from_ms"))
        }
        Some(last) => format!("none; on {} until {}", at(last, "proxy"), at(last, "to_ms")),
    };
    lines.push(line("session", session));
    let heard = report["at_ms"].as_i64().map(since);
    let stream = match (report["report"]["connected"].as_bool(), heard) {
        (Some(true), _) => format!("connected; {}", at(report, "report.software")),
        (_, Some(heard)) => format!("away; last report {heard}"),
        (_, None) => "no report yet".to_owned(),
    };
    lines.push(line("controller", stream));
    let documents = report["report"]["documents"].as_object();
    for (kind, document) in documents.into_iter().flatten() {
        let [epoch, number] = ["version.epoch", "version.number"].map(|path| at(document, path));
        let mut text = format!("{epoch}.{number} {}", at(document, "outcome.outcome"));
        if let Some(why) = document["outcome"]["why"].as_str() {
            text += &format!(": {}", shown(why));
        }
        if document["pinned"].as_array().is_some_and(|fields| !fields.is_empty()) {
            text += &format!("; its own file overrides {}", at(document, "pinned"));
        }
        lines.push(line(&shown(kind), text));
    }
    lines
}

pub fn at(item: &Value, path: &str) -> String {
    let names = path.split('.').filter(|name| !name.is_empty());
    let value = names.fold(item, |value, name| &value[name]);
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => shown(text),
        Value::Array(all) => {
            let all: Vec<String> = all.iter().map(|one| at(one, "")).collect();
            if all.is_empty() { "-".to_owned() } else { all.join(" ") }
        }
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other if path.ends_with("_ms") => since(other.as_i64().unwrap_or_default()),
        other => shown(&other.to_string()),
    }
}

fn since(ms: i64) -> String {
    let seconds = (now_ms() - ms) / 1000;
    let of = |seconds: i64| match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    };
    if seconds < 0 { format!("in {}", of(-seconds)) } else { format!("{} ago", of(seconds)) }
}

/// Removes control characters, which could steer the terminal.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// A QR code in half blocks; `None` if the text is too long.
pub fn qr(text: &str) -> Option<String> {
    let code = QrCode::with_error_correction_level(text, EcLevel::L).ok()?;
    let mut picture = code.render::<Dense1x2>();
    Some(picture.dark_color(Dense1x2::Dark).light_color(Dense1x2::Light).quiet_zone(true).build())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_found_and_cannot_steer_a_terminal() {
        let item = json!({
            "id": "a\u{1b}[2Jb", "settings": { "tags": ["x", "y"], "uses": 3 }, "none": null,
        });
        assert_eq!(at(&item, "id"), "a[2Jb");
        assert_eq!(at(&item, "settings.tags"), "x y");
        assert_eq!(at(&item, "settings.uses"), "3");
        assert_eq!(at(&item, "none"), "-");
        assert_eq!(at(&item, "nothing.at.all"), "-");
    }

    #[test]
    fn a_box_is_shown_with_its_proxy_and_what_it_refuses() {
        let box_17 = json!({ "id": "bus-17", "state": "active", "settings": { "tags": ["tram"] } });
        let refused = json!({ "outcome": "refused", "why": "line 3\u{1b}: lanes" });
        let version = json!({ "epoch": 1, "number": 23 });
        let configuration = json!({
            "outcome": refused, "version": version, "pinned": ["uplinks.policies"],
        });
        let report = json!({
            "at_ms": 5,
            "report": { "connected": true, "documents": { "configuration": configuration } },
        });
        let open = json!({ "proxy": "fra-1", "from_ms": 0, "to_ms": null });
        let closed = json!({ "proxy": "fra-2", "from_ms": 0, "to_ms": 9 });
        let lines = device(&box_17, &report, &[open, closed.clone()]).join("\n");
        for part in [
            "bus-17: active",
            "tags          tram",
            "session       on fra-1 since",
            "configuration 1.23 refused: line 3: lanes; its own file overrides uplinks.policies",
        ] {
            assert!(lines.contains(part), "{part} is not in\n{lines}");
        }
        let away = device(&box_17, &json!(null), &[closed]).join("\n");
        assert!(away.contains("none; on fra-2 until") && away.contains("no report yet"), "{away}");
    }

    #[test]
    fn a_token_fits_a_terminal_as_a_code() {
        let token = format!("rw1_{}", "A".repeat(300));
        let code = qr(&token).unwrap();
        let width = code.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(width < 80 && code.lines().count() < 45, "{width}");
        assert!(qr(&"A".repeat(5000)).is_none());
    }
}
