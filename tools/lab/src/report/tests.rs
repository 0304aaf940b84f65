//! Report of an invented comparison, written to `ROADWEAVE_REPORT=FILE` if set.

use std::time::Duration;

use roadweave_emulate::{Drive, DriveLink, Trace};
use roadweave_proto::Rate;
use roadweave_quic::CongestionControl;

use super::*;
use crate::bound::{Bound, Reachable};
use crate::class::Class;
use crate::compare::{Contestant, Measured, RunDetail, Setting};
use crate::figures::{Figures, Timeline};
use crate::histogram::Histogram;
use crate::run::{Cause, Causes, LinkReport};
use crate::video::quality::Percentiles;
use crate::world::Machine;

const LINKS: [&str; 2] = ["att", "t<mobile>"];
const HOSTILE: &str = "<script>alert(\"1\")</script>";

fn measured(strategy: &str, scale: f64) -> Measured {
    let tail = |rank: u32| 0.03 - 0.012 * scale * (1.0 - f64::from(rank) / 5_001.0).ln();
    let delays: Vec<Duration> =
        (1..=5_000).map(|rank| Duration::from_secs_f64(tail(rank).min(0.7))).collect();
    let wave = |phase: f64| -> Vec<f64> {
        (0..200).map(|step| 8.0 + 5.0 * (f64::from(step) / 17.0 + phase).sin()).collect()
    };
    let bytes = |step: u32| u64::from(step % 40) * (1_000.0 * scale) as u64;
    let series = |phase: f64| LINKS.map(|link| (link.to_owned(), wave(phase + link.len() as f64)));
    let struck = |every: u32, count: u32| -> Vec<u32> {
        (0..200).map(|step| if step % every == 3 { count } else { 0 }).collect()
    };
    let timeline = Timeline {
        uplinks: series(0.0).into(),
        missing: struck(40, 12),
        late: struck(80, 5),
        repairs: struck(9, 7),
        recovered: struck(9, 3),
        capacities: series(1.0).into(),
        link_queues: LINKS.map(|link| (link.to_owned(), (0..200).map(bytes).collect())).into(),
        lane_queue: (0..200).map(|step| bytes(step + 20)).collect(),
    };
    let link = |name: &str| LinkReport { name: name.to_owned(), ..LinkReport::default() };
    let detail = RunDetail {
        delays: Histogram::new(&delays),
        stalls_ms: vec![(4_200.0, 4_800.0)],
        links: LINKS.map(link).into(),
        timeline,
    };
    let cause = |packets| Cause { packets, seconds: 0.2 * packets as f64 };
    Measured {
        figures: Figures {
            strategy: strategy.to_owned(),
            fps: 30.0 - scale,
            stall_ratio: 0.01 * scale,
            delay_ms: Percentiles::of_sorted(&delays),
            residual_loss: 0.01 * scale,
            late: 0.002 * scale,
            redundancy: 0.04,
            ..Figures::default()
        },
        causes: Causes {
            late: 100,
            repaired: 30,
            window_wait: cause(40),
            detection: cause(10),
            recovery: cause(20),
            link_queue: cause(25),
            propagation: cause(5),
        },
        detail: Some(Box::new(detail)),
        ..Measured::default()
    }
}

fn setting(bitrate_bps: u64, seconds: u32, seed: u64) -> Setting {
    let (congestion, machine) = (CongestionControl::Bbr, Machine::default());
    Setting { bitrate_bps, seconds, seed, congestion, machine }
}

fn comparison() -> Comparison {
    let trace = Trace::constant(Rate::from_kbps(4_000), Duration::from_millis(20));
    let links = LINKS.map(|link| DriveLink::symmetric(link, trace.clone()));
    let drive = Drive { links: links.into() };
    let contestants = Contestant::parse_all(["single:*", "best-single", "minrtt", "xnc"]).unwrap();
    let bound = Bound {
        delay_ms: Percentiles { p50: 25.0, p95: 31.0, p99: 35.0, p999: 40.0 },
        fps: 30.0,
        reachable: Reachable { fps: 29.5, ..Reachable::default() },
        ..Bound::default()
    };
    let within: Vec<(f64, f64)> =
        (1..=40).map(|ms| (f64::from(ms), f64::from(ms - 1) / 39.0)).collect();
    let compared = |(name, class, scale): (&str, Class, f64)| {
        let singles = LINKS.map(|link| measured(&format!("single:{link}"), 6.0 * scale));
        let bonds = [measured("minrtt", 3.0 * scale), measured("xnc", 0.5 * scale)];
        let measured: Vec<Measured> = singles.into_iter().chain(bonds).collect();
        let bound = (bound.clone(), within.clone());
        Compared::new(name, class, bound, &contestants, &drive, &measured)
    };
    let drives = [
        ("meadow", Class::Decisive, 1.0),
        ("valley", Class::Decisive, 2.0),
        (HOSTILE, Class::Starved, 3.0),
    ];
    Comparison::new("1.2.3", setting(8_000_000, 20, 7), drives.map(compared).into())
}

fn check_balanced(html: &str) -> usize {
    const VOID: [&str; 2] = ["meta", "!doctype"];
    let (mut open, mut count) = (Vec::new(), 0);
    let style = html.find("<style>").unwrap()..html.find("</style>").unwrap();
    let html = format!("{}{}", &html[..style.start], &html[style.end + "</style>".len()..]);
    for tag in html.split('<').skip(1) {
        let (inside, _) = tag.split_once('>').expect("a tag ends");
        assert_eq!(inside.matches('"').count() % 2, 0, "quotes in <{inside}>");
        let name = inside.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if inside.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "<{inside}> closes another element");
        } else if !inside.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
        count += 1;
    }
    assert_eq!(open, [""; 0], "left open");
    count
}

#[test]
fn the_report_names_every_strategy_and_drive_and_how_to_repeat_it() {
    let html = render(&comparison(), &Options::default());
    if let Some(path) = std::env::var_os("ROADWEAVE_REPORT") {
        std::fs::write(path, &html).unwrap();
    }
    let words =
        ["meadow", "valley", "single:att", "best-single", "minrtt", "xnc", "bound", "1.2.3"];
    for word in words {
        assert!(html.contains(word), "{word} is missing");
    }
    let command = "roadweave lab compare --drives DIR --strategies \
        &#39;single:*,best-single,minrtt,xnc&#39; --bitrate 8M --seconds 20 --seed 7 \
        --congestion bbr --json --details";
    assert!(html.contains(command));
    assert!(check_balanced(&html) > 1_000);
    assert!(!html.contains("NaN") && !html.contains("inf"));
    assert!(html == render(&comparison(), &Options::default()), "equal data give equal bytes");
}

#[test]
fn names_are_escaped_and_nothing_comes_from_elsewhere() {
    let html = render(&comparison(), &Options::default());
    assert!(html.contains("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;"));
    assert!(html.contains("single:t&lt;mobile&gt;") && !html.contains("t<mobile>"));
    for outside in ["<script", "<link", "<img", " src=", " href=", "@import", "url(", "http"] {
        assert!(!html.contains(outside), "{outside} would need something else than the file");
    }
}

#[test]
fn drives_come_by_class_and_those_far_from_the_bound_first() {
    let html = render(&comparison(), &Options::default());
    let place =
        |name: &str| html.rfind(&format!("<summary><span class=\"row\"><span>{name}")).unwrap();
    assert!(place("valley") < place("meadow") && place("meadow") < place("&lt;script"));
}

#[test]
fn time_lines_are_those_that_were_asked_for() {
    let drawn = |options: &Options| render(&comparison(), options).matches(" over time: ").count();
    assert_eq!(drawn(&Options::default()), 3 * 3, "three drives, all but single links");
    let only = |name: &str| Options { timelines: Some(vec![name.to_owned()]) };
    assert_eq!(drawn(&only("single:att")), 3);
    assert_eq!(drawn(&only("nobody")), 0);
}

#[test]
fn there_is_a_report_without_details_and_of_nothing() {
    let html = render(&comparison().without_details(), &Options::default());
    assert!(html.contains("came without details") && !html.contains("Packet delay</h3>"));
    let nothing = Comparison::new("1.2.3", comparison().setting, vec![]);
    for html in [html, render(&nothing, &Options::default())] {
        assert!(html.ends_with("</html>\n") && !html.contains("NaN"));
        check_balanced(&html);
    }
}

/// Two drives without losses and with short queues, where strategies come close to the bound.
fn measured_comparison() -> Comparison {
    let setting = setting(1_000_000, 3, 1);
    let contestants = Contestant::parse_all(["single:a", "xnc"]).unwrap();
    let compared = |delay_ms: u64| {
        let trace = Trace::constant(Rate::from_kbps(100_000), Duration::from_millis(delay_ms));
        let drive = Drive { links: vec![DriveLink::symmetric("a", trace)] };
        let strategies = Contestant::strategies(&contestants, &drive);
        let scenario = |strategy| setting.scenario("d", &drive, strategy, &setting.video());
        let bound = Bound::of_scenario(&scenario("xnc".parse().unwrap())).unwrap();
        let measured: Vec<Measured> = strategies
            .into_iter()
            .map(|strategy| Measured::new(&crate::run::run(&scenario(strategy)).unwrap()))
            .collect();
        let name = format!("{delay_ms} ms");
        Compared::new(&name, setting.class(&drive), bound, &contestants, &drive, &measured)
    };
    let drives = [20, 33].map(compared);
    Comparison::new("1.2.3", setting, drives.into())
}

#[test]
fn no_row_and_no_curve_is_below_the_bound() {
    let comparison = measured_comparison();
    let all: Vec<&Compared> = comparison.drives.iter().collect();
    for drives in [&all[..], &all[..1], &all[1..]] {
        let limit = pooled::Limit::of(drives);
        let bound = limit.percentiles().unwrap();
        let curve = limit.as_curve().points;
        for name in ["single:a", "xnc"] {
            let packets = pooled::Packets::of(name, drives);
            let found = packets.delays.percentiles();
            for (found, bound) in
                [(found.p50, bound.p50), (found.p95, bound.p95), (found.p99, bound.p99)]
            {
                assert!(found >= bound, "{name}: {found} ms, bound {bound} ms");
                assert!(bound > 19.0, "{bound} ms");
            }
            for (ms, share) in packets.curve(name, String::new()).points {
                let behind = curve.partition_point(|point| point.0 < ms);
                let most = behind.checked_sub(1).map_or(0.0, |before| curve[before].1);
                assert!(share <= most, "{name}: {share} within {ms} ms, bound {most}");
            }
        }
    }
}
