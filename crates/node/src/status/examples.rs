//! The status of each role in tests/golden/show.json, with every field that there is.

use std::process::Command;

use serde_json::{Deserializer, Map, Value};

use super::*;
use crate::golden::assert_golden;

const EXAMPLES: &str = include_str!("../../tests/golden/show.json");

/// One of each role.
pub(crate) fn statuses() -> Vec<Status> {
    let all = Deserializer::from_str(EXAMPLES).into_iter::<Status>();
    all.map(|status| status.expect("a status")).collect()
}

fn examples() -> Vec<Value> {
    statuses().iter().map(|status| serde_json::to_value(status).expect("JSON")).collect()
}

#[test]
fn a_status_is_read_and_written_as_it_is_in_the_golden_file() {
    let text: String = examples().iter().map(|example| format!("{example:#}\n")).collect();
    assert_golden("show.json", &text);
}

#[test]
fn the_schema_follows_from_the_declarations() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/show-schema.py");
    match Command::new("/usr/bin/python3").arg(script).output() {
        Ok(made) => {
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            let text = String::from_utf8(made.stdout).expect("text");
            assert_golden("../../../../docs/show.schema.json", &text);
        }
        Err(error) => schema::skip(&format!("python3: {error}")),
    }
}

#[test]
fn the_status_of_each_role_is_as_the_schema_says() {
    let examples = examples();
    let Some(said) = schema::otherwise(&examples.iter().collect::<Vec<_>>()) else { return };
    assert!(said.is_empty(), "{said}");
}

#[test]
fn every_field_of_the_schema_is_in_an_example() {
    let schema: Value =
        serde_json::from_str(include_str!("../../../../docs/show.schema.json")).expect("JSON");
    for definition in schema["$defs"].as_object().expect("an object").values() {
        for name in definition["properties"].as_object().into_iter().flat_map(Map::keys) {
            assert!(EXAMPLES.contains(&format!("\"{name}\": ")), "no example has {name}");
        }
    }
}
