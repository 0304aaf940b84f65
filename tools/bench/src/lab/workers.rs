//! Runs many jobs on many cores, with a progress bar on a terminal and progress lines elsewhere.

use std::io::IsTerminal as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use roadweave_linux::{Signal, Signals, wait_readable};
use roadweave_terminal::exit;
use roadweave_terminal::out;
use serde::Serialize;

/// Runs the jobs `0..count` on `threads`, by default one per core; returns their results in order,
/// or the error of the first job that failed or panicked.
///
/// `name` names a job. After Ctrl-C no further job starts and some results are missing; a second
/// Ctrl-C ends the program.
pub fn work_all<T: Send>(
    threads: Option<u16>,
    count: usize,
    name: impl Fn(usize) -> String + Sync,
    work: impl Fn(usize) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<Option<T>>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = threads.map_or(cores, usize::from);
    let results: Mutex<Vec<Option<T>>> = Mutex::new((0..count).map(|_| None).collect());
    let failed: Mutex<Option<(usize, anyhow::Error)>> = Mutex::new(None);
    let next = AtomicUsize::new(0);
    let stop = stop_on_signal()?;
    let bar = bar(count);
    let lines = ProgressLines::new(count);
    std::thread::scope(|scope| {
        for _ in 0..workers.clamp(1, count.max(1)) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    if job >= count {
                        break;
                    }
                    bar.set_message(name(job));
                    let done = catch_unwind(AssertUnwindSafe(|| work(job)))
                        .unwrap_or_else(|_| bail!("this program failed (see above)"));
                    match done {
                        Ok(result) => lock(&results)[job] = Some(result),
                        Err(error) => {
                            stop.store(true, Ordering::Relaxed);
                            let mut failed = lock(&failed);
                            if failed.as_ref().is_none_or(|(other, _)| job < *other) {
                                *failed = Some((job, error.context(name(job))));
                            }
                        }
                    }
                    bar.inc(1);
                    lines.print(bar.position());
                }
            });
        }
    });
    bar.finish_and_clear();
    match failed.into_inner().unwrap_or_else(|poison| poison.into_inner()) {
        Some((_, error)) => Err(error),
        None => Ok(results.into_inner().unwrap_or_else(|poison| poison.into_inner())),
    }
}

/// Options of a command with many runs.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Runs {
    /// The number of parallel runs; default: one per core
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    jobs: Option<u16>,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
}

impl Runs {
    /// The results of [`work_all`]; fails if some are missing.
    pub fn finish<T: Send>(
        self,
        count: usize,
        name: impl Fn(usize) -> String + Sync,
        work: impl Fn(usize) -> anyhow::Result<T> + Sync,
    ) -> anyhow::Result<Vec<T>> {
        let results = work_all(self.jobs, count, name, work)?;
        results.into_iter().collect::<Option<_>>().context("interrupted")
    }

    pub fn print<R: Serialize>(
        self,
        results: &R,
        in_words: impl FnOnce(&R) -> String,
    ) -> anyhow::Result<()> {
        if self.json { out::json(results) } else { Ok(out::print(in_words(results))?) }
    }
}

/// Ignores poison: jobs run outside of locks, so a panic leaves the data intact.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

fn stop_on_signal() -> anyhow::Result<&'static AtomicBool> {
    let mut signals = Signals::catch(&[Signal::Interrupt, Signal::Terminate])?;
    let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    std::thread::spawn(move || {
        loop {
            let readable = wait_readable(&signals, Duration::from_secs(3_600));
            if readable.is_ok() && signals.take().is_none() {
                continue;
            }
            if stop.swap(true, Ordering::Relaxed) {
                exit::now(130);
            }
            out::note("\nstopping after the current runs; press again to stop at once");
        }
    });
    Ok(stop)
}

fn bar(count: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{prefix} {bar:32.cyan/dim} {pos}/{len}, {eta} left  {msg:.dim}";
    let style = ProgressStyle::with_template(template).expect("the template is constant");
    let bar = ProgressBar::new(count as u64);
    bar.set_style(style.progress_chars("━━─"));
    bar.set_prefix("runs");
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

struct ProgressLines {
    count: usize,
    began: Instant,
    /// When the last line was printed, since `began`; `None` if there is a bar.
    last: Option<Mutex<Option<Duration>>>,
}

impl ProgressLines {
    fn new(count: usize) -> Self {
        let last = (!std::io::stderr().is_terminal()).then(Mutex::default);
        Self { count, began: Instant::now(), last }
    }

    fn print(&self, done: u64) {
        let Some(last) = &self.last else { return };
        let elapsed = self.began.elapsed();
        let mut last = lock(last);
        if let Some(line) = progress_line(done, self.count as u64, elapsed, *last) {
            out::note(line);
            *last = Some(elapsed);
        }
    }
}

/// The line for `done` of `count` jobs after `elapsed`, if one is due; the last line was at `last`.
fn progress_line(
    done: u64,
    count: u64,
    elapsed: Duration,
    last: Option<Duration>,
) -> Option<String> {
    let due = last.is_none_or(|last| elapsed.saturating_sub(last) >= LINE_INTERVAL);
    if done == 0 || !(due || done == count) {
        return None;
    }
    let left = elapsed.as_secs_f64() / done as f64 * count.saturating_sub(done) as f64;
    Some(format!("{done} of {count} runs, {:.0} s, about {left:.0} s left", elapsed.as_secs_f64()))
}

const LINE_INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_printed_at_first_periodically_and_at_the_end() {
        for (done, elapsed_s, last_s, expected) in [
            (0, 1, None, None),
            (1, 2, None, Some("1 of 40 runs, 2 s, about 78 s left")),
            (5, 11, Some(2), None),
            (10, 12, Some(2), Some("10 of 40 runs, 12 s, about 36 s left")),
            (40, 13, Some(12), Some("40 of 40 runs, 13 s, about 0 s left")),
        ] {
            let last = last_s.map(Duration::from_secs);
            let line = progress_line(done, 40, Duration::from_secs(elapsed_s), last);
            assert_eq!(line.as_deref(), expected);
        }
    }

    #[test]
    fn results_come_in_the_order_of_the_jobs_whatever_the_workers() {
        let expected: Vec<Option<usize>> = (0..50).map(|job| Some(job * 2)).collect();
        for threads in [1, 3, 100] {
            let results =
                work_all(Some(threads), 50, |job| job.to_string(), |job| Ok(job * 2)).unwrap();
            assert_eq!(results, expected);
        }
        assert!(work_all(Some(4), 0, |_| String::new(), |_| Ok(())).unwrap().is_empty());
    }

    #[test]
    fn a_job_that_fails_or_panics_is_named() {
        let work = |job: usize| match job {
            3 => bail!("no links"),
            4 => panic!("a bug"),
            _ => Ok(()),
        };
        let error = work_all(Some(1), 5, |job| format!("job {job}"), work).unwrap_err();
        assert_eq!(format!("{error:#}"), "job 3: no links");
        let error = work_all(Some(1), 1, |_| "job".into(), |_| work(4)).unwrap_err();
        assert_eq!(format!("{error:#}"), "job: this program failed (see above)");
    }
}
