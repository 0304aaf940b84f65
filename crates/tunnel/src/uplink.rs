//! The policy of an uplink with data caps: beyond one it is a backup until the day or month ends.

use std::fmt;

use roadweave_proto::{Policy, Priority};
use serde::{Deserialize, Serialize};

use crate::usage::{Carried, Usage};

/// How an uplink may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UplinkPolicy {
    /// The policy within the caps.
    pub policy: Policy,
    /// Caps; beyond them it is a backup.
    pub caps: Caps,
}

/// Limits of an uplink's data, both directions together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caps {
    /// Bytes of a day in UTC.
    pub daily_bytes: Option<u64>,
    /// Bytes of a month.
    pub monthly_bytes: Option<u64>,
    /// The day on which its month begins, 1 to 28.
    pub billing_day: u8,
}

impl Caps {
    /// Greatest cap, megabytes (10^6).
    pub const MB_MAX: u64 = 1_000_000_000;
}

impl Default for Caps {
    fn default() -> Self {
        Self { daily_bytes: None, monthly_bytes: None, billing_day: 1 }
    }
}

/// The span of a cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapPeriod {
    /// A day in UTC.
    Day,
    /// The operator's month.
    Month,
}

impl fmt::Display for CapPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Day => "day",
            Self::Month => "month",
        })
    }
}

impl Caps {
    /// Whether there is any cap.
    pub fn are_there(&self) -> bool {
        self.daily_bytes.is_some() || self.monthly_bytes.is_some()
    }

    /// What `uplink` has carried in the day and in its month, if it has a cap.
    pub fn carried(&self, usage: &Usage, uplink: &str) -> Option<Carried> {
        self.are_there().then(|| usage.of(uplink, self.billing_day))
    }

    /// The cap that `carried` has reached, in bytes; the month's if both.
    pub fn reached(&self, carried: Carried) -> Option<(CapPeriod, u64)> {
        let is_reached = |cap: Option<u64>, bytes: u64| cap.filter(|cap| bytes >= *cap);
        let month = is_reached(self.monthly_bytes, carried.month_bytes);
        let day = || is_reached(self.daily_bytes, carried.day_bytes);
        month.map(|cap| (CapPeriod::Month, cap)).or_else(|| Some((CapPeriod::Day, day()?)))
    }
}

impl UplinkPolicy {
    /// The policy of `uplink` after what it has carried.
    pub fn after(&self, usage: &Usage, uplink: &str) -> Policy {
        let carried = self.caps.carried(usage, uplink);
        match carried.and_then(|carried| self.caps.reached(carried)) {
            Some(_) => Policy { priority: Priority::Backup, ..self.policy },
            None => self.policy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_a_cap_an_uplink_is_a_backup() {
        let policy = Policy { priority: Priority::Secondary, weight: 3, ..Policy::default() };
        let backup = Policy { priority: Priority::Backup, ..policy };
        let after = |caps, bytes| {
            let mut usage = Usage::default();
            usage.add("wwan0", bytes);
            UplinkPolicy { policy, caps }.after(&usage, "wwan0")
        };
        let monthly = Caps { monthly_bytes: Some(1000), ..Caps::default() };
        assert_eq!((after(monthly, 999), after(monthly, 1000)), (policy, backup));
        let daily = Caps { daily_bytes: Some(10), ..monthly };
        assert_eq!((after(daily, 9), after(daily, 10)), (policy, backup));
        assert_eq!(after(Caps::default(), u64::MAX), policy);
    }

    #[test]
    fn of_two_reached_caps_the_month_is_reported() {
        let caps = Caps { daily_bytes: Some(10), monthly_bytes: Some(1000), ..Caps::default() };
        let reached = |day_bytes, month_bytes| caps.reached(Carried { day_bytes, month_bytes });
        assert_eq!(reached(9, 999), None);
        assert_eq!(reached(10, 999), Some((CapPeriod::Day, 10)));
        assert_eq!(reached(9, 1000), Some((CapPeriod::Month, 1000)));
        assert_eq!(reached(10, 1000), Some((CapPeriod::Month, 1000)));
    }
}
