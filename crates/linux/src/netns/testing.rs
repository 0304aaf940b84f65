//! Tests that need namespaces: each runs again, alone, inside its own sandbox.

use std::fmt::Display;
use std::io::Write;
use std::net::UdpSocket;
use std::process::Stdio;
use std::thread::{current, sleep, spawn};
use std::time::Duration;

use super::{CableEnd, NetNs, Sandbox, Watch};
use crate::DeviceError;

/// The timeout of waits that are not measured: the machine may be slow and busy.
pub const WAIT_MAX: Duration = Duration::from_secs(20);

/// Runs `test` inside a fresh sandbox; call it on the thread of a `#[test]` function.
///
/// ```no_run
/// # use roadweave_linux::netns::run_sandboxed;
/// // #[test]
/// fn two_namespaces_see_each_other() {
///     run_sandboxed(|| { /* NetNs::create ... */ });
/// }
/// ```
///
/// Without a sandbox it prints `skipped: NAME: WHY`, uncaptured, and returns; with
/// `ROADWEAVE_REQUIRE_SANDBOX` in the environment it panics. Panics if the test fails.
pub fn run_sandboxed(test: impl FnOnce()) {
    let name = test_name();
    let arguments = ["--exact", &name, "--nocapture", "--include-ignored", "--test-threads=1"];
    let arguments = arguments.iter().map(Into::into).collect();
    match Sandbox::enter_with(arguments, Stdio::null()) {
        Ok(Sandbox::Inside) => test(),
        // With one thread the harness runs tests in its own, which is called "main".
        Ok(Sandbox::Ended(0)) => assert_ne!(name, "main", "run tests by more than one thread"),
        Ok(Sandbox::Ended(code)) => panic!("{name} failed inside its sandbox, exit code {code}"),
        Err(why) => skip(&why),
    }
}

/// Whether a sandbox is available; otherwise skips or panics as [`run_sandboxed`] does.
pub fn sandbox_is_there() -> bool {
    Sandbox::probe().inspect_err(skip).is_ok()
}

/// Waits for `holds`, at most [`WAIT_MAX`]; then panics with `what`.
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    wait_within(WAIT_MAX, what, holds);
}

/// Waits for `holds`, at most `limit`; then panics with `what`.
pub fn wait_within(limit: Duration, what: &str, holds: impl FnMut() -> bool) {
    wait_or_show(limit, || what, holds);
}

/// Waits for `holds`, at most `limit`; then panics with `state`.
pub fn wait_or_show<S: Display>(
    limit: Duration,
    state: impl Fn() -> S,
    mut holds: impl FnMut() -> bool,
) {
    let watch = Watch::start();
    while !holds() {
        assert!(watch.elapsed() < limit, "waited in vain for {limit:?}: {}", state());
        sleep(Duration::from_millis(20));
    }
}

/// Connects two namespaces by a cable between these interfaces. Panics on a failure.
pub fn cable(left: (&NetNs, &str, &[&str]), right: (&NetNs, &str, &[&str])) {
    let parse = |text: &&str| text.parse().expect("an address with its prefix");
    let addresses = [left.2, right.2].map(|texts| texts.iter().map(parse).collect::<Vec<_>>());
    NetNs::connect(
        &CableEnd { namespace: left.0, interface: left.1, addresses: &addresses[0] },
        &CableEnd { namespace: right.0, interface: right.1, addresses: &addresses[1] },
    )
    .expect("a cable");
}

/// Returns each packet that `socket` receives to its sender, by a thread, until it cannot be read.
pub fn echo(socket: UdpSocket) {
    spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
}

/// The harness names the thread of a test by the test's path.
fn test_name() -> String {
    current().name().expect("the thread of a test").to_owned()
}

fn skip(why: &DeviceError) {
    let (name, required) = (test_name(), std::env::var_os("ROADWEAVE_REQUIRE_SANDBOX").is_some());
    assert!(!required, "{name} cannot run: {why}");
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}
