//! The text of a box's configuration: the configurations in force, narrower scopes over wider ones.

use std::collections::BTreeMap;

use roadweave_fleet::{Approval, Configuration, Signed};
use serde_json::{Map, Value};

use super::fleet::{Fleet, RecordId};
use crate::model::{Config, Device, Lock, Scope};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    /// The roll-outs it consists of, from the widest scope to the narrowest.
    pub(super) about: Vec<RecordId>,
    pub(super) body: Configuration,
}

/// A tenant's roll-outs in force, by scope; within a scope the latest first.
pub(super) struct Scopes<'a>(BTreeMap<&'a Scope, Vec<(&'a RecordId, &'a Config)>>);

impl<'a> Scopes<'a> {
    pub(super) fn of(fleet: &'a Fleet, tenant: &str) -> Self {
        let mut scopes: BTreeMap<_, Vec<(&RecordId, &Config)>> = BTreeMap::new();
        for (id, rollout) in fleet.rollouts.iter().filter(|(id, _)| id.0 == tenant) {
            let of = (tenant.to_owned(), rollout.record.settings.config.clone());
            if let Some(config) = fleet.configs.get(&of) {
                scopes.entry(&config.settings.scope).or_default().push((id, config));
            }
        }
        for all in scopes.values_mut() {
            all.sort_by_key(|(id, config)| (std::cmp::Reverse(config.number), *id));
        }
        Self(scopes)
    }

    /// The configuration of a box; `None` if none is for it. `is_offered` says whether a roll-out
    /// delivers to this box now.
    pub(super) fn wanted(
        &self,
        device: &Device,
        lock: Lock,
        is_offered: impl Fn(&RecordId) -> bool,
    ) -> Option<Wanted> {
        // A box refuses an unapproved configuration, which would count as a refusal.
        let counts = |it: &Config| lock != Lock::Config || it.settings.signature.is_some();
        let covering = self.0.values().filter_map(|all| {
            // All have the same scope.
            let covers = all.first().is_some_and(|(_, it)| covers(&it.settings.scope, device));
            let mut all = all.iter().filter(|(_, it)| covers && counts(it));
            all.find(|(id, _)| is_offered(id))
        });
        let mut layers: Vec<&(&RecordId, &Config)> = covering.collect();
        if lock == Lock::Config {
            // An approval covers a whole text, so only the narrowest counts.
            layers = layers.split_off(layers.len().saturating_sub(1));
        }
        let mut fields = Map::new();
        for (_, config) in &layers {
            merge(&mut fields, &config.settings.body);
        }
        let signature = match &layers[..] {
            [(_, config)] => config.settings.signature.as_deref(),
            _ => None,
        };
        let approval: Option<Signed<Approval>> =
            signature.and_then(|text| serde_json::from_str(text).ok());
        let about: Vec<RecordId> = layers.iter().map(|(id, _)| (*id).clone()).collect();
        let text = text(fields);
        (!about.is_empty()).then_some(Wanted { about, body: Configuration { text, approval } })
    }
}

pub(super) fn covers(scope: &Scope, device: &Device) -> bool {
    match scope {
        Scope::Tenant => true,
        Scope::Tag(tag) => device.settings.tags.contains(tag),
        Scope::Device(id) => *id == device.id,
    }
}

fn merge(under: &mut Map<String, Value>, over: &Map<String, Value>) {
    for (name, value) in over {
        match (under.get_mut(name), value) {
            (Some(Value::Object(under)), Value::Object(over)) => merge(under, over),
            _ => _ = under.insert(name.clone(), value.clone()),
        }
    }
}

/// Fields as TOML; null fields are left out, since TOML has no null.
pub(crate) fn text(fields: Map<String, Value>) -> String {
    let table = toml_of(Value::Object(fields));
    table.and_then(|table| toml::to_string(&table).ok()).unwrap_or_default()
}

fn toml_of(value: Value) -> Option<toml::Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => value.into(),
        Value::Number(number) => match number.as_i64() {
            Some(number) => number.into(),
            None => number.as_f64()?.into(),
        },
        Value::String(text) => text.into(),
        Value::Array(values) => {
            toml::Value::Array(values.into_iter().filter_map(toml_of).collect())
        }
        Value::Object(fields) => {
            let fields = fields.into_iter();
            let fields = fields.filter_map(|(name, value)| Some((name, toml_of(value)?)));
            toml::Value::Table(fields.collect())
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn the_narrower_wins_field_by_field() {
        let mut fields = object(json!({ "uplinks": { "include": ["a"], "exclude": ["b"] } }));
        merge(&mut fields, &object(json!({ "uplinks": { "include": ["c"] }, "lanes": [] })));
        let merged = json!({ "uplinks": { "include": ["c"], "exclude": ["b"] }, "lanes": [] });
        assert_eq!(Value::Object(fields), merged);
    }

    #[test]
    fn fields_are_toml_as_a_box_reads_it() {
        let fields = json!({
            "lanes": [{ "name": "video", "weight": 2.5, "none": null }],
            "uplinks": { "include": ["wwan0"] },
        });
        let read: toml::Table = toml::from_str(&text(object(fields))).unwrap();
        let lane = &read["lanes"].as_array().unwrap()[0];
        assert_eq!(lane["weight"].as_float(), Some(2.5));
        assert!(lane.get("none").is_none());
        assert_eq!(read["uplinks"]["include"][0].as_str(), Some("wwan0"));
    }
}
