//! Validates a status against docs/show.schema.json; tests of other crates use it as well.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Violations of the schema. `None` without validator; panics if `ROADWEAVE_REQUIRE_TOOLS`.
pub fn otherwise(documents: &[&Value]) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // Debian's Python, even if there are others: it has the package.
    let mut python = Command::new("/usr/bin/python3")
        .arg(root.join("scripts/schema.py"))
        .arg(root.join("docs/show.schema.json"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| skip(&format!("python3: {error}")))
        .ok()?;
    let mut input = python.stdin.take().expect("it is piped");
    let _ = documents.iter().try_for_each(|document| writeln!(input, "{document}"));
    drop(input);
    let output = python.wait_with_output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(0 | 1) => Some(said),
        Some(3) => {
            skip(&said);
            None
        }
        _ => panic!("scripts/schema.py: {said}"),
    }
}

/// Panics if tools are required.
pub fn skip(why: &str) {
    assert!(std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_none(), "{why}");
    eprintln!("skipped: {why}");
}
