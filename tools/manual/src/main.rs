//! The roadweave-manual binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    roadweave_manual::main()
}
