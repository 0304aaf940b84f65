//! The roadweave-fleet binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    roadweave_control::operator::main()
}
