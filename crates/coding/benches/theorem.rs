//! Tests theorem 4.1 of CellFusion with many trials, and prints a table.
//!
//! ```text
//! cargo bench --package roadweave-coding --bench theorem [-- --trials 1000000]
//! ```
//!
//! Decoding needs rank n and nothing else (`tests/reference.rs` checks that of the decoder). So
//! this bench only draws seeds as the sender does, makes the rows of coefficients and follows their
//! rank. `tests/theorem.rs` runs encoder and decoder.
//!
//! A million trials take 90 s. The exit code is 1 if a share of failures contradicts the theorem.

#[path = "../tests/it/theorem/law.rs"]
mod law;

use std::process::ExitCode;

use law::{COUNTS, EXTRA_MAX, Tally, failure_max, failure_min, failure_with_zeros};
use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;
use roadweave_coding::kernel::Kernel;
use roadweave_coding::{coefficients, gf256};

fn main() -> ExitCode {
    let trials = match trials(std::env::args().skip(1)) {
        Ok(trials) => trials,
        Err(usage) => {
            eprintln!("{usage}");
            return ExitCode::from(2);
        }
    };
    let cells = (COUNTS.count() + 1) * (EXTRA_MAX + 1);
    let mut generator = Pcg64Mcg::new(41);
    let (mut all, mut deviations) = (Tally::default(), Vec::new());
    println!(
        "Share of {trials} trials per n in which n + k coded packets did not decode n packets"
    );
    print_row("n", |extra| format!("k = {extra}"));
    for count in COUNTS {
        let mut tally = Tally::default();
        for _ in 0..trials {
            tally.count(extra_needed(count, || generator.next_u32()));
        }
        print_row(&count.to_string(), |extra| share(&tally, extra));
        deviations.extend(tally.deviations(cells).into_iter().map(|d| format!("n = {count}, {d}")));
        all.add(&tally);
    }
    deviations.extend(all.deviations(cells).into_iter().map(|d| format!("all n, {d}")));
    print_row("all", |extra| share(&all, extra));
    print_row("theorem, at most", |extra| format!("{:.4e}", failure_max(extra)));
    print_row("at least", |extra| format!("{:.4e}", failure_min(extra)));
    print_row("zeros allowed, n = 32", |extra| format!("{:.4e}", failure_with_zeros(32, extra)));
    if deviations.is_empty() {
        println!("The theorem holds.");
        return ExitCode::SUCCESS;
    }
    println!("The theorem does not hold:\n{}", deviations.join("\n"));
    ExitCode::FAILURE
}

fn print_row(name: &str, cell: impl Fn(usize) -> String) {
    let cells: String = (0..=EXTRA_MAX).map(|extra| format!("{:>13}", cell(extra))).collect();
    println!("{name:>22}{cells}");
}

/// The share of trials that failed, as a fraction when they are few.
fn share(tally: &Tally, extra: usize) -> String {
    match tally.failures[extra] {
        0 => "0".into(),
        few @ 1..10 => format!("{few}/{}", tally.trials),
        many => format!("{:.4e}", many as f64 / tally.trials as f64),
    }
}

/// The rows of coefficients beyond `count` that it takes to reach rank `count`.
fn extra_needed(count: usize, mut seeds: impl FnMut() -> u32) -> Option<usize> {
    let kernel = Kernel::fastest();
    // By pivot; a row is zero before its pivot and one there.
    let mut rows = [[0; COUNT_MAX]; COUNT_MAX];
    let mut rank = 0;
    for sent in 1..=count + EXTRA_MAX {
        let mut new = [0; COUNT_MAX];
        let new = &mut new[..count];
        coefficients::fill(seeds(), new);
        for pivot in 0..count {
            let factor = new[pivot];
            if factor == 0 {
                continue;
            }
            if rows[pivot][pivot] == 0 {
                kernel.mul_add(&mut rows[pivot][pivot..], gf256::invert(factor), &new[pivot..]);
                rank += 1;
                break;
            }
            kernel.mul_add(&mut new[pivot..], factor, &rows[pivot][pivot..count]);
        }
        if rank == count {
            return Some(sent - count);
        }
    }
    None
}

/// The value of `--trials`; cargo adds `--bench`.
fn trials(mut arguments: impl Iterator<Item = String>) -> Result<u64, String> {
    let mut trials = 1_000_000;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => {}
            "--trials" => {
                let value = arguments.next().unwrap_or_default();
                trials = value.parse().map_err(|_| format!("`{value}` is no number of trials"))?;
            }
            other => return Err(format!("`{other}` is not known; there is --trials NUMBER")),
        }
    }
    Ok(trials)
}

const COUNT_MAX: usize = *COUNTS.end();
