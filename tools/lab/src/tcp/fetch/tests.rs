use roadweave_emulate::{DriveLink, GilbertElliott, Jitter, Trace};
use roadweave_proto::Rate;
use roadweave_quic::CongestionControl::{self, Bbr, Cubic};

use super::*;

const MS: Duration = Duration::from_millis(1);

/// `queue` is in bandwidth-delay products.
fn link(mbps: u64, rtt: Duration, queue: f64) -> DuplexLink {
    let rate = Rate::from_kbps(mbps * 1_000);
    let trace = Trace::constant(rate, rtt / 2);
    let mut link = DuplexLink::new(&DriveLink::symmetric("link", trace), 0, 1);
    for way in [&mut link.up, &mut link.down] {
        way.queue_bytes = (rate.bytes_in(rtt) as f64 * queue) as usize;
    }
    link
}

fn lossy(mut link: DuplexLink, loss: f64) -> DuplexLink {
    link.down.burst_loss = Some(GilbertElliott::independent(loss));
    link
}

fn run(link: &DuplexLink, by: CongestionControl, bytes: Option<u64>, seconds: u64) -> Fetched {
    let config = SocketConfig { algorithm: by, mtu: 1_500, seed: 1 };
    fetch(link, &config, (Direction::Down, bytes), Duration::from_secs(seconds))
}

#[test]
fn a_request_takes_the_rounds_of_slow_start() {
    // SYN, request, then 10 and 20 segments: three round trips, plus the serialization of the last
    // flight, or its pacing at 2.9 times 10 segments per round trip.
    let link = link(100, MS * 100, 1.0);
    for (algorithm, more) in [(Cubic, 0), (Bbr, 35)] {
        let took = run(&link, algorithm, Some(28 * 1_448), 10).took;
        let least = MS * (300 + more);
        assert!((least..least + MS * 20).contains(&took), "{algorithm} {took:?}");
    }
}

#[test]
fn bbr_fills_a_link_with_a_short_queue_and_one_that_loses() {
    let short = run(&link(20, MS * 80, 0.2), Bbr, None, 20).goodput_mbps();
    assert!(short > 16.0, "{short}");
    let lossy_link = lossy(link(20, MS * 80, 1.0), 0.02);
    let lossy = run(&lossy_link, Bbr, None, 20).goodput_mbps();
    assert!(lossy > 15.0, "{lossy}");
    let cubic = run(&lossy_link, Cubic, None, 20).goodput_mbps();
    assert!(cubic < 4.0, "{cubic}");
}

#[test]
fn segments_that_overtake_each_other_are_no_losses_for_long() {
    let mut reordering = link(20, MS * 60, 2.0);
    reordering.down.jitter = Some(Jitter { deviation: MS * 2, reorders: true });
    let fetched = run(&reordering, Cubic, None, 20);
    assert!(fetched.goodput_mbps() > 14.0, "{fetched:?}");
    assert!(fetched.stats.again * 20 < fetched.stats.segments, "{:?}", fetched.stats);
}

#[test]
fn a_lost_tail_is_probed_for_and_a_pause_is_survived() {
    let runs = |loss: f64| -> Vec<Fetched> {
        let one = |seed| {
            let mut link = lossy(link(20, MS * 50, 1.0), loss);
            link.down.seed = seed;
            run(&link, Cubic, Some(20_000), 60)
        };
        (1..200).map(one).collect()
    };
    let (few, many) = (runs(0.03), runs(0.15));
    assert!(few.iter().chain(&many).all(|it| it.bytes == 20_000));
    let probed = few.iter().filter(|it| it.stats.probes > 0 && it.stats.timeouts == 0);
    let probed: Vec<Duration> = probed.map(|it| it.took).collect();
    // Two round trips and their responses; the probe follows two round trips later, or 200 ms later
    // for a single segment.
    assert!(!probed.is_empty() && probed.iter().all(|took| *took < MS * 600), "{probed:?}");
    assert!(many.iter().any(|it| it.stats.timeouts > 0));
}
