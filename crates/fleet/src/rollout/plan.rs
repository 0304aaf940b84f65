//! The target of a rollout, its waves, and what stops it.

use std::collections::BTreeSet;
use std::time::Duration;

use roadweave_identity::PublicKey;
use serde::{Deserialize, Serialize};

use crate::name::Name;

/// The boxes of a tenant that a configuration is for. A narrower target wins over a wider one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// All boxes of the tenant.
    Tenant,
    /// The boxes with this tag.
    Tag(Name),
    /// The box with this key.
    Device(PublicKey),
}

impl Target {
    /// Whether it includes a box of the tenant with these tags.
    pub fn covers(&self, key: &PublicKey, tags: &BTreeSet<Name>) -> bool {
        match self {
            Self::Tenant => true,
            Self::Tag(tag) => tags.contains(tag),
            Self::Device(device) => device == key,
        }
    }
}

/// How many boxes have the version once this wave and all before are through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Wave {
    Number(u32),
    /// A share of the boxes, percent; one box at least.
    Percent(u8),
}

impl Wave {
    fn boxes(self, all: usize) -> usize {
        match self {
            Self::Number(number) => number as usize,
            Self::Percent(percent) => (all * usize::from(percent)).div_ceil(100),
        }
    }
}

impl TryFrom<String> for Wave {
    type Error = InvalidPlan;

    fn try_from(text: String) -> Result<Self, InvalidPlan> {
        let wave = match text.strip_suffix('%') {
            Some(percent) => percent.parse().ok().filter(|n| *n <= 100).map(Self::Percent),
            None => text.parse().ok().map(Self::Number),
        };
        wave.filter(|wave| !matches!(wave, Self::Number(0) | Self::Percent(0)))
            .ok_or(InvalidPlan::Wave)
    }
}

impl From<Wave> for String {
    fn from(wave: Wave) -> Self {
        match wave {
            Wave::Number(number) => number.to_string(),
            Wave::Percent(percent) => format!("{percent}%"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Its waves, ascending. The rest follows in a last one.
    pub waves: Vec<Wave>,
    /// How long a wave waits for silent boxes.
    pub patience: Duration,
    /// The percentage of boxes that must have confirmed before the next wave, however long it
    /// takes.
    pub confirmed_min: u8,
    /// The percentage of boxes that may fail; one more halts the rollout.
    pub failed_percent_max: u8,
    /// The most boxes that may fail, whatever the percentage.
    pub failed_max: u32,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            waves: vec![Wave::Number(1), Wave::Percent(5), Wave::Percent(25)],
            patience: Duration::from_secs(3_600),
            confirmed_min: 50,
            failed_percent_max: 2,
            failed_max: 20,
        }
    }
}

impl Plan {
    /// How many of `all` boxes have the version once the wave after `before` others is through.
    pub(super) fn boxes_until(&self, before: u32, all: usize) -> usize {
        let wave = self.waves.get(before as usize);
        wave.map_or(all, |wave| wave.boxes(all).min(all))
    }

    pub(super) fn tolerated(&self, begun: u32) -> u32 {
        let share = u64::from(begun) * u64::from(self.failed_percent_max) / 100;
        self.failed_max.min(u32::try_from(share).unwrap_or(u32::MAX))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPlan {
    #[error("a wave is a number of boxes as in 20, or a share as in 5%, and not 0")]
    Wave,
}
