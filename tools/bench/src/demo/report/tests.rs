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
fn a_picture_has_a_strip_for_each_strategy_with_its_stalls() {
    let (_, scene, runs) = invented();
    let svg = picture(&scene, &runs.clip);
    for word in ["xmlns=", "capacity of the links", "single:a&lt;b: stalled", "xnc: stalled"] {
        assert!(svg.contains(word), "{word} is missing");
    }
    assert!(!svg.contains("var(--"), "not every viewer supports variables");
    assert_eq!(svg.matches("class=\"area stalled\"").count(), runs.clip.len());
    // 4.2 s to 4.8 s of 20 s are on columns 42 to 47.
    let values = &outcome(&runs.clip[0], 1).above[0].values;
    let stalled: Vec<usize> = (0..values.len()).filter(|step| values[*step] > 0.0).collect();
    assert_eq!(stalled, [42, 43, 44, 45, 46, 47]);
}

#[test]
fn a_run_of_which_nothing_arrived_still_has_a_report() {
    let (results, scene, _) = invented();
    assert!(!picture(&scene, &[Run::default()]).contains("NaN"));
    let (clip, live) = (vec![Run::default()], vec![LiveRun::default()]);
    let html = render(&results, &scene, &Runs { clip, live, ..Runs::default() });
    assert!(html.ends_with("</html>\n") && !html.contains("NaN"));
}
