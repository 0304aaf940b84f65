//! What people see: tables, a record's fields, and a token as a QR code.

use anyhow::Result;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};
use roadweave_terminal::out;
use serde_json::Value;

/// Prints items as a table: of each the values at these paths, as `settings.title`.
pub fn table(items: &[Value], columns: &[(&str, &str)]) -> Result<()> {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header(columns.iter().map(|(name, _)| *name));
    for item in items {
        table.add_row(columns.iter().map(|(_, path)| at(item, path)));
    }
    for line in table.lines() {
        out::line(line.trim_end())?;
    }
    Ok(())
}

/// The value at a path, fit to be shown.
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
        other if path.ends_with("_ms") => since(other.as_i64().unwrap_or_default()),
        other => shown(&other.to_string()),
    }
}

/// A moment as its distance from now.
fn since(ms: i64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = i64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(i64::MAX);
    let seconds = (now - ms) / 1000;
    let of = |seconds: i64| match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    };
    if seconds < 0 { format!("in {}", of(-seconds)) } else { format!("{} ago", of(seconds)) }
}

/// A text without what could steer a terminal.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// A text as a QR code, in half blocks; nothing if it is too long for one.
pub fn qr(text: &str) -> Option<String> {
    let code = QrCode::with_error_correction_level(text, EcLevel::L).ok()?;
    // Dark on light, whatever colours the terminal has.
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
    fn a_token_fits_a_terminal_as_a_code() {
        let token = format!("rw1_{}", "A".repeat(300));
        let code = qr(&token).unwrap();
        let width = code.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(width < 80 && code.lines().count() < 45, "{width}");
        assert!(qr(&"A".repeat(5000)).is_none());
    }
}
