//! The roadweave-admin binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    roadweave_admin::main()
}
