//! Speed tests of clients so far, and how many are allowed.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;
use roadweave_proto::wire::TestRefusal;

/// A server's limits of speed tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeedtestLimits {
    /// The longest test of one direction.
    pub duration_max: Duration,
    /// The most bytes of one test, headers included.
    pub bytes_max: u64,
    /// The most tests of a client per hour. Each direction of each uplink is one.
    pub per_hour: usize,
    /// The most tests under way, of all clients.
    pub at_a_time: usize,
}

impl Default for SpeedtestLimits {
    fn default() -> Self {
        let duration_max = Duration::from_secs(10);
        Self { duration_max, bytes_max: 250_000_000, per_hour: 60, at_a_time: 4 }
    }
}

#[derive(Debug, Default)]
pub(super) struct TestBook {
    running: BTreeMap<PublicKey, Instant>,
    begun: BTreeMap<PublicKey, VecDeque<Instant>>,
}

impl TestBook {
    pub(super) fn begin(
        &mut self,
        now: Instant,
        key: PublicKey,
        until: Instant,
        limits: &SpeedtestLimits,
    ) -> Result<(), TestRefusal> {
        self.running.retain(|_, until| now < *until);
        if self.running.contains_key(&key) {
            return Err(TestRefusal::UnderWay);
        }
        if self.running.len() >= limits.at_a_time {
            return Err(TestRefusal::TooMany);
        }
        let begun = self.begun.entry(key).or_default();
        while begun.front().is_some_and(|at| now.since(*at) >= HOUR) {
            begun.pop_front();
        }
        if begun.len() >= limits.per_hour {
            return Err(TestRefusal::TooOften);
        }
        begun.push_back(now);
        self.running.insert(key, until);
        Ok(())
    }

    pub(super) fn end(&mut self, key: &PublicKey) {
        self.running.remove(key);
    }

    pub(super) fn forget(&mut self, key: &PublicKey) {
        self.running.remove(key);
        self.begun.remove(key);
    }
}

const HOUR: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at_second as at, key};

    #[test]
    fn a_client_has_one_test_at_a_time_and_all_have_few() {
        let mut book = TestBook::default();
        let limits = SpeedtestLimits { at_a_time: 2, ..SpeedtestLimits::default() };
        let begin = |book: &mut TestBook, seconds, number| {
            book.begin(at(seconds), key(number), at(seconds + 10), &limits)
        };
        assert_eq!(begin(&mut book, 0, 1), Ok(()));
        assert_eq!(begin(&mut book, 1, 1), Err(TestRefusal::UnderWay));
        assert_eq!(begin(&mut book, 1, 2), Ok(()));
        assert_eq!(begin(&mut book, 1, 3), Err(TestRefusal::TooMany));
        book.end(&key(1));
        assert_eq!(begin(&mut book, 1, 3), Ok(()));
        // A test that was never ended, since its shard failed, ends by its time.
        assert_eq!(begin(&mut book, 11, 2), Ok(()));
    }

    #[test]
    fn an_hour_brings_so_many_tests_and_no_more() {
        let mut book = TestBook::default();
        let limits = SpeedtestLimits { per_hour: 3, ..SpeedtestLimits::default() };
        let mut begun = |seconds| {
            let begun = book.begin(at(seconds), key(1), at(seconds + 1), &limits);
            book.end(&key(1));
            begun
        };
        assert_eq!([0, 10, 20].map(&mut begun), [Ok(()); 3]);
        assert_eq!([30, 3_599].map(&mut begun), [Err(TestRefusal::TooOften); 2]);
        assert_eq!([3_600, 3_605].map(&mut begun), [Ok(()), Err(TestRefusal::TooOften)]);
    }
}
