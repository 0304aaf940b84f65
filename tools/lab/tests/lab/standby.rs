//! Standbys where some uplinks or servers are metered, dead or unusable.

use std::time::Duration;

use crate::nodes::Config;
use crate::servers::{Fault, Servers, config};
use crate::world::{at, ms};
use roadweave_emulate::Direction;
use roadweave_identity::Identity;
use roadweave_lab::world::uplink;
use roadweave_proto::{Policy, Priority};
use roadweave_tunnel::{CandidatePlace, Caps, DrainReason, Node as _, RecvMeta, UplinkPolicy};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Two or three servers at different sites, at these distances from the egress in ms.
fn fleet(to_anchor: &[u64]) -> Servers {
    let sites = &["site-0", "site-1", "site-2"][..to_anchor.len()];
    let to_anchor = to_anchor.iter().copied().map(ms).collect();
    Servers::new(Config { to_anchor, ..config(sites, 1) })
}

fn rest(fleet: &mut Servers, number: usize) -> f64 {
    fleet.reports()[number].rest_seconds.unwrap_or_default()
}

/// Runs until `is_so`; fails if that takes longer than `most`.
fn until(fleet: &mut Servers, most: Duration, mut is_so: impl FnMut(&mut Servers) -> bool) {
    let end = fleet.now() + most;
    while !is_so(fleet) {
        assert!(fleet.now() < end, "not within {most:?}");
        fleet.run(ms(100));
    }
}

fn backup() -> UplinkPolicy {
    let policy = Policy { priority: Priority::Backup, ..Policy::default() };
    UplinkPolicy { policy, ..UplinkPolicy::default() }
}

fn capped() -> UplinkPolicy {
    let caps = Caps { monthly_bytes: Some(1 << 40), ..Caps::default() };
    UplinkPolicy { caps, ..UplinkPolicy::default() }
}

#[test]
fn where_uplinks_without_a_cap_are_dead_the_others_have_a_standby() {
    for policy in [backup(), capped()] {
        // When the other uplinks die, and when the server does, ms.
        for (dead, crash) in [(0, 0), (0, 20_000), (10_000, 30_000)] {
            let mut fleet = fleet(&[0, 0]);
            fleet.client().set_policy("wwan2", policy);
            fleet.run_to(dead);
            assert!(dead == 0 || fleet.stands_by(1));
            (0..2).for_each(|link| fleet.set_dead(link, true));
            fleet.run_to(crash);
            if dead == 0 && crash > 0 {
                assert!(fleet.home() == 0 && fleet.stands_by(1), "{policy:?}");
                let figure = fleet.reports()[1].figure_ms;
                assert!(figure.is_none(), "all were asked in vain at first");
            }
            fleet.befall(0, Fault::Crash);
            fleet.run(seconds(if crash == 0 { 10 } else { 20 }));
            assert!(fleet.home() == 1 && fleet.client().status().is_some(), "{policy:?}");
            assert!(crash == 0 || fleet.moves() == 1, "{policy:?}");
        }
    }
}

#[test]
fn uplinks_that_all_have_caps_are_measured_over() {
    let mut fleet = fleet(&[0, 0]);
    let passed = |fleet: &Servers| {
        let stats = [Direction::Up, Direction::Down].map(|way| fleet.link_stats(0, way));
        stats[0].pushed_bytes + stats[1].delivered_bytes
    };
    let before = passed(&fleet);
    (0..3).for_each(|link| fleet.client().set_policy(&format!("wwan{link}"), capped()));
    fleet.run_to(10_000);
    let figure = fleet.reports()[1].figure_ms;
    assert!(figure.is_some_and(|ms| (50.0..80.0).contains(&ms)), "{figure:?}");
    let counted = fleet.client().usage().of("wwan0", 1).month_bytes;
    assert_eq!(counted, passed(&fleet) - before, "and counted");
}

#[test]
fn a_metered_uplink_carries_the_standby_no_longer_than_needed() {
    let mut fleet = fleet(&[0, 0]);
    fleet.client().set_policy("wwan2", backup());
    let in_ten_minutes = |fleet: &mut Servers| {
        let before = fleet.link_stats(2, Direction::Up).pushed_bytes;
        fleet.run(seconds(600));
        fleet.link_stats(2, Direction::Up).pushed_bytes - before
    };
    fleet.run_to(60_000);
    let before = in_ten_minutes(&mut fleet);
    (0..2).for_each(|link| fleet.set_dead(link, true));
    fleet.run(seconds(20));
    (0..2).for_each(|link| fleet.set_dead(link, false));
    fleet.run(seconds(60));
    let after = in_ten_minutes(&mut fleet);
    assert!(after <= before + before / 20, "{before} and {after} bytes in 10 minutes");
    assert!(fleet.stands_by(1) && fleet.moves() == 0);
}

#[test]
fn a_server_that_was_away_for_hours_serves_a_client_without_another() {
    let mut fleet = fleet(&[0, 0]);
    fleet.run_to(4_000);
    fleet.befall(1, Fault::Freeze);
    until(&mut fleet, seconds(4 * 3600), |fleet| rest(fleet, 1) > 1_700.0);
    fleet.befall(1, Fault::Thaw);
    fleet.run(seconds(20));
    fleet.befall(0, Fault::Crash);
    fleet.run(seconds(30));
    assert!(fleet.home() == 1 && fleet.client().status().is_some());
}

#[test]
fn the_last_server_is_asked_every_ten_seconds_though_it_refused_for_hours() {
    let mut fleet = fleet(&[0, 0]);
    fleet.befall(1, Fault::Drain);
    fleet.run_to(4_000);
    fleet.befall(0, Fault::Crash);
    until(&mut fleet, seconds(4 * 3600), |fleet| rest(fleet, 1) > 1_700.0);
    assert!(fleet.client().status().is_none());
    let (end, mut tried, mut before) = (fleet.now() + seconds(100), 0, false);
    while fleet.now() < end {
        fleet.run(ms(10));
        let tries = fleet.place(1) == CandidatePlace::Trying;
        tried += u32::from(!std::mem::replace(&mut before, tries) && tries);
    }
    assert!((5..=11).contains(&tried), "{tried} times in 100 s");
    fleet.server(1).undrain(DrainReason::Command);
    fleet.run(seconds(15));
    assert!(fleet.home() == 1 && fleet.client().status().is_some());
}

#[test]
fn junk_in_a_dead_zone_counts_as_no_servers_failure() {
    let mut fleet = fleet(&[0, 0]);
    fleet.run_to(10_000);
    fleet.set_all_dead(true);
    for _ in 0..200 {
        fleet.run(seconds(3));
        let remote = fleet.candidates()[1].addresses[0];
        let meta = RecvMeta { socket: uplink(0), remote, local: None, ecn: None, received: None };
        let now = fleet.now();
        fleet.client().handle_packet(now, &meta, &[0x41; 60]);
        fleet.flush();
        assert_eq!(rest(&mut fleet, 1), 0.0, "at {now}");
    }
}

#[test]
fn a_fourth_take_over_waits_until_the_first_is_long_ago_and_no_longer() {
    let mut fleet = fleet(&[0, 0]);
    let mut moved = Vec::new();
    for turn in 0..4 {
        let home = turn % 2;
        until(&mut fleet, seconds(60), |fleet| fleet.stands_by(1 - home));
        fleet.befall(home, Fault::Freeze);
        until(&mut fleet, seconds(400), |fleet| fleet.home() != home);
        moved.push(fleet.now());
        fleet.befall(home, Fault::Thaw);
    }
    assert!(moved[2] < at(150_000), "{moved:?}");
    assert!((moved[0] + seconds(300)..moved[0] + seconds(303)).contains(&moved[3]), "{moved:?}");
}

#[test]
fn a_nearer_server_with_another_key_costs_no_standby() {
    let mut fleet = fleet(&[100, 90, 0]);
    let mut candidates = fleet.candidates();
    candidates[2].key = Identity::from_seed([9; 32]).public_key();
    fleet.set_candidates(candidates);
    fleet.run_to(4_000);
    let mut was_tried = false;
    while fleet.now() < at(120_000) {
        assert!(fleet.stands_by(1), "at {}", fleet.now());
        fleet.run(ms(50));
        was_tried |= fleet.place(2) == CandidatePlace::Trying;
    }
    assert!(was_tried && rest(&mut fleet, 2) > 0.0);
    fleet.check_home(0, 0);
}

#[test]
fn a_nearer_server_is_gone_to_once_it_has_welcomed() {
    let mut fleet = fleet(&[100, 90, 0]);
    fleet.run_to(4_000);
    while fleet.home() == 0 {
        assert!(fleet.stands_by(1) || fleet.stands_by(2), "without a standby");
        assert!(fleet.now() < at(120_000), "it is not gone to");
        fleet.run(ms(10));
    }
    fleet.check_home(2, 1);
    fleet.run(seconds(30));
    assert!(fleet.stands_by(1) || fleet.stands_by(0));
}
