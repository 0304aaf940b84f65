//! Speed tests at a server: which are allowed, and how much of them.
//!
//! ```text
//! ask ─► allowed here? paths known? none under way, not too many? ─► granted, cut to the limits
//!   up:   what comes is counted ─► "received"
//!   down: load leaves, within the client's rate ─► "sent"
//! ```
//!
//! The server alone decides what a test may cost, and a new session gives no new allowance.

use roadweave_proto::wire::{
    Control, LoadDirection, Speedtest, TestBounds, TestId, TestRefusal, TestWord,
};
use roadweave_proto::{DropReason, Instant, PathId};
use roadweave_quic::{Connection, ConnectionId};

use super::{Direction, Joined, Server, SharedState};
use crate::session::{LATE_MAX, LoadExpected, LoadPlan, LoadReceived};

impl Server {
    pub(super) fn on_speedtest(&mut self, now: Instant, id: ConnectionId, said: Speedtest) {
        let Speedtest { test, word } = said;
        let Some(joined) = self.sessions.all.get_mut(&id) else {
            return self.drops.count(DropReason::UnknownMessage);
        };
        match word {
            TestWord::Ask { bounds, paths } => {
                let word = match self.begin_test(now, id, test, bounds, paths) {
                    Ok(granted) => TestWord::Grant(granted),
                    Err(why) => {
                        self.shared.refuse(|all| all.count_silently(kind_of(why)));
                        TestWord::Refuse(why)
                    }
                };
                if let Some(connection) = self.endpoint.connection_mut(id) {
                    say(connection, test, word);
                }
            }
            TestWord::Sent(counts) => joined.session.loads.on_sent(now, test, counts),
            TestWord::Stop => joined.session.loads.stop(now, test),
            TestWord::Grant(_) | TestWord::Refuse(_) | TestWord::Received(_) => {
                self.drops.count(DropReason::UnknownMessage);
            }
        }
        self.sessions.touched.insert(id);
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
        let joined = self.sessions.all.get_mut(&id).ok_or(TestRefusal::Other)?;
        let known = self.endpoint.connection(id).map_or(&[][..], |connection| connection.paths());
        let is_known = |path: &PathId| known.iter().any(|known| known.id == *path);
        if !paths.iter().all(is_known) {
            return Err(TestRefusal::UnknownPath);
        }
        let duration = asked.duration.min(limits.duration_max);
        let bytes = asked.bytes.min(limits.bytes_max);
        let until = now + duration + LATE_MAX * 2;
        self.shared.lock().tests.begin(now, joined.key, until, &limits)?;
        joined.is_testing = true;
        match asked.direction {
            LoadDirection::Up => {
                joined.session.loads.expect(now, LoadExpected { test, duration, bytes, until });
            }
            LoadDirection::Down => {
                let until = now + duration;
                joined.session.loads.begin(LoadPlan { test, paths, until, bytes });
            }
        }
        Ok(TestBounds { duration, bytes, ..asked })
    }
}

impl Joined {
    pub(super) fn turn_test(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        shared: &SharedState,
    ) {
        if !self.is_testing {
            return;
        }
        let limit = self.limits.as_mut().map(|limits| &mut limits[Direction::Down as usize]);
        self.session.send_load(now, connection, limit);
        if let Some(LoadReceived { test, counts, .. }) = self.session.loads.poll_received(now) {
            say(connection, test, TestWord::Received(counts));
        }
        self.is_testing = self.session.loads.is_under_way();
        if !self.is_testing {
            shared.lock().tests.end(&self.key);
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
