//! The roadweave binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    roadweave_cli::main()
}
