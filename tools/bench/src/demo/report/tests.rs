use std::time::Duration;

use roadweave_lab::figures::Figures;

use super::*;
use crate::demo::live::{LiveFigures, LiveRun, Rates};
use crate::demo::ways::LeftOut;

fn invented() -> (Results, Scene, Runs) {
    let run = |strategy: &str| Run {
        figures: Figures { strategy: strategy.into(), ..Figures::default() },
        delays: (30..80).map(Duration::from_millis).collect(),
        stalls: vec![(Duration::from_millis(4_200), Duration::from_millis(4_800))],
        timeline: Timeline {
            uplinks: (0..4).map(|i| (format!("link{i}"), vec![8.0; 200])).collect(),
            missing: vec![3; 200],
            repairs: vec![7; 200],
            ..Timeline::default()
        },
    };
    let clip = ["single:a<b", "minrtt", "xnc"].map(run).to_vec();
    let Run { delays, stalls, timeline, .. } = clip[0].clone();
    let links = timeline.uplinks.clone();
    let frames = delays.len() + 20;
    let live = LiveRun {
        figures: LiveFigures { strategy: "lola-adaptive".into(), frames, ..LiveFigures::default() },
        delays,
        stalls,
        timeline,
        rates: Rates { target: vec![9.0; 200], encoded: vec![7.0; 200] },
    };
    let strategies = clip.iter().map(|run| run.figures.clone()).collect();
    let results = Results { scenario: "synthetic".into(), seed: 7, seconds: 20, strategies };
    let facts = vec![("links".to_owned(), "4 & more".to_owned())];
    let left_out = LeftOut { strategy: "xnc-adaptive".into(), why: "no <encoder>".into() };
    (results, Scene { links, facts }, Runs { clip, live: vec![live], left_out: vec![left_out] })
}

#[test]
fn the_report_stands_alone_and_names_everything() {
    let (results, scene, runs) = invented();
    let html = render(&results, &scene, &runs);
    let words = ["single:a&lt;b", "minrtt", "xnc", "link3", "4 &amp; more", "seed 7"];
    let live = ["lola-adaptive", "xnc-adaptive is left out: no &lt;encoder&gt;", "in time, dB"];
    for word in words.into_iter().chain(live) {
        assert!(html.contains(word), "{word} is missing");
    }
    for word in ["a<b", "<script", "<link", " src=", "@import", "url(", "http"] {
        assert!(!html.contains(word), "{word}: not escaped, or from outside of the file");
    }
    let charts = 3 + runs.clip.len() + runs.live.len();
    assert_eq!(html.matches("role=\"img\"").count(), charts);
    assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
}

#[test]
fn a_run_of_which_nothing_arrived_still_has_a_report() {
    let (results, scene, _) = invented();
    let (clip, live) = (vec![Run::default()], vec![LiveRun::default()]);
    let html = render(&results, &scene, &Runs { clip, live, ..Runs::default() });
    assert!(html.ends_with("</html>\n") && !html.contains("NaN"));
}
