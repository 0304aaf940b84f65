//! Strategies by name.

use roadweave_tunnel::{Strategy, UnknownStrategy};
use serde::{Deserialize, Serialize};

/// The name of a strategy in a file. An earlier name stands for `xnc` with a field of its lane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StrategyName {
    name: String,
    strategy: Strategy,
    pub(crate) patient: bool,
    pub(crate) insurance_percent: u8,
}

const EARLIER: [(&str, bool, u8); 3] =
    [("xnc-patient", true, 0), ("xnc-ordered", true, 0), ("xnc-insured", false, 25)];

impl StrategyName {
    /// The strategy.
    pub fn get(&self) -> &Strategy {
        &self.strategy
    }
}

impl TryFrom<String> for StrategyName {
    type Error = UnknownStrategy;
    fn try_from(name: String) -> Result<Self, Self::Error> {
        match EARLIER.into_iter().find(|(earlier, ..)| *earlier == name) {
            Some((_, patient, insurance_percent)) => {
                Ok(Self { name, strategy: Strategy::xnc(), patient, insurance_percent })
            }
            None => name.parse::<Strategy>().map(Self::from),
        }
    }
}

impl From<Strategy> for StrategyName {
    fn from(strategy: Strategy) -> Self {
        Self { name: strategy.to_string(), strategy, patient: false, insurance_percent: 0 }
    }
}

impl From<StrategyName> for String {
    fn from(strategy: StrategyName) -> Self {
        strategy.name
    }
}
