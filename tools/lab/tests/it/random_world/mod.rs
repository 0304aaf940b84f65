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
//! A failure prints the plan; `ROADWEAVE_SEED=<seed> cargo test -p roadweave-lab --test
//! random_world` runs it alone, `ROADWEAVE_SEEDS=<count>` runs more of them, from `ROADWEAVE_FIRST`
//! on.

mod crowd;
mod ledger;
mod plan;
mod run;

use std::panic::catch_unwind;

use crate::dice;
use plan::Plan;

const SEEDS: u64 = 120;
/// The test ends after this many failures.
const FAILURES_MAX: usize = 3;

#[test]
fn invariants_hold_in_random_worlds() {
    let seeds = dice::seeds(SEEDS);
    let mut failed = Vec::new();
    let mut seen = run::Seen::default();
    for seed in seeds.clone() {
        match catch_unwind(|| run::run(&Plan::new(seed))) {
            Ok(Ok(outcome)) => seen.add(&outcome),
            Ok(Err(why)) => failed.push((seed, why)),
            Err(panic) => failed.push((seed, message(&*panic))),
        }
        if failed.len() >= FAILURES_MAX {
            break;
        }
    }
    for (seed, why) in &failed {
        let plan = Plan::new(*seed);
        eprintln!(
            "\n{plan:#?}\n{why}\n\
             ROADWEAVE_SEED={seed} cargo test -p roadweave-lab --test it random_world"
        );
    }
    let failed: Vec<u64> = failed.iter().map(|(seed, _)| *seed).collect();
    assert!(failed.is_empty(), "of the seeds {seeds:?} these failed first: {failed:?}");
    println!("{seen:#?}");
    if seeds.end - seeds.start >= SEEDS {
        seen.check();
    }
}

#[test]
fn invariants_hold_in_random_crowds() {
    let seeds = dice::seeds(SEEDS);
    let (mut vehicles_max, mut held_max) = (0, 0);
    for seed in seeds.clone() {
        let outcome = crowd::run(seed).unwrap_or_else(|why| {
            panic!(
                "{why}\nROADWEAVE_SEED={seed} cargo test -p roadweave-lab --test it random_world crowds"
            )
        });
        vehicles_max = outcome.vehicles.max(vehicles_max);
        held_max = outcome.held_max.max(held_max);
    }
    if seeds.end - seeds.start >= SEEDS {
        assert!(vehicles_max == 16 && held_max > 1 << 20, "{vehicles_max} {held_max}");
    }
}

#[test]
fn equal_seeds_give_equal_crowds() {
    for seed in 1_000_000..1_000_003 {
        assert_eq!(crowd::run(seed), crowd::run(seed));
    }
}

#[test]
fn equal_seeds_give_equal_worlds() {
    for seed in 1_000_000..1_000_008 {
        let plan = Plan::new(seed);
        let outcomes = [(); 2].map(|()| run::run(&plan));
        assert_eq!(outcomes[0], outcomes[1], "{plan:#?}");
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("it panicked: {}", text.unwrap_or("for an unknown reason"))
}
