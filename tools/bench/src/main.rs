//! The roadweave-lab binary: what is beside the product, to try it and to find out.

use std::process::ExitCode;

fn main() -> ExitCode {
    roadweave_bench::main()
}
