//! The time of day that keys expire by, which never goes back far. A machine without a battery for
//! its clock starts in 1970, and an attacker who can set its clock could revive expired keys. So
//! the latest known time counts if the clock is behind it. It is kept
//! (`DIRECTORY/INSTANCE.time.json`) only while the kernel reports the clock as synchronised
//! (adjtimex(2)): a clock that is in 2099 by mistake expires keys only until it is corrected. If a
//! time server lied, remove the file while the instance is stopped.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use roadweave_proto::Instant;
use serde::{Deserialize, Serialize};

use crate::state::{Persisted, StateFile};

/// The difference that is logged, seconds: clocks are set in small steps.
const BEHIND_MIN: u64 = 60;
const REMINDER: Duration = Duration::from_secs(3_600);
const WRITE_INTERVAL: Duration = Duration::from_secs(60);

/// The highest time seen while the clock was synchronised, seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HighestTime {
    unix_seconds: u64,
}

impl Persisted for HighestTime {
    const NAME: &'static str = "time";

    fn encode(&self) -> io::Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    fn decode(text: &str) -> io::Result<Self> {
        Ok(serde_json::from_str(text)?)
    }
}

/// A reading of the system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// Seconds since 1970.
    pub unix_seconds: u64,
    /// Whether the kernel reports the clock as synchronised.
    pub is_synchronised: bool,
}

impl ClockReading {
    /// Reads the system's clock.
    pub fn take() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { unix_seconds: since_1970.as_secs(), is_synchronised: is_synchronised() }
    }
}

/// The time of day, kept over restarts.
#[derive(Debug)]
pub struct TimeOfDay {
    file: StateFile<HighestTime>,
    highest: HighestTime,
    next_write: Instant,
    next_reminder: Instant,
}

impl TimeOfDay {
    /// Reads the time that the instance `name` has kept in `directory`.
    pub fn new(directory: &Path, name: &str) -> Self {
        let mut file = StateFile::new(directory, name);
        let highest = file.read();
        let (next_write, next_reminder) = (Instant::ZERO, Instant::ZERO);
        Self { file, highest, next_write, next_reminder }
    }

    /// The time that counts, seconds since 1970, given a reading.
    pub fn update(&mut self, now: Instant, reading: ClockReading) -> u64 {
        let ClockReading { unix_seconds, is_synchronised } = reading;
        if is_synchronised && unix_seconds > self.highest.unix_seconds {
            self.highest = HighestTime { unix_seconds };
            if now >= self.next_write {
                self.next_write = now + WRITE_INTERVAL;
                self.file.write(&self.highest);
            }
        }
        let behind = self.highest.unix_seconds.saturating_sub(unix_seconds);
        if behind >= BEHIND_MIN && now >= self.next_reminder {
            self.next_reminder = now + REMINDER;
            tracing::warn!(
                "the clock is {behind} s behind the latest time seen; keys expire by the latest \
                 time. If that time was wrong, stop the server and remove {}",
                self.file.path.display()
            );
        }
        unix_seconds.max(self.highest.unix_seconds)
    }

    /// Writes the highest time and waits for it, at the end of the process.
    pub fn write_last(&mut self) {
        if self.highest != HighestTime::default() {
            self.file.write_last(&self.highest);
        }
    }
}

#[allow(unsafe_code, reason = "no crate at hand wraps this call")]
fn is_synchronised() -> bool {
    // SAFETY: zeros are a valid timex (integers), which the call without modes fills.
    let state = unsafe {
        let mut timex: libc::timex = std::mem::zeroed();
        libc::adjtimex(&raw mut timex)
    };
    // -1 where a sandbox forbids the call; TIME_ERROR while the clock is not synchronised.
    (0..libc::TIME_ERROR).contains(&state)
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR_2026: u64 = 1_790_000_000;
    const YEAR_2099: u64 = 4_070_908_800;

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1_000)
    }

    fn reading(unix_seconds: u64, is_synchronised: bool) -> ClockReading {
        ClockReading { unix_seconds, is_synchronised }
    }

    #[test]
    fn a_clock_that_went_back_is_not_believed_after_a_restart_either() {
        let folder = tempfile::tempdir().unwrap();
        let mut time = TimeOfDay::new(folder.path(), "rws");
        assert_eq!(time.update(at(0), reading(100, false)), 100, "nothing better is known");
        assert_eq!(time.update(at(1), reading(YEAR_2026, true)), YEAR_2026);
        assert_eq!(time.update(at(2), reading(YEAR_2026 - 9_999, true)), YEAR_2026);
        assert_eq!(time.update(at(3), reading(YEAR_2026 + 5, true)), YEAR_2026 + 5);
        time.write_last();
        let mut again = TimeOfDay::new(folder.path(), "rws");
        assert_eq!(again.update(at(0), reading(0, false)), YEAR_2026 + 5);
        let mut other = TimeOfDay::new(folder.path(), "rwt");
        assert_eq!(other.update(at(0), reading(7, false)), 7, "another instance has its own");
    }

    #[test]
    fn one_clock_in_2099_does_not_expire_all_keys_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let mut time = TimeOfDay::new(folder.path(), "rws");
        time.update(at(0), reading(YEAR_2026, true));
        assert_eq!(time.update(at(1), reading(YEAR_2099, false)), YEAR_2099);
        assert_eq!(time.update(at(2), reading(YEAR_2026 + 2, true)), YEAR_2026 + 2);
        assert_eq!(time.update(at(3), reading(YEAR_2099, true)), YEAR_2099);
        time.write_last();
        std::fs::remove_file(folder.path().join("rws.time.json")).unwrap();
        let mut again = TimeOfDay::new(folder.path(), "rws");
        assert_eq!(again.update(at(0), reading(YEAR_2026 + 9, true)), YEAR_2026 + 9);
    }

    #[test]
    fn the_file_is_not_written_each_second() {
        let folder = tempfile::tempdir().unwrap();
        let mut time = TimeOfDay::new(folder.path(), "rws");
        time.update(at(0), reading(YEAR_2026, true));
        time.file.write_last(&time.highest);
        for second in 1..60 {
            time.update(at(second), reading(YEAR_2026 + second, true));
        }
        assert_eq!(TimeOfDay::new(folder.path(), "rws").highest.unix_seconds, YEAR_2026);
    }

    #[allow(unsafe_code, reason = "no crate at hand wraps this call")]
    fn kernel_clock() -> libc::timex {
        // SAFETY: as above.
        unsafe {
            let mut timex: libc::timex = std::mem::zeroed();
            libc::clock_adjtime(libc::CLOCK_REALTIME, &raw mut timex);
            timex
        }
    }

    #[test]
    fn the_kernel_says_whether_its_clock_is_right_and_asking_changes_nothing() {
        let before = kernel_clock();
        let reading = ClockReading::take();
        let after = kernel_clock();
        let is_wrong = before.status & (libc::STA_UNSYNC | libc::STA_CLOCKERR) != 0;
        assert_eq!(reading.is_synchronised, !is_wrong);
        assert!(
            (before.time.tv_sec..=after.time.tv_sec).contains(&reading.unix_seconds.cast_signed())
        );
        let settings = |clock: libc::timex| (clock.status, clock.freq, clock.tick, clock.tai);
        assert_eq!(settings(before), settings(after));
    }
}
