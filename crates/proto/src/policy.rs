//! The user's policy for an uplink, and so for its paths.

use serde::{Deserialize, Serialize};

use crate::Rate;

/// When a path is used.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// First.
    #[default]
    Primary,
    /// When the primary paths have no room, and waiting for them would take clearly longer.
    Secondary,
    /// When no other path is usable.
    Backup,
}

/// How a path may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// When the path is used.
    pub priority: Priority,
    /// Its share of traffic among paths of equal priority and similar round trips, 1 to 100.
    pub weight: u8,
    /// Redundancy that it may carry, percent of the first transmissions, 0 to 100; `None`:
    /// unlimited.
    pub redundancy_percent: Option<u8>,
    /// Whether it may carry insurance: coded packets in advance of losses.
    pub takes_insurance: bool,
    /// Rate limit; `None`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_max: Option<Rate>,
}

impl Policy {
    /// The largest weight.
    pub const WEIGHT_MAX: u8 = 100;
    /// Least rate limit, kbit/s.
    pub const RATE_KBPS_MIN: u64 = 100;
    /// Greatest rate limit, kbit/s.
    pub const RATE_KBPS_MAX: u64 = 100_000_000;

    /// Bytes of redundancy allowed after these of first transmissions and of redundancy.
    pub fn redundancy_left(&self, source_bytes: u64, redundant_bytes: u64) -> u64 {
        let Some(percent) = self.redundancy_percent else { return u64::MAX };
        let allowed = u128::from(source_bytes) * u128::from(percent) / 100;
        u64::try_from(allowed).unwrap_or(u64::MAX).saturating_sub(redundant_bytes)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            priority: Priority::Primary,
            weight: 1,
            redundancy_percent: None,
            takes_insurance: true,
            rate_max: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_a_share_of_what_was_carried() {
        let policy = Policy { redundancy_percent: Some(5), ..Policy::default() };
        assert_eq!(policy.redundancy_left(0, 0), 0);
        assert_eq!(policy.redundancy_left(100_000, 3_000), 2_000);
        assert_eq!(policy.redundancy_left(100_000, 6_000), 0);
        assert_eq!(policy.redundancy_left(u64::MAX, 0), u64::MAX / 20);
        assert_eq!(Policy::default().redundancy_left(0, 9), u64::MAX);
    }
}
