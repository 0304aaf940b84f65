//! Where the product is: `roadweave`, whose daemons the demo and the benches start.

use std::path::PathBuf;

use anyhow::Context as _;
use roadweave_terminal::program::find;

/// The program `roadweave`, beside this one or in `PATH`.
///
/// # Errors
/// When it is in neither place.
pub fn program() -> anyhow::Result<PathBuf> {
    find("roadweave").context(
        "cannot find the program roadweave, neither beside this one nor in PATH: install the \
         package roadweave, or build it with cargo build --package roadweave",
    )
}
