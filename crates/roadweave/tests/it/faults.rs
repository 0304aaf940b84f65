//! Each test that docs/faults.md names must exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

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
    let source =
        "#[test]\nfn one() {}\nfn two() {}\n#[test]\n#[ignore = \"slow\"]\nfn three() {}\n";
    let found = ["one", "two", "three", "on"].map(|name| is_test(source, name));
    assert_eq!(found, [true, false, false, false]);
    check("Faults, and their tests", 55);
    check("Attackers, and their tests", 50);
}

fn check(section: &str, least: usize) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/faults.md")).unwrap();
    let text = page.split("\n## ").find_map(|it| it.strip_prefix(section)).expect("a section");
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.contains("| held by |"));
    let (mut faults, mut sources) = (BTreeSet::new(), BTreeMap::new());
    for row in rows {
        let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let [fault, follows, held_by] = cells[..] else { panic!("three cells: {row}") };
        assert!(faults.insert((fault, follows)), "{section} has a row twice: {row}");
        let (mut file, mut tests) = ("", 0);
        for name in held_by.split('`').skip(1).step_by(2) {
            if name.ends_with(".rs") {
                file = name;
                continue;
            }
            let source = sources.entry(file).or_insert_with(|| {
                let is_product = root.join("crates").join(file).exists();
                let path = root.join(if is_product { "crates" } else { "tools" }).join(file);
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"))
            });
            assert!(is_test(source, name), "{section} names what is no test: {file}: {name}");
            tests += 1;
        }
        assert!(tests > 0, "no test: {row}");
    }
    assert!(faults.len() >= least, "{} cases", faults.len());
}
