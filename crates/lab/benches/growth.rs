//! How the cost of a packet grows with paths, lanes, rate and loss: CPU time of client and server
//! in virtual time, and by that of the plain case in the same round.
//!
//! ```text
//! round: plain, 1 path, 4 paths .. 10 % loss ─► each case by the plain one ─► medians of all rounds
//! ```
//!
//! Each case has a tunnel of its own, which stays for all rounds. So that nobody takes a tunnel
//! that does not work for a cheap one, each round has to deliver its packets, and by the end each
//! path has to have carried some, and each lane its share.
//!
//! `cargo bench -p roadweave-lab --bench growth [-- ROUNDS] [FILE.svg]` prints a table, and draws
//! it.

#[path = "../../tunnel/benches/world/mod.rs"]
mod world;

use std::time::Duration;

use roadweave_lab::report::page;
use roadweave_lab::report::svg::{Anchor, Path, Scale, Svg};
use rustix::time::{ClockId, clock_gettime};
use world::{Counts, Plan, Tunnel};

/// Packets of a case in a round.
const PACKETS: u32 = 3_000;
/// Of these may be missing: lost, or not there yet.
const MISSING_MAX: u64 = 30;
const PACKET_BITS: f64 = 1_200.0 * 8.0;
const ROUNDS: usize = 31;
const PLAIN: Plan = Plan { strategy: "xnc", paths: 2, lanes: 1, loss: 0.0 };
const PLAIN_MBPS: f64 = 30.0;
const SIDES: [&str; 2] = ["client", "server"];

/// Cases that differ in one thing.
struct Axis {
    name: &'static str,
    /// The value of each, and its place among all cases.
    points: Vec<(f64, usize)>,
}

struct Case {
    plan: Plan,
    mbps: f64,
    tunnel: Tunnel,
    /// Before the first round.
    begin: Counts,
    /// By round: us of the client and of the server for each packet.
    costs: Vec<[f64; 2]>,
}

fn main() {
    let words = || std::env::args().skip(1);
    let rounds = words().find_map(|word| word.parse().ok()).unwrap_or(ROUNDS).max(1);
    let (mut cases, axes) = cases();
    for _ in 0..rounds {
        cases.iter_mut().for_each(Case::measure);
    }
    cases.iter().for_each(Case::check);
    print(&axes, &cases);
    if let Some(file) = words().find(|word| word.ends_with(".svg")) {
        std::fs::write(file, draw(&axes, &cases)).expect("the drawing can be written");
    }
}

/// The plain case first, then what is compared with it.
fn cases() -> (Vec<Case>, Vec<Axis>) {
    let mut cases = vec![Case::new(PLAIN, PLAIN_MBPS)];
    let mut axis = |name, values: &[f64], of: fn(f64) -> (Plan, f64)| {
        let point = |value: &f64| {
            let (plan, mbps) = of(*value);
            let known = cases.iter().position(|case| case.plan == plan && case.mbps == mbps);
            let place = known.unwrap_or_else(|| {
                cases.push(Case::new(plan, mbps));
                cases.len() - 1
            });
            (*value, place)
        };
        Axis { name, points: values.iter().map(point).collect() }
    };
    let axes = vec![
        axis("paths", &[1.0, 2.0, 4.0, 8.0], |paths| {
            (Plan { paths: paths as u32, ..PLAIN }, PLAIN_MBPS)
        }),
        axis("lanes", &[1.0, 4.0, 8.0], |lanes| (Plan { lanes: lanes as u8, ..PLAIN }, PLAIN_MBPS)),
        axis("Mbit/s", &[1.0, 3.0, 10.0, 30.0, 100.0, 300.0], |mbps| (PLAIN, mbps)),
        axis("loss, %", &[0.0, 1.0, 2.0, 5.0, 10.0], |percent| {
            (Plan { loss: percent / 100.0, ..PLAIN }, PLAIN_MBPS)
        }),
    ];
    (cases, axes)
}

impl Case {
    /// A tunnel that has carried as many packets as in a round.
    fn new(plan: Plan, mbps: f64) -> Self {
        let mut tunnel = Tunnel::of(plan);
        tunnel.clock = cpu_time;
        let mut case = Self { plan, mbps, begin: tunnel.counts(), tunnel, costs: Vec::new() };
        case.carry();
        case.begin = case.tunnel.counts();
        case
    }

    /// Carries the packets of a round.
    fn carry(&mut self) {
        let gap = Duration::from_secs_f64(PACKET_BITS / (self.mbps * 1e6));
        self.tunnel.pace(gap, gap * PACKETS);
    }

    fn measure(&mut self) {
        let before = self.tunnel.counts();
        self.carry();
        let after = self.tunnel.counts();
        let delivered = after.delivered - before.delivered;
        assert!(
            delivered.abs_diff(PACKETS.into()) <= MISSING_MAX,
            "{delivered} of {PACKETS} came, {} Mbit/s, {:?}",
            self.mbps,
            self.plan
        );
        self.costs.push([0, 1].map(|side| {
            (after.busy[side] - before.busy[side]).as_secs_f64() * 1e6 / delivered as f64
        }));
    }

    /// Whether all paths and lanes have been in use.
    fn check(&self) {
        let status = self.tunnel.status();
        let used = status.paths.iter().filter(|path| path.counters.datagrams_sent > 0).count();
        assert_eq!(used, self.plan.paths as usize, "paths in use, {:?}", self.plan);
        let lanes = status.stats.lanes.iter().map(|lane| lane.sent.inner_packets);
        let (least, most) = (lanes.clone().min(), lanes.clone().max());
        assert_eq!(lanes.len(), usize::from(self.plan.lanes));
        assert!(most <= least.map(|least| least + 1), "{least:?} to {most:?} in a lane");
    }

    /// Us of the client and of the server for each packet.
    fn cost(&self) -> [f64; 2] {
        [0, 1].map(|side| median(self.costs.iter().map(|cost| cost[side])))
    }

    /// By the cost of the `plain` case in the same round.
    fn by(&self, plain: &Self) -> [f64; 2] {
        let rounds = || self.costs.iter().zip(&plain.costs);
        [0, 1].map(|side| median(rounds().map(|(cost, plain)| cost[side] / plain[side])))
    }

    /// How often something has happened in all rounds, for each packet.
    fn each(&self, of: fn(&Counts) -> [u64; 2]) -> [f64; 2] {
        let end = self.tunnel.counts();
        let packets = (end.delivered - self.begin.delivered) as f64;
        [0, 1].map(|side| (of(&end)[side] - of(&self.begin)[side]) as f64 / packets)
    }
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// As Markdown; each cell has the client's figure and the server's.
fn print(axes: &[Axis], cases: &[Case]) {
    println!("| client, server | us | by the plain case | turns | datagrams |");
    println!("|---|---|---|---|---|");
    for axis in axes {
        for (value, place) in &axis.points {
            let case = &cases[*place];
            let ([client, server], by) = (case.cost(), case.by(&cases[0]));
            let (turns, datagrams) = (case.each(|it| it.turns), case.each(|it| it.datagrams));
            print!("| {}: {value} | {client:.1}, {server:.1} |", axis.name);
            let pairs = [by, turns, datagrams];
            pairs.iter().for_each(|[client, server]| print!(" {client:.2}, {server:.2} |"));
            println!();
        }
    }
}

/// A panel for each axis with a line for each side, as a file of its own.
fn draw(axes: &[Axis], cases: &[Case]) -> String {
    let ratios = |(_, place): &(f64, usize)| cases[*place].by(&cases[0]);
    let label = "CPU time for a packet, by that of the plain case: 2 paths, one lane, 30 Mbit/s \
                 and no loss";
    let mut svg = Svg::new((960.0, 310.0), label);
    let most = axes.iter().flat_map(|axis| &axis.points).flat_map(ratios).fold(1.0, f64::max);
    let y = Scale { values: (0.0, most * 1.05), places: (250.0, 30.0) };
    for (number, axis) in axes.iter().enumerate() {
        let left = 40.0 + 235.0 * number as f64;
        svg.text((left, 18.0), Anchor::Start, axis.name);
        for tick in y.ticks(6) {
            svg.line("grid", (left, y.at(tick)), (left + 200.0, y.at(tick)));
            svg.text((left - 6.0, y.at(tick) + 4.5), Anchor::End, &format!("{tick}"));
        }
        let last = axis.points.len() - 1;
        let x = Scale { values: (0.0, last as f64), places: (left + 14.0, left + 186.0) };
        for (index, (value, _)) in axis.points.iter().enumerate() {
            svg.text((x.at(index as f64), 270.0), Anchor::Middle, &format!("{value}"));
        }
        for side in [0, 1] {
            let class = page::strategy_class(side);
            let ratios: Vec<f64> = axis.points.iter().map(|point| ratios(point)[side]).collect();
            let at = |index: usize| (x.at(index as f64), y.at(ratios[index]));
            let mut line = Path::from(at(0));
            (1..=last).for_each(|index| line.line_to(at(index)));
            svg.path(&format!("line {class}"), &line);
            for (index, ratio) in ratios.iter().enumerate() {
                svg.dot(&format!("area {class}"), at(index), 3.0, &format!("{ratio:.2}"));
            }
        }
    }
    for (side, name) in SIDES.into_iter().enumerate() {
        let left = 40.0 + 100.0 * side as f64;
        let class = format!("line {}", page::strategy_class(side));
        svg.line(&class, (left, 296.0), (left + 20.0, 296.0));
        svg.text((left + 26.0, 300.5), Anchor::Start, name);
    }
    svg.text((260.0, 300.5), Anchor::Start, label);
    page::standalone(&svg.finish())
}
