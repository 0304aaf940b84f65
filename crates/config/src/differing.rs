//! Differences between two versions of a file.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

/// The names of fields that differ, sorted. Values are left out: some are secret.
pub fn differing<T: Serialize>(old: &T, new: &T) -> BTreeSet<String> {
    let leaves = |file: &T| {
        let mut leaves = BTreeMap::new();
        if let Ok(value) = toml::Value::try_from(file) {
            flatten("", &value, &mut leaves);
        }
        leaves
    };
    let (old, new) = (leaves(old), leaves(new));
    let names = old.keys().chain(new.keys());
    names.filter(|name| old.get(*name) != new.get(*name)).cloned().collect()
}

pub(crate) fn flatten(
    prefix: &str,
    value: &toml::Value,
    leaves: &mut BTreeMap<String, Vec<String>>,
) {
    match value {
        toml::Value::Table(table) => {
            for (name, value) in table {
                let dot = if prefix.is_empty() { "" } else { "." };
                flatten(&format!("{prefix}{dot}{name}"), value, leaves);
            }
        }
        toml::Value::Array(items) if items.iter().any(toml::Value::is_table) => {
            items.iter().for_each(|item| flatten(prefix, item, leaves));
        }
        leaf => leaves.entry(prefix.to_owned()).or_default().push(leaf.to_string()),
    }
}
