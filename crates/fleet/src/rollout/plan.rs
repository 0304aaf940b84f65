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

/// The percentage of boxes that have the version once this wave and all before are through; one
/// box at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Wave(pub u8);

impl Wave {
    fn boxes(self, all: usize) -> usize {
        (all * usize::from(self.0)).div_ceil(100)
    }
}

impl TryFrom<String> for Wave {
    type Error = InvalidPlan;

    fn try_from(text: String) -> Result<Self, InvalidPlan> {
        let percent = text.strip_suffix('%').and_then(|percent| percent.parse().ok());
        percent.filter(|it| (1..=100).contains(it)).map(Self).ok_or(InvalidPlan)
    }
}

impl From<Wave> for String {
    fn from(wave: Wave) -> Self {
        format!("{}%", wave.0)
    }
}

/// Stored plans may have fields of former versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}

impl Plan {
    /// How many of `all` boxes have the version once the wave after `before` others is through.
    pub(super) fn boxes_until(&self, before: u32, all: usize) -> usize {
        let wave = self.waves.get(before as usize);
        wave.map_or(all, |wave| wave.boxes(all).min(all))
    }

    pub(super) fn tolerated(&self, begun: u32) -> u32 {
        let share = u64::from(begun) * u64::from(self.failed_percent_max) / 100;
        u32::try_from(share).unwrap_or(u32::MAX)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a wave is a share of the boxes, 1% to 100%")]
pub struct InvalidPlan;
