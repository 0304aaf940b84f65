//! The report of an invented demo. `ROADWEAVE_REPORT=FILE` writes it to a file.

use std::time::Duration;

use roadweave_lab::figures::{Figures, Timeline};
use roadweave_lab::video::quality::Percentiles;

use super::*;
use crate::demo::live::{LiveFigures, LiveRun, Rates};
use crate::demo::ways::LeftOut;

fn invented_run(strategy: &str, scale: f64) -> Run {
    let delays: Vec<_> =
        (1..=5_000).map(|i| Duration::from_secs_f64(0.03 + 1e-5 * scale * f64::from(i))).collect();
    Run {
        figures: Figures {
            strategy: strategy.into(),
            ssim: Some(0.99 - 0.02 * scale),
            delay_ms: Percentiles::of_sorted(&delays),
            delay_arrived_ms: Some(Percentiles::of_sorted(&delays)),
            residual_loss: 0.01 * scale,
            cpu_percent: Some(4.2),
            ..Figures::default()
        },
        delays,
        stalls: vec![(Duration::from_millis(4_200), Duration::from_millis(4_800))],
        timeline: Timeline {
            uplinks: (0..4).map(|i| (format!("link{i}"), vec![8.0 + f64::from(i); 200])).collect(),
            missing: vec![3; 200],
            repairs: vec![7; 200],
            ..Timeline::default()
        },
    }
}

fn invented_live(strategy: &str) -> LiveRun {
    let Run { delays, stalls, timeline, .. } = invented_run(strategy, 1.0);
    LiveRun {
        figures: LiveFigures {
            strategy: strategy.into(),
            ssim: Some(0.97),
            frame_delay_ms: Percentiles::of_sorted(&delays),
            frames: delays.len() + 20,
            ..LiveFigures::default()
        },
        delays,
        stalls,
        timeline,
        rates: Rates { target: vec![9.0; 200], encoded: vec![7.0; 200] },
    }
}

fn invented() -> (Results, Scene, Runs) {
    let runs = vec![
        invented_run("single:a<b", 6.0),
        invented_run("minrtt", 3.0),
        invented_run("xnc", 0.5),
    ];
    let strategies = runs.iter().map(|run| run.figures.clone()).collect();
    let results = Results { scenario: "synthetic".into(), seed: 7, seconds: 20, strategies };
    let links = runs[0].timeline.uplinks.clone();
    let facts = vec![("links".to_owned(), "4 & more".to_owned())];
    let left_out = LeftOut { strategy: "xnc-adaptive".into(), why: "no <encoder>".into() };
    let live = vec![invented_live("lola-adaptive")];
    let runs = Runs { clip: runs, live, left_out: vec![left_out] };
    (results, Scene { links, facts }, runs)
}

#[test]
fn the_report_stands_alone_and_names_everything() {
    let (results, scene, runs) = invented();
    let html = render(&results, &scene, &runs);
    if let Some(path) = std::env::var_os("ROADWEAVE_REPORT") {
        std::fs::write(path, &html).unwrap();
    }
    let words = ["single:a&lt;b", "minrtt", "xnc", "link3", "4 &amp; more", "seed 7"];
    let live = ["lola-adaptive", "xnc-adaptive is left out: no &lt;encoder&gt;", "in time, dB"];
    for word in words.into_iter().chain(live) {
        assert!(html.contains(word), "{word} is missing");
    }
    assert!(!html.contains("a<b"), "names are escaped");
    for outside in ["<script", "<link", " src=", "@import", "url(", "http"] {
        assert!(!html.contains(outside), "{outside} would need something else than the file");
    }
    assert_eq!(
        html.matches("role=\"img\"").count(),
        3 + runs.clip.len() + runs.live.len(),
        "charts"
    );
    assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
}

#[test]
fn a_run_of_which_nothing_arrived_still_has_a_report() {
    let (results, scene, _) = invented();
    let html = render(
        &results,
        &scene,
        &Runs { clip: vec![Run::default()], live: vec![LiveRun::default()], ..Runs::default() },
    );
    assert!(html.ends_with("</html>\n"));
    assert!(!html.contains("NaN"));
}
