//! The roadweave-web binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    roadweave_web::main()
}
