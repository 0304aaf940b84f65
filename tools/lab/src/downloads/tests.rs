use roadweave_emulate::{DriveLink, Trace};
use roadweave_proto::Rate;

use super::*;

/// Mbit/s and one-way delay in ms.
fn links(of: &[(u64, u64)]) -> Vec<DuplexLink> {
    let link = |(at, (mbps, ms)): (u64, &(u64, u64))| {
        let trace = Trace::constant(Rate::from_kbps(mbps * 1_000), Duration::from_millis(*ms));
        DuplexLink::new(&DriveLink::symmetric(format!("link{at}"), trace), at, 1)
    };
    (0..).zip(of).map(link).collect()
}

#[test]
fn a_download_is_measured_from_the_request_to_the_last_byte() {
    let download = Download::new(links(&[(20, 20)]), 4 << 20, 1);
    let done = download.run().expect("a world");
    assert!((1.7..2.4).contains(&done.seconds), "{done:?}");
    let mbps = (4 << 20) as f64 * 8.0 / 1e6 / done.seconds;
    assert!((done.goodput_mbps - mbps).abs() < 0.1, "{done:?}");
    assert!(done.pushed_mbps[0] > done.goodput_mbps, "headers take room: {done:?}");
    assert_eq!(Ok(done), download.run(), "equal seeds, equal figures");
}

/// Packets of a far link arrive among those of a near one, each with a gap. One dropped for lack of
/// room at the receiver is sent again only after ten seconds, when the lane would give up on it.
#[test]
fn a_far_link_adds_what_it_has_to_a_near_one() {
    let mut download = Download::new(links(&[(40, 10), (30, 160)]), 40 << 20, 1);
    let strategy = "minrtt".parse().expect("known");
    download.lane = Some(LaneConfig { strategy, ..StreamsConfig::default().lane });
    let done = download.run().expect("a world");
    assert!(done.goodput_mbps > 50.0, "{done:?}");
    assert!(done.pushed_mbps[1] > 15.0, "the far one has a good part of it: {done:?}");
}
