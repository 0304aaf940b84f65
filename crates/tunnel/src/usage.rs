//! The data that uplinks have carried, by day, with its sum over the operator's month.
//!
//! Days are in UTC, bytes with IP headers, as operators count. A wrong clock resets nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;
use serde::{Deserialize, Serialize};

/// Data of metered uplinks, kept across restarts. As text: `{"wwan0":{"2026-11-27":123}}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Usage {
    today: Option<Date>,
    uplinks: BTreeMap<String, Days>,
}

type Days = BTreeMap<Option<Date>, u64>;

/// The data of one uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes of this day, both ways.
    pub day_bytes: u64,
    /// Bytes of this month, both ways.
    pub month_bytes: u64,
}

impl Usage {
    /// The data of a calendar month, by uplink, dated to its first day, or undated without a month.
    ///
    /// # Errors
    /// If there is no such month.
    pub fn of_month(
        month: Option<(i16, i8)>,
        bytes: BTreeMap<String, u64>,
    ) -> Result<Self, jiff::Error> {
        let today = month.map(|(year, month)| Date::new(year, month, 1)).transpose()?;
        let mut usage = Self { today, uplinks: BTreeMap::new() };
        bytes.iter().for_each(|(name, bytes)| usage.add(name, *bytes));
        Ok(usage)
    }

    /// Sets the day. Ignores an unset clock, and one that goes back without being synchronised.
    pub(crate) fn on_time_of_day(&mut self, unix_seconds: u64, is_synchronised: bool) {
        let Some(day) = day_of(unix_seconds).filter(|day| day.year() >= YEAR_MIN) else { return };
        if !is_synchronised && self.today.is_some_and(|today| day < today) {
            return;
        }
        if self.today.replace(day) == Some(day) {
            return;
        }
        for days in self.uplinks.values_mut() {
            if let Some(undated) = days.remove(&None).filter(|bytes| *bytes > 0) {
                add(days, Some(day), undated);
            }
            while days.len() > DAYS_MOST {
                // Days from a clock that was ahead go first.
                match days.last_key_value().is_some_and(|(last, _)| *last > Some(day)) {
                    true => days.pop_last(),
                    false => days.pop_first(),
                };
            }
        }
    }

    pub(crate) fn add(&mut self, uplink: &str, bytes: u64) {
        match self.uplinks.get_mut(uplink) {
            Some(days) => add(days, self.today, bytes),
            None => _ = self.uplinks.insert(uplink.to_owned(), [(self.today, bytes)].into()),
        }
    }

    /// Bytes that an uplink carried today and in its month, which begins on `billing_day`, 1 to 28.
    pub fn of(&self, uplink: &str, billing_day: u8) -> Carried {
        let Some(days) = self.uplinks.get(uplink) else { return Carried::default() };
        let month_start = self.today.map(|today| month_start(today, billing_day));
        let of_month = days.range(month_start..=self.today);
        Carried {
            day_bytes: days.get(&self.today).copied().unwrap_or(0),
            month_bytes: of_month.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes)),
        }
    }
}

fn add(days: &mut Days, day: Option<Date>, bytes: u64) {
    let sum = days.entry(day).or_default();
    *sum = sum.saturating_add(bytes);
}

fn day_of(unix_seconds: u64) -> Option<Date> {
    let moment = Timestamp::from_second(i64::try_from(unix_seconds).ok()?).ok()?;
    Some(Offset::UTC.to_datetime(moment).date())
}

/// The first day of the month that contains `today` and begins on `billing_day`, 1 to 28.
fn month_start(today: Date, billing_day: u8) -> Date {
    let billing_day = billing_day.clamp(1, BILLING_DAY_MAX).cast_signed();
    let (year, month) = match (today.day() >= billing_day, today.month()) {
        (true, month) => (today.year(), month),
        (false, 1) => (today.year() - 1, 12),
        (false, month) => (today.year(), month - 1),
    };
    // Each month has that day, except before the first year.
    Date::new(year, month, billing_day).unwrap_or(Date::MIN)
}

type Written = BTreeMap<String, BTreeMap<String, u64>>;

impl From<Usage> for Written {
    fn from(usage: Usage) -> Self {
        let days = |days: Days| {
            let is_counted = |(day, bytes): &(Option<Date>, u64)| day.is_some() || *bytes > 0;
            let name = |day: Option<Date>| day.map_or(UNDATED.to_owned(), |day| day.to_string());
            days.into_iter().filter(is_counted).map(|(day, bytes)| (name(day), bytes)).collect()
        };
        usage.uplinks.into_iter().map(|(name, of_it)| (name, days(of_it))).collect()
    }
}

impl TryFrom<Written> for Usage {
    type Error = jiff::Error;

    fn try_from(written: Written) -> Result<Self, jiff::Error> {
        let mut usage = Self::default();
        for (name, days) in written {
            let of_it = usage.uplinks.entry(name).or_default();
            for (day, bytes) in days {
                let day = if day == UNDATED { None } else { Some(day.parse()?) };
                add(of_it, day, bytes);
            }
        }
        // The last day goes on until the clock is set.
        let days = usage.uplinks.values().filter_map(|days| days.last_key_value());
        usage.today = days.filter_map(|(day, _)| *day).max();
        Ok(usage)
    }
}

/// Earlier clocks are unset: routers without a battery start in 1970, or at their build date.
const YEAR_MIN: i16 = 2026;
/// The last day that each month has.
pub const BILLING_DAY_MAX: u8 = 28;
/// Two months, more than any sum needs.
const DAYS_MOST: usize = 62;
const UNDATED: &str = "undated";

pub(crate) fn ip_bytes(remote: SocketAddr, payload: usize) -> u64 {
    let headers = if remote.is_ipv4() { 20 + 8 } else { 40 + 8 };
    payload as u64 + headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(text: &str) -> Date {
        text.parse().unwrap()
    }

    fn noon(text: &str) -> u64 {
        let noon = date(text).at(12, 0, 0, 0).to_zoned(jiff::tz::TimeZone::UTC).unwrap();
        noon.timestamp().as_second().cast_unsigned()
    }

    fn carry_at(usage: &mut Usage, unix_seconds: u64, bytes: u64) {
        usage.on_time_of_day(unix_seconds, true);
        usage.add("wwan0", bytes);
    }

    fn carried(usage: &Usage, billing_day: u8) -> (u64, u64) {
        let Carried { day_bytes, month_bytes } = usage.of("wwan0", billing_day);
        (day_bytes, month_bytes)
    }

    #[test]
    fn months_begin_on_the_billing_day() {
        let check = |today, billing_day, expected| {
            assert_eq!(month_start(date(today), billing_day), date(expected), "{today}");
        };
        check("2026-11-27", 1, "2026-11-01");
        check("2026-11-27", 27, "2026-11-27");
        check("2026-11-27", 28, "2026-10-28");
        check("2027-01-01", 1, "2027-01-01");
        check("2027-01-01", 2, "2026-12-02");
        check("2028-03-01", 28, "2028-02-28");
        check("2026-11-27", 0, "2026-11-01");
        check("2026-11-27", 31, "2026-10-28");
    }

    #[test]
    fn a_day_and_a_month_begin_at_nothing() {
        let mut usage = Usage::default();
        usage.add("wwan0", 5);
        assert_eq!(carried(&usage, 1), (5, 5), "nobody knows the day");
        carry_at(&mut usage, noon("2026-11-14"), 7);
        assert_eq!(carried(&usage, 1), (12, 12));
        usage.on_time_of_day(0, true);
        assert_eq!(carried(&usage, 1), (12, 12), "the clock is not set yet");
        carry_at(&mut usage, noon("2026-11-15"), 1);
        assert_eq!((carried(&usage, 1), carried(&usage, 15)), ((1, 13), (1, 1)));
        usage.on_time_of_day(noon("2026-12-14"), true);
        assert_eq!((carried(&usage, 1), carried(&usage, 15)), ((0, 0), (0, 1)));
        assert_eq!(usage.of("wwan1", 1), Carried::default());
    }

    #[test]
    fn a_clock_that_is_ahead_for_a_while_puts_nothing_back() {
        let mut usage = Usage::default();
        carry_at(&mut usage, noon("2026-11-27"), 9);
        carry_at(&mut usage, noon("2099-01-01"), 1);
        assert_eq!(carried(&usage, 1), (1, 1));
        usage.on_time_of_day(noon("2026-11-27"), true);
        assert_eq!(carried(&usage, 1), (9, 9));
        usage.on_time_of_day(u64::MAX, true);
        assert_eq!(carried(&usage, 1), (9, 9));
    }

    #[test]
    fn days_that_never_were_are_forgotten_before_those_that_were() {
        let mut usage = Usage::default();
        let mut carry = |from: &str, days: u64| {
            for day in 0..days {
                carry_at(&mut usage, noon(from) + day * 86_400, 1);
            }
            carried(&usage, 1)
        };
        carry("2026-11-01", 20);
        carry("2099-01-01", 42);
        assert_eq!(carry("2026-11-21", 10), (1, 30));
    }

    #[test]
    fn a_clock_that_nothing_synchronises_does_not_go_back() {
        let mut usage = Usage::default();
        usage.on_time_of_day(noon("2026-11-27"), false);
        usage.add("wwan0", 9);
        usage.on_time_of_day(noon("2026-10-01"), false);
        usage.add("wwan0", 1);
        assert_eq!(carried(&usage, 1), (10, 10), "the time of the system's image");
        usage.on_time_of_day(noon("2026-11-28"), false);
        assert_eq!(carried(&usage, 1), (0, 10));
        usage.on_time_of_day(noon("2026-11-27"), true);
        assert_eq!(carried(&usage, 1), (10, 10));
    }

    #[test]
    fn years_are_two_months_in_memory() {
        let mut usage = Usage::default();
        for day in 0..1000 {
            carry_at(&mut usage, noon("2026-01-01") + day * 86_400, 1);
            let sum = carried(&usage, 1).1;
            assert!(sum <= 31 && usage.uplinks["wwan0"].len() <= DAYS_MOST + 1, "{day}");
        }
        assert_eq!(carried(&usage, 1), (1, 26), "of 2028-09");
    }

    #[test]
    fn what_was_written_is_read_and_its_last_day_goes_on() {
        let mut usage = Usage::default();
        carry_at(&mut usage, noon("2026-11-27"), 9);
        usage.add("wwan0", u64::MAX);
        let text = serde_json::to_string(&usage).unwrap();
        assert_eq!(text, r#"{"wwan0":{"2026-11-27":18446744073709551615}}"#);
        assert_eq!(serde_json::from_str::<Usage>(&text).unwrap(), usage);
        let undated = r#"{"wwan0":{"undated":3}}"#;
        let usage: Usage = serde_json::from_str(undated).unwrap();
        assert_eq!(
            (carried(&usage, 1), serde_json::to_string(&usage).unwrap()),
            ((3, 3), undated.into())
        );
        for bad in [r#"{"a":{"2026-13-01":1}}"#, r#"{"a":{"":1}}"#, r#"{"a":{"undated":-1}}"#] {
            assert!(serde_json::from_str::<Usage>(bad).is_err(), "{bad}");
        }
    }
}
