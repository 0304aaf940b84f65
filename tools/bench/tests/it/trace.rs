//! Recordings as a user works with them: statistics, drawings, conversions and synthetic drives.

use std::fs;
use std::time::Duration;

use roadweave_emulate::{Drive, Trace, read_mahimahi};
use serde_json::Value;
use tempfile::TempDir;

use crate::golden::assert_golden;
use crate::{check_refused, json, printed, run, said, write};

fn names(info: &Value) -> Vec<&str> {
    let recordings = info["recordings"].as_array().unwrap();
    recordings.iter().map(|it| it["name"].as_str().unwrap()).collect()
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| write(folder.path(), name, text);
    // 8 Mbit/s; 0.8 from 10 to 12 s with a round trip of 250 ms; total loss from 15 to 16 s.
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
fn info_describes_links_alone_and_together() {
    let folder = folder();
    assert_golden("trace-info.txt", &printed(folder.path(), "trace info drive"));
    let report = json(folder.path(), "trace info drive");
    assert_eq!(report["bitrate_bps"], 30_000_000);
    let drive = &report["recordings"][0];
    assert_eq!((&drive["name"], &drive["class"]), (&"drive".into(), &"starved".into()));
    let [lte, wifi] = &drive["links"].as_array().unwrap()[..] else { panic!("{drive:#}") };
    assert_eq!(lte.get("down"), None, "it was not recorded");
    assert_eq!(lte["up"]["dips"]["seconds"]["max"], 2.0);
    assert_eq!(lte["up"]["loss"]["burst_probes"], 5.0);
    assert_eq!(lte["round_trip"]["spikes_per_minute"], 3.0);
    assert_eq!(wifi["down"]["capacity_bps"]["p5"], 12e6);
    assert_eq!(drive["pairs"][0]["links"], serde_json::json!(["lte", "wifi"]));
    assert_eq!(drive["pairs"][0]["both_low"], 0.0);
    assert_eq!(report["all"]["up"]["seconds"], 40.0);
    let easy = json(folder.path(), "trace info drive --bitrate 8M");
    assert_eq!(easy["recordings"][0]["class"], "easy");
}

#[test]
fn info_takes_files_parts_and_directories_of_drives() {
    let folder = folder();
    let file = json(folder.path(), "trace info drive/wifi.down.csv --from 5 --seconds 2.5");
    let link = &file["recordings"][0]["links"][0];
    assert_eq!((&link["name"], link.get("up")), (&"wifi".into(), None));
    assert_eq!((&link["down"]["seconds"], file.get("all")), (&2.5.into(), None));
    // A list of drives is not a link.
    fs::remove_dir_all(folder.path().join("broken")).unwrap();
    write(folder.path(), "INDEX.csv", "drive,class\n");
    write(folder.path(), "other/a.up", "1\n2\n");
    assert_eq!(names(&json(folder.path(), "trace info .")), ["drive", "other"]);
    let table = printed(folder.path(), "trace info .");
    assert!(table.contains("drive/lte") && table.contains("other"), "{table}");
}

#[test]
fn mistakes_are_reported_with_place_and_remedy() {
    let folder = folder();
    // It would become a file of terabytes.
    write(folder.path(), "years.csv", "t_ms,capacity_kbps\n0,8000\n1000000000000,8\n");
    let mut lines = Vec::new();
    for command in ["info", "plot", "convert --out x"] {
        for wrong in ["broken", "broken.up", "nowhere", "nothing", "drive --seconds 0"] {
            lines.push(format!("trace {command} {wrong}"));
        }
    }
    let more = [
        "info drive --bitrate fast",
        "convert drive",
        "convert drive/lte.csv --out a.csv --to mahimahi",
        "convert drive/lte.csv --out a.up --to rates",
        "convert drive/lte.csv drive/lte.csv --out x",
        "convert years.csv --to mahimahi",
        "convert years.csv --to bytes",
        "convert drive --out drive",
        "generate --out drive",
        "generate --set --out drive",
        "generate --set --out x --operators att",
        "generate --set --out x --drives 0",
        "generate --set --out x --seed many",
        "generate --set --out drive/notes.txt/x",
        "generate --out x --operators att,o3",
        "plot drive --out broken.up",
    ];
    lines.extend(more.map(|words| format!("trace {words}")));
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    check_refused("refused-trace.txt", folder.path(), &lines);
    assert!(!folder.path().join("x").exists(), "nothing is left of what failed");
}

#[test]
fn a_plot_is_one_file_and_the_same_each_time() {
    let folder = folder();
    printed(folder.path(), "trace plot drive --out a.html");
    printed(folder.path(), "trace plot drive --out b.html");
    let [page, again] =
        ["a.html", "b.html"].map(|it| fs::read_to_string(folder.path().join(it)).unwrap());
    assert!(page == again);
    let parts = [
        "Recording drive",
        "starved",
        "lte: loss, %",
        "wifi down: capacity",
        "wifi: round trip, ms",
    ];
    for part in parts {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("wifi up: loss"), "there is none");
    printed(folder.path(), "trace plot drive/lte.csv --from 9 --seconds 4 --out part.svg");
    let drawing = fs::read_to_string(folder.path().join("part.svg")).unwrap();
    assert!(drawing.starts_with("<svg xmlns=") && drawing.contains("lte: capacity"), "{drawing}");
    for text in [page, drawing] {
        let outside = text.replace("http://www.w3.org/2000/svg", "");
        for part in ["http", "<script", "NaN", "inf"] {
            assert!(!outside.contains(part), "{part}");
        }
    }
    printed(folder.path(), "trace plot drive --out a.html --force");
}

#[test]
fn a_recording_survives_mahimahis_format_but_for_delay_and_loss() {
    let folder = folder();
    let output = run(folder.path(), "trace convert drive/lte.csv --out lte.up");
    assert!(said(&output.stderr).contains("Delay and loss are dropped"), "{output:?}");
    let lines = read_mahimahi(&folder.path().join("lte.up")).unwrap();
    assert_eq!(lines.period(), Duration::from_secs(20));
    let words = "trace convert lte.up --to rates --step 500 --rtt 60";
    assert_golden("trace-back.csv", &printed(folder.path(), words));
}

#[test]
fn a_drive_is_converted_with_both_ways_and_all_that_it_says() {
    let folder = folder();
    printed(folder.path(), "trace convert drive --out bytes --to bytes");
    let [whole, bytes] = ["drive", "bytes"].map(|it| Drive::read(&folder.path().join(it)).unwrap());
    assert_eq!(whole.links.len(), bytes.links.len());
    for (one, other) in whole.links.iter().zip(&bytes.links) {
        assert_eq!((&one.name, one.up.delay()), (&other.name, other.up.delay()));
        let loss = |trace: &Trace| trace.loss().at(Duration::from_secs(15));
        assert_eq!(loss(&one.up), loss(&other.up));
        let rate = |trace: &Trace| trace.capacity().mean_rate();
        assert_eq!([&one.up, &one.down].map(rate), [&other.up, &other.down].map(rate));
    }
    assert!(!folder.path().join("bytes/lte.down.csv").exists(), "it was not recorded");
    // A part has the same length for all links.
    printed(folder.path(), "trace convert drive --out mm --to mahimahi --from 9 --seconds 5");
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
    let text =
        printed(folder.path(), "trace convert drive/lte.csv --from 11 --seconds 3 --step 500");
    let expected = "t_ms,capacity_kbps,delay_ms,loss\n0,800,125,0\n1000,8000,25,\n2000,,,\n";
    assert_eq!(text, expected);
    let text = printed(folder.path(), "trace convert drive/wifi.down.csv --seconds 0.004 --step 2");
    assert_eq!(text, "t_ms,bytes,delay_ms,loss\n0,,10,0\n2,3000,,\n4,3000,,\n");
}

#[test]
fn generated_links_read_as_a_drive_and_match_the_printed_figures() {
    let folder = tempfile::tempdir().unwrap();
    let words = "trace generate --out a --seed 5 --seconds 20 --operators lte,att,lte";
    let report = json(folder.path(), words);
    let drive = Drive::read(&folder.path().join("a")).unwrap();
    assert_eq!(drive.length(), Some(Duration::from_secs(20)));
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert!(read("a/lte.csv") != read("a/lte-2.csv"), "an operator twice gives two links");
    // The files have the same content, sorted by name.
    let looked = json(folder.path(), "trace info a");
    let links = |report: &Value| {
        let mut links = report["recordings"][0]["links"].as_array().unwrap().clone();
        links.sort_by_key(|link| link["name"].to_string());
        links
    };
    assert_eq!(links(&report), links(&looked));
    assert_eq!(links(&report).len(), 3);
    assert!(looked["recordings"][0]["class"].is_string());
}

#[test]
fn several_drives_have_a_seed_each_which_decides_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    for more in ["many --drives 3 --seed 9", "one --seed 10"] {
        let words = format!("trace generate --seconds 5 --operators lte,att --out {more}");
        printed(folder.path(), &words);
    }
    let many = json(folder.path(), "trace info many");
    assert_eq!(names(&many), ["drive-009", "drive-010", "drive-011"]);
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    for link in ["lte.csv", "att.csv"] {
        let [first, second] = [9, 10].map(|seed| read(&format!("many/drive-{seed:03}/{link}")));
        assert!(second == read(&format!("one/{link}")) && second != first, "{link}");
    }
}

#[test]
fn a_set_is_reproducible_and_the_output_matches_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let report = printed(folder.path(), "trace generate --set --out a");
    printed(folder.path(), "trace generate --set --seed 1 --drives 2 --out b");
    printed(folder.path(), "trace generate --set --seed 2 --drives 1 --out c");
    let drive = |name: &str| Drive::read(&folder.path().join(name)).unwrap();
    for name in ["drive-000", "drive-001"] {
        assert!(drive(&format!("a/{name}")) == drive(&format!("b/{name}")), "{name}");
    }
    assert!(drive("a/drive-000") != drive("c/drive-000"));
    let info = json(folder.path(), "trace info a");
    let drives = info["recordings"].as_array().unwrap();
    assert_eq!(drives.len(), 59);
    let count = |class: &str| drives.iter().filter(|drive| drive["class"] == class).count();
    let [easy, decisive, tight, starved] = ["easy", "decisive", "tight", "starved"].map(count);
    let expected = format!(
        "59 drives; at 30 Mbit/s {easy} easy, {decisive} decisive, {tight} tight, {starved} starved\n"
    );
    assert_eq!(report, expected);
}

#[test]
fn a_full_disk_is_reported_with_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let drive = folder.path().join("full/drive-001");
    fs::create_dir_all(&drive).unwrap();
    std::os::unix::fs::symlink("/dev/full", drive.join("lte.csv")).unwrap();
    let output =
        run(folder.path(), "trace generate --set --drives 3 --seconds 5 --force --out full");
    let errors = said(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("full/drive-001/lte.csv: No space left"), "{errors}");
    assert_eq!(said(&output.stdout), "");
}
