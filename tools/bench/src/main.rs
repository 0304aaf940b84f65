//! The roadweave-lab binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    roadweave_bench::main()
}
