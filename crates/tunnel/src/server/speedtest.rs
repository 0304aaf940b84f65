//! Speed tests at a server: which are allowed, and how much of them.
//!
//! ```text
//! ask ─► allowed here? paths known? none under way, not too many? ─► granted, cut to the limits
//!   up:   what comes is counted ─► "received"
//!   down: load leaves, within the client's rate ─► "sent"
//! ```
//!
//! The server alone decides what a test may cost: a session expects no more load than was granted,
//! and sends no more. A new session gives no new allowance.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use roadweave_identity::PublicKey;
use roadweave_proto::wire::{
    Control, LoadDirection, Speedtest, TestBounds, TestId, TestRefusal, TestWord,
};
use roadweave_proto::{DropReason, Instant, PathId};
use roadweave_quic::{Connection, ConnectionId};

use super::{Direction, Joined, Kept, Server};
use crate::session::{LATE_MAX, LoadExpected, LoadPlan, LoadReceived};

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
        Self {
            duration_max: Duration::from_secs(10),
            bytes_max: 250_000_000,
            per_hour: 60,
            at_a_time: 4,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct TestBook {
    running: BTreeMap<PublicKey, Instant>,
    begun: BTreeMap<PublicKey, VecDeque<Instant>>,
}

impl TestBook {
    fn begin(
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

impl Server {
    pub(super) fn on_speedtest(&mut self, now: Instant, id: ConnectionId, said: Speedtest) {
        let Speedtest { test, word } = said;
        let Some(joined) = self.sessions.get_mut(&id) else {
            return self.drops.count(DropReason::UnknownMessage);
        };
        match word {
            TestWord::Ask { bounds, paths } => {
                let word = match self.begin_test(now, id, test, bounds, paths) {
                    Ok(granted) => TestWord::Grant(granted),
                    Err(why) => {
                        self.kept.refuse(|all| all.count_silently(kind_of(why)));
                        TestWord::Refuse(why)
                    }
                };
                if let Some(connection) = self.endpoint.connection_mut(id) {
                    say(connection, test, word);
                }
            }
            TestWord::Sent(counts) => joined.session.on_load_sent(now, test, counts),
            TestWord::Stop => joined.session.stop_load(now, test),
            TestWord::Grant(_) | TestWord::Refuse(_) | TestWord::Received(_) => {
                self.drops.count(DropReason::UnknownMessage);
            }
        }
        self.touched.insert(id);
    }

    fn begin_test(
        &mut self,
        now: Instant,
        id: ConnectionId,
        test: TestId,
        asked: TestBounds,
        paths: Vec<PathId>,
    ) -> Result<TestBounds, TestRefusal> {
        let limits = self.config.speedtest.ok_or(TestRefusal::Off)?;
        let joined = self.sessions.get_mut(&id).ok_or(TestRefusal::Other)?;
        let known = self.endpoint.connection(id).map_or(&[][..], |connection| connection.paths());
        let is_known = |path: &PathId| known.iter().any(|known| known.id == *path);
        if !paths.iter().all(is_known) {
            return Err(TestRefusal::UnknownPath);
        }
        let duration = asked.duration.min(limits.duration_max);
        let bytes = asked.bytes.min(limits.bytes_max);
        let until = now + duration + LATE_MAX * 2;
        self.kept.lock().tests.begin(now, joined.key, until, &limits)?;
        joined.is_testing = true;
        match asked.direction {
            LoadDirection::Up => {
                joined.session.expect_load(now, LoadExpected { test, duration, bytes, until });
            }
            LoadDirection::Down => {
                let until = now + duration;
                joined.session.begin_load(LoadPlan { test, paths, until, bytes });
            }
        }
        Ok(TestBounds { duration, bytes, ..asked })
    }
}

impl Joined {
    pub(super) fn turn_test(&mut self, now: Instant, connection: &mut Connection, kept: &Kept) {
        if !self.is_testing {
            return;
        }
        let limit = self.limits.as_mut().map(|limits| &mut limits[Direction::Down as usize]);
        self.session.send_load(now, connection, limit);
        if let Some(LoadReceived { test, counts, .. }) = self.session.poll_load(now) {
            say(connection, test, TestWord::Received(counts));
        }
        self.is_testing = self.session.has_load();
        if !self.is_testing {
            kept.lock().tests.end(&self.key);
        }
    }
}

fn say(connection: &mut Connection, test: TestId, word: TestWord) {
    let said = Control::Speedtest(Speedtest { test, word });
    // A client that asks so often that there is no room gets no answer.
    let _ = connection.send_message(said.to_bytes());
}

fn kind_of(why: TestRefusal) -> &'static str {
    match why {
        TestRefusal::Off => "speedtest-off",
        TestRefusal::UnderWay => "speedtest-under-way",
        TestRefusal::TooOften => "speedtest-too-often",
        TestRefusal::TooMany => "speedtest-too-many",
        TestRefusal::UnknownPath => "speedtest-unknown-path",
        TestRefusal::Other => "speedtest-other",
    }
}

const HOUR: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

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
