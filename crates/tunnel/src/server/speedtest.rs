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
use roadweave_quic::Connection;

use super::sessions::Joined;
use super::{SharedState, SpeedtestLimits};
use crate::rate::Direction;
use crate::session::{LATE_MAX, LoadExpected, LoadPlan, LoadReceived};

pub(super) struct TestRules<'a> {
    pub(super) limits: Option<SpeedtestLimits>,
    pub(super) shared: &'a SharedState,
}

/// Takes what a client says of a test. Fails if that is not for a client to say.
pub(super) fn on_word(
    now: Instant,
    joined: &mut Joined,
    connection: &mut Connection,
    said: Speedtest,
    rules: &TestRules<'_>,
) -> Result<(), DropReason> {
    let Speedtest { test, word } = said;
    match word {
        TestWord::Ask { bounds, paths } => {
            let word = match begin(now, joined, connection, (test, bounds, paths), rules) {
                Ok(granted) => TestWord::Grant(granted),
                Err(why) => {
                    rules.shared.refuse(|all| all.count_silently(why.name()));
                    TestWord::Refuse(why)
                }
            };
            say(connection, test, word);
        }
        TestWord::Sent(counts) => joined.session.loads.on_sent(now, test, counts),
        TestWord::Stop => joined.session.loads.stop(now, test),
        TestWord::Grant(_) | TestWord::Refuse(_) | TestWord::Received(_) => {
            return Err(DropReason::UnknownMessage);
        }
    }
    Ok(())
}

fn begin(
    now: Instant,
    joined: &mut Joined,
    connection: &Connection,
    (test, asked, paths): (TestId, TestBounds, Vec<PathId>),
    rules: &TestRules<'_>,
) -> Result<TestBounds, TestRefusal> {
    let limits = rules.limits.ok_or(TestRefusal::Off)?;
    let is_known = |path: &PathId| connection.paths().iter().any(|known| known.id == *path);
    if !paths.iter().all(is_known) {
        return Err(TestRefusal::UnknownPath);
    }
    let duration = asked.duration.min(limits.duration_max);
    let bytes = asked.bytes.min(limits.bytes_max);
    let until = now + duration + LATE_MAX * 2;
    rules.shared.lock().tests.begin(now, joined.key, until, &limits)?;
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

pub(super) fn turn(
    now: Instant,
    joined: &mut Joined,
    connection: &mut Connection,
    shared: &SharedState,
) {
    if !joined.is_testing {
        return;
    }
    let limit = joined.limits.as_mut().map(|limits| &mut limits[Direction::Down as usize]);
    joined.session.send_load(now, connection, limit);
    if let Some(LoadReceived { test, counts, .. }) = joined.session.loads.poll_received(now) {
        say(connection, test, TestWord::Received(counts));
    }
    joined.is_testing = joined.session.loads.is_under_way();
    if !joined.is_testing {
        shared.lock().tests.end(&joined.key);
    }
}

fn say(connection: &mut Connection, test: TestId, word: TestWord) {
    let said = Control::Speedtest(Speedtest { test, word });
    // A client that asks so often that there is no room gets no answer.
    let _ = connection.send_message(said.to_bytes());
}
