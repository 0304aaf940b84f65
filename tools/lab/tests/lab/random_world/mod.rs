//! The invariants of the tunnel in random worlds: links that lose, reorder and stop, uplinks that
//! appear and disappear, a server that restarts, a network that forges packets, every strategy, all
//! kinds of traffic.
//!
//! ```text
//! seed ─► Plan ─► World ─► every packet: once, unchanged, where it may come out, in order
//!                    ├──► every 20 ms: queues and paths within their bounds
//!                    └──► at the end: everything flows again, every packet is accounted for
//! ```
//!
//! A failure prints the plan; `ROADWEAVE_SEED=<seed> cargo test -p roadweave-lab --test lab
//! random_world` runs it alone, `ROADWEAVE_SEEDS=<count>` runs more of them, from `ROADWEAVE_FIRST`
//! on.

mod ledger;
mod many_clients;
mod plan;
mod run;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::dice;
use plan::Plan;

const SEEDS: u64 = 120;

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

fn run_all<O>(seeds: Range<u64>, run: impl Fn(u64) -> Result<O, String>) -> Vec<O> {
    let replay = |seed: u64, why: &str| {
        eprintln!(
            "\n{why}\nROADWEAVE_SEED={seed} cargo test -p roadweave-lab --test lab random_world"
        );
    };
    let run = |seed| match catch_unwind(AssertUnwindSafe(|| run(seed))) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(why)) => {
            replay(seed, &why);
            panic!("seed {seed} broke an invariant")
        }
        Err(panic) => {
            replay(seed, "it panicked");
            resume_unwind(panic)
        }
    };
    seeds.map(run).collect()
}

#[test]
fn invariants_hold_in_random_worlds() {
    let seeds = dice::seeds(SEEDS);
    let mut all = run::Outcome::default();
    for outcome in run_all(seeds.clone(), |seed| run::run(&Plan::new(seed))) {
        all.add(&outcome);
    }
    println!("{all:#?}");
    if seeds.end - seeds.start >= SEEDS {
        all.check(seeds.end - seeds.start);
    }
}

#[test]
fn invariants_hold_in_random_crowds() {
    let seeds = dice::seeds(SEEDS);
    let (mut vehicles_max, mut held_max) = (0, 0);
    for outcome in run_all(seeds.clone(), many_clients::run) {
        vehicles_max = outcome.vehicles.max(vehicles_max);
        held_max = outcome.held_max.max(held_max);
    }
    if seeds.end - seeds.start >= SEEDS {
        assert!(vehicles_max == 16 && held_max > 1 << 20, "{vehicles_max} {held_max}");
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    for seed in 1_000_000..1_000_003 {
        assert_eq!(many_clients::run(seed), many_clients::run(seed));
    }
    for seed in 1_000_000..1_000_008 {
        let plan = Plan::new(seed);
        let outcomes = [(); 2].map(|()| run::run(&plan));
        assert_eq!(outcomes[0], outcomes[1], "{plan:#?}");
    }
}
