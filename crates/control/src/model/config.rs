//! Configurations of boxes, and their roll-outs.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{SPAN_MAX, Settings, at_most, slug, title, word};

/// A version of a configuration; once it is there a person may approve it, and nothing else of it
/// changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Config {
    /// Its name: the scope and the number, as `tag-tram-7`.
    pub id: String,
    /// Its number among those of its scope, from 1.
    pub number: i64,
    /// Who wrote it.
    pub author: String,
    /// What people write.
    pub settings: ConfigSettings,
}

/// What people write of a configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigSettings {
    /// Which boxes it is for.
    #[serde(default)]
    pub scope: Scope,
    /// What the configuration is for, in words.
    #[serde(default)]
    pub title: String,
    /// The fields of a box's file that it sets.
    pub body: Map<String, Value>,
    /// A person's signature, where the tenant's lock asks for one.
    pub signature: Option<String>,
}

/// Which boxes a configuration is for. The narrower one wins, field by field.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// All boxes of the tenant.
    #[default]
    Tenant,
    /// The boxes with this tag.
    Tag(String),
    /// The box of this name.
    Device(String),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tenant => f.write_str("tenant"),
            Self::Tag(tag) => write!(f, "tag-{tag}"),
            Self::Device(device) => write!(f, "device-{device}"),
        }
    }
}

/// A configuration on its way to boxes, wave by wave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rollout {
    /// Its name.
    pub id: String,
    /// The wave that it is in, from 0.
    pub wave: u32,
    /// Since when, milliseconds since 1970.
    pub wave_since_ms: i64,
    /// Why it has stopped by itself, or who has stopped it.
    pub why: Option<String>,
    /// What people write.
    pub settings: RolloutSettings,
}

/// What people write of a roll-out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RolloutSettings {
    /// The configuration.
    pub config: String,
    /// What share of the boxes has it after each wave, per cent, growing to 100.
    #[serde(default = "all_at_once")]
    pub waves: Vec<u32>,
    /// How long a wave rests before the next, seconds.
    #[serde(default = "ten_minutes")]
    #[schema(maximum = 315360000)]
    pub rest_s: u32,
    /// The share of refusals at which it stops by itself, per cent.
    #[serde(default = "five")]
    pub refusals_max: u32,
    /// Whether the roll-out goes on.
    #[serde(default)]
    pub state: RolloutState,
}

/// Whether a roll-out goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RolloutState {
    /// The roll-out goes on from wave to wave.
    #[default]
    Running,
    /// The roll-out stays in its wave.
    Paused,
    /// All boxes have the configuration.
    Done,
    /// The configuration is taken back.
    Aborted,
}

fn all_at_once() -> Vec<u32> {
    vec![100]
}

fn ten_minutes() -> u32 {
    600
}

fn five() -> u32 {
    5
}

records! {
    Config: "config", "configuration"
        => |it| ["scope": it.settings.scope.to_string(), "number": it.number];
    Rollout: "rollout", "roll-out"
        => |it| ["config": &it.settings.config, "state": word(&it.settings.state)];
}

impl Settings for ConfigSettings {
    fn validate(&self) -> Result<(), String> {
        title("title", &self.title)?;
        if let Scope::Tag(name) | Scope::Device(name) = &self.scope {
            slug(name).map_err(|why| format!("scope: {why}"))?;
        }
        let length = serde_json::to_string(&self.body).map_or(usize::MAX, |text| text.len());
        if length > BODY_MAX {
            return Err(format!("body: at most {BODY_MAX} bytes, since one frame carries it"));
        }
        Ok(())
    }
}

impl Settings for RolloutSettings {
    fn validate(&self) -> Result<(), String> {
        let grows = self.waves.windows(2).all(|pair| pair[0] < pair[1]);
        let first = self.waves.first().is_some_and(|wave| *wave > 0);
        if !grows || !first || self.waves.last() != Some(&100) {
            return Err("waves: shares that grow to 100, as [5, 25, 100]".to_owned());
        }
        if self.refusals_max > 100 {
            return Err("refusals_max: 0 to 100".to_owned());
        }
        at_most("rest_s", Some(self.rest_s), SPAN_MAX)?;
        title("config", &self.config)
    }
}

const BODY_MAX: usize = 48 * 1024;
