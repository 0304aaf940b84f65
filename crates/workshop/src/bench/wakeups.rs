//! `roadweave bench wakeups`: how late this machine wakes a program that sleeps as the event loop
//! does.
//!
//! ```text
//! timers:  sleeps in a Poller until a moment ──────────────────► how much later is it?
//! packets: another thread sends the time over the loopback ────► how much later is it?
//!          both with nothing else to do, and beside busy loops
//! ```
//!
//! After each wake-up some work is done, as an event loop does, since a scheduler wakes those first
//! that take little. The lab's late machines are what this told
//! (`crates/lab/src/world/machine.rs`).

use std::hint::spin_loop;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use roadweave_device::{Interest, Poller, Token};
use roadweave_terminal::out;
use roadweave_types::Instant;
use serde::Serialize;

use crate::sandbox::{clock, sockets};
use crate::table;

/// The shares of wake-ups that are told, and what they are called.
const QUANTILES: [(f64, &str); 9] = [
    (0.5, "p50"),
    (0.9, "p90"),
    (0.95, "p95"),
    (0.98, "p98"),
    (0.99, "p99"),
    (0.995, "p99.5"),
    (0.999, "p99.9"),
    (0.9999, "p99.99"),
    (1.0, "max"),
];
/// The shortest sleep; the longest is three times as long.
const SLEEP_MIN: Duration = Duration::from_micros(500);
/// For so long a packet is waited for.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// Measures how late this machine wakes a program by its timer or by a packet, with nothing else to
/// do and beside busy loops
#[derive(Debug, clap::Args)]
pub struct WakeupsArgs {
    /// Print the figures as one JSON object
    #[arg(long)]
    json: bool,
    /// Duration of each of the four measurements, seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// How many busy loops; default: one per core
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    loops: Option<u16>,
    /// What is done after each wake-up, microseconds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    work_us: u32,
}

/// What was measured.
#[derive(Debug, Serialize)]
struct Results {
    cores: usize,
    loops: u16,
    work_us: u32,
    measurements: Vec<Lateness>,
}

/// How late one kind of wake-ups came.
#[derive(Debug, Serialize)]
struct Lateness {
    /// What woke: `timer` or `packet`.
    by: &'static str,
    /// Whether there were busy loops.
    busy: bool,
    /// How many wake-ups.
    count: usize,
    /// For each of [`QUANTILES`].
    late_us: [f64; QUANTILES.len()],
}

impl WakeupsArgs {
    /// Runs the bench.
    ///
    /// # Errors
    /// When the system gives no socket or poller.
    pub fn run(&self) -> anyhow::Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let loops = self.loops.unwrap_or(u16::try_from(cores).unwrap_or(u16::MAX));
        let mut results = Results { cores, loops, work_us: self.work_us, measurements: Vec::new() };
        for busy in [false, true] {
            let late = beside(if busy { loops } else { 0 }, || self.timers())?;
            results.measurements.push(Lateness::of("timer", busy, late));
            let late = beside(if busy { loops } else { 0 }, || self.packets())?;
            results.measurements.push(Lateness::of("packet", busy, late));
        }
        if self.json { out::json(&results) } else { Ok(out::line(results.render())?) }
    }

    fn end(&self) -> Instant {
        clock::now() + Duration::from_secs(self.seconds.into())
    }

    fn work(&self) {
        let done = clock::now() + Duration::from_micros(self.work_us.into());
        while clock::now() < done {
            spin_loop();
        }
    }

    fn timers(&self) -> anyhow::Result<Vec<Duration>> {
        let mut poller = Poller::new()?;
        let end = self.end();
        let mut late = Vec::new();
        while clock::now() < end {
            let sleep = sleep_of(late.len());
            let due = clock::now() + sleep;
            poller.wait(Some(sleep)).context("cannot wait")?;
            late.push(clock::now() - due);
            self.work();
        }
        Ok(late)
    }

    fn packets(&self) -> anyhow::Result<Vec<Duration>> {
        let socket = sockets::listening_on("127.0.0.1:0".parse()?)?;
        socket.set_nonblocking(true).context("cannot set a socket to nonblocking")?;
        let sending = sockets::sending_to(socket.local_addr().context("a socket has no address")?)?;
        let (end, over) = (self.end(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| send_times(&sending, &over));
            let late = self.receive_times(&socket, end);
            over.store(true, Ordering::Relaxed);
            late
        })
    }

    fn receive_times(&self, socket: &UdpSocket, end: Instant) -> anyhow::Result<Vec<Duration>> {
        let mut poller = Poller::new()?;
        poller.add(socket, Token(0), Interest::Read)?;
        let mut late = Vec::new();
        while clock::now() < end {
            poller.wait(Some(WAIT_MAX)).context("cannot wait")?;
            let now = clock::now();
            // The first has woken; the others came while it did.
            let mut first = None;
            let mut buffer = [0; 8];
            while socket.recv(&mut buffer).is_ok() {
                first.get_or_insert(Instant::from_nanos(u64::from_be_bytes(buffer)));
            }
            late.extend(first.map(|sent| now - sent));
            self.work();
        }
        Ok(late)
    }
}

impl Lateness {
    fn of(by: &'static str, busy: bool, mut late: Vec<Duration>) -> Self {
        late.sort_unstable();
        let at = |(share, _): (f64, &str)| {
            let rank = (late.len() as f64 * share).ceil() as usize;
            late.get(rank.saturating_sub(1)).map_or(0.0, |late| late.as_nanos() as f64 / 1e3)
        };
        Self { by, busy, count: late.len(), late_us: QUANTILES.map(at) }
    }
}

impl Results {
    fn render(&self) -> String {
        let mut shown = table::bare();
        let names = QUANTILES.iter().map(|(_, name)| (*name).to_owned());
        shown.set_header(["woken by", "beside"].map(str::to_owned).into_iter().chain(names));
        for measured in &self.measurements {
            let beside = match measured.busy {
                true => format!("{} busy loops", self.loops),
                false => "nothing".to_owned(),
            };
            let late = measured.late_us.iter().map(|late| format!("{late:.0}"));
            shown.add_row([measured.by.to_owned(), beside].into_iter().chain(late));
        }
        let text = table::right_aligned(shown, 2);
        format!(
            "{text}\nmicroseconds; {} cores, {} us of work after each wake-up",
            self.cores, self.work_us
        )
    }
}

/// Runs `measure` beside so many busy loops.
fn beside<T>(loops: u16, measure: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..loops {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
        }
        let measured = measure();
        over.store(true, Ordering::Relaxed);
        measured
    })
}

/// Sends the time at uneven intervals until it is over.
fn send_times(socket: &UdpSocket, over: &AtomicBool) {
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        clock::sleep_until(clock::now() + sleep_of(count));
        // One that is refused is one that wakes nobody.
        let _ = socket.send(&clock::now().as_nanos().to_be_bytes());
        count += 1;
    }
}

/// How long to sleep for the wake-up with this number: long and short ones take turns, so that none
/// falls into step with the machine.
fn sleep_of(number: usize) -> Duration {
    SLEEP_MIN + SLEEP_MIN * (number * 7 % 19) as u32 / 9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_ranks() {
        let late = (1..=1_000).rev().map(Duration::from_micros).collect();
        let told = Lateness::of("timer", false, late);
        assert_eq!(
            told.late_us,
            [500.0, 900.0, 950.0, 980.0, 990.0, 995.0, 999.0, 1_000.0, 1_000.0]
        );
        assert_eq!(Lateness::of("timer", false, Vec::new()).late_us, [0.0; 9]);
    }

    #[test]
    fn nobody_is_woken_early_and_everything_is_measured() {
        let args = WakeupsArgs { json: true, seconds: 1, loops: Some(1), work_us: 0 };
        assert!(args.timers().unwrap().len() > 10, "a thousand in a second, if nobody is late");
        let packets = beside(1, || args.packets()).unwrap();
        assert!(packets.len() > 10 && packets.iter().all(|late| *late > Duration::ZERO));
    }
}
