//! A server's limits of speed tests.

use std::time::Duration;

use roadweave_tunnel::SpeedtestLimits;
use serde::{Deserialize, Serialize};

use crate::values::Within;

/// Whether clients may measure their uplinks, and how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpeedtestFields {
    /// Whether clients may measure their uplinks with [`roadweave
    /// speedtest`](operate.md#measure-the-uplinks), which uses this machine's traffic too.
    pub enabled: bool,
    /// The longest test of one direction, seconds.
    pub seconds_max: Within<1, 10, 10>,
    /// The most megabytes of one test, headers counted.
    pub mb_max: Within<1, 100_000, 250>,
    /// Tests of a client in an hour; each direction of each uplink, and of all together, is one.
    pub tests_per_hour: Within<1, 1_000, 60>,
    /// Concurrent tests of all clients; a client has one at a time.
    pub at_a_time: Within<1, 1_000, 4>,
}

impl SpeedtestFields {
    /// The limits, if tests are allowed.
    pub fn limits(&self) -> Option<SpeedtestLimits> {
        let number = |number: i64| usize::try_from(number).unwrap_or(usize::MAX);
        self.enabled.then(|| SpeedtestLimits {
            duration_max: Duration::from_secs(self.seconds_max.get().unsigned_abs()),
            bytes_max: self.mb_max.get().unsigned_abs() * 1_000_000,
            per_hour: number(self.tests_per_hour.get()),
            at_a_time: number(self.at_a_time.get()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_tests_are_refused_unless_the_file_allows_them() {
        let read = |text: &str| toml::from_str::<SpeedtestFields>(text);
        assert_eq!(read("").expect("no field is needed").limits(), None);
        assert_eq!(read("mb_max = 9").expect("it is fine").limits(), None);
        let usual = read("enabled = true").expect("it is fine").limits();
        assert_eq!(usual, Some(SpeedtestLimits::default()));
        let own = "enabled = true\nseconds_max = 3\nmb_max = 9\ntests_per_hour = 7\nat_a_time = 1";
        let expected = SpeedtestLimits {
            duration_max: Duration::from_secs(3),
            bytes_max: 9_000_000,
            per_hour: 7,
            at_a_time: 1,
        };
        assert_eq!(read(own).expect("it is fine").limits(), Some(expected));
        for (bad, part) in [
            ("seconds_max = 11", "11 is out of bounds, 1 to 10"),
            ("mb_max = 0", "1 to 100000"),
            ("tests_per_hour = 0", "1 to 1000"),
            ("minutes = 1", "unknown field `minutes`"),
        ] {
            let error = read(bad).expect_err("refused").to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
