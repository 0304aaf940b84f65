//! The status of each role in tests/golden/show.json, with every field that there is.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Deserializer, Value};

use super::*;
use crate::golden::assert_golden;

const EXAMPLES: &str = include_str!("../../tests/golden/show.json");

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
    let (mut all, mut found) = (BTreeSet::new(), BTreeSet::new());
    for (name, definition) in schema["$defs"].as_object().expect("an object") {
        fields(&schema, (definition, name), None, &mut all);
    }
    for example in examples() {
        let role = example["role"].as_str().expect("a role");
        fields(&schema, (&schema["$defs"][role], role), Some(&example), &mut found);
    }
    assert_eq!(all.difference(&found).collect::<Vec<_>>(), [""; 0]);
}

/// Adds the paths of the fields below a node of the schema: of those in `value`, or of all.
fn fields(
    schema: &Value,
    (node, at): (&Value, &str),
    value: Option<&Value>,
    paths: &mut BTreeSet<String>,
) {
    if let (Some(place), Some(_)) = (node["$ref"].as_str(), value) {
        let name = place.trim_start_matches("#/$defs/");
        return fields(schema, (&schema["$defs"][name], name), value, paths);
    }
    for one in node["oneOf"].as_array().into_iter().flatten() {
        fields(schema, (one, at), value, paths);
    }
    for (name, field) in node["properties"].as_object().into_iter().flatten() {
        let value = value.map(|value| value.get(name));
        if value != Some(None) {
            let at = format!("{at}.{name}");
            fields(schema, (field, &at), value.flatten(), paths);
            paths.insert(at);
        }
    }
    let (item, entry) = (&node["items"], &node["additionalProperties"]);
    match value {
        None => {
            let below = [item, entry].into_iter().filter(|it| it.is_object());
            below.for_each(|it| fields(schema, (it, at), None, paths));
        }
        Some(Value::Array(all)) => {
            all.iter().for_each(|it| fields(schema, (item, at), Some(it), paths));
        }
        Some(Value::Object(all)) => {
            all.values().for_each(|it| fields(schema, (entry, at), Some(it), paths));
        }
        Some(_) => {}
    }
}
