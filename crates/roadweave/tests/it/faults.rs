//! Each test that docs/faults.md and docs/threats.md name must exist.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A row: the fault or the attacker, the consequence or the limit, and the tests as files and
/// functions.
struct Case<'a> {
    fault: [&'a str; 2],
    tests: Vec<(&'a str, &'a str)>,
}

/// The rows of all tables. The last cell names files, and functions in them.
fn cases(page: &str) -> Vec<Case<'_>> {
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.contains("| held by |"));
    let case = |row| {
        let cells: Vec<&str> = str::trim_matches(row, ['|', ' ']).split(" | ").collect();
        let [fault, follows, held_by] = cells[..] else { panic!("three cells: {row}") };
        let (mut file, mut tests) = ("", Vec::new());
        for name in held_by.split('`').skip(1).step_by(2) {
            match name.ends_with(".rs") {
                true => file = name,
                false => tests.push((file, name)),
            }
        }
        assert!(!tests.is_empty(), "no test: {row}");
        Case { fault: [fault, follows], tests }
    };
    rows.map(case).collect()
}

/// Whether a function is a test that is not ignored.
fn is_test(source: &str, name: &str) -> bool {
    let head = format!("fn {name}(");
    let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
    let at = lines.iter().position(|line| line.trim_start_matches("async ").starts_with(&head));
    let attributes = |at| lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
    at.is_some_and(|at| {
        let is_run = attributes(at).all(|line| !line.starts_with("#[ignore"));
        is_run && attributes(at).any(|line| *line == "#[test]" || line.starts_with("#[tokio::test"))
    })
}

#[test]
fn every_fault_and_promise_is_held_by_a_test_that_is_there() {
    check("docs/faults.md", 55);
    check("docs/threats.md", 50);
}

fn check(page: &str, least: usize) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join(page)).unwrap();
    let cases = cases(&text);
    assert!(cases.len() >= least, "{} cases", cases.len());
    let mut sources = BTreeMap::new();
    let mut missing = Vec::new();
    for (file, name) in cases.iter().flat_map(|case| &case.tests) {
        let source = sources.entry(file).or_insert_with(|| {
            let folder = if root.join("crates").join(file).exists() { "crates" } else { "tools" };
            let path = root.join(folder).join(file);
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"))
        });
        if !is_test(source, name) {
            missing.push(format!("{file}: {name}"));
        }
    }
    assert!(missing.is_empty(), "{page} names what is no test: {missing:#?}");
    let mut faults: Vec<[&str; 2]> = cases.iter().map(|case| case.fault).collect();
    faults.sort_unstable();
    faults.dedup();
    assert_eq!(faults.len(), cases.len(), "a fault is there twice");
}

#[test]
fn a_function_that_is_no_test_is_found_out() {
    let source = "#[test]\nfn one() {}\nfn two() {}\n#[test]\n#[ignore = \"slow\"]\nfn three() {}\n\
                  mod m {\n    #[tokio::test]\n    async fn four() {}\n}\n";
    assert_eq!(
        ["one", "two", "three", "four", "on"].map(|name| is_test(source, name)),
        [true, false, false, true, false]
    );
    let page = "| what fails | what must happen | held by |\n|---|---|---|\n\
                | a | b | `x/tests.rs` `one`, `two`, `y.rs` `three` |\n";
    assert_eq!(
        cases(page)[0].tests,
        [("x/tests.rs", "one"), ("x/tests.rs", "two"), ("y.rs", "three")]
    );
}
