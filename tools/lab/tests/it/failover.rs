//! A client with several servers: crashes, drains, cuts, and loss of coverage.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::dice;
use crate::servers::{Failover, Fault, Seen, Servers};
use crate::world::{at, ms};
use roadweave_emulate::{Direction, GilbertElliott};
use roadweave_lab::inner;
use roadweave_proto::{Instant, SplitMix64};
use roadweave_tunnel::{
    CandidatePlace, ClientEvent, DrainReason, LaneConfig, ServerEvent, Strategy,
};

fn seeds() -> RangeInclusive<u64> {
    1..=dice::number("ROADWEAVE_SEEDS").unwrap_or(6)
}

fn seen(fault: Fault) -> Vec<Seen> {
    seeds().map(|seed| Failover::new(seed).run(fault)).collect()
}

/// Median and 99th percentile of the gaps.
fn percentiles(seen: &[Seen]) -> [f64; 2] {
    let mut gaps: Vec<f64> = seen.iter().map(|seen| seen.gap_ms).collect();
    gaps.sort_by(f64::total_cmp);
    [50, 99].map(|percent| gaps[(gaps.len() * percent).div_ceil(100) - 1])
}

pub fn fleet(sites: &[&str], seed: u64) -> Servers {
    fleet_with(sites, &[], seed)
}

/// `to_anchor` is in ms from each server to the egress.
pub fn fleet_with(sites: &[&str], to_anchor: &[u64], seed: u64) -> Servers {
    Failover::new(seed).fleet(sites, to_anchor)
}

fn place(fleet: &mut Servers, number: usize) -> CandidatePlace {
    let now = fleet.now();
    fleet.client().candidates(now)[number].place
}

#[test]
fn after_a_crash_the_viewer_waits_half_a_second_at_most_in_most_cases() {
    let seen = seen(Fault::Crash);
    let [p50, p99] = percentiles(&seen);
    assert!(p50 <= 500.0 && p99 <= 1000.0, "p50 {p50} ms, p99 {p99} ms");
    assert!(seen.iter().all(|seen| seen.moves == 1), "{seen:?}");
}

/// Packets lost of a constant stream of 9.6 Mbit/s, and moves of the client, when the server in use
/// crashes in the middle with another on standby.
fn numbers_lost(failover: &Failover) -> (usize, usize) {
    let mut fleet = failover.fleet(&["a", "b"], &[]);
    let begin = at(6_000);
    let crash = 3_000 + SplitMix64::word(failover.seed, 7) % 1_000;
    let mut has_crashed = false;
    let mut seen = BTreeSet::new();
    let mut note = |fleet: &mut Servers| {
        while let Some((.., packet)) = fleet.poll_arrival() {
            let number = packet[inner::HEADERS..].first_chunk().expect("it is numbered");
            seen.insert(u64::from_be_bytes(*number));
        }
    };
    for number in 0..NUMBERS {
        fleet.run_until(begin + Duration::from_millis(number));
        let now = fleet.now();
        let mut stands_by =
            || fleet.client().candidates(now).iter().any(|it| it.place == CandidatePlace::Standby);
        if number >= crash && !has_crashed && stands_by() {
            has_crashed = true;
            let home = fleet.home();
            fleet.befall(home, Fault::Crash);
        }
        let mut payload = [0; 1_172];
        payload[..8].copy_from_slice(&number.to_be_bytes());
        fleet.handle_inner(Direction::Up, &inner::udp(Direction::Up, 5_000, &payload));
        fleet.flush();
        note(&mut fleet);
    }
    fleet.run_until(begin + Duration::from_millis(NUMBERS + 2_000));
    note(&mut fleet);
    (NUMBERS as usize - seen.len(), fleet.moves())
}

const NUMBERS: u64 = 6_000;

#[test]
fn a_crash_loses_nothing_of_a_constant_stream() {
    for seed in seeds() {
        for strategy in ["xnc", "minrtt"] {
            for loss in [0.0, 0.03] {
                let strategy: Strategy = strategy.parse().expect("known");
                let lanes = vec![LaneConfig::new("all", strategy.clone())];
                let mut failover = Failover { lanes, ..Failover::new(seed) };
                let ways = failover.links.iter_mut().flat_map(|it| [&mut it.up, &mut it.down]);
                for way in ways.filter(|_| loss > 0.0) {
                    way.burst_loss = Some(GilbertElliott::bursts(loss, 2.0));
                }
                let lost = numbers_lost(&failover);
                assert_eq!(lost, (0, 1), "seed {seed}, {strategy}, loss {loss}");
            }
        }
    }
}

#[test]
fn a_server_that_freezes_is_left_like_one_that_crashes() {
    let [p50, p99] = percentiles(&seen(Fault::Freeze));
    assert!(p50 <= 500.0 && p99 <= 1000.0, "p50 {p50} ms, p99 {p99} ms");
}

#[test]
fn a_drain_loses_no_frame() {
    for seen in seen(Fault::Drain(0)) {
        assert_eq!((seen.frames_lost, seen.moves), (0, 1), "{seen:?}");
        assert!(seen.gap_ms < 200.0, "{seen:?}");
    }
}

#[test]
fn a_server_without_a_way_out_lets_its_clients_go() {
    let [p50, p99] = percentiles(&seen(Fault::CutFromEgress));
    // Detection takes half a second.
    assert!(p50 <= 1000.0 && p99 <= 1500.0, "p50 {p50} ms, p99 {p99} ms");
}

#[test]
fn a_standby_waits_at_another_site_and_stays() {
    let mut fleet = fleet(&["a", "a", "b"], 1);
    fleet.run_until(at(3_000));
    assert_eq!(place(&mut fleet, 0), CandidatePlace::InUse);
    assert_eq!(place(&mut fleet, 2), CandidatePlace::Standby);
    fleet.run_until(at(1_200_000));
    assert_eq!(place(&mut fleet, 2), CandidatePlace::Standby, "after 20 minutes of nothing");
    assert_eq!(fleet.server(2).standbys(), 1);
    let joined = |(_, event): &&(Instant, ServerEvent)| matches!(event, ServerEvent::Joined { .. });
    assert_eq!(fleet.server_events(2).iter().filter(joined).count(), 0, "it is no session");
    assert_eq!(fleet.moves(), 0);
    let now = fleet.now();
    let candidates = fleet.client().candidates(now);
    assert!(candidates.iter().all(|it| it.figure_ms.is_some_and(|ms| (50.0..80.0).contains(&ms))));
}

#[test]
fn in_a_tunnel_nothing_moves() {
    for seed in seeds() {
        let mut fleet = fleet(&["a", "b"], seed);
        fleet.run_until(at(4_000));
        assert_eq!(place(&mut fleet, 1), CandidatePlace::Standby);
        for (dark, light) in [(5_000, 10_000), (15_100, 17_000), (20_030, 20_900)] {
            fleet.run_until(at(dark));
            (0..3).for_each(|link| fleet.set_dead(link, true));
            fleet.run_until(at(light));
            // The links return one after the other.
            for link in 0..3 {
                fleet.run(ms(SplitMix64::word(seed, link) % 300));
                fleet.set_dead((link as usize + seed as usize) % 3, false);
            }
        }
        fleet.run_until(at(30_000));
        assert_eq!((fleet.moves(), fleet.home()), (0, 0), "seed {seed}");
    }
}

#[test]
fn a_network_that_comes_and_goes_moves_the_client_a_few_times_at_most() {
    for seed in 1..=3 {
        let mut fleet = fleet(&["a", "b"], seed);
        fleet.run_until(at(4_000));
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
fn a_server_serves_again_once_nobody_wants_it_drained() {
    let mut fleet = fleet(&["a", "b"], 1);
    fleet.run_until(at(4_000));
    for reason in [DrainReason::Command, DrainReason::Controller] {
        fleet.server(0).drain(at(4_000), reason, Duration::ZERO);
    }
    fleet.flush();
    fleet.run_until(at(10_000));
    assert_eq!(fleet.home(), 1);
    let server = fleet.server(0);
    server.undrain(DrainReason::Controller);
    assert!(server.is_draining(), "a person on its machine wants it still");
    server.undrain(DrainReason::Controller);
    assert!(server.is_draining());
    fleet.befall(1, Fault::Drain(0));
    fleet.run_until(at(70_000));
    assert_eq!((fleet.home(), fleet.moves()), (1, 1), "there is nowhere to go");
    fleet.server(0).undrain(DrainReason::Command);
    fleet.run_until(at(200_000));
    assert_eq!((fleet.home(), fleet.moves()), (0, 2));
    assert!(!fleet.server(0).is_draining());
}

#[test]
fn uplinks_that_die_in_the_middle_of_a_move_cost_time_and_no_session() {
    // Links that die, and ms between the request to move and their death.
    for (run, (dead, after)) in
        [1, 2, 3].into_iter().flat_map(|dead| (0..6).map(move |at| (dead, 15 * at))).enumerate()
    {
        let mut fleet = fleet(&["a", "b"], run as u64);
        fleet.run_until(at(4_000));
        fleet.befall(0, Fault::Drain(0));
        fleet.run_until(at(4_000 + after));
        (0..dead).for_each(|link| fleet.set_dead((link + run) % 3, true));
        let case = format!("{dead} links dead after {after} ms");
        // One link must suffice: the request to move may have been lost, and is sent again.
        fleet.run_until(at(7_000));
        (dead.min(2)..dead).for_each(|link| fleet.set_dead((link + run) % 3, false));
        fleet.run_until(at(20_000));
        assert_eq!((fleet.home(), fleet.moves()), (1, 1), "{case}");
        assert!(fleet.client().status().is_some(), "{case}");
    }
}

#[test]
fn a_server_that_goes_on_after_a_freeze_takes_nobody_back() {
    let mut fleet = fleet(&["a", "b"], 1);
    fleet.run_until(at(4_000));
    fleet.befall(0, Fault::Freeze);
    fleet.run_until(at(10_000));
    assert_eq!((fleet.moves(), fleet.home()), (1, 1));
    fleet.befall(0, Fault::Thaw);
    fleet.run_until(at(300_000));
    assert_eq!((fleet.moves(), fleet.home()), (1, 1));
    assert_eq!(place(&mut fleet, 0), CandidatePlace::Standby, "it is there for the next time");
}

#[test]
fn a_client_that_stays_at_a_drained_server_is_asked_again() {
    let mut fleet = fleet(&["a", "b"], 1);
    let all = fleet.candidates();
    fleet.client().set_candidates(Instant::ZERO, all[..1].to_vec());
    fleet.run_until(at(4_000));
    fleet.befall(0, Fault::Drain(0));
    fleet.run_until(at(8_000));
    assert_eq!(fleet.home(), 0, "it knows no other");
    fleet.client().set_candidates(at(8_000), all);
    fleet.run_until(at(20_000));
    assert_eq!(fleet.home(), 1);
    assert!(fleet.server(0).is_drained());
}

#[test]
fn a_client_starts_with_the_next_server_when_the_first_is_gone_or_drains() {
    for fault in [Fault::Crash, Fault::Freeze, Fault::Drain(0)] {
        let mut fleet = fleet(&["a", "b"], 1);
        fleet.befall(0, fault);
        fleet.run_until(at(3_000));
        assert_eq!(fleet.home(), 1, "{fault:?}");
        let has_session = |(_, event): &&(Instant, ClientEvent)| {
            matches!(event, ClientEvent::Joined { .. } | ClientEvent::Moved { .. })
        };
        assert!(fleet.client_events().iter().any(|event| has_session(&event)), "{fault:?}");
    }
}

#[test]
fn a_nearer_server_that_is_gone_sends_nobody_to_a_third() {
    let mut fleet = fleet_with(&["a", "b", "c"], &[100, 90, 0], 1);
    fleet.run_until(at(4_000));
    let mut rounds = 0;
    let mut measured = None;
    while rounds < 3 {
        let now = fleet.now() + Duration::from_millis(1);
        fleet.run_until(now);
        assert!(now < at(120_000), "{rounds} rounds");
        let since = fleet.client().candidates(now)[2].measured_seconds_ago;
        let last = since.map(|ago| (now.since(Instant::ZERO).as_secs_f64() - ago).round() as u64);
        rounds += usize::from(last != measured);
        measured = last;
    }
    // The third round finds server 2 the nearest, but it has failed.
    fleet.befall(2, Fault::Freeze);
    fleet.run_until(at(300_000));
    assert_eq!((fleet.moves(), fleet.home()), (0, 0));
}

#[test]
fn after_minutes_without_coverage_all_is_as_before() {
    for (seed, minutes) in [(1, 3), (2, 7)] {
        let mut fleet = fleet(&["a", "b", "c"], seed);
        fleet.run_until(at(10_000));
        (0..3).for_each(|link| fleet.set_dead(link, true));
        fleet.run_until(at(minutes * 60_000));
        (0..3).for_each(|link| fleet.set_dead(link, false));
        fleet.run_until(at(minutes * 60_000 + 12_000));
        assert!(fleet.client().status().is_some(), "{minutes} minutes");
        assert_eq!((fleet.moves(), fleet.home()), (0, 0), "{minutes} minutes");
        let now = fleet.now();
        let candidates = fleet.client().candidates(now);
        assert!(candidates.iter().all(|it| it.rest_seconds.is_none()), "{candidates:#?}");
        let waits = candidates.iter().any(|it| it.place == CandidatePlace::Standby);
        assert!(waits, "{minutes} minutes: {candidates:#?}");
    }
}

#[test]
fn a_server_that_died_meanwhile_is_left_after_minutes_without_coverage() {
    let mut fleet = fleet(&["a", "b"], 1);
    fleet.run_until(at(10_000));
    (0..3).for_each(|link| fleet.set_dead(link, true));
    fleet.run_until(at(100_000));
    fleet.befall(0, Fault::Crash);
    fleet.run_until(at(400_000));
    (0..3).for_each(|link| fleet.set_dead(link, false));
    fleet.run_until(at(415_000));
    assert_eq!(fleet.home(), 1);
    assert!(fleet.client().status().is_some());
}
