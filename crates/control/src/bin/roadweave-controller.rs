//! The roadweave-controller binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    roadweave_control::controller::main()
}
