//! A client with several servers: crashes, drains, cuts, loss of coverage, and what a viewer sees.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::dice;
use crate::nodes::Config;
use crate::servers::{Fault, Servers, config};
use crate::world::{at, count, lane, ms};
use roadweave_emulate::{Direction, GilbertElliott};
use roadweave_lab::inner;
use roadweave_lab::traffic::{Detail, TrafficSpec};
use roadweave_proto::{Instant, Rate, SplitMix64};
use roadweave_tunnel::{CandidatePlace, ClientEvent, DrainReason, ServerEvent};

fn seeds() -> RangeInclusive<u64> {
    1..=dice::number("ROADWEAVE_SEEDS").unwrap_or(6)
}

fn two_servers(seed: u64) -> Servers {
    Servers::new(config(&["a", "b"], seed))
}

/// For a viewer of a video of 30 Mbit/s, with a fault in its middle: the longest time between two
/// complete frames in ms, from half a second before the fault on; and the number of frames never
/// completed.
fn watch(seed: u64, fault: Fault) -> (f64, usize) {
    let mut fleet = two_servers(seed);
    let (begin, lasts) = (at(5_000), Duration::from_secs(8));
    fleet.run_until(begin);
    let mut video = TrafficSpec::video(Rate::from_kbps(30_000), lasts).build(begin, seed);
    let jitter = Duration::from_nanos(SplitMix64::word(seed, 7) % 1_000_000_000);
    let faulted = begin + Duration::from_secs(3) + jitter;
    let (mut due, end) = (Some(faulted), begin + lasts + Duration::from_secs(2));
    while fleet.now() < end {
        let next = [fleet.poll_timeout(), video.poll_timeout(), due, Some(end)];
        let next = next.into_iter().flatten().min().unwrap_or(end).max(fleet.now());
        fleet.run_until(next.min(end));
        while let Some((direction, packet)) = video.poll_transmit(fleet.now()) {
            fleet.handle_inner(direction, &packet);
        }
        if due.take_if(|at| *at <= fleet.now()).is_some() {
            let home = fleet.home();
            fleet.befall(home, fault);
        }
        fleet.flush();
        while let Some((at, _, packet)) = fleet.poll_arrival() {
            video.handle_arrival(at, Direction::Up, &packet);
        }
    }
    fleet.check_home(1, 1);
    let Detail::Video(seen) = video.report(end).detail else { unreachable!("it is a video") };
    let frames = &seen.playout.frames;
    let mut completed: Vec<Instant> = frames.iter().filter_map(|frame| frame.completed).collect();
    completed.sort_unstable();
    let looked_at = completed.windows(2).filter(|it| it[1] + ms(500) >= faulted);
    let gap = looked_at.map(|it| it[1].since(it[0])).max().unwrap_or(lasts);
    (gap.as_secs_f64() * 1e3, frames.len() - completed.len())
}

#[test]
fn after_a_fault_of_its_server_the_viewer_waits_for_a_moment() {
    // The fault, and the median and the 99th percentile of the wait, ms. A server needs half a
    // second to notice that it lost the egress.
    for (fault, p50, p99) in [
        (Fault::Crash, 500.0, 1_000.0),
        (Fault::Freeze, 500.0, 1_000.0),
        (Fault::CutFromEgress, 1_000.0, 1_500.0),
        (Fault::Drain, 200.0, 200.0),
    ] {
        let (mut gaps, lost): (Vec<f64>, Vec<usize>) =
            seeds().map(|seed| watch(seed, fault)).unzip();
        gaps.sort_by(f64::total_cmp);
        let [found_p50, found_p99] =
            [50, 99].map(|percent| gaps[(gaps.len() * percent).div_ceil(100) - 1]);
        assert!(found_p50 <= p50 && found_p99 <= p99, "{fault:?}: {gaps:?}");
        assert!(fault != Fault::Drain || lost.iter().all(|lost| *lost == 0), "{lost:?}");
    }
}

/// Packets of a stream of 9.6 Mbit/s lost when the server crashes, with another on standby.
fn numbers_lost(config: Config) -> usize {
    const NUMBERS: u64 = 6_000;
    let crash = 3_000 + SplitMix64::word(config.seed, 7) % 1_000;
    let mut fleet = Servers::new(config);
    let mut has_crashed = false;
    let mut seen = BTreeSet::new();
    for number in 0..NUMBERS {
        fleet.run_to(6_000 + number);
        if number >= crash && !has_crashed {
            has_crashed = (0..2).any(|number| fleet.stands_by(number));
            let home = fleet.home();
            if has_crashed {
                fleet.befall(home, Fault::Crash);
            }
        }
        let payload = [&number.to_be_bytes()[..], &[0; 1_164]].concat();
        fleet.handle_inner(Direction::Up, &inner::udp(Direction::Up, 5_000, &payload));
        fleet.flush();
        seen.extend(std::iter::from_fn(|| fleet.poll_arrival()).map(|(.., packet)| packet));
    }
    fleet.run(ms(2_000));
    seen.extend(std::iter::from_fn(|| fleet.poll_arrival()).map(|(.., packet)| packet));
    assert_eq!(fleet.moves(), 1);
    NUMBERS as usize - seen.len()
}

#[test]
fn a_crash_loses_nothing_of_a_constant_stream() {
    for seed in seeds() {
        for (strategy, loss) in [("xnc", 0.0), ("xnc", 0.03), ("minrtt", 0.0), ("minrtt", 0.03)] {
            let mut config = Config { lanes: vec![lane(strategy)], ..config(&["a", "b"], seed) };
            let ways = config.links.iter_mut().flat_map(|it| [&mut it.up, &mut it.down]);
            for way in ways.filter(|_| loss > 0.0) {
                way.burst_loss = Some(GilbertElliott::bursts(loss, 2.0));
            }
            assert_eq!(numbers_lost(config), 0, "seed {seed}, {strategy}, loss {loss}");
        }
    }
}

#[test]
fn a_standby_waits_at_another_site_and_stays() {
    let mut fleet = Servers::at(&["a", "a", "b"]);
    for millis in [3_000, 1_200_000] {
        fleet.run_to(millis);
        fleet.check_home(0, 0);
        assert!(fleet.stands_by(2), "after {millis} ms of nothing");
    }
    assert_eq!(fleet.server(2).standbys(), 1);
    let joined = count(fleet.server_events(2), |it| matches!(it, ServerEvent::Joined { .. }));
    assert_eq!(joined, 0, "it is no session");
    let figures: Vec<_> = fleet.reports().iter().map(|it| it.figure_ms).collect();
    let is_near = |ms: &Option<f64>| ms.is_some_and(|ms| (50.0..80.0).contains(&ms));
    assert!(figures.iter().all(is_near), "{figures:?}");
}

#[test]
fn in_a_tunnel_nothing_moves() {
    for seed in seeds() {
        let mut fleet = two_servers(seed);
        fleet.run_to(4_000);
        assert!(fleet.stands_by(1));
        for (dark, light) in [(5_000, 10_000), (15_100, 17_000), (20_030, 20_900)] {
            fleet.run_to(dark);
            fleet.set_all_dead(true);
            fleet.run_to(light);
            // The links return one after the other.
            for link in 0..3 {
                fleet.run(ms(SplitMix64::word(seed, link) % 300));
                fleet.set_dead((link as usize + seed as usize) % 3, false);
            }
        }
        fleet.run_to(30_000);
        fleet.check_home(0, 0);
    }
}

#[test]
fn a_network_that_comes_and_goes_moves_the_client_a_few_times_at_most() {
    for seed in 1..=3 {
        let mut fleet = two_servers(seed);
        fleet.run_to(4_000);
        let mut random = SplitMix64::new(seed);
        while fleet.now() < at(600_000) {
            let link = random.below(3);
            fleet.set_dead(link, random.below(3) > 0);
            fleet.run(ms(50 + random.below(1_500) as u64));
        }
        assert!(fleet.moves() <= 6, "seed {seed}: {} moves in 10 minutes", fleet.moves());
    }
}

#[test]
fn a_server_serves_again_once_no_drain_is_requested() {
    let mut fleet = two_servers(1);
    fleet.run_to(4_000);
    for reason in [DrainReason::Command, DrainReason::Controller] {
        fleet.server(0).drain(at(4_000), reason, Duration::ZERO);
    }
    fleet.flush();
    fleet.run_to(10_000);
    fleet.check_home(1, 1);
    let server = fleet.server(0);
    for _ in 0..2 {
        server.undrain(DrainReason::Controller);
        assert!(server.is_draining(), "a person on its machine wants it still");
    }
    fleet.befall(1, Fault::Drain);
    fleet.run_to(70_000);
    fleet.check_home(1, 1);
    fleet.server(0).undrain(DrainReason::Command);
    fleet.run_to(200_000);
    fleet.check_home(0, 2);
    assert!(!fleet.server(0).is_draining());
}

#[test]
fn uplinks_that_die_in_the_middle_of_a_move_cost_time_and_no_session() {
    // Links that die, and ms between the request to move and their death.
    for (run, (dead, after)) in
        [1, 2, 3].into_iter().flat_map(|dead| (0..6).map(move |at| (dead, 15 * at))).enumerate()
    {
        let mut fleet = two_servers(run as u64);
        fleet.run_to(4_000);
        fleet.befall(0, Fault::Drain);
        fleet.run_to(4_000 + after);
        (0..dead).for_each(|link| fleet.set_dead((link + run) % 3, true));
        // One link must suffice: the request to move may have been lost, and is sent again.
        fleet.run_to(7_000);
        (dead.min(2)..dead).for_each(|link| fleet.set_dead((link + run) % 3, false));
        fleet.run_to(20_000);
        println!("{dead} links dead after {after} ms");
        fleet.check_home(1, 1);
    }
}

#[test]
fn a_server_that_resumes_after_a_freeze_takes_no_client_back() {
    let mut fleet = two_servers(1);
    fleet.run_to(4_000);
    fleet.befall(0, Fault::Freeze);
    fleet.run_to(10_000);
    fleet.check_home(1, 1);
    fleet.befall(0, Fault::Thaw);
    fleet.run_to(300_000);
    fleet.check_home(1, 1);
    assert!(fleet.stands_by(0), "it is there for the next time");
}

#[test]
fn a_client_that_stays_at_a_drained_server_is_asked_again() {
    let mut fleet = two_servers(1);
    let all = fleet.candidates();
    fleet.set_candidates(all[..1].to_vec());
    fleet.run_to(4_000);
    fleet.befall(0, Fault::Drain);
    fleet.run_to(8_000);
    assert_eq!(fleet.home(), 0, "it knows no other");
    fleet.set_candidates(all);
    fleet.run_to(20_000);
    assert_eq!(fleet.home(), 1);
    assert!(fleet.server(0).is_drained());
}

#[test]
fn a_client_starts_with_the_next_server_when_the_first_is_gone_or_drains() {
    for fault in [Fault::Crash, Fault::Freeze, Fault::Drain] {
        let mut fleet = two_servers(1);
        fleet.befall(0, fault);
        fleet.run_to(3_000);
        assert_eq!(fleet.home(), 1, "{fault:?}");
        let begun = count(fleet.client_events(), |event| {
            matches!(event, ClientEvent::Joined { .. } | ClientEvent::Moved { .. })
        });
        assert!(begun > 0, "{fault:?}");
    }
}

#[test]
fn a_nearer_server_that_is_down_moves_no_client_to_a_third() {
    let to_anchor = [100, 90, 0].map(ms).into();
    let mut fleet = Servers::new(Config { to_anchor, ..config(&["a", "b", "c"], 1) });
    fleet.run_to(4_000);
    let mut rounds = 0;
    let mut measured = None;
    while rounds < 3 {
        fleet.run(ms(1));
        let now = fleet.now();
        assert!(now < at(120_000), "{rounds} rounds");
        let since = fleet.reports()[2].measured_seconds_ago;
        let last = since.map(|ago| (now.since(Instant::ZERO).as_secs_f64() - ago).round() as u64);
        rounds += usize::from(last != measured);
        measured = last;
    }
    // The third round finds server 2 the nearest, but it has failed.
    fleet.befall(2, Fault::Freeze);
    fleet.run_to(300_000);
    fleet.check_home(0, 0);
}

#[test]
fn after_minutes_without_coverage_all_is_as_before() {
    for (seed, minutes) in [(1, 3), (2, 7)] {
        let mut fleet = Servers::new(config(&["a", "b", "c"], seed));
        fleet.run_to(10_000);
        fleet.set_all_dead(true);
        fleet.run_to(minutes * 60_000);
        fleet.set_all_dead(false);
        fleet.run_to(minutes * 60_000 + 12_000);
        fleet.check_home(0, 0);
        let reports = fleet.reports();
        assert!(reports.iter().all(|it| it.rest_seconds.is_none()), "{reports:#?}");
        let waits = reports.iter().any(|it| it.place == CandidatePlace::Standby);
        assert!(waits, "{minutes} minutes: {reports:#?}");
    }
}

#[test]
fn a_server_that_died_meanwhile_is_left_after_minutes_without_coverage() {
    let mut fleet = two_servers(1);
    fleet.run_to(10_000);
    fleet.set_all_dead(true);
    fleet.run_to(100_000);
    fleet.befall(0, Fault::Crash);
    fleet.run_to(400_000);
    fleet.set_all_dead(false);
    fleet.run_to(415_000);
    assert_eq!(fleet.home(), 1);
    assert!(fleet.client().status().is_some());
}
