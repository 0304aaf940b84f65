//! Asks ModemManager over D-Bus with `busctl`, which comes with systemd. It is never started.
//!
//! ```text
//! GetManagedObjects ─► modems, each with its networks and signal
//!        └─ GetAll ─► its bearers: interfaces and access points; its SIM
//! ```

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use roadweave_node::ModemFacts;
use serde_json::{Value, json};

use super::facts::{self, Modem};
use super::program;

pub(super) fn modems(address: Option<&str>) -> Result<BTreeMap<String, ModemFacts>, String> {
    let manager = Manager { address };
    let objects = manager.call(ROOT, "org.freedesktop.DBus.ObjectManager", &["GetManagedObjects"]);
    let objects = objects.map_err(|why| format!("ModemManager does not answer: {why}"))?;
    let mut by_interface = BTreeMap::new();
    let all = objects.as_object().into_iter().flatten();
    let modems = all.filter(|(_, interfaces)| interfaces.get(facts::MODEM).is_some());
    for (path, interfaces) in modems.take(MODEMS_MAX) {
        let modem = &interfaces[facts::MODEM];
        if interfaces[facts::SIGNAL]["Rate"] == json!(0) {
            let _ = manager.call(path, facts::SIGNAL, &["Setup", "u", MEASURE_SECONDS]);
        }
        let bearers = modem["Bearers"].as_array().into_iter().flatten();
        let bearers = bearers.filter_map(Value::as_str).take(BEARERS_MAX);
        let bearers: Vec<Value> = bearers.map(|path| manager.all(path, facts::BEARER)).collect();
        let sim = match modem["Sim"].as_str() {
            Some(path) if path.len() > 1 => manager.all(path, facts::SIM),
            _ => Value::Null,
        };
        let Modem { interfaces, facts } = facts::of(interfaces, &bearers, &sim);
        by_interface.extend(interfaces.into_iter().map(|interface| (interface, facts.clone())));
    }
    Ok(by_interface)
}

struct Manager<'a> {
    address: Option<&'a str>,
}

impl Manager<'_> {
    fn all(&self, path: &str, interface: &str) -> Value {
        let words = ["GetAll", "s", interface];
        self.call(path, "org.freedesktop.DBus.Properties", &words).unwrap_or_default()
    }

    fn call(&self, path: &str, interface: &str, method: &[&str]) -> Result<Value, String> {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'/';
        if !path.starts_with('/') || !path.bytes().all(is_letter) {
            return Err("an object has an invalid name".to_owned());
        }
        let mut command = Command::new(PROGRAM);
        command.args(["--json=short", "--no-pager", "--auto-start=no", TIMEOUT]);
        match self.address {
            Some(address) => command.arg(format!("--address={address}")),
            None => command.arg("--system"),
        };
        command.args(["call", NAME, path, interface]).args(method).env("LC_ALL", "C");
        let answer = program::output(command, CALL_TIMEOUT)?;
        let whole: Value = match answer.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&answer)
                .map_err(|error| format!("cannot parse the answer: {error}"))?,
        };
        Ok(whole["data"].get(0).cloned().map_or(Value::Null, plain))
    }
}

fn plain(value: Value) -> Value {
    match value {
        Value::Object(mut fields) => match fields.remove("data") {
            Some(data) if fields.len() == 1 && fields.contains_key("type") => plain(data),
            data => {
                fields.extend(data.map(|data| ("data".to_owned(), data)));
                fields.into_iter().map(|(name, value)| (name, plain(value))).collect()
            }
        },
        Value::Array(values) => values.into_iter().map(plain).collect(),
        other => other,
    }
}

const PROGRAM: &str = "busctl";
const TIMEOUT: &str = "--timeout=5";
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const NAME: &str = "org.freedesktop.ModemManager1";
const ROOT: &str = "/org/freedesktop/ModemManager1";
const MEASURE_SECONDS: &str = "5";
const MODEMS_MAX: usize = 16;
const BEARERS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_become_their_values() {
        let typed = json!({
            "a": { "type": "u", "data": 7 },
            "b": { "type": "a{sv}", "data": { "data": { "type": "s", "data": "x" } } },
            "c": [["w", 2]],
        });
        assert_eq!(plain(typed), json!({ "a": 7, "b": { "data": "x" }, "c": [["w", 2]] }));
    }
}
