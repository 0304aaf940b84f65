//! How an uplink may be used, and what it has carried in the month.
//!
//! ```text
//! packets in and out ─► bytes of the month ─► beyond the cap? ─► backup until the month is over
//! ```
//!
//! Months are those of the calendar in UTC: an operator's own may begin on another day, but no
//! router knows which. Bytes are those of IP packets, headers included, since that is what
//! operators count.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use roadweave_types::{Policy, Priority};
use serde::{Deserialize, Serialize};

/// How an uplink may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UplinkPolicy {
    /// How its path may be used, within the cap.
    pub policy: Policy,
    /// Bytes of a calendar month, both directions together, beyond which it is a backup.
    pub monthly_cap_bytes: Option<u64>,
}

impl UplinkPolicy {
    /// How the path may be used when so many bytes were carried in the month.
    pub fn after(&self, month_bytes: u64) -> Policy {
        match self.monthly_cap_bytes {
            Some(cap) if month_bytes >= cap => Policy { priority: Priority::Backup, ..self.policy },
            _ => self.policy,
        }
    }
}

/// A calendar month in UTC, such as `2026-11`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Month {
    /// The year.
    pub year: i64,
    /// 1 to 12.
    pub month: u8,
}

impl Month {
    /// The month of a moment, seconds since 1970.
    ///
    /// Source: Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
    pub fn of_unix(seconds: u64) -> Self {
        // Days since 0000-03-01, so that the leap day is a year's last.
        let days = (seconds / 86_400) as i64 + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_based = (5 * day_of_year + 2) / 153;
        let month = if march_based < 10 { march_based + 3 } else { march_based - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        Self { year, month: month as u8 }
    }
}

/// What metered uplinks have carried, to be kept over restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The month that the figures are of; `None` before the time of day was known.
    pub month: Option<Month>,
    /// Bytes by the uplink's name.
    pub bytes: BTreeMap<String, u64>,
}

impl Usage {
    /// Begins anew when the month is another. A clock that was not set yet changes nothing.
    pub(crate) fn on_month(&mut self, month: Month) {
        if month.year < YEAR_MIN {
            return;
        }
        match self.month {
            Some(known) if known == month => {}
            // What was carried before the month was known belongs to it.
            None => self.month = Some(month),
            Some(_) => *self = Self { month: Some(month), bytes: BTreeMap::new() },
        }
    }

    pub(crate) fn add(&mut self, uplink: &str, bytes: u64) {
        match self.bytes.get_mut(uplink) {
            Some(sum) => *sum = sum.saturating_add(bytes),
            None => _ = self.bytes.insert(uplink.to_owned(), bytes),
        }
    }

    pub(crate) fn of(&self, uplink: &str) -> u64 {
        self.bytes.get(uplink).copied().unwrap_or(0)
    }
}

/// A router without a battery begins in 1970, or when its system was made.
const YEAR_MIN: i64 = 2026;

/// The bytes of the IP packet that carries `payload` bytes of UDP to or from `remote`.
pub(crate) fn ip_bytes(remote: SocketAddr, payload: usize) -> u64 {
    let headers = if remote.is_ipv4() { 20 + 8 } else { 40 + 8 };
    payload as u64 + headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_belong_to_their_months() {
        let check = |seconds, year, month| {
            assert_eq!(Month::of_unix(seconds), Month { year, month }, "{seconds}");
        };
        check(0, 1970, 1);
        check(951_782_400, 2000, 2); // 2000-02-29
        check(951_868_800, 2000, 3);
        check(1_798_761_599, 2026, 12);
        check(1_798_761_600, 2027, 1);
        check(4_107_542_400, 2100, 3); // no leap year
        check(4_107_542_399, 2100, 2);
    }

    #[test]
    fn a_month_begins_at_nothing() {
        let month = |month| Month { year: 2026, month };
        let mut usage = Usage::default();
        usage.add("wwan0", 5);
        usage.on_month(month(11));
        usage.add("wwan0", 7);
        assert_eq!((usage.of("wwan0"), usage.of("wwan1")), (12, 0));
        usage.on_month(Month { year: 1970, month: 1 });
        assert_eq!(usage.of("wwan0"), 12, "the clock is not set yet");
        usage.on_month(month(12));
        assert_eq!(usage, Usage { month: Some(month(12)), bytes: BTreeMap::new() });
    }

    #[test]
    fn beyond_its_cap_an_uplink_is_a_backup() {
        let policy = Policy { priority: Priority::Secondary, weight: 3, redundancy_percent: None };
        let uplink = UplinkPolicy { policy, monthly_cap_bytes: Some(1000) };
        assert_eq!(uplink.after(999), policy);
        assert_eq!(uplink.after(1000), Policy { priority: Priority::Backup, ..policy });
        assert_eq!(UplinkPolicy::default().after(u64::MAX), Policy::default());
    }
}
