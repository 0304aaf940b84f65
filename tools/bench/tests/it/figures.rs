//! `scripts/figures.sh`, which `make figures` runs: its runs, output, and results of a failure.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::{PROGRAM, said};

fn figures(lab: &Path, folder: &Path, words: &str) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/figures.sh");
    let mut command = Command::new(script);
    let command = command.arg("--lab").arg(lab).arg("--out").arg(folder.join("figures"));
    command.args(words.split_whitespace()).env_remove("ROADWEAVE_LOG").output().unwrap()
}

fn pretended_lab(folder: &Path) -> std::path::PathBuf {
    let lab = folder.join("lab");
    let text = "#!/bin/sh\ncase \"$*\" in\n*pluribus*) echo half; echo broken pipe organ >&2; exit 3;;\nesac\n\
                echo \"{\\\"words\\\": \\\"$*\\\"}\"\n";
    fs::write(&lab, text).unwrap();
    fs::set_permissions(&lab, fs::Permissions::from_mode(0o755)).unwrap();
    lab
}

#[test]
fn a_failed_figure_is_reported_and_hides_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let lab = pretended_lab(folder.path());
    let old = folder.path().join("figures/cellfusion-12.json");
    fs::create_dir_all(old.parent().unwrap()).unwrap();
    fs::write(&old, "of yesterday").unwrap();
    let output = figures(&lab, folder.path(), "--quick");
    let (printed, errors) = (said(&output.stdout), said(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{printed}{errors}");
    assert!(printed.contains("cellfusion-12 FAILED, exit code 3: broken pipe organ"), "{printed}");
    assert!(errors.ends_with("figures: failed: cellfusion-12\n"), "{errors}");
    assert!(!old.exists(), "an old result is no result");
    assert!(printed.contains("cellfusion-theorem left out"), "{printed}");
    // A line for each figure, and a file for each success.
    assert_eq!(printed.lines().count(), 15, "{printed}");
    let drawn = printed.lines().filter(|line| line.contains(" in ")).count();
    let files = fs::read_dir(folder.path().join("figures")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!((drawn, names.filter(|name| name.ends_with(".json")).count()), (12, 12));
}

#[test]
fn wrong_arguments_are_reported_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let lab = pretended_lab(folder.path());
    for (words, part) in [
        ("xlink-99", "unknown figure xlink-99; there are cellfusion-9"),
        ("--fast", "unknown option --fast"),
        ("--drives", "--drives needs a value"),
        ("--drives nowhere", "--drives nowhere: no directory"),
        ("--pairs nowhere", "--pairs nowhere: no directory"),
    ] {
        let output = figures(&lab, folder.path(), words);
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert!(said(&output.stderr).contains(part), "{words}: {}", said(&output.stderr));
        assert!(!folder.path().join("figures").exists(), "{words}");
    }
}

#[test]
fn a_figure_is_drawn_from_drives_made_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let output = figures(Path::new(PROGRAM), folder.path(), "--quick lola-3");
    assert!(output.status.success(), "{}{}", said(&output.stdout), said(&output.stderr));
    let file = fs::read(folder.path().join("figures/lola-3.json")).unwrap();
    assert!(serde_json::from_slice::<serde_json::Value>(&file).unwrap().is_object());
    assert!(folder.path().join("figures/drives/drive-002/verizon.csv").exists());
}
