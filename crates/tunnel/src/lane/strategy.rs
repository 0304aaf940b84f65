//! A strategy: a scheduler and a recovery under one name.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use roadweave_recovery::{Recovery, RecoveryConfig};
use roadweave_schedule::{Scheduler, UnknownScheduler};
use roadweave_types::UplinkId;
use serde::{Deserialize, Serialize};

/// A named choice of scheduler and recovery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Strategy(String);

/// A strategy's name that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown strategy \"{0}\"; known are: xnc, xnc-sigcomm23, minrtt, single:<uplink>")]
pub struct UnknownStrategy(String);

impl Strategy {
    /// Min-RTT with network coding (CellFusion section 4), the default.
    pub fn xnc() -> Self {
        Self("xnc".into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The scheduler, which needs to know the uplinks by name.
    pub(crate) fn scheduler(
        &self,
        uplink: impl Fn(&str) -> Option<UplinkId>,
    ) -> Result<Box<dyn Scheduler>, UnknownScheduler> {
        let name = if self.0.starts_with("single:") { self.0.as_str() } else { "minrtt" };
        roadweave_schedule::by_name(name, uplink)
    }

    /// How long a sent packet may be needed for a repair, when it is worthless after `expire_after`.
    pub(crate) fn keeps_for(&self, expire_after: Duration) -> Duration {
        match self.0.as_str() {
            "minrtt" => roadweave_recovery::Reliable::GIVE_UP,
            _ => expire_after,
        }
    }

    pub(crate) fn recovery(&self, config: RecoveryConfig) -> Box<dyn Recovery> {
        let name = match self.0.as_str() {
            name @ ("xnc" | "xnc-sigcomm23") => name,
            "minrtt" => "reliable",
            _ => "none",
        };
        roadweave_recovery::by_name(name, config).expect("the names above are known")
    }
}

impl FromStr for Strategy {
    type Err = UnknownStrategy;
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let single = name.strip_prefix("single:").is_some_and(|uplink| !uplink.is_empty());
        if single || matches!(name, "xnc" | "xnc-sigcomm23" | "minrtt") {
            Ok(Self(name.to_owned()))
        } else {
            Err(UnknownStrategy(name.to_owned()))
        }
    }
}

impl TryFrom<String> for Strategy {
    type Error = UnknownStrategy;
    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}

impl From<Strategy> for String {
    fn from(strategy: Strategy) -> Self {
        strategy.0
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_the_error_lists_them() {
        for name in ["xnc", "xnc-sigcomm23", "minrtt", "single:wwan0"] {
            assert_eq!(name.parse::<Strategy>().expect("known").as_str(), name);
        }
        for name in ["", "single:", "XNC", "fastest"] {
            let error = name.parse::<Strategy>().expect_err("unknown").to_string();
            assert!(error.contains("known are: xnc"), "{error}");
        }
    }
}
