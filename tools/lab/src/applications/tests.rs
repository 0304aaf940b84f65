use roadweave_emulate::{AddedLoss, AtEnd, DriveLink, Timeline, Trace};

use super::*;
use crate::traffic::{CallReport, DataStream};

const SECONDS: u32 = 12;

fn link(name: &str, mbps: u64, delay_ms: u64) -> DuplexLink {
    let delay = Duration::from_millis(delay_ms);
    let trace = Trace::constant(Rate::from_kbps(mbps * 1_000), delay);
    DuplexLink::new(&DriveLink::symmetric(name, trace), 0, 1)
}

fn call_over(links: Vec<DuplexLink>) -> ApplicationRun {
    ApplicationRun { application: Application::Call, links, seconds: SECONDS, seed: 1 }
}

fn report(run: &ApplicationRun) -> CallReport {
    match run.over_link(&run.links[0]).detail {
        Detail::Call(call) => CallReport { stream: DataStream::default(), ..*call },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_call_finds_the_rate_of_a_link() {
    let call = report(&call_over(vec![link("a", 10, 20)]));
    assert!((6e6..10e6).contains(&call.shown_bps), "{call:?}");
    assert!(call.frames_shown * 10 >= call.frames_sent * 8, "{call:?}");
    assert!(call.frame_delay_ms.p50 < 250.0, "{call:?}");
    assert_eq!((call.key_frames, call.estimates_bps.len()), (1, SECONDS as usize - 1));
}

#[test]
fn lost_packets_are_requested_and_most_frames_shown() {
    let lossy = link("a", 10, 20).with_loss(AddedLoss::Independent { share: 0.02 });
    let call = report(&call_over(vec![lossy]));
    assert!(call.nacked > 50, "{call:?}");
    assert!(call.frames_shown * 10 >= call.frames_sent * 9, "{call:?}");
    assert_eq!(call.key_frames, 1, "{call:?}");
}

#[test]
fn after_a_long_outage_the_picture_stands_still_until_a_new_key_frame() {
    let times = [(0, 0.0), (4, 1.0), (8, 0.0)].map(|(at, loss)| (Duration::from_secs(at), loss));
    let loss = Timeline::new(times, Duration::from_secs(60), AtEnd::Repeat).unwrap();
    let trace = Trace::constant(Rate::from_kbps(10_000), Duration::from_millis(20));
    let drive = DriveLink::symmetric("a", trace.with_loss(loss));
    let call = report(&call_over(vec![DuplexLink::new(&drive, 0, 1)]));
    assert!(call.freezes >= 1 && call.frozen > 4.0 / f64::from(SECONDS), "{call:?}");
    assert!(call.key_frames >= 2 && call.late > 0.3, "{call:?}");
    assert!(call.frozen < 0.7, "it goes on: {call:?}");
}

#[test]
fn equal_seeds_are_equal_and_others_are_not() {
    let run = call_over(vec![link("a", 4, 20).with_loss(AddedLoss::Independent { share: 0.01 })]);
    assert_eq!(report(&run), report(&run));
    let other = ApplicationRun { seed: 2, ..run.clone() };
    assert_ne!(report(&run), report(&other));
}

#[test]
fn by_the_default_lanes_a_call_over_two_links_is_as_good_as_over_the_better_one() {
    let links = vec![link("a", 14, 15), link("b", 14, 45)];
    let run = ApplicationRun { seconds: 20, ..call_over(links) };
    let (alone, both) = (run.over(&Way::Link(0)).unwrap(), run.over(&Way::Default).unwrap());
    assert!(both.rate_mbps > alone.rate_mbps, "{both:?} {alone:?}");
    assert!(both.frame_delay_p95_ms < alone.frame_delay_p95_ms, "{both:?} {alone:?}");
    assert!(both.freezes == 0.0 && both.nacked < 20.0, "{both:?}");
}

#[test]
fn a_transfer_has_its_rate_over_each_way() {
    let run =
        ApplicationRun { application: Application::Cubic, ..call_over(vec![link("a", 8, 20)]) };
    for way in [Way::Link(0), Way::Default, Way::Lane(Strategy::xnc())] {
        let rate = run.over(&way).unwrap().rate_mbps;
        assert!((6.0..8.0).contains(&rate), "{way}: {rate}");
    }
}

#[test]
fn applications_and_ways_have_names() {
    for application in Application::ALL {
        assert_eq!(application.to_string().parse(), Ok(application));
    }
    assert!("srt".parse::<Application>().unwrap_err().contains("call, cubic, bbr"));
    for name in ["default", "xnc", "redundant"] {
        assert_eq!(name.parse::<Way>().unwrap().to_string(), name);
    }
    assert!("fastest".parse::<Way>().unwrap_err().contains("fastest"));
}
