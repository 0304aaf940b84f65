//! Lines for standard error, without waiting.
//!
//! ```text
//! threads --> push: never blocks, never fails --> bounded queue --> own thread --> fd 2
//!                   full: the line is counted         cannot write: the line is counted
//! ```
//!
//! Standard error may be a pipe without a reader or a file on a full partition; neither may stop a
//! tunnel. Lost lines are counted, and reported as soon as lines can be written again.
//!
//! `tracing-appender` counts only what its queue refused, bounds the queue by lines instead of
//! bytes, and ends with an `eprintln!`, which panics.

#![allow(
    clippy::disallowed_methods,
    reason = "this crate is the edge to standard error: a thread that waits for it, and its clock"
)]

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

/// Lines on their way to a file or pipe; clones share the queue.
#[derive(Clone, Debug)]
pub struct Lines(Arc<SharedQueue>);

#[derive(Debug, Default)]
struct SharedQueue {
    state: Mutex<QueueState>,
    pushed: Condvar,
    idle: Condvar,
    /// The target, if it can be asked for room.
    target: Option<OwnedFd>,
}

#[derive(Debug, Default)]
struct QueueState {
    queue: VecDeque<Vec<u8>>,
    queue_bytes: usize,
    is_writing: bool,
    taken: u64,
    lost: u64,
    reported: u64,
}

/// Makes the line that reports a number of lost lines.
pub type Notice = Box<dyn Fn(u64) -> Vec<u8> + Send>;

impl Lines {
    /// Starts to write to `target` in an own thread; `descriptor` can be asked for its room.
    fn begin(
        target: impl Write + Send + 'static,
        descriptor: Option<OwnedFd>,
        notice: Notice,
    ) -> io::Result<Self> {
        let lines = Self(Arc::new(SharedQueue { target: descriptor, ..SharedQueue::default() }));
        let shared = Arc::clone(&lines.0);
        let work = move || {
            // The thread needs no capabilities. A thread that may not drop them has none.
            let none = CapabilitySet::empty();
            let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
            let _ = set_capabilities(None, sets);
            Writer { target, notice, is_torn: false }.run(&shared);
        };
        std::thread::Builder::new().name("log".to_owned()).spawn(work)?;
        Ok(lines)
    }

    /// Takes a whole line, with its end. A line that does not fit the queue is lost and counted.
    pub fn push(&self, line: Vec<u8>) {
        let mut state = self.0.lock();
        if state.queue_bytes + line.len() > QUEUE_BYTES_MAX || state.queue.len() >= QUEUE_LINES_MAX
        {
            state.lost += 1;
            return;
        }
        state.queue_bytes += line.len();
        state.queue.push_back(line);
        drop(state);
        self.0.pushed.notify_one();
    }

    /// Lines lost because the queue was full or they could not be written.
    pub fn lost(&self) -> u64 {
        self.0.lock().lost
    }

    /// Waits until all pushed lines are written or lost: for `timeout` while the reader takes
    /// nothing, and for `longest` while this machine is too busy to run the writing thread.
    pub fn flush(&self, timeout: Duration, longest: Duration) {
        let began = Instant::now();
        let mut state = self.0.lock();
        let (mut taken, mut moved) = (state.taken, began);
        while state.is_writing || !state.queue.is_empty() {
            let now = Instant::now();
            if state.taken != taken || self.0.has_room() {
                (taken, moved) = (state.taken, now);
            }
            if now - moved >= timeout || now - began >= longest {
                return;
            }
            let left = timeout.saturating_sub(now - moved).min(NAP);
            state = match self.0.idle.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poison) => poison.into_inner().0,
            };
        }
    }
}

impl SharedQueue {
    /// No panic leaves a state half changed, so a poisoned one is whole.
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Whether a write would find room at once: then only the processor delays the thread.
    fn has_room(&self) -> bool {
        let Some(target) = &self.target else { return false };
        let mut target = [PollFd::new(target, PollFlags::OUT)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = poll(&mut target, Some(&at_once));
        ready.is_ok() && target[0].revents().contains(PollFlags::OUT)
    }

    fn next(&self, report_times: Option<ReportTimes>) -> Option<Vec<u8>> {
        let mut state = self.lock();
        state.is_writing = false;
        if state.queue.is_empty() {
            self.idle.notify_all();
        }
        loop {
            // The lost lines came after the waiting ones.
            let report_at =
                report_times.filter(|_| state.reported < state.lost).map(|report_times| {
                    if state.queue.is_empty() { report_times.earliest } else { report_times.latest }
                });
            let left = report_at.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                state.is_writing = true;
                return None;
            }
            if let Some(line) = state.queue.pop_front() {
                state.queue_bytes -= line.len();
                state.is_writing = true;
                state.taken += 1;
                return Some(line);
            }
            state = match left {
                Some(left) => match self.pushed.wait_timeout(state, left) {
                    Ok((state, _)) => state,
                    Err(poison) => poison.into_inner().0,
                },
                None => self.pushed.wait(state).unwrap_or_else(|poison| poison.into_inner()),
            };
        }
    }
}

/// When to report lost lines: once all waiting lines are written, but not too late.
#[derive(Clone, Copy, Debug)]
struct ReportTimes {
    earliest: Instant,
    latest: Instant,
}

struct Writer<W> {
    target: W,
    notice: Notice,
    /// The last line was written in part.
    is_torn: bool,
}

impl<W: Write> Writer<W> {
    fn run(mut self, shared: &SharedQueue) {
        // No report before a write has succeeded.
        let mut report_times = None;
        loop {
            let written = match shared.next(report_times) {
                Some(line) => {
                    let written = self.write(&line);
                    if written.is_err() {
                        shared.lock().lost += 1;
                    }
                    written.map(|()| {
                        let now = Instant::now();
                        report_times
                            .unwrap_or(ReportTimes { earliest: now, latest: now + REPORT_INTERVAL })
                    })
                }
                None => self.report_lost(shared),
            };
            report_times = written.ok();
        }
    }

    fn report_lost(&mut self, shared: &SharedQueue) -> io::Result<ReportTimes> {
        let (lost, reported) = {
            let state = shared.lock();
            (state.lost, state.reported)
        };
        let notice = (self.notice)(lost - reported);
        self.write(&notice)?;
        shared.lock().reported = lost;
        let next = Instant::now() + REPORT_INTERVAL;
        Ok(ReportTimes { earliest: next, latest: next })
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.write_all(b"\n")?;
            self.is_torn = false;
        }
        self.write_all(line)
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.target.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(length) => {
                    bytes = &bytes[length..];
                    self.is_torn = !bytes.is_empty();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Another process has made the shared pipe non-blocking.
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(NAP),
                Err(error) => return Err(error),
            }
        }
        self.target.flush()
    }
}

/// The process's lines for standard error; only the first call's `notice` counts.
///
/// It has its own descriptor: a thread that blocks while writing to standard error, as in a panic,
/// holds no lock that this one waits for.
pub fn standard_error(notice: Notice) -> io::Result<Lines> {
    if let Some(lines) = PROCESS.get() {
        return Ok(lines.clone());
    }
    // Reaching a file size limit becomes an error instead of ending the process.
    let ignored = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, ignored)?;
    let descriptor = io::stderr().as_fd().try_clone_to_owned()?;
    let room = descriptor.try_clone()?;
    let lines = Lines::begin(File::from(descriptor), Some(room), notice)?;
    Ok(PROCESS.get_or_init(|| lines).clone())
}

/// Lost lines of the process's log.
pub fn lines_lost() -> u64 {
    PROCESS.get().map_or(0, Lines::lost)
}

static PROCESS: OnceLock<Lines> = OnceLock::new();
/// Some thousand lines for a slow reader.
const QUEUE_BYTES_MAX: usize = 512 * 1024;
/// Short lines cost memory beyond their bytes.
const QUEUE_LINES_MAX: usize = 8 * 1024;
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests;
