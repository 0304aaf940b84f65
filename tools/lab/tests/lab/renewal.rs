//! A session replaced by another, with other lanes or another server: every loss is counted.

use std::collections::BTreeSet;

use crate::servers::{Fault, Servers};
use crate::world::{at, count, ms};
use roadweave_emulate::Direction;
use roadweave_lab::inner;
use roadweave_proto::{DropReason, Order};
use roadweave_tunnel::{
    ClientEvent, LaneConfig, LaneStats, ServerEvent, SetError, Strategy, default_lanes,
};

fn running(sites: &[&str]) -> Servers {
    let mut fleet = Servers::at(sites);
    fleet.run_to(4_000);
    fleet
}

fn lanes(names: &[&str]) -> Vec<LaneConfig> {
    names.iter().map(|name| LaneConfig::new(*name, Strategy::xnc())).collect()
}

fn set_lanes(fleet: &mut Servers, lanes: Vec<LaneConfig>) {
    let now = fleet.now();
    fleet.client().set_lanes(now, lanes).expect("they can be used");
    fleet.flush();
}

fn names(fleet: &mut Servers) -> Vec<String> {
    let lanes = fleet.client().status().expect("there is a session").stats.lanes;
    let names = lanes.into_iter().map(|lane| lane.name);
    names.filter(|name| !name.starts_with("received-")).collect()
}

fn sessions(fleet: &Servers) -> usize {
    count(fleet.client_events(), |event| {
        matches!(event, ClientEvent::Joined { .. } | ClientEvent::Moved { .. })
    })
}

/// Sends a packet each way every 2 ms, with `change` in the middle; returns losses up and down.
fn stream(fleet: &mut Servers, millis: u64, change: impl FnOnce(&mut Servers)) -> [usize; 2] {
    let (mut change, mut sent) = (Some(change), 0);
    for number in 0..millis / 2 {
        if number == millis / 4 {
            change.take().into_iter().for_each(|change| change(fleet));
        }
        let mut payload = [0; 900];
        payload[..8].copy_from_slice(&number.to_be_bytes());
        for way in [Direction::Up, Direction::Down] {
            let packet = inner::udp(way, 5_000, &payload);
            fleet.handle_inner(way, &packet);
        }
        fleet.flush();
        fleet.run(ms(2));
        sent += 1;
    }
    fleet.run(ms(3_000));
    let mut arrived = [BTreeSet::new(), BTreeSet::new()];
    while let Some((_, direction, packet)) = fleet.poll_arrival() {
        let way = usize::from(direction == Direction::Down);
        arrived[way].insert(inner::payload(&packet));
    }
    arrived.map(|arrived| sent - arrived.len())
}

#[test]
fn a_session_with_other_lanes_follows_at_the_same_server_and_no_packet_is_lost() {
    for sites in [&["a"][..], &["a", "b"]] {
        let mut fleet = running(sites);
        let lost = stream(&mut fleet, 4_000, |fleet| set_lanes(fleet, lanes(&["video", "rest"])));
        assert_eq!(lost[0], 0, "{sites:?}");
        assert!(lost[1] <= 60, "{sites:?}: {} on the way from the server", lost[1]);
        assert_eq!(names(&mut fleet), ["video", "rest"]);
        assert_eq!(sessions(&fleet), 2, "{sites:?}");
        fleet.check_home(0, 0);
        let joined = count(fleet.server_events(0), |it| matches!(it, ServerEvent::Joined { .. }));
        let left = count(fleet.client_events(), |it| matches!(it, ClientEvent::Left { .. }));
        assert_eq!((joined, left), (2, 0));
        assert!(sites.len() == 1 || fleet.stands_by(1));
    }
}

#[test]
fn lanes_that_a_session_can_take_up_leave_it_alone() {
    let mut fleet = running(&["a"]);
    for wrong in [lanes(&[]), lanes(&["lane"; 9])] {
        let error = SetError::Lanes(wrong.len());
        assert_eq!(fleet.client().set_lanes(at(4_000), wrong), Err(error));
    }
    let mut other = default_lanes();
    other[0].strategy = Strategy::xnc();
    other[0].rank = 5;
    set_lanes(&mut fleet, other.clone());
    fleet.run_to(8_000);
    assert_eq!(sessions(&fleet), 1);
    // Another kind of order needs a new session, unless it is withdrawn first.
    let max_buffer = ms(100);
    other[1].order = match other[1].order {
        Order::Pass => Order::Reorder { max_buffer },
        _ => Order::Pass,
    };
    set_lanes(&mut fleet, other.clone());
    set_lanes(&mut fleet, default_lanes());
    fleet.run_to(12_000);
    assert_eq!(sessions(&fleet), 1);
    set_lanes(&mut fleet, other);
    fleet.run_to(16_000);
    assert_eq!((sessions(&fleet), names(&mut fleet).len()), (2, default_lanes().len()));
}

#[test]
fn while_no_other_session_is_to_be_had_the_one_there_is_goes_on() {
    // Either the server drains, or no link works.
    for dead in [false, true] {
        let mut fleet = running(&["a", "b"]);
        let all = fleet.candidates();
        fleet.set_candidates(all[..1].to_vec());
        match dead {
            true => fleet.set_all_dead(true),
            false => fleet.befall(0, Fault::Drain),
        }
        set_lanes(&mut fleet, lanes(&["video"]));
        fleet.run_to(9_000);
        assert_eq!((sessions(&fleet), names(&mut fleet).len()), (1, default_lanes().len()));
        if !dead {
            fleet.set_candidates(all);
        }
        fleet.set_all_dead(false);
        fleet.run_to(30_000);
        assert_eq!((sessions(&fleet), names(&mut fleet)), (2, vec!["video".to_owned()]), "{dead}");
        assert_eq!(fleet.home(), usize::from(!dead));
    }
}

#[test]
fn drops_of_a_session_are_reported_with_its_successor_and_after_its_end() {
    let mut fleet = running(&["a", "b"]);
    (0..7).for_each(|_| fleet.handle_inner(Direction::Up, &[0; 3]));
    let dropped = |fleet: &mut Servers| {
        let drops = fleet.client().status().map(|status| status.stats.drops);
        drops.map(|drops| drops.get(DropReason::MalformedInner))
    };
    assert_eq!(dropped(&mut fleet), Some(7));
    fleet.befall(0, Fault::Drain);
    while fleet.now() < at(10_000) {
        fleet.run(ms(50));
        assert_eq!(dropped(&mut fleet), Some(7), "at {}", fleet.now());
    }
    assert_eq!(fleet.moves(), 1);
    fleet.befall(1, Fault::Crash);
    fleet.run_to(400_000);
    assert_eq!(dropped(&mut fleet), None, "there is no session");
    assert_eq!(fleet.client().drops().get(DropReason::MalformedInner), 7);
}

#[test]
fn what_waits_in_a_session_that_ends_is_counted() {
    let mut fleet = Servers::at(&["a", "b"]);
    let known = fleet.candidates();
    fleet.set_candidates(known[..1].to_vec());
    fleet.run_to(4_000);
    fleet.set_all_dead(true);
    fleet.run_to(12_000);
    for _ in 0..2_000 {
        fleet.handle_inner(Direction::Up, &inner::udp(Direction::Up, 5_000, &[7; 900]));
    }
    fleet.flush();
    let lanes = fleet.client().status().expect("it is silent, and there").stats.lanes;
    let sum = |of: fn(&LaneStats) -> u64| lanes.iter().map(of).sum::<u64>();
    let left = sum(|lane| lane.sent.source_datagrams);
    assert_eq!(sum(|lane| lane.sent.inner_packets), 2_000);
    assert!(left < 1_000, "{left} have left");
    fleet.set_candidates(known[1..].to_vec());
    assert!(fleet.client().status().is_none());
    let drops = fleet.client().drops();
    let full = drops.get(DropReason::QueueFull);
    assert_eq!(drops.get(DropReason::NoSession) + full, 2_000 - left, "{drops:?}");
    assert!(full < 1_000, "{full} found no room");
}
