//! The lab as a user runs it: drives from files, tables and JSON, reproducible to the byte.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::{check_refused, json, printed, run, said, write};

fn drives() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, phase) in [("att", 0), ("lte", 3)] {
        let mut csv = "t_ms,capacity_kbps,rtt_ms,loss\n".to_owned();
        for step in 0..30 {
            let (at, swing) = (step * 100, (step + phase) * 7 % 10);
            let loss = u32::from(step == 12 + phase);
            writeln!(csv, "{at},{},{},{loss}", 300 + 250 * swing, 40 + 5 * swing).unwrap();
        }
        write(folder.path(), &format!("drives/recorded/{name}.csv"), csv);
    }
    for (name, ms) in [("modem.up", 6), ("modem.down", 2), ("wifi.mm", 10)] {
        write(folder.path(), &format!("drives/mahimahi/{name}"), every(ms));
    }
    folder
}

fn every(ms: usize) -> String {
    (1..=1_000 / ms).map(|n| format!("{}\n", n * ms)).collect()
}

const COMPARE: &str = "lab compare --drives drives --bitrate 1.5M --seconds 3 \
                       --strategies best-single,single:*,minrtt,xnc";

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_comparison_is_the_same_each_time_and_makes_a_report() {
    let folder = drives();
    let folder = folder.path();
    let compare = |more: &str| printed(folder, &format!("{COMPARE} {more}"));
    let detailed = compare("--json --details --jobs 1");
    assert!(detailed == compare("--json --details --jobs 2"), "the same seed, another comparison");
    assert!(detailed != compare("--json --details --seed 2"), "the seed decides something");
    let short = compare("--json");
    let results = parse(&short);
    let names = |list: &Value, field: &str| -> Vec<String> {
        let of = |item: &Value| item[field].as_str().unwrap().to_owned();
        list.as_array().unwrap().iter().map(of).collect()
    };
    let drives = &results["drives"];
    assert_eq!(names(drives, "name"), ["mahimahi", "recorded"]);
    let recorded = ["best-single", "single:att", "single:lte", "minrtt", "xnc"];
    assert_eq!(names(&drives[1]["strategies"], "strategy"), recorded);
    let all =
        ["best-single", "single:modem", "single:wifi", "minrtt", "xnc", "single:att", "single:lte"];
    assert_eq!(names(&results["pooled"], "strategy"), all);
    for drive in drives.as_array().unwrap() {
        for strategy in drive["strategies"].as_array().unwrap() {
            assert!(strategy["delay_p99_over_bound"].as_f64() >= Some(1.0), "{strategy}");
            assert!(strategy["ssim"].is_null() && strategy.get("detail").is_none());
        }
    }
    for field in ["stall_ratio_mean", "stall_ratio_p95", "stall_ratio_p99", "delay_p99_over_bound"]
    {
        assert!(results["pooled"][0][field].is_number(), "{field}");
    }
    let table = compare("");
    assert!(table.contains("best-single") && table.contains("p99 of bound"), "{table}");

    for (name, text) in [("detailed.json", detailed), ("short.json", short)] {
        write(folder, name, text);
        let report = |page: &str| {
            assert_eq!(printed(folder, &format!("lab report {name} --out {page}")), "");
            fs::read_to_string(folder.join(page)).unwrap()
        };
        let page = report("a.html");
        assert!(page == report("b.html"), "equal results, another report");
        for word in all.iter().chain(&["recorded", "mahimahi", "bound"]) {
            assert!(page.contains(word), "{word} is missing in {name}");
        }
        assert_eq!(page.contains("xnc on recorded over time"), name == "detailed.json");
    }
}

#[test]
fn saved_results_are_reused_a_cut_one_runs_again_and_seeds_are_runs_of_the_same_drives() {
    let folder = drives();
    let kept = folder.path().join("kept");
    let compare = |more: &str| {
        let output = run(folder.path(), &format!("{COMPARE} --resume kept {more}"));
        let (text, notes) = (said(&output.stdout), said(&output.stderr));
        assert!(output.status.success(), "{notes}");
        (text, notes, fs::read_to_string(&kept).unwrap().lines().count())
    };
    let (first, _, runs) = compare("--json");
    assert_eq!(runs, 2 * 4, "every strategy on every drive, once");
    let length = fs::metadata(&kept).unwrap().len();
    OpenOptions::new().write(true).open(&kept).unwrap().set_len(length - 20).unwrap();
    let (again, notes, runs) = compare("--json");
    assert!(notes.contains("kept:8: incomplete result"), "{notes}");
    assert!(again == first, "kept results are the same");
    assert_eq!(runs, 9, "only the cut one was run again");

    let (both, _, runs) = compare("--json --seeds 2");
    assert_eq!(runs, 9 + 8, "another seed is another run");
    let (second, _, runs) = compare("--json --seed 2");
    assert_eq!(runs, 9 + 8, "and it is kept");
    let [both, first, second] = [both, first, second].map(|text| parse(&text));
    let cases = both["drives"].as_array().unwrap();
    let names: Vec<_> = cases.iter().map(|case| (&case["name"], &case["seed"])).collect();
    assert_eq!(names.len(), 4);
    assert_eq!(names[0], (&"mahimahi".into(), &1.into()));
    assert_eq!(names[3], (&"recorded".into(), &2.into()));
    assert_eq!(cases[0], first["drives"][0], "a case is what it is by itself");
    assert_eq!(cases[3], second["drives"][1], "a case is what it is by itself");
    let pooled = both["pooled"].as_array().unwrap();
    let minrtt = pooled.iter().find(|it| it["strategy"] == "minrtt").unwrap();
    assert_eq!(minrtt["drives"], 2);
    let interval = &minrtt["intervals"]["delay_p99_over_bound"];
    let mean = minrtt["delay_p99_over_bound"].as_f64();
    assert!(interval[0].as_f64() <= mean && mean <= interval[1].as_f64(), "{minrtt}");
    let (table, ..) = compare("--seeds 2");
    assert!(table.contains("2 drives, 3 s of 1.5 Mbit/s, seeds 1 to 2"), "{table}");
}

#[test]
fn mistakes_are_reported_with_place_and_remedy() {
    let folder = drives();
    let folder = folder.path();
    write_pairs(folder);
    let wrong = SCENARIO.replace("'down'", "'sideways'");
    write(folder, "right.toml", SCENARIO);
    write(folder, "wrong.toml", wrong);
    write(folder, "empty/a.txt", "");
    write(folder, "broken/bad.csv", "t_ms\nx\n");
    let lines = [
        "lab compare --drives nowhere",
        "lab compare --drives empty",
        "lab compare --drives broken",
        "lab compare --drives drives --bitrate fast",
        "lab compare --drives drives --strategies magic",
        "lab compare --drives drives --strategies single:att",
        "lab compare --drives drives --json --details --seeds 2",
        "lab run wrong.toml",
        "lab run none.toml",
        "lab run right.toml --strategy single:zz",
        "lab report drives/recorded/att.csv",
        "lab report nowhere.json",
        "lab raven --traces drives --loads pages",
        "lab raven --traces drives --routes 5",
        "lab downloads --only drive-9",
        "lab downloads --tcp reno",
        "lab vod --traces pairs --only 1_2",
        "lab vod --traces pairs/nowhere",
        "lab vod --traces empty",
        "lab vod --ways fastest+first",
        "lab vod --ways tunnel:reno",
    ];
    check_refused("refused-lab.txt", folder, &lines);
}

const SCENARIO: &str = "
strategy = 'xnc'
seconds = 3
[[link]]
name = 'a'
rate_kbps = 4000
delay_ms = 20
[[link]]
name = 'b'
rate_kbps = 4000
delay_ms = 30
[[traffic]]
kind = 'video'
rate_kbps = 2000
[[event]]
at_s = 1
link = 'a'
action = 'down'
";

#[test]
fn a_scenario_prints_the_same_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "dies.toml", SCENARIO);
    let one = printed(folder, "lab run dies.toml --json");
    assert!(one == printed(folder, "lab run dies.toml --json"));
    let report = parse(&one);
    assert_eq!(report["scenario"], "dies");
    let [xnc] = &report["strategies"].as_array().unwrap()[..] else { panic!("{one}") };
    assert_eq!(xnc["strategy"], "xnc");
    assert!(xnc["delay_ms"]["p50"].as_f64() >= report["bound"]["delay_ms"]["p50"].as_f64());
    assert!(report["links"][0]["lost"].as_u64() > Some(0), "what the dead link had: {one}");
    assert!(report["traffic"][0]["arrived_packets"].as_u64() > Some(0));
    let single = json(folder, "lab run dies.toml --strategy single:a");
    assert!(single["strategies"][0]["stall_ratio"].as_f64() > Some(0.5), "{single}");
    let table = printed(folder, "lab run dies.toml");
    assert!(table.contains("(bound)") && table.contains("link a:"), "{table}");
    assert_eq!(printed(folder, "lab run dies.toml --check"), "dies.toml is right\n");

    // Without a video there are no frames and stalls.
    write(folder, "c.toml", SCENARIO.replace("'video'", "'constant'"));
    let report = json(folder, "lab run c.toml --strategy single:a");
    let (single, bound) = (&report["strategies"][0], &report["bound"]);
    for figures in [single, bound, &bound["reachable"]] {
        assert!(figures["fps"].is_null() && figures["stall_ratio"].is_null(), "{figures}");
    }
    let p95 = |figures: &Value| figures["delay_ms"]["p95"].as_f64().unwrap();
    assert!(p95(single) == 700.0 && p95(bound) < 100.0, "a dead link loses: {report}");
    let table = printed(folder, "lab run c.toml");
    let row = table.lines().find(|line| line.contains("(bound)")).unwrap();
    assert_eq!(row.split_whitespace().skip(1).take(2).collect::<Vec<_>>(), ["-", "-"], "{table}");
}

#[test]
fn raven_is_measured_at_every_confidence() {
    let folder = tempfile::tempdir().unwrap();
    for run in 0..4 {
        for (link, rtt) in [("lte", 50), ("wifi", 58)] {
            let mut csv = "t_ms,rtt_ms,loss\n".to_owned();
            for row in 0..100 {
                writeln!(csv, "{},{},0", row * 200, rtt + (row * 7 + run) % 15).unwrap();
            }
            write(folder.path(), &format!("traces/run{run}/{link}.csv"), csv);
        }
    }
    let words = "lab raven --traces traces --routes 2 --repeats 1 --json";
    let results = printed(folder.path(), words);
    assert_eq!(printed(folder.path(), words), results, "equal arguments, equal bytes");
    let results = parse(&results);
    let answers = results["answers"].as_array().unwrap();
    assert_eq!(answers.len(), 3 * 2 * (2 + 6), "applications, routes, strategies");
    let extra = |strategy: &str| -> f64 {
        let of_strategy = answers.iter().filter(|answer| answer["strategy"] == strategy);
        of_strategy.map(|answer| answer["extra_bytes"].as_f64().unwrap()).sum()
    };
    assert!(extra("raven:0") + 3.0 < extra("raven"), "copies cost bytes");
    let transfers = results["transfers"].as_array().unwrap();
    let redundant = |at: usize| transfers[at]["redundant"].as_f64().unwrap();
    assert_eq!(transfers.len(), 5);
    assert!(redundant(0) > 3.0 * redundant(4), "large ones are not copied");
}

#[test]
fn downloads_are_measured_beside_each_link_alone() {
    let folder = tempfile::tempdir().unwrap();
    let words = "lab downloads --only baseline --mebibytes 4 --seeds 1";
    for (tcp, controls) in
        [("none", &[][..]), ("bbr,bbr", &["bbr"]), ("cubic,bbr", &["cubic", "bbr"])]
    {
        let results = json(folder.path(), &format!("{words} --tcp {tcp}"));
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
    let table = printed(folder.path(), words);
    assert!(table.contains("baseline") && table.contains("TCP by bbr"), "{table}");
}

fn write_pairs(folder: &Path) {
    for (name, dead) in [("wifi", 2..4), ("cellular", 6..7)] {
        let mut csv = "t_ms,capacity_kbps,rtt_ms,loss\n".to_owned();
        for second in 0..10 {
            let rate = if dead.contains(&second) { 0 } else { 900 };
            writeln!(csv, "{},{rate},,", second * 1_000).unwrap();
        }
        write(folder, &format!("pairs/walks/1_1_{name}.csv"), csv);
    }
    write(folder, "pairs/walks/1_2_wifi.csv", "t_ms,capacity_kbps\n0,900\n");
    for (name, ms) in [("lte_down", 12), ("lte_up", 6), ("umts_down", 24)] {
        write(folder, &format!("pairs/drives/{name}.mm"), every(ms));
    }
}

#[test]
fn video_on_demand_is_measured_beside_the_best_link_alone() {
    let folder = tempfile::tempdir().unwrap();
    write_pairs(folder.path());
    let words = "lab vod --seeds 1 --seconds 15 --traces pairs --only 1_1 \
                 --ways minrtt,xlink:95-80+first,tunnel:bbr --json --jobs";
    let [one, two] = [1, 2].map(|jobs| printed(folder.path(), &format!("{words} {jobs}")));
    assert_eq!(one, two, "equal arguments give equal results, on any number of cores");
    let results = parse(&one);
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
