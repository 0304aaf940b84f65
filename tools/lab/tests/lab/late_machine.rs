//! A machine that wakes late costs `xnc` next to nothing: time spent waiting for the wake-up is
//! neither network queueing nor loss.
//!
//! Means of several seeds, since one more packet before an outage changes its coding by half.

use std::time::Duration;

use crate::world::{World, WorldConfig, link, packet_up, plan};
use roadweave_emulate::{Direction, Drive, Operator};
use roadweave_lab::compare::Measured;
use roadweave_lab::run::run;
use roadweave_lab::scenario::Scenario;
use roadweave_lab::world::Machine;
use roadweave_proto::Rate;
use roadweave_tunnel::Strategy;

/// Synthetic drives on which 30 Mbit/s need several links, and the links suffice.
const DRIVES: [u64; 3] = [3, 10, 19];
const SEEDS: [u64; 2] = [1, 2];
const SECONDS: u32 = 12;
/// Limit of the relative increase of the p99 delay.
const P99_MORE: f64 = 0.15;
/// Limit of the increase of redundancy, as a share of the stream; higher on a crowded machine,
/// where the feedback timer is late too.
const REDUNDANCY_MORE: [(Machine, f64); 3] =
    [(Machine::Idle, 0.01), (Machine::Busy, 0.01), (Machine::Crowded, 0.02)];

#[derive(Debug, Default)]
struct Means {
    p99_ms: f64,
    redundancy: f64,
}

fn means(machine: Machine) -> Means {
    let mut means = Means::default();
    let runs = (DRIVES.len() * SEEDS.len()) as f64;
    for drive in DRIVES {
        let length = Duration::from_secs(u64::from(SECONDS) + 2);
        let links = Drive::synthetic(drive, &Operator::ALL, length);
        for seed in SEEDS {
            let (strategy, rate) = (Strategy::xnc(), Rate::from_kbps(30_000));
            let scenario = Scenario::of_drive("late", &links, strategy, rate, SECONDS, seed);
            let outcome = run(&Scenario { machine, ..scenario }).expect("drives make worlds");
            let figures = Measured::new(&outcome).figures;
            means.p99_ms += figures.delay_ms.p99 / runs;
            means.redundancy += figures.redundancy / runs;
            println!("{machine} {drive} {seed}: {} {}", figures.delay_ms.p99, figures.redundancy);
        }
    }
    means
}

#[test]
fn a_machine_that_wakes_late_costs_xnc_next_to_nothing() {
    let punctual = means(Machine::Punctual);
    for (machine, more) in REDUNDANCY_MORE {
        let late = means(machine);
        println!("{machine}: {late:?}, punctual: {punctual:?}");
        assert!(late.p99_ms <= punctual.p99_ms * (1.0 + P99_MORE), "{machine}");
        assert!(late.redundancy <= punctual.redundancy + more, "{machine}");
    }
}

#[test]
fn what_lay_there_together_is_not_answered_one_by_one() {
    let links = vec![link(100, 20), link(100, 30)];
    let mut world = World::joined(WorldConfig { machine: Machine::Crowded, ..plan("xnc", links) });
    let answers = |world: &World| {
        (0..2).map(|link| world.link_stats(link, Direction::Down).pushed).sum::<u64>()
    };
    let (begin, before) = (world.now(), answers(&world));
    for number in 0..5_000_u64 {
        world.run_until(begin + Duration::from_micros(200 * number));
        world.send_up(&packet_up(number, 36));
    }
    let answered = answers(&world) - before;
    assert!(answered <= 1_100, "{answered} answers in a second");
}
