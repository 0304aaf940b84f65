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
use roadweave_proto::{DropReason, Instant, PathId, PathSnapshot};
use roadweave_quic::{Connection, ConnectionId, Endpoint};

use super::{Current, Uplinks, connections};
use crate::session::{LATE_MAX, LoadExpected, LoadPlan, LoadReceived, Session};

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

impl Speedtests {
    pub(super) fn begin(
        &mut self,
        now: Instant,
        plan: &SpeedtestPlan,
        current: &mut Current,
        endpoint: &mut Endpoint,
        uplinks: &Uplinks,
    ) -> Result<(), SpeedtestError> {
        if self.run.as_ref().is_some_and(SpeedtestRun::is_running) {
            return Err(SpeedtestError::UnderWay);
        }
        if plan.duration.is_zero() || plan.duration > SPEEDTEST_MAX {
            return Err(SpeedtestError::Duration);
        }
        let connection = endpoint.connection(current.id).ok_or(SpeedtestError::NoSession)?;
        let (rows, paths) = rows(plan, connection.paths(), uplinks)?;
        let steps = steps(&paths);
        let least = STEP_BYTES_MIN * steps.len() as u64;
        if plan.bytes_max < least {
            return Err(SpeedtestError::Limit { least });
        }
        let has_all = steps.back().is_some_and(|step| step.row == rows.len());
        let rows = rows.into_iter().chain(has_all.then(SpeedtestRow::default)).collect();
        let server = current.pair.1.to_string();
        self.run = Some(SpeedtestRun {
            connection: current.id,
            duration: plan.duration,
            bytes_left: plan.bytes_max,
            steps,
            running: None,
            next_at: now,
            asked_at: now,
            report: SpeedtestReport { server, rows, ..SpeedtestReport::default() },
        });
        self.tend(now, Some(current), endpoint);
        Ok(())
    }

    /// A test whose report is not polled ends.
    pub(super) fn report(&mut self, now: Instant) -> Option<SpeedtestReport> {
        let run = self.run.as_mut()?;
        run.asked_at = now;
        Some(run.report.clone())
    }

    pub(super) fn tend(
        &mut self,
        now: Instant,
        current: Option<&mut Current>,
        endpoint: &mut Endpoint,
    ) {
        let Some(run) = self.run.as_mut().filter(|run| run.is_running()) else { return };
        let current = match current {
            Some(current) if current.id == run.connection => current,
            other => {
                let why = "the session ended, or another took its place";
                return self.fail(now, why, other, endpoint);
            }
        };
        if now >= run.asked_at + ASKED_WITHIN {
            return self.fail(now, "its results were no longer requested", Some(current), endpoint);
        }
        run.take_load(now, &mut current.session);
        match &run.running {
            None if run.next_at <= now => self.begin_step(now, current, endpoint),
            Some(running) if running.until <= now => {
                let why = run.silence(endpoint);
                self.fail(now, why, Some(current), endpoint);
            }
            _ => {}
        }
    }

    fn begin_step(&mut self, now: Instant, current: &mut Current, endpoint: &mut Endpoint) {
        let Some(run) = self.run.as_mut() else { return };
        let steps = run.steps.len() as u64;
        let Some(step) = run.steps.pop_front() else {
            run.report.state = SpeedtestState::Done;
            run.report.under_way = None;
            return;
        };
        let (direction, duration) = (step.direction, run.duration);
        let bytes = run.bytes_left / steps.max(1);
        let bounds = TestBounds { direction, duration, bytes };
        self.begun = self.begun.wrapping_add(1);
        let test = TestId(self.begun);
        run.report.under_way = Some(run.report.name_of(step.row, direction));
        let word = TestWord::Ask { bounds, paths: step.paths.clone() };
        let (phase, until) = (TestPhase::Asked, now + ANSWER_MAX);
        run.running = Some(Running { step, test, bytes, phase, until });
        if direction == LoadDirection::Down {
            // Load may overtake the message that grants it.
            let until = until + duration + LATE_MAX;
            current.session.loads.expect(now, LoadExpected { test, duration, bytes, until });
        }
        connections::send(endpoint, current.id, &Control::Speedtest(Speedtest { test, word }));
    }

    pub(super) fn on_message(
        &mut self,
        now: Instant,
        said: Speedtest,
        current: &mut Current,
        endpoint: &mut Endpoint,
    ) -> Result<(), DropReason> {
        let Speedtest { test, word } = said;
        let run = self.run.as_mut().ok_or(DropReason::UnknownMessage)?;
        let running = run.running.as_mut().filter(|running| running.test == test);
        let running = running.ok_or(DropReason::UnknownMessage)?;
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
            // It was closed between the question and the answer.
            TestWord::Refuse(TestRefusal::UnknownPath) => {
                run.leave_out(now, "its path is gone");
                current.session.loads.forget();
            }
            TestWord::Refuse(why) => self.fail(now, report::refusal(why), Some(current), endpoint),
            TestWord::Sent(counts) => current.session.loads.on_sent(now, test, counts),
            TestWord::Received(received) => {
                if let TestPhase::Sent(sent) = running.phase {
                    run.finish_step(now, received, Some(sent));
                }
            }
            _ => return Err(DropReason::UnknownMessage),
        }
        Ok(())
    }

    pub(super) fn fail(
        &mut self,
        now: Instant,
        why: &str,
        current: Option<&mut Current>,
        endpoint: &mut Endpoint,
    ) {
        let Some(run) = self.run.as_mut().filter(|run| run.is_running()) else { return };
        run.report.state = SpeedtestState::Failed;
        run.report.error = Some(why.to_owned());
        run.report.under_way = None;
        run.steps.clear();
        run.next_at = now;
        current.into_iter().for_each(|current| current.session.loads.forget());
        if let Some(Running { test, .. }) = run.running.take() {
            let stop = Speedtest { test, word: TestWord::Stop };
            connections::send(endpoint, run.connection, &Control::Speedtest(stop));
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let run = self.run.as_ref().filter(|run| run.is_running())?;
        let step = run.running.as_ref().map_or(run.next_at, |running| running.until);
        Some(step.min(run.asked_at + ASKED_WITHIN))
    }
}

impl SpeedtestRun {
    fn is_running(&self) -> bool {
        self.report.state == SpeedtestState::Running
    }

    fn take_load(&mut self, now: Instant, session: &mut Session) {
        let (sent, received) = (session.loads.take_sent(), session.loads.poll_received(now));
        let Some(running) = self.running.as_mut() else { return };
        if let Some((_, counts)) = sent.filter(|(test, _)| *test == running.test) {
            running.phase = TestPhase::Sent(counts);
            running.until = now + ANSWER_MAX + LATE_MAX;
        }
        let of_test = |received: &LoadReceived| received.test == running.test;
        if let Some(LoadReceived { counts, sent, .. }) = received.filter(of_test) {
            match counts.packets {
                0 if sent.is_none() => running.until = now,
                _ => self.finish_step(now, counts, sent),
            }
        }
    }

    fn leave_out(&mut self, now: Instant, why: &str) {
        if let Some(running) = self.running.take() {
            self.report.rows[running.step.row].left_out = Some(why.to_owned());
            self.steps.retain(|step| step.row != running.step.row);
        }
        self.next_at = now;
    }

    fn finish_step(&mut self, now: Instant, received: LoadCounts, sent: Option<LoadCounts>) {
        let Some(Running { step, bytes, .. }) = self.running.take() else { return };
        let most = sent.map_or(received, |sent| LoadCounts {
            packets: sent.packets.max(received.packets),
            bytes: sent.bytes.max(received.bytes),
            ..sent
        });
        let used = most.bytes.saturating_add(most.packets.saturating_mul(LOAD_OVERHEAD));
        let used = used.min(bytes);
        self.bytes_left = self.bytes_left.saturating_sub(used);
        self.report.used_bytes = self.report.used_bytes.saturating_add(used);
        let is_short = sent.is_some_and(|sent| {
            Duration::from_micros(sent.micros) < self.duration.mul_f64(SHORT) && sent.packets > 0
        });
        let load = LoadReport::new(&received, sent.as_ref(), is_short);
        let row = &mut self.report.rows[step.row];
        match step.direction {
            LoadDirection::Up => row.up = Some(load),
            LoadDirection::Down => row.down = Some(load),
        }
        self.next_at = now + REST;
        self.report.under_way = None;
    }

    fn silence(&self, endpoint: &Endpoint) -> &'static str {
        let connection = endpoint.connection(self.connection);
        let has_heard = connection.is_some_and(Connection::has_messages_through);
        match self.running.as_ref().map(|running| running.phase) {
            Some(TestPhase::Asked) if has_heard => {
                "the server does not support speed tests: it received the request and did not \
                 answer, as older versions do"
            }
            Some(TestPhase::Asked) => "the server does not answer",
            _ => "the server did not report the result of the load",
        }
    }
}

/// A row for each uplink of the plan, and its path unless it is left out.
fn rows(
    plan: &SpeedtestPlan,
    paths: &[PathSnapshot],
    uplinks: &Uplinks,
) -> Result<(Vec<SpeedtestRow>, Vec<Option<PathId>>), SpeedtestError> {
    let mut names: Vec<&str> = uplinks.all.values().map(|it| it.name.as_str()).collect();
    names.sort_unstable();
    if let Some(name) = plan.uplinks.iter().find(|name| !names.contains(&name.as_str())) {
        let known = names.join(", ");
        return Err(SpeedtestError::UnknownUplink { name: name.clone(), known });
    }
    names.retain(|name| plan.uplinks.is_empty() || plan.uplinks.iter().any(|it| it == name));
    let (mut rows, mut measured) = (Vec::new(), Vec::new());
    for name in names {
        let over = |path: &&PathSnapshot| uplinks.name_of(path).as_deref() == Some(name);
        let path = paths.iter().find(over);
        let is_asked = plan.metered || !plan.uplinks.is_empty();
        let left_out = match path {
            None => Some("it has no path".to_owned()),
            Some(path) if !path.is_usable() => Some(format!("its path is {}", path.status.name())),
            Some(_) if !is_asked && uplinks.is_metered(name) => Some(METERED.to_owned()),
            Some(_) => None,
        };
        measured.push(path.filter(|_| left_out.is_none()).map(|path| path.id));
        let idle = path.filter(|path| path.last_acknowledged.is_some());
        rows.push(SpeedtestRow {
            uplink: Some(name.to_owned()),
            left_out,
            idle_rtt_ms: idle.map(|path| path.min_rtt.as_secs_f64() * 1e3),
            ..SpeedtestRow::default()
        });
    }
    if measured.iter().all(Option::is_none) {
        let why = |it: SpeedtestRow| Some(format!("{}: {}", it.uplink?, it.left_out?));
        let all: Vec<String> = rows.into_iter().filter_map(why).collect();
        return Err(SpeedtestError::NothingLeft(all.join("; ")));
    }
    Ok((rows, measured))
}

fn steps(paths: &[Option<PathId>]) -> VecDeque<Step> {
    let both = |row: usize, paths: Vec<PathId>| {
        let step = |direction| Step { row, direction, paths: paths.clone() };
        [LoadDirection::Down, LoadDirection::Up].map(step)
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
