//! How many files there are, whose, and what becomes of records that cannot be written.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use tempfile::TempDir;

use super::*;

const AT: Duration = Duration::from_secs(1);

fn open(folder: &TempDir, bytes_max: u64, files_max: usize) -> Files {
    Files::open(folder.path(), TraceLimits { bytes_max, files_max }).unwrap()
}

fn begin(files: &mut Files, now: Duration, ms: u128) -> Option<TracePart> {
    files.begin(now, 1_790_000_000_000 + ms, "bus", b"12345")
}

fn names(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = entries.map(name).collect();
    names.sort();
    names
}

#[test]
fn a_full_file_takes_no_more_and_the_oldest_one_goes() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    let mut files = open(&folder, LAST + 10, 2);
    let mut first = begin(&mut files, AT, 0).unwrap();
    assert!(files.append(AT, &mut first, b"67890"));
    assert!(!files.append(AT, &mut first, b"x"));
    assert!(files.append_last(AT, &mut first, b"end"));
    files.end(first);
    let second = begin(&mut files, AT, 1).unwrap();
    files.end(second);
    let third = begin(&mut files, AT, 2).unwrap();
    let expected = [
        "notes.txt",
        "roadweave-1790000000001-000002-bus.sqlog",
        "roadweave-1790000000002-000003-bus.sqlog",
    ];
    assert_eq!(names(&folder), expected);
    let fourth = begin(&mut files, AT, 3).unwrap();
    assert_eq!(names(&folder)[1], "roadweave-1790000000002-000003-bus.sqlog");
    assert!(begin(&mut files, AT, 4).is_none());
    assert_eq!((names(&folder).len(), files.lost()), (3, 1));
    files.end(third);
    files.end(fourth);
}

#[test]
fn what_an_earlier_run_left_counts_and_nothing_else_goes() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("roadweave-1700000000000-000001-bus.sqlog"), "old").unwrap();
    fs::write(path("roadweave-notes.sqlog"), "").unwrap();
    fs::create_dir(path("roadweave-1000000000000-000001-bus.sqlog")).unwrap();
    symlink(path("notes"), path("roadweave-1000000000000-000002-bus.sqlog")).unwrap();
    let mut files = open(&folder, 10_000, 1);
    begin(&mut files, AT, 0).unwrap();
    let expected = [
        "roadweave-1000000000000-000001-bus.sqlog",
        "roadweave-1000000000000-000002-bus.sqlog",
        "roadweave-1790000000000-000001-bus.sqlog",
        "roadweave-notes.sqlog",
    ];
    assert_eq!(names(&folder), expected);
}

#[test]
fn a_file_is_for_its_user_alone_and_no_link_leads_it_elsewhere() {
    let folder = TempDir::new().unwrap();
    let mut files = open(&folder, 10_000, 8);
    begin(&mut files, AT, 0).unwrap();
    let file = folder.path().join("roadweave-1790000000000-000001-bus.sqlog");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    let victim = folder.path().join("victim");
    fs::write(&victim, "whole").unwrap();
    symlink(&victim, folder.path().join("roadweave-1790000000000-000002-bus.sqlog")).unwrap();
    assert!(begin(&mut files, AT, 0).is_none());
    assert_eq!(fs::read(&victim).unwrap(), b"whole");
}

#[test]
fn a_peers_name_chooses_no_place() {
    let check = |peer: &str, expected: &str| {
        let folder = TempDir::new().unwrap();
        let mut files = open(&folder, 10_000, 8);
        files.begin(AT, 1_790_000_000_000, peer, b"a").unwrap();
        let name = format!("roadweave-1790000000000-000001-{expected}.sqlog");
        assert_eq!(names(&folder), [name]);
    };
    check("../../etc/cron.d/x", ".._.._etc_cron.d_x");
    check("/absolute", "_absolute");
    check("a\0b\n\u{1b}[2J\u{202e}", "a_b___2J_");
    check("198.51.100.1:4433", "198.51.100.1_4433");
    check("", "");
    check(&"x".repeat(300), &"x".repeat(40));
    check(&"ä".repeat(300), &"_".repeat(40));
}

#[test]
fn a_folder_that_others_could_have_chosen_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let check = |name: &str, why: &str| {
        let limits = TraceLimits { bytes_max: 10_000, files_max: 8 };
        let error = Files::open(&path(name), limits).map(|_| ()).unwrap_err();
        assert!(error.contains(why), "{error}");
    };
    fs::create_dir(path("wide")).unwrap();
    fs::set_permissions(path("wide"), fs::Permissions::from_mode(0o777)).unwrap();
    check("wide", "users other than root");
    if geteuid().is_root() {
        fs::create_dir(path("foreign")).unwrap();
        chown(path("foreign"), Some(65_534), Some(65_534)).unwrap();
        check("foreign", "users other than root");
    }
    let first = open(&folder, 10_000, 8);
    check("", "another `roadweave qlog` writes to");
    drop(first);
    open(&folder, 10_000, 8);
}

#[test]
fn what_cannot_be_written_is_logged_once_counted_and_tried_again() {
    let folder = TempDir::new().unwrap();
    let mut files = open(&folder, LAST + 10_000, 8);
    let mut part = begin(&mut files, AT, 0).unwrap();
    // A read-only descriptor stands for a full disk.
    let path = folder.path().join("roadweave-1790000000000-000001-bus.sqlog");
    part.file = File::open(&path).unwrap();
    assert!(!files.append(AT, &mut part, b"lost"));
    files.end(part);
    assert!(begin(&mut files, AT + RETRY / 2, 500).is_none());
    let said: Vec<_> = files.notices().collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("cannot write /") && said[0].contains("Bad file"), "{said:?}");
    fs::remove_file(&path).unwrap();
    fs::remove_dir(folder.path()).unwrap();
    assert!(begin(&mut files, AT + RETRY, 1_000).is_none());
    assert_eq!((files.notices().count(), files.lost()), (0, 2));
}

#[test]
fn after_a_failure_there_is_a_word_when_it_works_again() {
    let folder = TempDir::new().unwrap();
    let mut files = open(&folder, 10_000, 8);
    let taken = folder.path().join("roadweave-1790000000000-000001-bus.sqlog");
    fs::create_dir(taken).unwrap();
    assert!(begin(&mut files, AT, 0).is_none());
    assert!(begin(&mut files, AT + RETRY, 1_000).is_some());
    let said: Vec<_> = files.notices().collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[1].contains("again; 1 readings are missing"), "{said:?}");
}
