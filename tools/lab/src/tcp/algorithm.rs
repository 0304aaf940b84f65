//! The congestion controls by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::bbr::Bbr;
use super::congestion::Congestion;
use super::cubic::Cubic;

/// The congestion control of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// CUBIC with hybrid slow start.
    #[default]
    Cubic,
    /// BBR, version 1.
    Bbr,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 2] = [Self::Cubic, Self::Bbr];

    /// The kernel's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        }
    }

    pub(super) fn build(self, segment: (u32, u32), seed: u64) -> Box<dyn Congestion> {
        match self {
            Self::Cubic => Box::new(Cubic::default()),
            Self::Bbr => Box::new(Bbr::new(segment, seed)),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|it| it.name() == name);
        known
            .ok_or_else(|| format!("`{name}` is not a congestion control; there are cubic and bbr"))
    }
}
