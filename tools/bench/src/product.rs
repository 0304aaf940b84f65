//! Finds `roadweave`, whose daemons the demo and the benches start.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, bail};
use roadweave_terminal::program::find;

/// The program `roadweave`, beside this one or in `PATH`; fails if missing or of another version.
pub fn program() -> anyhow::Result<PathBuf> {
    let program = find("roadweave").context(
        "cannot find the program roadweave beside this one or in PATH: install the package \
         roadweave, or build it with cargo build --package roadweave",
    )?;
    let output = Command::new(&program).arg("--version").output();
    let output = output.with_context(|| format!("cannot start {}", program.display()))?;
    let version = String::from_utf8_lossy(&output.stdout);
    let ours = concat!("roadweave ", env!("CARGO_PKG_VERSION"));
    // A package's program names its commit behind the version.
    if version.split(" (").next().map(str::trim) != Some(ours) {
        bail!(
            "{} is version {:?}, but this program is {ours:?}",
            program.display(),
            version.trim()
        );
    }
    Ok(program)
}
