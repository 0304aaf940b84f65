//! The configuration of a box: those in force, narrower ones over wider ones.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use roadweave_identity::PublicKey;
use serde_json::{Map, Value};

use super::rollouts::{covers, name};
use super::{Fleet, RecordId, Rollouts};
use crate::digest::Digest;
use crate::document::{Approval, Configuration};
use crate::envelope::Signed;
use crate::records::{Config, Device, Rollout, Scope};

type Layer<'a> = (&'a RecordId, &'a Config);

/// By scope; within a scope the latest first.
pub(super) struct Layers<'a>(BTreeMap<&'a Scope, Vec<(&'a RecordId, &'a Rollout, &'a Config)>>);

impl<'a> Layers<'a> {
    pub(super) fn of(fleet: &'a Fleet, tenant: &str) -> Self {
        let mut layers: BTreeMap<_, Vec<(_, _, &Config)>> = BTreeMap::new();
        for (id, rollout) in fleet.rollouts.iter().filter(|(id, _)| id.0 == tenant) {
            // A box refuses an unapproved configuration, which would count as a refusal.
            let config = fleet.config_of(id, rollout).filter(|_| !fleet.waits(id, rollout));
            if let Some(config) = config {
                layers.entry(&config.settings.scope).or_default().push((id, rollout, config));
            }
        }
        for all in layers.values_mut() {
            all.sort_by_key(|(id, _, config)| (Reverse(config.number), *id));
        }
        Self(layers)
    }

    pub(super) fn offered(&self, by: &Rollouts, device: &Device, key: PublicKey) -> Vec<Layer<'a>> {
        let covering = self.0.iter().filter(|(scope, _)| covers(scope, device));
        let offered = covering.filter_map(|(_, all)| {
            all.iter().find(|(id, rollout, _)| by.is_offered(id, rollout, &key))
        });
        offered.map(|(id, _, config)| (*id, *config)).collect()
    }
}

pub(super) struct Made {
    pub(super) body: Configuration,
    pub(super) about: String,
    pub(super) digest: Digest,
}

impl Made {
    pub(super) fn of(layers: &[Layer<'_>]) -> Option<Self> {
        let mut fields = Map::new();
        layers.iter().for_each(|(_, config)| merge(&mut fields, &config.settings.body));
        let signature = match layers {
            [(_, config)] => config.settings.signature.as_deref(),
            _ => None,
        };
        let approval: Option<Signed<Approval>> =
            signature.and_then(|text| serde_json::from_str(text).ok());
        let names: Vec<String> = layers.iter().map(|(id, _)| name(id)).collect();
        let (about, body) = (names.join(","), Configuration { text: toml_text(fields), approval });
        let said = serde_json::to_string(&body).ok()?;
        // Another version makes a box that failed with it retry.
        let digest = Digest::of([said.as_bytes(), about.as_bytes()]);
        Some(Self { body, about, digest })
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
pub fn toml_text(fields: Map<String, Value>) -> String {
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
        let read: toml::Table = toml::from_str(&toml_text(object(fields))).unwrap();
        let lane = &read["lanes"].as_array().unwrap()[0];
        assert_eq!(lane["weight"].as_float(), Some(2.5));
        assert!(lane.get("none").is_none());
        assert_eq!(read["uplinks"]["include"][0].as_str(), Some("wwan0"));
    }
}
