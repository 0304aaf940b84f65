use roadweave_emulate::{DriveLink, Trace};
use roadweave_tunnel::Strategy;
use roadweave_types::Rate;

use super::*;
use crate::world::WorldLink;

fn constant(name: &str, mbps: u64, delay_ms: u64, index: u64) -> WorldLink {
    let trace = Trace::constant(Rate::from_kbps(mbps * 1_000), Duration::from_millis(delay_ms));
    WorldLink::new(&DriveLink::symmetric(name, trace), index, 1)
}

fn video(strategy: &str, links: Vec<WorldLink>, mbps: u64, seconds: u32) -> Scenario {
    let strategy: Strategy = strategy.parse().unwrap();
    let lasting = Duration::from_secs(seconds.into());
    Scenario {
        traffic: vec![TrafficSpec::video(Rate::from_kbps(mbps * 1_000), lasting)],
        seconds,
        ..Scenario::new("test", links, strategy)
    }
}

#[test]
fn a_video_over_two_links_arrives_whole() {
    let links = vec![constant("a", 12, 20, 0), constant("b", 12, 30, 1)];
    let outcome = run(&video("xnc", links, 15, 4)).unwrap();
    let figures = &outcome.run.figures;
    assert_eq!(figures.residual_loss, 0.0, "{figures:?}");
    assert_eq!(figures.fps, 30.0);
    assert_eq!(outcome.run.timeline.uplinks[1].1.len(), 40);
}
