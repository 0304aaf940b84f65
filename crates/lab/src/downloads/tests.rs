use roadweave_emulate::Trace;
use roadweave_types::Rate;

use super::*;

/// Links by Mbit/s and ms of one way.
fn links(of: &[(u64, u64)]) -> Vec<DuplexLink> {
    let link = |(at, (mbps, ms)): (u64, &(u64, u64))| {
        let trace = Trace::constant(Rate::from_kbps(mbps * 1_000), Duration::from_millis(*ms));
        DuplexLink::new(&DriveLink::symmetric(format!("link{at}"), trace), at, 1)
    };
    (0..).zip(of).map(link).collect()
}

#[test]
fn a_download_is_measured_from_the_request_to_the_last_byte() {
    let done = Download::new(links(&[(20, 20)]), Size::Bytes(4 << 20), 1).run().expect("a world");
    assert!((1.7..2.4).contains(&done.seconds), "{done:?}");
    let mbps = (4 << 20) as f64 * 8.0 / 1e6 / done.seconds;
    assert!((done.goodput_mbps - mbps).abs() < 0.1, "{done:?}");
    assert_eq!(done.capacity_mbps, [20.0]);
    assert!(done.pushed_mbps[0] > done.goodput_mbps, "headers take room: {done:?}");
}

#[test]
fn a_download_for_a_time_takes_all_of_it_and_equal_seeds_give_equal_figures() {
    let size = Size::Time(Duration::from_secs(3));
    let run =
        || Download { is_warm: true, ..Download::new(links(&[(10, 20), (5, 20)]), size, 3) }.run();
    let done = run().expect("a world");
    assert_eq!(done.seconds, 3.0);
    assert!(done.pushed_mbps.iter().all(|pushed| *pushed > 3.0), "{done:?}");
    assert_eq!(Ok(done), run());
}

/// What comes over a far link lies scattered among what comes over a near one, with a gap for each
/// packet. What the receiver has no room for is not lost to the lane, and comes again only when
/// that would have given it up, after ten seconds.
#[test]
fn a_far_link_adds_what_it_has_to_a_near_one() {
    let size = Size::Time(Duration::from_secs(6));
    let mut download = Download::new(links(&[(40, 10), (30, 160)]), size, 1);
    let strategy = "minrtt".parse().expect("known");
    download.lane = Some(LaneConfig { strategy, ..StreamsConfig::default().lane });
    let done = download.run().expect("a world");
    assert!(done.goodput_mbps > 0.75 * done.possible_mbps(), "{done:?}");
    assert!(done.pushed_mbps[1] > 15.0, "the far one has a good part of it: {done:?}");
}

/// 1,448 of 1,500 bytes of a packet are data, through the tunnel some 1,308 of 1,450.
#[test]
fn tcp_downloads_the_same_over_each_link_and_through_the_tunnel() {
    for size in [Size::Bytes(4 << 20), Size::Time(Duration::from_secs(3))] {
        let download = Download::new(links(&[(20, 20), (10, 20)]), size, 1);
        for algorithm in Algorithm::ALL {
            let alone = download.by_links(algorithm);
            let tunnel = download.by_tunnel(algorithm).expect("a world");
            for fetched in alone.iter().chain([&tunnel]) {
                match size {
                    Size::Bytes(bytes) => assert!(fetched.is_whole && fetched.bytes == bytes),
                    Size::Time(time) => assert_eq!((fetched.is_whole, fetched.took), (false, time)),
                }
            }
            let [fast, slow] = [0, 1].map(|link: usize| alone[link].goodput_mbps());
            let tunnel = tunnel.goodput_mbps();
            assert!((17.0..19.4).contains(&fast) && (8.5..9.7).contains(&slow), "{alone:?}");
            assert!((fast..fast + slow).contains(&tunnel), "{algorithm} {size:?} {tunnel}");
        }
    }
}

#[test]
fn the_tunnel_has_been_used_as_much_as_the_streams_and_its_paths_are_controlled_as_theirs() {
    let cold = Download::new(links(&[(60, 40)]), Size::Bytes(1 << 20), 1);
    let warm = Download { is_warm: true, ..cold.clone() };
    let cubic = Download { congestion: CongestionControl::Cubic, ..cold.clone() };
    let took = |of: &Download| of.by_tunnel(Algorithm::Cubic).expect("a world").took;
    let [cold, warm, cubic] = [cold, warm, cubic].map(|download| took(&download));
    assert!(warm < cold, "who knows the links is faster: {warm:?}, {cold:?}");
    assert_ne!(cold, cubic);
}
