//! Time and rates, without a clock.

use std::fmt;
use std::ops::{Add, AddAssign, Mul, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in time: nanoseconds since the start of the run. Arithmetic saturates.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Instant(u64);

impl Instant {
    /// The start of the run.
    pub const ZERO: Self = Self(0);
    /// Later than any other.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// `millis` milliseconds after the start.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the start.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The time since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The earliest of `moments`, if any.
pub fn earliest<const N: usize>(moments: [Option<Instant>; N]) -> Option<Instant> {
    moments.into_iter().flatten().min()
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(saturating_nanos(rhs)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(saturating_nanos(rhs)))
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, rhs: Self) -> Duration {
        self.since(rhs)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}s", self.as_secs_f64())
    }
}

fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A data rate in bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rate(u64);

impl Rate {
    /// The rate of nothing at all, 0 bit/s.
    pub const ZERO: Self = Self(0);

    /// A rate of `bits` bits per second.
    pub const fn from_bps(bits: u64) -> Self {
        Self(bits)
    }

    /// A rate of `kilobits` thousand bits per second.
    pub const fn from_kbps(kilobits: u64) -> Self {
        Self(kilobits.saturating_mul(1_000))
    }

    /// A rate of `bytes` bytes per second.
    pub const fn from_bytes_per_second(bytes: u64) -> Self {
        Self(bytes.saturating_mul(8))
    }

    /// The rate of `bytes` in `duration`, in whole bytes per second; the highest if it is zero.
    pub fn of(bytes: u64, duration: Duration) -> Self {
        Self::from_bytes_per_second((bytes as f64 / duration.as_secs_f64()) as u64)
    }

    /// Bits per second.
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// Bytes per second.
    pub fn bytes_per_second(self) -> f64 {
        self.0 as f64 / 8.0
    }

    /// The bytes that pass in `duration`, rounded down.
    pub fn bytes_in(self, duration: Duration) -> u64 {
        let bits = u128::from(self.0) * duration.as_nanos() / 1_000_000_000;
        u64::try_from(bits / 8).unwrap_or(u64::MAX)
    }

    /// The time that `bytes` bytes take, rounded up; [`Duration::MAX`] at rate zero.
    pub fn time_for(self, bytes: u64) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        let nanos = (u128::from(bytes) * 8 * 1_000_000_000).div_ceil(u128::from(self.0));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Mul<u32> for Rate {
    type Output = Self;
    fn mul(self, times: u32) -> Self {
        Self(self.0.saturating_mul(u64::from(times)))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000 => write!(f, "{} bit/s", self.0),
            1_000..1_000_000 => write!(f, "{:.1} kbit/s", self.0 as f64 / 1e3),
            _ => write!(f, "{:.1} Mbit/s", self.0 as f64 / 1e6),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_saturate_at_both_ends() {
        assert_eq!(Instant::from_millis(1) - Duration::from_secs(5), Instant::ZERO);
        assert_eq!(Instant::FAR_FUTURE + Duration::MAX, Instant::FAR_FUTURE);
        assert_eq!(Instant::from_millis(1) - Instant::from_millis(3), Duration::ZERO);
    }

    #[test]
    fn a_rate_and_its_time_agree() {
        let rate = Rate::from_kbps(30_000);
        assert_eq!(rate.bytes_in(Duration::from_secs(1)), 3_750_000);
        assert_eq!(rate.time_for(3_750_000), Duration::from_secs(1));
        assert_eq!(Rate::ZERO.time_for(1), Duration::MAX);
    }

    #[test]
    fn a_rate_is_that_of_bytes_over_time() {
        let third = Rate::of(1_000, Duration::from_secs(3));
        assert_eq!(third, Rate::from_bps(333 * 8), "whole bytes per second");
        assert_eq!(third, Rate::from_bytes_per_second(333));
        assert_eq!(third.bytes_per_second(), 333.0);
        assert_eq!(Rate::of(1, Duration::ZERO), Rate::from_bps(u64::MAX));
        assert_eq!(Rate::of(0, Duration::ZERO), Rate::ZERO);
        assert_eq!(Rate::from_kbps(1) * 3, Rate::from_kbps(3));
    }
}
