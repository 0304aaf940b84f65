//! Tests that need namespaces: each runs again alone inside a sandbox of its own.

use std::io::Write;
use std::process::Stdio;

use super::Sandbox;
use crate::DeviceError;

/// Runs `test` inside a fresh sandbox; call it from a `#[test]` function with that function's path.
///
/// ```no_run
/// # use roadweave_device::netns::run_sandboxed;
/// // #[test]
/// fn two_namespaces_see_each_other() {
///     run_sandboxed("two_namespaces_see_each_other", || { /* NetNs::create ... */ });
/// }
/// ```
///
/// Where a sandbox cannot be had, it prints `skipped: NAME: WHY` past the test harness's capture
/// and returns. With `ROADWEAVE_REQUIRE_SANDBOX` set in the environment it panics instead.
///
/// # Panics
/// When the test fails inside.
pub fn run_sandboxed(name: &str, test: impl FnOnce()) {
    let arguments = ["--exact", name, "--nocapture", "--include-ignored", "--test-threads=1"];
    let arguments = arguments.iter().map(Into::into).collect();
    match Sandbox::enter_with(arguments, Stdio::null()) {
        Ok(Sandbox::Inside) => test(),
        Ok(Sandbox::Ended(0)) => {}
        Ok(Sandbox::Ended(code)) => panic!("{name} failed inside its sandbox, exit code {code}"),
        Err(why) => skip(name, &why),
    }
}

/// Whether a sandbox can be had here, for the test `name` that starts a program which enters one.
/// Where it cannot, it says so as [`run_sandboxed`] does.
///
/// # Panics
/// When there must be one, and is none.
pub fn sandbox_is_there(name: &str) -> bool {
    match Sandbox::probe() {
        Ok(()) => true,
        Err(why) => {
            skip(name, &why);
            false
        }
    }
}

fn skip(name: &str, why: &DeviceError) {
    let required = std::env::var_os("ROADWEAVE_REQUIRE_SANDBOX").is_some();
    assert!(!required, "{name} cannot run: {why}");
    // A write to the stream itself is not captured.
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}
