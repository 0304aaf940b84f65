//! Recordings as a user works with them: statistics, drawings, conversions and synthetic drives.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use roadweave_emulate::{Capacity, Drive, Unknown, read_mahimahi, read_trace};
use serde_json::Value;
use tempfile::TempDir;

fn trace(folder: &Path, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave-lab"));
    let command = command.current_dir(folder).arg("trace").args(words.split_whitespace());
    command.env_remove("ROADWEAVE_LOG").output().unwrap()
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn printed(folder: &Path, words: &str) -> String {
    let output = trace(folder, words);
    assert!(output.status.success(), "{words}: {}", said(&output.stderr));
    said(&output.stdout)
}

#[track_caller]
fn json(folder: &Path, words: &str) -> Value {
    serde_json::from_str(&printed(folder, &format!("{words} --json"))).unwrap()
}

/// Checks that the program refuses the arguments with all `parts`, and prints nothing else.
#[track_caller]
fn check_refused(folder: &Path, words: &str, parts: &[&str]) {
    let output = trace(folder, words);
    let errors = said(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{words}: {errors}");
    for part in parts {
        assert!(errors.contains(part), "{words}: {part:?} is not in:\n{errors}");
    }
    assert_eq!(said(&output.stdout), "", "{words}");
}

/// A folder with a drive of two links, and several broken recordings.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    // 8 Mbit/s; 0.8 from 10 to 12 s with a round trip of 250 ms; all lost from 15 to 16 s.
    let lte = "t_ms,capacity_kbps,rtt_ms,loss\n0,8000,50,0\n10000,800,250,\n12000,8000,50,\n\
               15000,,,1\n16000,,,0\n18000,,,\n";
    write("drive/lte.csv", lte);
    // 12 Mbit/s down in opportunities, 24 up, 10 ms each way.
    let opportunities = |bytes: u32| {
        let rows = (1..=20_000).map(|ms| format!("{ms},{bytes},\n")).collect::<String>();
        format!("t_ms,bytes,delay_ms\n0,,10\n{rows}")
    };
    write("drive/wifi.csv", &opportunities(3_000));
    write("drive/wifi.down.csv", &opportunities(1_500));
    write("drive/notes.txt", "neither a link nor a mistake");
    write("broken/att.csv", "t_ms,capacity_kbps\n0,8000\n100,fast\n");
    write("broken.up", "3\n2\n");
    write("nothing/notes.txt", "");
    folder
}

#[test]
fn info_tells_what_links_are_like_alone_and_together() {
    let folder = folder();
    let told = json(folder.path(), "info drive");
    assert_eq!(told["bitrate_bps"], 30_000_000);
    let drive = &told["recordings"][0];
    assert_eq!((&drive["name"], &drive["seconds"]), (&"drive".into(), &20.0.into()));
    assert_eq!(drive["class"], "starved");
    let [lte, wifi] = &drive["links"].as_array().unwrap()[..] else { panic!("{drive:#}") };
    assert_eq!((&lte["name"], &wifi["name"]), (&"lte".into(), &"wifi".into()));
    assert_eq!(lte.get("down"), None, "it was not recorded");
    let up = &lte["up"];
    assert_eq!(up["capacity_bps"]["p50"], 8e6);
    assert_eq!(up["dips"]["per_minute"], 3.0);
    assert_eq!(up["dips"]["seconds"]["max"], 2.0);
    assert_eq!(up["loss"]["share"], 0.05);
    assert_eq!(up["loss"]["burst_probes"], 5.0);
    assert_eq!(lte["round_trip"]["rtt_ms"]["max"], 250.0);
    assert_eq!(lte["round_trip"]["spikes_per_minute"], 3.0);
    assert_eq!(wifi["up"]["capacity_bps"]["mean"], 24e6);
    assert_eq!(wifi["down"]["capacity_bps"]["p5"], 12e6);
    assert_eq!(wifi["round_trip"]["rtt_ms"]["p50"], 20.0);
    assert_eq!(drive["pairs"][0]["links"], serde_json::json!(["lte", "wifi"]));
    assert_eq!(drive["pairs"][0]["both_low"], 0.0);
    assert_eq!(told["all"]["up"]["seconds"], 40.0);
    assert_eq!(json(folder.path(), "info drive --bitrate 8M")["recordings"][0]["class"], "easy");

    let table = printed(folder.path(), "info drive");
    for part in
        ["dips/min", "8.00", "24.0", "down", "250", "5.00", "starved", "at 30 Mbit/s", "all"]
    {
        assert!(table.contains(part), "{part} is not in:\n{table}");
    }
}

#[test]
fn info_takes_files_parts_and_directories_of_drives() {
    let folder = folder();
    let file = json(folder.path(), "info drive/wifi.down.csv --from 5 --seconds 2.5");
    let link = &file["recordings"][0]["links"][0];
    assert_eq!((&link["name"], link.get("up")), (&"wifi".into(), None));
    assert_eq!((&link["down"]["seconds"], file.get("all")), (&2.5.into(), None));
    // A list of drives is not a link.
    fs::remove_dir_all(folder.path().join("broken")).unwrap();
    fs::write(folder.path().join("INDEX.csv"), "drive,class\n").unwrap();
    fs::create_dir(folder.path().join("other")).unwrap();
    fs::write(folder.path().join("other/a.up"), "1\n2\n").unwrap();
    let drives = json(folder.path(), "info .");
    let names: Vec<&Value> =
        drives["recordings"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["drive", "other"]);
    let table = printed(folder.path(), "info .");
    assert!(table.contains("drive/lte") && table.contains("other"), "{table}");
}

#[test]
fn mistakes_are_told_with_their_place_and_cure() {
    let folder = folder();
    let check = |words: &str, parts: &[&str]| check_refused(folder.path(), words, parts);
    for command in ["info", "plot", "convert --out x"] {
        check(&format!("{command} broken"), &["broken/att.csv:3:5", "`fast`", "number of kbit/s"]);
        check(&format!("{command} broken.up"), &["broken.up:2:1", "times never descend"]);
        check(&format!("{command} nowhere"), &["nowhere: No such file"]);
        check(&format!("{command} nothing"), &["nothing: no link here", "NAME.csv"]);
        check(&format!("{command} drive --seconds 0"), &["--seconds", "such as 90"]);
    }
    assert!(!folder.path().join("x").exists(), "nothing is left of what failed");
    check("info drive --bitrate fast", &["--bitrate", "such as 8M; 30 alone is 30M"]);
    check("convert drive", &["--out: a directory is needed"]);
    check("convert drive/lte.csv --out a.csv --to mahimahi", &["another ending than .csv"]);
    check("convert drive/lte.csv --out a.up --to rates", &["the ending .csv"]);
    check("convert drive/lte.csv drive/lte.csv --out x", &["both are link lte, up"]);
    // A file of some bytes that would become terabytes.
    let years = folder.path().join("years.csv");
    fs::write(years, "t_ms,capacity_kbps\n0,8000\n1000000000000,8\n").unwrap();
    check("convert years.csv --to mahimahi", &["million delivery opportunities", "--seconds"]);
    check("convert years.csv --to bytes", &["steps are too many", "--step"]);
    check("convert drive --out drive", &["--out drive: not empty", "--force"]);
    check("generate --out drive", &["--out drive: not empty", "--force"]);
    check("generate --set --out drive", &["--out drive: not empty", "--force"]);
    check("generate --set --out x --operators att", &["--set", "cannot be used with"]);
    check("generate --set --out x --drives 0", &["--drives", "1..=10000"]);
    check("generate --set --out x --seed many", &["--seed", "invalid digit"]);
    check(
        "generate --set --out drive/notes.txt/x",
        &["--out drive/notes.txt/x", "Not a directory"],
    );
    check("generate --out x --operators att,o3", &["o3", "att, verizon, tmobile, lte"]);
    check("plot drive --out broken.up", &["broken.up: exists already", "--force"]);
}

#[test]
fn a_plot_is_one_file_and_the_same_each_time() {
    let folder = folder();
    printed(folder.path(), "plot drive --out a.html");
    printed(folder.path(), "plot drive --out b.html");
    let [page, again] =
        ["a.html", "b.html"].map(|it| fs::read_to_string(folder.path().join(it)).unwrap());
    assert!(page == again);
    for part in [
        "Recording drive",
        "starved",
        "lte: loss, %",
        "wifi down: capacity",
        "wifi: round trip, ms",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("wifi up: loss"), "there is none");
    printed(folder.path(), "plot drive/lte.csv --from 9 --seconds 4 --out part.svg");
    let drawing = fs::read_to_string(folder.path().join("part.svg")).unwrap();
    assert!(drawing.starts_with("<svg xmlns=") && drawing.contains("lte: capacity"), "{drawing}");
    for text in [page, drawing] {
        let outside = text.replace("http://www.w3.org/2000/svg", "");
        for part in ["http", "<script", "NaN", "inf"] {
            assert!(!outside.contains(part), "{part}");
        }
    }
    // Only --force overwrites a file.
    check_refused(folder.path(), "plot drive --out a.html", &["a.html: exists already"]);
    printed(folder.path(), "plot drive --out a.html --force");
}

#[test]
fn a_recording_survives_mahimahis_format_but_for_delay_and_loss() {
    let folder = folder();
    let output = trace(folder.path(), "convert drive/lte.csv --out lte.up");
    assert!(said(&output.stderr).contains("Delay and loss are left out"), "{output:?}");
    let lines = read_mahimahi(&folder.path().join("lte.up")).unwrap();
    assert_eq!(lines.period(), Duration::from_secs(20));
    let original = read_trace(&folder.path().join("drive/lte.csv"), Unknown::default()).unwrap();
    let bytes = |rate: u64| rate as f64 / 8.0 * 20.0;
    let lost = lines.bytes() as f64 - bytes(original.capacity().mean_rate().as_bps());
    assert!((0.0..=1_500.0).contains(&lost), "{lost}");

    printed(folder.path(), "convert lte.up --out back.csv --to rates --step 500 --rtt 60");
    let back = read_trace(&folder.path().join("back.csv"), Unknown::default()).unwrap();
    assert_eq!(back.delay().at(Duration::ZERO), Duration::from_millis(30));
    let Capacity::Rates(rates) = &**back.capacity() else { panic!("rates were asked for") };
    for (at, kbps) in [(3, 8_000.0), (11, 800.0), (15, 8_000.0)] {
        let found = rates.at(Duration::from_secs(at)).as_bps() as f64 / 1e3;
        assert!((found - kbps).abs() <= 48.0, "{found} at {at} s instead of {kbps}");
    }
}

#[test]
fn a_drive_is_converted_with_both_ways_and_all_that_it_says() {
    let folder = folder();
    printed(folder.path(), "convert drive --out bytes --to bytes");
    let [whole, bytes] = ["drive", "bytes"].map(|it| Drive::read(&folder.path().join(it)).unwrap());
    assert_eq!(whole.links.len(), bytes.links.len());
    for (one, other) in whole.links.iter().zip(&bytes.links) {
        assert_eq!((&one.name, one.up.delay()), (&other.name, other.up.delay()));
        assert_eq!(
            one.up.loss().at(Duration::from_secs(15)),
            other.up.loss().at(Duration::from_secs(15))
        );
        assert_eq!(one.up.capacity().mean_rate(), other.up.capacity().mean_rate());
        assert_eq!(one.down.capacity().mean_rate(), other.down.capacity().mean_rate());
    }
    assert!(!folder.path().join("bytes/lte.down.csv").exists(), "it was not recorded");
    // A part has the same length for all links.
    printed(folder.path(), "convert drive --out mm --to mahimahi --from 9 --seconds 5");
    let names = ["lte.up", "wifi.down", "wifi.up"];
    let mut files: Vec<_> =
        fs::read_dir(folder.path().join("mm")).unwrap().map(|it| it.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, names);
    for name in names {
        let lines = read_mahimahi(&folder.path().join("mm").join(name)).unwrap();
        assert_eq!(lines.period(), Duration::from_secs(5), "{name}");
    }
}

#[test]
fn one_file_goes_to_standard_output_in_even_steps() {
    let folder = folder();
    let text = printed(folder.path(), "convert drive/lte.csv --from 11 --seconds 3 --step 500");
    let expected = "t_ms,capacity_kbps,delay_ms,loss\n0,800,125,0\n1000,8000,25,\n2000,,,\n";
    assert_eq!(text, expected);
    let text = printed(folder.path(), "convert drive/wifi.down.csv --seconds 0.004 --step 2");
    assert_eq!(text, "t_ms,bytes,delay_ms,loss\n0,,10,0\n2,3000,,\n4,3000,,\n");
}

#[test]
fn equal_seeds_generate_equal_bytes_that_read_as_a_drive() {
    let folder = tempfile::tempdir().unwrap();
    let words = "--seed 5 --seconds 20 --operators lte,att,lte";
    let told = json(folder.path(), &format!("generate --out a {words}"));
    printed(folder.path(), &format!("generate --out b {words}"));
    printed(folder.path(), "generate --out c --seed 6 --seconds 20");
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    for name in ["lte.csv", "att.csv", "lte-2.csv"] {
        assert!(read(&format!("a/{name}")) == read(&format!("b/{name}")), "{name}");
    }
    assert!(read("a/lte.csv") != read("a/lte-2.csv") && read("a/att.csv") != read("c/att.csv"));
    let drive = Drive::read(&folder.path().join("a")).unwrap();
    let names: Vec<&str> = drive.links.iter().map(|link| link.name.as_str()).collect();
    assert_eq!(
        (names, drive.length()),
        (vec!["att", "lte", "lte-2"], Some(Duration::from_secs(20)))
    );
    // The files say the same.
    let mut looked = json(folder.path(), "info a");
    let by_name = |told: &Value, name: &str| -> Value {
        let links = told["recordings"][0]["links"].as_array().unwrap();
        links.iter().find(|link| link["name"] == name).unwrap().clone()
    };
    for name in ["att", "lte", "lte-2"] {
        assert_eq!(by_name(&told, name), by_name(&looked, name));
    }
    assert!(looked["recordings"][0]["class"].take().is_string());
}

#[test]
fn several_drives_have_a_seed_each() {
    let folder = tempfile::tempdir().unwrap();
    printed(folder.path(), "generate --out many --drives 3 --seed 9 --seconds 5 --operators lte");
    printed(folder.path(), "generate --out one --seed 10 --seconds 5 --operators lte");
    let names = json(folder.path(), "info many");
    let names: Vec<&Value> =
        names["recordings"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["drive-009", "drive-010", "drive-011"]);
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert!(read("many/drive-010/lte.csv") == read("one/lte.csv"));
    assert!(read("many/drive-009/lte.csv") != read("one/lte.csv"));
}

#[test]
fn a_set_has_the_classes_of_the_recorded_drives_and_is_the_same_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let told = printed(folder.path(), "generate --set --out a");
    let told_again = printed(folder.path(), "generate --set --seed 1 --out b");
    assert_eq!(told, told_again);
    printed(folder.path(), "generate --set --seed 2 --drives 2 --out c");
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    for drive in ["drive-000", "drive-058"] {
        for link in ["att", "lte", "tmobile", "verizon"] {
            let file = format!("{drive}/{link}.csv");
            assert!(read(&format!("a/{file}")) == read(&format!("b/{file}")), "{file}");
        }
    }
    let links = |name: &str| Drive::read(&folder.path().join(name)).unwrap();
    assert!(links("a/drive-000") != links("c/drive-000"));

    // The files say the same. The recorded drives are 7 easy, 36 decisive, 8 tight, 8 starved.
    let info = json(folder.path(), "info a");
    let drives = info["recordings"].as_array().unwrap();
    assert_eq!(drives.len(), 59);
    let count = |class: &str| drives.iter().filter(|drive| drive["class"] == class).count();
    let counts = ["easy", "decisive", "tight", "starved"].map(count);
    let [easy, decisive, tight, starved] = counts;
    let expected = format!(
        "59 drives; at 30 Mbit/s {easy} easy, {decisive} decisive, {tight} tight, {starved} starved\n"
    );
    assert_eq!(told, expected);
    assert!((1..=9).contains(&easy), "{counts:?}");
    assert!((30..=42).contains(&decisive), "{counts:?}");
    assert!((4..=14).contains(&tight), "{counts:?}");
    assert!((4..=12).contains(&starved), "{counts:?}");
}

#[test]
fn a_full_disk_is_told_with_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let drive = folder.path().join("full/drive-001");
    fs::create_dir_all(&drive).unwrap();
    std::os::unix::fs::symlink("/dev/full", drive.join("lte.csv")).unwrap();
    let output = trace(folder.path(), "generate --set --drives 3 --seconds 5 --force --out full");
    let errors = said(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("full/drive-001/lte.csv"), "{errors}");
    assert!(errors.contains("No space left"), "{errors}");
    assert_eq!(said(&output.stdout), "");
}
