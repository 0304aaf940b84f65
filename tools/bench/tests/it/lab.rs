//! The lab as a user runs it: drives from files, tables and JSON, reproducible to the byte.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn lab(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadweave-lab"));
    let command = command.current_dir(folder).arg("lab").args(arguments);
    command.env_remove("ROADWEAVE_LOG").output().unwrap()
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(&output.stderr));
    said(&output.stdout)
}

fn check_refused(output: &Output, code: i32, parts: &[&str]) {
    let errors = said(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{errors}");
    for part in parts {
        assert!(errors.contains(part), "{part:?} is not in:\n{errors}");
    }
    assert_eq!(said(&output.stdout), "");
}

/// Two drives: one of two recorded links, one of Mahimahi's files.
fn drives() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let recorded = folder.path().join("drives/recorded");
    let mahimahi = folder.path().join("drives/mahimahi");
    fs::create_dir_all(&recorded).unwrap();
    fs::create_dir_all(&mahimahi).unwrap();
    for (name, phase) in [("att", 0), ("lte", 3)] {
        let mut csv = "t_ms,capacity_kbps,rtt_ms,loss\n".to_owned();
        for step in 0..30 {
            let (at, swing) = (step * 100, (step + phase) * 7 % 10);
            let loss = u32::from(step == 12 + phase);
            writeln!(csv, "{at},{},{},{loss}", 300 + 250 * swing, 40 + 5 * swing).unwrap();
        }
        fs::write(recorded.join(format!("{name}.csv")), csv).unwrap();
    }
    let every =
        |ms: usize| (1..=1_000 / ms).fold(String::new(), |all, n| format!("{all}{}\n", n * ms));
    fs::write(mahimahi.join("modem.up"), every(6)).unwrap();
    fs::write(mahimahi.join("modem.down"), every(2)).unwrap();
    fs::write(mahimahi.join("wifi.mm"), every(10)).unwrap();
    folder
}

const SMALL: [&str; 9] = [
    "compare",
    "--drives",
    "drives",
    "--bitrate",
    "1.5M",
    "--seconds",
    "3",
    "--strategies",
    "best-single,single:*,minrtt,xnc",
];

fn compare(folder: &Path, more: &[&str]) -> Output {
    lab(folder, &[&SMALL[..], more].concat())
}

#[test]
fn equal_arguments_give_equal_bytes_on_any_number_of_cores() {
    let folder = drives();
    let one = printed(&compare(folder.path(), &["--json", "--details", "--jobs", "1"]));
    let two = printed(&compare(folder.path(), &["--json", "--details", "--jobs", "2"]));
    assert!(one == two, "the same seed, another comparison");
    let other = printed(&compare(folder.path(), &["--json", "--details", "--seed", "2"]));
    assert!(one != other, "the seed decides something");
}

#[test]
fn the_comparison_names_drives_strategies_and_their_ratios() {
    let folder = drives();
    let json: Value = serde_json::from_str(&printed(&compare(folder.path(), &["--json"]))).unwrap();
    let names = |list: &Value, field: &str| -> Vec<String> {
        let of = |item: &Value| item[field].as_str().unwrap().to_owned();
        list.as_array().unwrap().iter().map(of).collect()
    };
    assert_eq!(names(&json["drives"], "name"), ["mahimahi", "recorded"]);
    let recorded = &json["drives"][1];
    let strategies = names(&recorded["strategies"], "strategy");
    assert_eq!(strategies, ["best-single", "single:att", "single:lte", "minrtt", "xnc"]);
    let pooled = names(&json["pooled"], "strategy");
    let expected =
        ["best-single", "single:modem", "single:wifi", "minrtt", "xnc", "single:att", "single:lte"];
    assert_eq!(pooled, expected);
    for drive in json["drives"].as_array().unwrap() {
        assert!(
            ["easy", "decisive", "tight", "starved"].contains(&drive["class"].as_str().unwrap())
        );
        for strategy in drive["strategies"].as_array().unwrap() {
            for percentile in ["p50", "p95", "p99", "p999"] {
                let bound = drive["bound"]["delay_ms"][percentile].as_f64().unwrap();
                let found = strategy["delay_ms"][percentile].as_f64().unwrap();
                assert!(bound > 0.0 && bound <= found, "{percentile}: {strategy} beats {bound}");
            }
            assert!(drive["bound"]["stall_ratio"].as_f64() <= strategy["stall_ratio"].as_f64());
            assert!(drive["bound"]["fps"].as_f64() >= strategy["fps"].as_f64());
            assert!(strategy["delay_p99_over_bound"].as_f64().unwrap() >= 1.0);
            assert!(strategy["ssim"].is_null() && strategy.get("detail").is_none());
        }
    }
    for field in ["stall_ratio_mean", "stall_ratio_p95", "stall_ratio_p99", "delay_p99_over_bound"]
    {
        assert!(json["pooled"][0][field].is_number(), "{field}");
    }
    let table = printed(&compare(folder.path(), &[]));
    assert!(table.contains("best-single") && table.contains("p99 of bound"), "{table}");
}

#[test]
fn several_seeds_are_runs_of_the_same_drives_and_say_how_sure_their_means_are() {
    let folder = drives();
    let of = |more: &[&str]| -> Value {
        let arguments = [&["--json", "--resume", "kept"], more].concat();
        serde_json::from_str(&printed(&compare(folder.path(), &arguments))).unwrap()
    };
    let both = of(&["--seeds", "2"]);
    let cases: Vec<_> = both["drives"].as_array().unwrap().iter().collect();
    let names: Vec<_> = cases.iter().map(|case| (&case["name"], &case["seed"])).collect();
    assert_eq!(names.len(), 4);
    assert_eq!(names[0], (&"mahimahi".into(), &1.into()));
    assert_eq!(names[3], (&"recorded".into(), &2.into()));
    let (first, second) = (of(&[]), of(&["--seed", "2"]));
    for (number, alone) in [(0, &first["drives"][0]), (3, &second["drives"][1])] {
        assert_eq!(cases[number], alone, "a case is what it is by itself");
    }
    let minrtt = both["pooled"].as_array().unwrap().iter().find(|it| it["strategy"] == "minrtt");
    let minrtt = minrtt.unwrap();
    assert_eq!(minrtt["drives"], 2);
    let interval = minrtt["intervals"]["delay_p99_over_bound"].as_array().unwrap();
    let mean = minrtt["delay_p99_over_bound"].as_f64();
    assert!(interval[0].as_f64() <= mean && mean <= interval[1].as_f64(), "{minrtt}");
    let table = printed(&compare(folder.path(), &["--seeds", "2", "--resume", "kept"]));
    assert!(table.contains("2 drives, 3 s of 1.5 Mbit/s, seeds 1 to 2"), "{table}");
    let details = compare(folder.path(), &["--json", "--details", "--seeds", "2"]);
    check_refused(&details, 2, &["--details", "one seed"]);
}

#[test]
fn what_is_kept_is_taken_and_a_cut_line_is_run_again() {
    let folder = drives();
    let kept = folder.path().join("kept");
    let keeping = ["--json", "--resume", "kept"];
    let first = printed(&compare(folder.path(), &keeping));
    let runs = fs::read_to_string(&kept).unwrap().lines().count();
    assert_eq!(runs, 2 * 4, "every strategy on every drive, once");
    let length = fs::metadata(&kept).unwrap().len();
    OpenOptions::new().write(true).open(&kept).unwrap().set_len(length - 20).unwrap();

    let again = compare(folder.path(), &keeping);
    assert!(said(&again.stderr).contains("kept:8: no whole result"), "{}", said(&again.stderr));
    assert!(printed(&again) == first, "kept results are the same");
    let lines = fs::read_to_string(&kept).unwrap().lines().count();
    assert_eq!(lines, runs + 1, "only the cut one was run again");

    let mut other = keeping.to_vec();
    other.extend(["--seed", "9"]);
    printed(&compare(folder.path(), &other));
    let more = fs::read_to_string(&kept).unwrap().lines().count();
    assert_eq!(more, lines + runs, "another seed is another run");
}

#[test]
fn mistakes_are_told_with_their_place_and_cure() {
    let folder = drives();
    let check = |arguments: &[&str], parts: &[&str]| {
        check_refused(&lab(folder.path(), &[&["compare"], arguments].concat()), 2, parts);
    };
    check(&["--drives", "nowhere"], &["nowhere", "No such file"]);
    check(
        &["--drives", "drives", "--bitrate", "fast"],
        &["--bitrate", "such as 8M; 30 alone is 30M"],
    );
    check(&["--drives", "drives", "--strategies", "magic"], &["magic", "xnc", "best-single"]);
    let single = ["--drives", "drives", "--strategies", "single:att"];
    check(&single, &["mahimahi", "no link att", "modem, wifi"]);
    fs::create_dir(folder.path().join("empty")).unwrap();
    check(&["--drives", "empty"], &["no drive here", "LINK.csv"]);
    fs::write(folder.path().join("drives/recorded/bad.csv"), "t_ms\nx\n").unwrap();
    check(&["--drives", "drives"], &["bad.csv:2:1"]);
}

const SCENARIO: &str = r#"
strategy = "xnc"
seconds = 3

[[link]]
name = "a"
rate_kbps = 4000
delay_ms = 20

[[link]]
name = "b"
rate_kbps = 4000
delay_ms = 30

[[traffic]]
kind = "video"
rate_kbps = 2000

[[event]]
at_s = 1
link = "a"
action = "down"
"#;

#[test]
fn a_scenario_runs_and_tells_the_same_each_time() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("dies.toml"), SCENARIO).unwrap();
    let one = printed(&lab(folder.path(), &["run", "dies.toml", "--json"]));
    assert!(one == printed(&lab(folder.path(), &["run", "dies.toml", "--json"])));
    let json: Value = serde_json::from_str(&one).unwrap();
    assert_eq!(json["scenario"], "dies");
    let [xnc] = &json["strategies"].as_array().unwrap()[..] else { panic!("{one}") };
    assert_eq!(xnc["strategy"], "xnc");
    assert!(xnc["delay_ms"]["p50"].as_f64() >= json["bound"]["delay_ms"]["p50"].as_f64());
    assert!(json["links"][0]["lost"].as_u64() > Some(0), "what the dead link had: {one}");
    assert!(json["traffic"][0]["arrived_packets"].as_u64() > Some(0));

    let single = ["run", "dies.toml", "--json", "--strategy", "single:a"];
    let single: Value = serde_json::from_str(&printed(&lab(folder.path(), &single))).unwrap();
    assert!(single["strategies"][0]["stall_ratio"].as_f64() > Some(0.5), "{single}");
    let table = printed(&lab(folder.path(), &["run", "dies.toml"]));
    assert!(table.contains("(bound)") && table.contains("link a:"), "{table}");
    assert_eq!(
        printed(&lab(folder.path(), &["run", "dies.toml", "--check"])),
        "dies.toml is right\n"
    );
}

#[test]
fn without_a_video_there_are_neither_frames_nor_stalls() {
    let folder = tempfile::tempdir().unwrap();
    let constant = SCENARIO.replace("\"video\"", "\"constant\"");
    fs::write(folder.path().join("c.toml"), constant).unwrap();
    let json = printed(&lab(folder.path(), &["run", "c.toml", "--json", "--strategy", "single:a"]));
    let json: Value = serde_json::from_str(&json).unwrap();
    let (single, bound) = (&json["strategies"][0], &json["bound"]);
    for figures in [single, bound, &bound["reachable"]] {
        assert!(figures["fps"].is_null() && figures["stall_ratio"].is_null(), "{figures}");
    }
    let p95 = |figures: &Value| figures["delay_ms"]["p95"].as_f64().unwrap();
    assert!(p95(single) == 700.0 && p95(bound) < 100.0, "a dead link loses: {json}");
    let table = printed(&lab(folder.path(), &["run", "c.toml"]));
    let row = table.lines().find(|line| line.contains("(bound)")).unwrap();
    assert_eq!(row.split_whitespace().skip(1).take(2).collect::<Vec<_>>(), ["-", "-"], "{table}");
}

#[test]
fn a_scenario_that_is_wrong_is_told_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = SCENARIO.replace("action = \"down\"", "action = \"sideways\"");
    fs::write(folder.path().join("wrong.toml"), wrong).unwrap();
    check_refused(
        &lab(folder.path(), &["run", "wrong.toml"]),
        2,
        &["wrong.toml", "22", "sideways"],
    );
    check_refused(&lab(folder.path(), &["run", "none.toml"]), 2, &["none.toml"]);
    fs::write(folder.path().join("right.toml"), SCENARIO).unwrap();
    let unknown = lab(folder.path(), &["run", "right.toml", "--strategy", "single:zz"]);
    check_refused(&unknown, 2, &["right.toml has no link zz"]);
}

#[test]
fn a_report_tells_what_a_comparison_found() {
    let folder = drives();
    let write = |name: &str, more: &[&str]| {
        fs::write(folder.path().join(name), printed(&compare(folder.path(), more))).unwrap();
    };
    write("detailed.json", &["--json", "--details"]);
    write("short.json", &["--json"]);
    let report = |arguments: &[&str]| lab(folder.path(), &[&["report"], arguments].concat());
    for (results, pages) in
        [("detailed.json", ["a.html", "b.html"]), ("short.json", ["c.html", "d.html"])]
    {
        for page in pages {
            assert_eq!(printed(&report(&[results, "--out", page])), "");
        }
        let [one, other] = pages.map(|page| fs::read_to_string(folder.path().join(page)).unwrap());
        assert!(one == other, "equal results, another report");
        for word in
            ["recorded", "mahimahi", "best-single", "single:modem", "minrtt", "xnc", "bound"]
        {
            assert!(one.contains(word), "{word} is missing in {results}");
        }
        assert_eq!(one.contains("xnc on recorded over time"), results == "detailed.json");
    }
    let refused = report(&["detailed.json", "--timelines", "ecf"]);
    check_refused(&refused, 2, &["--timelines", "ecf", "minrtt, xnc"]);
    check_refused(&report(&["drives/recorded/att.csv"]), 2, &["att.csv", "lab compare --json"]);
    check_refused(&report(&["nowhere.json"]), 2, &["nowhere.json"]);
}

#[test]
fn raven_is_measured_at_every_confidence() {
    let folder = tempfile::tempdir().unwrap();
    for run in 0..4 {
        let recording = folder.path().join(format!("traces/run{run}"));
        fs::create_dir_all(&recording).unwrap();
        for (link, rtt) in [("lte", 50), ("wifi", 58)] {
            let mut csv = "t_ms,rtt_ms,loss\n".to_owned();
            for row in 0..100 {
                writeln!(csv, "{},{},0", row * 200, rtt + (row * 7 + run) % 15).unwrap();
            }
            fs::write(recording.join(format!("{link}.csv")), csv).unwrap();
        }
    }
    let arguments = ["raven", "--traces", "traces", "--routes", "2", "--repeats", "1", "--json"];
    let results = printed(&lab(folder.path(), &arguments));
    assert_eq!(printed(&lab(folder.path(), &arguments)), results, "equal arguments, equal bytes");
    let results: Value = serde_json::from_str(&results).unwrap();
    let answers = results["answers"].as_array().unwrap();
    assert_eq!(answers.len(), 3 * 2 * (2 + 6), "applications, routes, strategies");
    let extra = |strategy: &str| -> f64 {
        let of_strategy = answers.iter().filter(|answer| answer["strategy"] == strategy);
        of_strategy.map(|answer| answer["extra_bytes"].as_f64().unwrap()).sum()
    };
    assert!(extra("raven:0") + 3.0 < extra("raven"), "copies cost bytes");
    assert!(extra("raven") <= extra("raven:100") * 1.02, "and more confidence costs more");
    assert_eq!(results["transfers"].as_array().unwrap().len(), 5);
    let unknown = [&arguments[..], &["--loads", "pages"]].concat();
    check_refused(&lab(folder.path(), &unknown), 2, &["pages", "video, unbroken"]);
    let too_many = ["raven", "--traces", "traces", "--routes", "5"];
    check_refused(
        &lab(folder.path(), &too_many),
        2,
        &["--traces", "4 recordings make no 5 routes"],
    );
}

#[test]
fn downloads_are_measured_beside_each_link_alone() {
    let folder = tempfile::tempdir().unwrap();
    let small = ["downloads", "--only", "baseline", "--mebibytes", "4", "--seeds", "1"];
    let measure = |more: &[&str]| lab(folder.path(), &[&small[..], more].concat());
    for (tcp, controls) in
        [("none", &[][..]), ("bbr,bbr", &["bbr"]), ("cubic,bbr", &["cubic", "bbr"])]
    {
        let json = printed(&measure(&["--tcp", tcp, "--json"]));
        let results: Value = serde_json::from_str(&json).unwrap();
        let [case] = &results["cases"].as_array().unwrap()[..] else { panic!("{results:#}") };
        let goodput = |run: &Value| run["goodput_mbps"].as_f64().unwrap();
        let alone = [0, 1].map(|link: usize| &case["alone"][link][0]);
        assert!(alone.iter().all(|run| goodput(&case["all"][0]) > goodput(run)), "{case:#}");
        for run in alone {
            let by_tcp = run["tcp"].as_array().unwrap();
            let named: Vec<_> = by_tcp.iter().map(|it| &it["congestion"]).collect();
            assert_eq!(named, controls);
            assert!(by_tcp.iter().all(|it| goodput(it) > 10.0), "{run}");
        }
    }
    let words = printed(&measure(&[]));
    assert!(words.contains("baseline") && words.contains("TCP by bbr"), "{words}");
    check_refused(&measure(&["--only", "drive-9"]), 2, &["drive-9", "baseline, rtt_40"]);
    check_refused(&measure(&["--tcp", "reno"]), 2, &["`reno`", "cubic and bbr, or none"]);
}

/// Pairs of links in files: WiFi and cellular, and two of Mahimahi's.
fn pairs() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (walks, drives) = (folder.path().join("pairs/walks"), folder.path().join("pairs/drives"));
    fs::create_dir_all(&walks).unwrap();
    fs::create_dir_all(&drives).unwrap();
    for (name, dead) in [("wifi", 2..4), ("cellular", 6..7)] {
        let mut csv = "t_ms,capacity_kbps,rtt_ms,loss\n".to_owned();
        for second in 0..10 {
            let rate = if dead.contains(&second) { 0 } else { 900 };
            writeln!(csv, "{},{rate},,", second * 1_000).unwrap();
        }
        fs::write(walks.join(format!("1_1_{name}.csv")), csv).unwrap();
    }
    fs::write(walks.join("1_2_wifi.csv"), "t_ms,capacity_kbps\n0,900\n").unwrap();
    let every = |ms: usize| (1..=1_000 / ms).map(|n| format!("{}\n", n * ms)).collect::<String>();
    fs::write(drives.join("lte_down.mm"), every(12)).unwrap();
    fs::write(drives.join("lte_up.mm"), every(6)).unwrap();
    fs::write(drives.join("umts_down.mm"), every(24)).unwrap();
    folder
}

#[test]
fn video_on_demand_is_measured_beside_the_best_link_alone() {
    let folder = pairs();
    let measure = |more: &[&str]| {
        let arguments = ["vod", "--seeds", "1", "--seconds", "15", "--traces", "pairs"];
        lab(folder.path(), &[&arguments[..], more].concat())
    };
    let ways = ["--ways", "minrtt,xlink:95-80+first,tunnel:bbr", "--only", "1_1"];
    let json = printed(&measure(&[&ways[..], &["--json", "--jobs", "1"]].concat()));
    let again = printed(&measure(&[&ways[..], &["--json", "--jobs", "2"]].concat()));
    assert_eq!(json, again, "equal arguments give equal results, on any number of cores");
    let results: Value = serde_json::from_str(&json).unwrap();
    let pair = &results["pairs"][0];
    assert_eq!((&pair["name"], &pair["links"][1]), (&"1_1".into(), &"cellular".into()));
    assert_eq!(pair["counts"], true, "{pair}");
    assert!((0.01..=0.1).contains(&pair["rebuffering_alone"].as_f64().unwrap()), "{pair}");
    let rows = results["ways"].as_array().unwrap();
    let named: Vec<_> = rows.iter().map(|row| row["way"].as_str().unwrap()).collect();
    let of_kind =
        ["best link alone", "first link alone", "minrtt", "xlink:95-80+first", "tunnel:bbr"];
    assert_eq!(named, [of_kind, of_kind].concat());
    let figure = |row: usize, figure: &str| rows[row]["figures"][figure]["value"].as_f64().unwrap();
    assert_eq!(figure(0, "rebuffering"), pair["rebuffering_alone"]);
    assert!(figure(1, "rebuffering") >= figure(0, "rebuffering"), "none is better than the best");
    assert!(figure(2, "rebuffering") < figure(0, "rebuffering"), "two links are more than one");
    assert!(figure(4, "rebuffering") < figure(0, "rebuffering"), "TCP has both, too");
    let below = &rows[2]["below_best_link"]["request_p99"]["value"];
    assert_eq!(below.as_f64().unwrap(), 1.0 - figure(2, "request_p99") / figure(0, "request_p99"));
}

#[test]
fn pairs_that_are_not_there_are_told_with_those_that_are() {
    let folder = pairs();
    let refused = lab(folder.path(), &["vod", "--traces", "pairs", "--only", "1_2"]);
    check_refused(&refused, 2, &["no pair \"1_2\"", "lte+umts, 1_1"]);
    let refused = lab(folder.path(), &["vod", "--traces", "pairs/nowhere"]);
    check_refused(&refused, 2, &["pairs/nowhere"]);
    fs::create_dir(folder.path().join("empty")).unwrap();
    check_refused(&lab(folder.path(), &["vod", "--traces", "empty"]), 2, &["no pair here"]);
    let refused = lab(folder.path(), &["vod", "--ways", "fastest+first"]);
    check_refused(&refused, 2, &["unknown strategy \"fastest\""]);
    let refused = lab(folder.path(), &["vod", "--ways", "tunnel:reno"]);
    check_refused(&refused, 2, &["`reno` is no congestion control"]);
}
