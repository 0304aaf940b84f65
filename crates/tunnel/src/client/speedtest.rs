//! A speed test: what each uplink carries to the server and back, one by one, then all together.
//!
//! ```text
//! begin ─► rows: an uplink each, and all ─► steps: down, up ─► ask ─► load ─► counted ─► rest ─┐
//!                   └─ left out: no path, metered       ▲──────────────────────────────────────┘
//! ```
//!
//! It runs within the session, over its paths, under their congestion control, in the room that
//! lanes leave. It ends with the session, or when the server or the report's reader falls silent.

use std::collections::VecDeque;
use std::time::Duration;

use roadweave_proto::wire::{
    Control, LOAD_OVERHEAD, LoadCounts, LoadDirection, Speedtest, TestBounds, TestId, TestRefusal,
    TestWord,
};
use roadweave_proto::{DropReason, Instant, PathId, PathSnapshot, earliest};
use roadweave_quic::{Connection, ConnectionId};

use super::Client;
use crate::session::{LATE_MAX, LoadExpected, LoadPlan, LoadReceived};

mod report;

pub use report::{LoadReport, SpeedtestError, SpeedtestReport, SpeedtestRow, SpeedtestState};

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeedtestPlan {
    /// The uplinks' names; all if empty.
    pub uplinks: Vec<String>,
    /// The time in each direction, at most [`SPEEDTEST_MAX`].
    pub duration: Duration,
    /// The most bytes that the whole test may use, headers included.
    pub bytes_max: u64,
    /// Whether to measure uplinks that are metered or capped and not named.
    pub metered: bool,
}

/// The longest test of one direction.
pub const SPEEDTEST_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Speedtests {
    run: Option<SpeedtestRun>,
    begun: u32,
}

#[derive(Debug)]
struct SpeedtestRun {
    connection: ConnectionId,
    duration: Duration,
    bytes_left: u64,
    steps: VecDeque<Step>,
    running: Option<Running>,
    next_at: Instant,
    asked_at: Instant,
    report: SpeedtestReport,
}

#[derive(Clone, Debug)]
struct Step {
    row: usize,
    direction: LoadDirection,
    paths: Vec<PathId>,
}

#[derive(Debug)]
struct Running {
    step: Step,
    test: TestId,
    bytes: u64,
    phase: TestPhase,
    until: Instant,
}

#[derive(Clone, Copy, Debug)]
enum TestPhase {
    Asked,
    Loading,
    Sent(LoadCounts),
}

impl Client {
    /// Starts a test and forgets the last one; [`Client::speedtest`] reports its progress.
    ///
    /// # Errors
    /// When there is no session, another test is under way, or nothing is left to measure.
    pub fn begin_speedtest(
        &mut self,
        now: Instant,
        plan: &SpeedtestPlan,
    ) -> Result<(), SpeedtestError> {
        let current = self.current.as_ref().ok_or(SpeedtestError::NoSession)?;
        let run = self.speedtests.run.as_ref();
        if run.is_some_and(|run| run.report.state == SpeedtestState::Running) {
            return Err(SpeedtestError::UnderWay);
        }
        if plan.duration.is_zero() || plan.duration > SPEEDTEST_MAX {
            return Err(SpeedtestError::Duration);
        }
        let (connection, server) = (current.id, current.pair.1.to_string());
        let (rows, paths) = self.speedtest_rows(plan)?;
        let steps = steps(&paths);
        let least = STEP_BYTES_MIN * steps.len() as u64;
        if plan.bytes_max < least {
            return Err(SpeedtestError::Limit { least });
        }
        let has_all = steps.back().is_some_and(|step| step.row == rows.len());
        let rows = rows.into_iter().chain(has_all.then(SpeedtestRow::default)).collect();
        let report = SpeedtestReport { server, rows, ..SpeedtestReport::default() };
        self.speedtests.run = Some(SpeedtestRun {
            connection,
            duration: plan.duration,
            bytes_left: plan.bytes_max,
            steps,
            running: None,
            next_at: now,
            asked_at: now,
            report,
        });
        self.tend_speedtest(now);
        Ok(())
    }

    /// The report of the running or last test, if any. A test that is not polled ends.
    pub fn speedtest(&mut self, now: Instant) -> Option<SpeedtestReport> {
        let run = self.speedtests.run.as_mut()?;
        run.asked_at = now;
        Some(run.report.clone())
    }

    /// Stops the running test, if any.
    pub fn stop_speedtest(&mut self, now: Instant) {
        self.fail_speedtest(now, "it was stopped");
    }

    fn speedtest_rows(
        &self,
        plan: &SpeedtestPlan,
    ) -> Result<(Vec<SpeedtestRow>, Vec<Option<PathId>>), SpeedtestError> {
        let connection = self.connection().ok_or(SpeedtestError::NoSession)?;
        let mut names: Vec<&str> = self.uplinks.all.values().map(|it| it.name.as_str()).collect();
        names.sort_unstable();
        if let Some(name) = plan.uplinks.iter().find(|name| !names.contains(&name.as_str())) {
            let known = names.join(", ");
            return Err(SpeedtestError::UnknownUplink { name: name.clone(), known });
        }
        names.retain(|name| plan.uplinks.is_empty() || plan.uplinks.iter().any(|it| it == name));
        let (mut rows, mut paths) = (Vec::new(), Vec::new());
        for name in names {
            let over = |path: &&PathSnapshot| {
                let uplink = path.uplink.and_then(|uplink| self.uplinks.all.get(&uplink));
                uplink.is_some_and(|uplink| uplink.name == name)
            };
            let path = connection.paths().iter().find(over);
            let is_asked = plan.metered || !plan.uplinks.is_empty();
            let left_out = match path {
                None => Some("it has no path".to_owned()),
                Some(path) if !path.is_usable() => {
                    Some(format!("its path is {}", path.status.name()))
                }
                Some(_) if !is_asked && self.is_metered(name) => Some(METERED.to_owned()),
                Some(_) => None,
            };
            paths.push(path.filter(|_| left_out.is_none()).map(|path| path.id));
            let idle = path.filter(|path| path.last_acknowledged.is_some());
            rows.push(SpeedtestRow {
                uplink: Some(name.to_owned()),
                left_out,
                idle_rtt_ms: idle.map(|path| path.min_rtt.as_secs_f64() * 1e3),
                ..SpeedtestRow::default()
            });
        }
        if paths.iter().all(Option::is_none) {
            let why = |row: SpeedtestRow| {
                Some(format!("{}: {}", row.uplink.unwrap_or_default(), row.left_out?))
            };
            let all: Vec<String> = rows.into_iter().filter_map(why).collect();
            return Err(SpeedtestError::NothingLeft(all.join("; ")));
        }
        Ok((rows, paths))
    }

    fn is_metered(&self, uplink: &str) -> bool {
        self.uplinks.policies.get(uplink).is_some_and(|policy| {
            policy.caps.are_there() || policy.policy.redundancy_percent.is_some()
        })
    }

    pub(super) fn tend_speedtest(&mut self, now: Instant) {
        let Some(run) = self.speedtests.run.as_mut() else { return };
        if run.report.state != SpeedtestState::Running {
            return;
        }
        if self.current.as_ref().is_none_or(|current| current.id != run.connection) {
            return self.fail_speedtest(now, "the session ended, or another took its place");
        }
        if now >= run.asked_at + ASKED_WITHIN {
            return self.fail_speedtest(now, "its results were no longer requested");
        }
        self.take_load(now);
        let Some(run) = self.speedtests.run.as_mut() else { return };
        match &run.running {
            None if run.next_at <= now => self.begin_step(now),
            Some(running) if running.until <= now => self.on_silent_server(now),
            _ => {}
        }
    }

    fn begin_step(&mut self, now: Instant) {
        let Some(run) = self.speedtests.run.as_mut() else { return };
        let steps = run.steps.len() as u64;
        let Some(step) = run.steps.pop_front() else {
            run.report.state = SpeedtestState::Done;
            run.report.under_way = None;
            return;
        };
        let bounds = TestBounds {
            direction: step.direction,
            duration: run.duration,
            bytes: run.bytes_left / steps.max(1),
        };
        self.speedtests.begun = self.speedtests.begun.wrapping_add(1);
        let (test, connection) = (TestId(self.speedtests.begun), run.connection);
        run.report.under_way = Some(run.report.name_of(step.row, step.direction));
        let word = TestWord::Ask { bounds, paths: step.paths.clone() };
        let (bytes, until) = (bounds.bytes, now + ANSWER_MAX);
        run.running = Some(Running { step, test, bytes, phase: TestPhase::Asked, until });
        if bounds.direction == LoadDirection::Down
            && let Some(current) = &mut self.current
        {
            // Load may overtake the message that grants it.
            let (duration, bytes) = (bounds.duration, bounds.bytes);
            let until = now + ANSWER_MAX + duration + LATE_MAX;
            current.session.loads.expect(now, LoadExpected { test, duration, bytes, until });
        }
        self.send_control(connection, &Control::Speedtest(Speedtest { test, word }));
    }

    pub(super) fn on_speedtest(&mut self, now: Instant, said: Speedtest) {
        let Speedtest { test, word } = said;
        let running = self.speedtests.run.as_mut().and_then(|run| run.running.as_mut());
        let (Some(running), Some(current)) =
            (running.filter(|running| running.test == test), self.current.as_mut())
        else {
            return self.drops.count(DropReason::UnknownMessage);
        };
        match word {
            TestWord::Grant(granted) if matches!(running.phase, TestPhase::Asked) => {
                let duration = granted.duration.min(SPEEDTEST_MAX);
                running.phase = TestPhase::Loading;
                running.until = now + duration + LATE_MAX + ANSWER_MAX;
                if running.step.direction == LoadDirection::Up {
                    let (paths, until) = (running.step.paths.clone(), now + duration);
                    let bytes = granted.bytes.min(running.bytes);
                    current.session.loads.begin(LoadPlan { test, paths, until, bytes });
                }
            }
            TestWord::Refuse(why) => self.on_refused(now, why),
            TestWord::Sent(counts) => current.session.loads.on_sent(now, test, counts),
            TestWord::Received(received) => {
                if let TestPhase::Sent(sent) = running.phase {
                    self.finish_step(now, received, Some(sent));
                }
            }
            _ => self.drops.count(DropReason::UnknownMessage),
        }
    }

    fn on_refused(&mut self, now: Instant, why: TestRefusal) {
        let Some(run) = self.speedtests.run.as_mut() else { return };
        match why {
            // It was closed between the question and the answer.
            TestRefusal::UnknownPath => {
                if let Some(running) = run.running.take() {
                    run.report.rows[running.step.row].left_out = Some("its path is gone".into());
                    run.steps.retain(|step| step.row != running.step.row);
                }
                run.next_at = now;
                self.current.iter_mut().for_each(|current| current.session.loads.forget());
            }
            why => self.fail_speedtest(now, report::refusal(why)),
        }
    }

    fn take_load(&mut self, now: Instant) {
        let Some(current) = &mut self.current else { return };
        let (sent, received) =
            (current.session.loads.take_sent(), current.session.loads.poll_received(now));
        let running = self.speedtests.run.as_mut().and_then(|run| run.running.as_mut());
        let Some(running) = running else { return };
        if let Some((test, counts)) = sent
            && running.test == test
        {
            running.phase = TestPhase::Sent(counts);
            running.until = now + ANSWER_MAX + LATE_MAX;
        }
        if let Some(LoadReceived { test, counts, sent }) = received
            && running.test == test
        {
            match counts.packets {
                0 if sent.is_none() => running.until = now,
                _ => self.finish_step(now, counts, sent),
            }
        }
    }

    fn finish_step(&mut self, now: Instant, received: LoadCounts, sent: Option<LoadCounts>) {
        let Some(run) = self.speedtests.run.as_mut() else { return };
        let Some(Running { step, bytes, .. }) = run.running.take() else { return };
        let most = sent.map_or(received, |sent| LoadCounts {
            packets: sent.packets.max(received.packets),
            bytes: sent.bytes.max(received.bytes),
            ..sent
        });
        let used = most.bytes.saturating_add(most.packets.saturating_mul(LOAD_OVERHEAD));
        let used = used.min(bytes);
        run.bytes_left = run.bytes_left.saturating_sub(used);
        run.report.used_bytes = run.report.used_bytes.saturating_add(used);
        let is_short = sent.is_some_and(|sent| {
            Duration::from_micros(sent.micros) < run.duration.mul_f64(SHORT) && sent.packets > 0
        });
        let load = LoadReport::new(&received, sent.as_ref(), is_short);
        let row = &mut run.report.rows[step.row];
        match step.direction {
            LoadDirection::Up => row.up = Some(load),
            LoadDirection::Down => row.down = Some(load),
        }
        run.next_at = now + REST;
        run.report.under_way = None;
    }

    fn on_silent_server(&mut self, now: Instant) {
        let Some(run) = self.speedtests.run.as_ref() else { return };
        let connection = self.endpoint.connection(run.connection);
        let has_heard = connection.is_some_and(Connection::has_messages_through);
        let why = match run.running.as_ref().map(|running| running.phase) {
            Some(TestPhase::Asked) if has_heard => {
                "the server does not support speed tests: it received the request and did not \
                 answer, as older versions do"
            }
            Some(TestPhase::Asked) => "the server does not answer",
            _ => "the server did not report the result of the load",
        };
        self.fail_speedtest(now, why);
    }

    fn fail_speedtest(&mut self, now: Instant, why: &str) {
        let Some(run) = self.speedtests.run.as_mut() else { return };
        if run.report.state != SpeedtestState::Running {
            return;
        }
        run.report.state = SpeedtestState::Failed;
        run.report.error = Some(why.to_owned());
        run.report.under_way = None;
        run.steps.clear();
        let (connection, running) = (run.connection, run.running.take());
        run.next_at = now;
        self.current.iter_mut().for_each(|current| current.session.loads.forget());
        if let Some(Running { test, .. }) = running {
            let stop = Speedtest { test, word: TestWord::Stop };
            self.send_control(connection, &Control::Speedtest(stop));
        }
    }

    pub(super) fn speedtest_timeout(&self) -> Option<Instant> {
        let run = self.speedtests.run.as_ref()?;
        let is_running = run.report.state == SpeedtestState::Running;
        let step = run.running.as_ref().map_or(run.next_at, |running| running.until);
        is_running.then(|| earliest([Some(step), Some(run.asked_at + ASKED_WITHIN)]))?
    }
}

fn steps(paths: &[Option<PathId>]) -> VecDeque<Step> {
    let both = |row: usize, paths: Vec<PathId>| {
        [LoadDirection::Down, LoadDirection::Up].map(|direction| Step {
            row,
            direction,
            paths: paths.clone(),
        })
    };
    let of_row = |(row, path): (usize, &Option<PathId>)| Some(both(row, vec![(*path)?]));
    let mut steps: VecDeque<Step> = paths.iter().enumerate().filter_map(of_row).flatten().collect();
    let measured: Vec<PathId> = paths.iter().flatten().copied().collect();
    if measured.len() > 1 {
        steps.extend(both(paths.len(), measured));
    }
    steps
}

const METERED: &str = "it is metered; use --uplink or --metered to measure it";
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// A test is abandoned if its report is not polled for this long.
const ASKED_WITHIN: Duration = Duration::from_secs(5);
const STEP_BYTES_MIN: u64 = 250_000;
/// The pause between two steps, for the queues of links to drain.
const REST: Duration = Duration::from_millis(500);
/// A step is short if it sent for less than this share of its time: a limit of bytes ended it.
const SHORT: f64 = 0.9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_uplink_is_measured_and_all_together_if_there_are_several() {
        let [first, second] = [PathId(3), PathId(5)];
        let steps_of = |paths: &[Option<PathId>]| {
            let step = |it: Step| (it.row, it.direction == LoadDirection::Up, it.paths);
            steps(paths).into_iter().map(step).collect::<Vec<_>>()
        };
        let one = [(1, false, vec![first]), (1, true, vec![first])];
        assert_eq!(steps_of(&[None, Some(first)]), one);
        let both = vec![first, second];
        let expected = vec![
            (0, false, vec![first]),
            (0, true, vec![first]),
            (2, false, vec![second]),
            (2, true, vec![second]),
            (3, false, both.clone()),
            (3, true, both),
        ];
        assert_eq!(steps_of(&[Some(first), None, Some(second)]), expected);
    }
}
