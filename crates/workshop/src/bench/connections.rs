//! `roadweave bench connections`: TCP connections as streams by the thousand, and what they cost
//! each end.
//!
//! ```text
//!   so many a second ─► as fast as it goes ─► many that stay open ─► some that read what they can
//!                                             all closed: nothing may be left at either end
//! ```
//!
//! Boxes and server are the product, as processes; applications and the host that they call are
//! this one. All share the cores of this machine.

mod load;
mod site;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use roadweave_device::netns::Sandbox;
use roadweave_terminal::exit::{self, BadInput};
use roadweave_terminal::out;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

pub use self::load::HostArgs;
use self::load::{Shorts, bulk, hold, shorts};
use self::site::{BOXES_MAX, OPEN_MAX, Site};
use crate::sandbox::usage::{Usage, resident_bytes};
use crate::sandbox::{clock, exit_when_told};

/// For so long the first connection is tried.
const FIRST_MAX: Duration = Duration::from_secs(15);
/// After the last connection nothing may be left for longer.
const ALL_OVER: Duration = Duration::from_secs(30);
/// How often both ends are asked.
const POLL: Duration = Duration::from_millis(100);
/// Of connections as fast as it goes, memory is told after this part of them first.
const FIRST_PART: u64 = 10;
/// A server gives two thirds of what it may open to connections.
const CONNECTIONS_PART: [u64; 2] = [2, 3];
/// Descriptors of each process, beside those of the connections.
const DESCRIPTORS: u64 = 500;

/// Measures TCP connections as streams: how many a second, how many open, how fast, and whether
/// anything is left of them
#[derive(Debug, clap::Args)]
pub struct ConnectionsArgs {
    /// Print the figures as one JSON object
    #[arg(long)]
    json: bool,
    /// Boxes that the connections come by, each a client of the server
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=BOXES_MAX as i64))]
    boxes: u8,
    /// New connections in a second
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// How long these begin, and how long is read at the end
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Connections one after the other as fast as it goes, besides
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    total: u64,
    /// Connections that are open at a time
    #[arg(long, default_value_t = 10_000)]
    open: usize,
    /// Connections that read as fast as they can
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    readers: u8,
}

/// Figures of the server, and of all boxes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Ends<T> {
    boxes: T,
    server: T,
}

/// What short connections came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct ShortFigures {
    /// Those that went well, by the second.
    per_second: f64,
    /// Those that went well.
    succeeded: u64,
    /// Those that came to nothing, by why.
    failures: BTreeMap<String, u64>,
    /// From when they were due to their end, milliseconds.
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    /// CPU time for each, microseconds.
    cpu_us_each: Ends<f64>,
}

/// What the connections came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Results {
    paced: ShortFigures,
    fastest: ShortFigures,
    /// Memory after a tenth of those as fast as it goes, and after all.
    memory_bytes: [Ends<u64>; 2],
    open: usize,
    memory_bytes_each_open: Ends<f64>,
    /// How long it took until nothing was left of them.
    closed_after_seconds: f64,
    readers: u8,
    goodput_bps: f64,
    cpu_percent: Ends<f64>,
}

impl ConnectionsArgs {
    /// Runs the bench.
    ///
    /// # Errors
    /// When something is missing, with the cure, a part fails, with what it said, or a connection
    /// is left at an end.
    pub fn run(&self) -> anyhow::Result<()> {
        let most = OPEN_MAX * usize::from(self.boxes);
        if !(1..=most).contains(&self.open) {
            let message = format!("--open: 1 to {most}, {OPEN_MAX} for each of --boxes");
            return Err(BadInput::new(message).into());
        }
        match Sandbox::enter()? {
            Sandbox::Ended(code) => exit::now(code),
            Sandbox::Inside => {
                exit_when_told()?;
                allow_descriptors(self.open)?;
                let results = self.measure()?;
                if self.json { out::json(&results) } else { Ok(out::line(render(&results))?) }
            }
        }
    }

    fn measure(&self) -> anyhow::Result<Results> {
        let mut site = Site::build(self.boxes.into())?;
        wait_for_all(&mut site)?;
        site.begin_host()?;
        let mut results = Results { open: self.open, readers: self.readers, ..Results::default() };

        out::note(format_args!("{} connections a second", self.rate));
        let interval = Duration::from_secs(1) / self.rate;
        let count = u64::from(self.rate) * u64::from(self.seconds);
        results.paced = measure_shorts(&site, count, Some(interval))?;

        out::note(format_args!("{} connections as fast as it goes", self.total));
        let first = self.total / FIRST_PART;
        measure_shorts(&site, first, None)?;
        results.memory_bytes[0] = memory(&site)?;
        results.fastest = measure_shorts(&site, self.total - first, None)?;
        results.memory_bytes[1] = memory(&site)?;
        wait_until_over(&mut site)?;

        out::note(format_args!("{} connections that stay open", self.open));
        let before = memory(&site)?;
        let held = hold(&site.boxes, self.open)?;
        let after = memory(&site)?;
        let (at_server, at_boxes) = site.open()?;
        if at_server.min(at_boxes) < self.open as u64 {
            bail!(
                "{} are held, {at_server} are open at the server, {at_boxes} at boxes",
                self.open
            );
        }
        let each = |after: u64, before: u64| after.saturating_sub(before) as f64 / self.open as f64;
        results.memory_bytes_each_open = Ends {
            boxes: each(after.boxes, before.boxes),
            server: each(after.server, before.server),
        };
        let begin = clock::now();
        drop(held);
        site.begin_host()?;
        wait_until_over(&mut site)?;
        results.closed_after_seconds = (clock::now() - begin).as_secs_f64();

        out::note(format_args!("{} connections read", self.readers));
        let (begin, before) = (clock::now(), usage(&site)?);
        let time = Duration::from_secs(self.seconds.into());
        results.goodput_bps = bulk(&site.boxes, self.readers.into(), time)?;
        let (spent, after) = ((clock::now() - begin).as_secs_f64(), usage(&site)?);
        let percent = |now: Duration, then: Duration| (now - then).as_secs_f64() / spent * 100.0;
        results.cpu_percent = Ends {
            boxes: percent(after.boxes, before.boxes),
            server: percent(after.server, before.server),
        };
        site.check_running()?;
        wait_until_over(&mut site)?;
        site.stop()?;
        Ok(results)
    }
}

/// Lets this process, and those that it starts, open as much as `open` connections need.
///
/// # Errors
/// When the system lets nobody open so much.
fn allow_descriptors(open: usize) -> anyhow::Result<()> {
    let [part, of] = CONNECTIONS_PART;
    let count = (open as u64 * of).div_ceil(part) + DESCRIPTORS;
    let limit = getrlimit(Resource::Nofile);
    // Who may raises the highest limit as well.
    let maximum = limit.maximum.map(|most| most.max(count));
    let current = limit.current.map(|now| now.max(count));
    if setrlimit(Resource::Nofile, Rlimit { current, maximum }).is_err() {
        let most = limit.maximum.unwrap_or_default();
        let fewer = most.saturating_sub(DESCRIPTORS) * part / of;
        bail!(
            "a program may open {most} files here, and {open} connections need {count}; raise that \
             with ulimit -Hn {count} as root, or try --open {fewer}"
        );
    }
    Ok(())
}

/// Waits until each box connects to the host.
fn wait_for_all(site: &mut Site) -> anyhow::Result<()> {
    let deadline = clock::now() + FIRST_MAX;
    for number in 0..site.boxes.len() {
        while let Err(error) = hold(&site.boxes[number..=number], 1) {
            site.check_running()?;
            if clock::now() > deadline {
                let words = site.boxes[number].client.last_words();
                bail!("no connection after {} s: {error}{words}", FIRST_MAX.as_secs());
            }
            clock::sleep_until(clock::now() + POLL);
        }
    }
    Ok(())
}

/// Waits until no end has a connection left.
fn wait_until_over(site: &mut Site) -> anyhow::Result<()> {
    let deadline = clock::now() + ALL_OVER;
    loop {
        site.check_running()?;
        let (server, boxes) = site.open()?;
        if server + boxes == 0 {
            return Ok(());
        }
        if clock::now() > deadline {
            let seconds = ALL_OVER.as_secs();
            bail!("{seconds} s after their end {server} are left at the server, {boxes} at boxes");
        }
        clock::sleep_until(clock::now() + POLL);
    }
}

fn measure_shorts(
    site: &Site,
    count: u64,
    interval: Option<Duration>,
) -> anyhow::Result<ShortFigures> {
    let before = usage(site)?;
    let Shorts { times, failures, time } = shorts(&site.boxes, count, interval)?;
    let after = usage(site)?;
    let at = |percent: usize| {
        let rank = (times.len() * percent).div_ceil(100);
        times.get(rank.saturating_sub(1)).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    let each =
        |now: Duration, then: Duration| (now - then).as_secs_f64() * 1e6 / count.max(1) as f64;
    Ok(ShortFigures {
        per_second: times.len() as f64 / time.as_secs_f64(),
        succeeded: times.len() as u64,
        p50_ms: at(50),
        p99_ms: at(99),
        max_ms: at(100),
        failures,
        cpu_us_each: Ends {
            boxes: each(after.boxes, before.boxes),
            server: each(after.server, before.server),
        },
    })
}

fn usage(site: &Site) -> anyhow::Result<Ends<Duration>> {
    let mut boxes = Duration::ZERO;
    for one in &site.boxes {
        boxes += Usage::of(one.client.id())?.cpu;
    }
    Ok(Ends { boxes, server: Usage::of(site.server.id())?.cpu })
}

fn memory(site: &Site) -> anyhow::Result<Ends<u64>> {
    let mut boxes = 0;
    for one in &site.boxes {
        boxes += resident_bytes(one.client.id())?;
    }
    Ok(Ends { boxes, server: resident_bytes(site.server.id())? })
}

fn render(results: &Results) -> String {
    let Results { paced, fastest, memory_bytes: [first, last], .. } = results;
    let short = |what: &str, of: &ShortFigures| {
        let failed: u64 = of.failures.values().sum();
        let mut text = format!(
            "{what}: {:.0} a second, {failed} of {} failed; {:.1} ms p50, {:.1} p99, {:.1} at most; \
             {:.0} us CPU for each at the boxes, {:.0} at the server\n",
            of.per_second,
            of.succeeded + failed,
            of.p50_ms,
            of.p99_ms,
            of.max_ms,
            of.cpu_us_each.boxes,
            of.cpu_us_each.server,
        );
        for (why, count) in &of.failures {
            text += &format!("  {count} x {why}\n");
        }
        text
    };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut text = short("paced", paced) + &short("as fast as it goes", fastest);
    text += &format!(
        "  memory after a tenth of them and after all: boxes {:.1} and {:.1} MiB, server {:.1} and \
         {:.1} MiB\n",
        mib(first.boxes),
        mib(last.boxes),
        mib(first.server),
        mib(last.server),
    );
    text += &format!(
        "{} open: {:.1} kB for each at the boxes, {:.1} kB at the server; nothing left of them after \
         {:.1} s\n",
        results.open,
        results.memory_bytes_each_open.boxes / 1e3,
        results.memory_bytes_each_open.server / 1e3,
        results.closed_after_seconds,
    );
    text += &format!(
        "{} that read: {:.0} Mbit/s; CPU {:.0} % at the boxes, {:.0} % at the server",
        results.readers,
        results.goodput_bps / 1e6,
        results.cpu_percent.boxes,
        results.cpu_percent.server,
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_with_their_reason() {
        let failures = BTreeMap::from([("the box answers 0 and 5".to_owned(), 3)]);
        let paced = ShortFigures { succeeded: 7, failures, ..ShortFigures::default() };
        let text = render(&Results { paced, ..Results::default() });
        assert!(text.contains("3 of 10 failed"), "{text}");
        assert!(text.contains("3 x the box answers 0 and 5"), "{text}");
    }
}
