//! Maps the product's [`Instant`] to the clock type of the QUIC library.

use roadweave_proto::Instant;

/// The time that [`Instant::ZERO`] stands for.
///
/// The library counts in `std::time::Instant`, made once from the clock; virtual time uses any.
#[derive(Clone, Copy, Debug)]
pub struct Epoch(std::time::Instant);

impl Epoch {
    /// An epoch that starts at `zero`.
    pub const fn new(zero: std::time::Instant) -> Self {
        Self(zero)
    }

    pub(crate) fn to_std(self, now: Instant) -> std::time::Instant {
        let since = std::time::Duration::from_nanos(now.as_nanos());
        // Only a time beyond any run overflows.
        self.0.checked_add(since).unwrap_or(self.0 + FAR)
    }

    pub(crate) fn of_std(self, moment: std::time::Instant) -> Instant {
        let nanos = moment.saturating_duration_since(self.0).as_nanos();
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

const FAR: std::time::Duration = std::time::Duration::from_secs(100 * 365 * 24 * 3600);

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "any moment serves as the start of virtual time")]
mod tests {
    use super::*;

    #[test]
    fn moments_survive_the_round_trip() {
        let epoch = Epoch::new(std::time::Instant::now());
        for nanos in [0, 1, 999_999_999, 86_400_000_000_000] {
            let moment = Instant::from_nanos(nanos);
            assert_eq!(epoch.of_std(epoch.to_std(moment)), moment);
        }
        assert!(epoch.to_std(Instant::FAR_FUTURE) > epoch.to_std(Instant::from_millis(1)));
    }
}
