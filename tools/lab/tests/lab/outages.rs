//! Log messages about outages, and lanes that wait for their uplink.

#[path = "../../../../scripts/golden.rs"]
mod golden;

use crate::world::*;
use roadweave_emulate::Direction;
use roadweave_lab::world::Trust;
use roadweave_proto::DropReason;
use roadweave_tunnel::{Caps, LaneConfig, LaneRule, Notice, PathStatusReport, UplinkPolicy};

#[test]
fn a_session_with_outages_and_its_end_are_logged_once_each() {
    let mut world = World::joined(two_links());
    for dead in [1, 2] {
        (2 - dead..2).for_each(|link| world.set_dead(link, true));
        stream(&mut world, 150, 2);
        world.set_all_dead(false);
        stream(&mut world, 60, 2);
    }
    world.close_server();
    world.run(ms(1_000));
    golden::assert_golden("log-session.txt", &world.log());

    let mut world = World::new(two_links());
    world.set_dead(1, true);
    let mut world = world.join();
    world.run(ms(60_000));
    golden::assert_golden("log-blocked.txt", &world.log());

    let caps = Caps { monthly_bytes: Some(200_000), ..Caps::default() };
    let policies = [(name(0), UplinkPolicy { caps, ..UplinkPolicy::default() })].into();
    let mut world = World::joined(WorldConfig { policies, ..two_links() });
    stream(&mut world, 120, 4);
    golden::assert_golden("log-cap.txt", &world.log());
}

#[test]
fn without_a_session_the_reason_is_reported() {
    let mut world = World::new(two_links());
    world.set_all_dead(true);
    world.run(ms(5000));
    assert!(world.why_no_session().is_some_and(|why| why.contains("nothing has come in")));
    let reports = world.uplinks();
    assert!(reports.iter().all(|uplink| !uplink.heard && uplink.servers[0].attempts >= 2));
    (0..2).for_each(|index| world.remove_uplink(index));
    assert!(world.why_no_session().is_some_and(|why| why.contains("no uplink")));

    let trust = Trust { client_is_known: false, ..Trust::default() };
    let mut world = World::new(WorldConfig { trust, ..plan("xnc", vec![link(20, 20)]) });
    world.run(ms(5000));
    assert!(world.why_no_session().is_some_and(|why| why.contains("answered but not accepted")));
    let pair = world.uplinks().remove(0).servers.remove(0);
    assert!(pair.last.is_some_and(|last| last.contains("does not know this client's key")));
    assert!(pair.rest_seconds.is_some_and(|rest| (4.0..8.0).contains(&rest)));

    assert_eq!(World::joined(two_links()).why_no_session(), None);
}

/// A lane for 203.0.113.0/24 over wwan1 alone, and one for all other packets.
fn bound_lanes() -> Vec<LaneConfig> {
    let destination = Some(vec!["203.0.113.0/24".parse().expect("a network")]);
    let rule = LaneRule { destination, ..LaneRule::default() };
    vec![LaneConfig { name: "bound".into(), rule, ..lane("single:wwan1") }, lane("xnc")]
}

/// Sends 50 packets in each lane; returns the number that arrived by lane.
fn send_both(world: &mut World) -> [usize; 2] {
    let before = world.up.len();
    for number in 0..50 {
        world.send_up(&udp_v4([10, 77, 0, 2], [203, 0, 113, 1], number, 300));
        world.send_up(&packet_up(1_000_000 + number, 300));
        world.run(ms(20));
    }
    world.run(ms(1500));
    let came = &world.up[before..];
    let default = came.iter().filter(|arrival| number(&arrival.packet) >= 1_000_000).count();
    [came.len() - default, default]
}

#[test]
fn a_lane_waits_for_its_uplink_and_the_others_work() {
    let mut world = World::new(WorldConfig { lanes_up: bound_lanes(), ..two_links() });
    world.remove_uplink(1);
    let mut world = world.join();
    assert_eq!(send_both(&mut world), [0, 50], "the uplink is not there");
    let drops = world.client_status().stats.lanes.remove(0).sent.drops;
    assert_eq!(drops.get(DropReason::QueueExpired), 50, "and what waited is counted");
    let waiting: Vec<_> = world.ends_mut().0.waiting_lanes().collect();
    assert_eq!(waiting, [("bound", "wwan1")]);
    world.add_uplink(1);
    world.run(ms(1000));
    assert_eq!(send_both(&mut world), [50, 50], "plugged in, in the same session");
    world.remove_uplink(1);
    world.run(ms(500));
    assert_eq!(send_both(&mut world), [0, 50], "unplugged");
    world.add_uplink(1);
    world.run(ms(1000));
    assert_eq!(send_both(&mut world), [50, 50], "and back");
    assert_eq!(world.client_events().len(), 1, "one session: {:?}", world.client_events());
    let waits = count(world.notices(), |notice| matches!(notice, Notice::LaneWaits { .. }));
    let served = count(world.notices(), |notice| matches!(notice, Notice::LaneServed { .. }));
    assert!(waits == served && (1..=2).contains(&waits), "{:?}", world.notices());
    // A lane may be set to an uplink that is not there.
    world.remove_uplink(1);
    let single = "single:wwan1".parse().expect("known");
    world.set_strategy(Direction::Up, "default", single).expect("it waits");
    assert_eq!(send_both(&mut world), [0, 0]);
    world.add_uplink(1);
    world.run(ms(1000));
    assert!(send_both(&mut world)[1] >= 50);
}

#[test]
fn a_session_that_answers_for_a_moment_now_and_then_keeps_nothing_from_being_tried() {
    let mut world = World::new(two_links());
    world.set_dead(1, true);
    let mut world = world.join();
    let before = world.attempts(1);
    // Shorter than the time after which a silent port is replaced.
    for _ in 0..2 {
        world.set_dead(0, true);
        world.run(ms(3_800));
        world.set_dead(0, false);
        world.run(ms(260));
    }
    assert!(world.attempts(1) > before, "beside a session that is of no use");
    world.run(ms(5_000));
    let settled = world.attempts(1);
    world.run(ms(15_000));
    assert_eq!(world.attempts(1), settled, "it is of use again");
    assert_eq!(world.sessions().1, 0, "{:?}", world.client_events());
}

#[test]
fn an_uplink_that_comes_and_goes_all_day_is_known_by_its_name_at_both_ends() {
    let lanes_up = vec![lane("single:wwan1")];
    let mut world = World::joined(WorldConfig { lanes_up, ..two_links() });
    let names = |paths: Vec<PathStatusReport>| {
        paths.into_iter().map(|path| path.uplink.expect("it is named")).collect::<Vec<_>>()
    };
    // More often than the number of names kept for one client.
    for time in 0..80 {
        world.remove_uplink(1);
        world.run(ms(1_500));
        world.add_uplink(1);
        world.run(ms(1_500));
        let server = world.server_status().remove(0).paths;
        for paths in [world.client_status().paths, server] {
            assert_eq!(names(paths), ["wwan0", "wwan1"], "after {time} times");
        }
        let before = world.up.len();
        world.send_up(&packet_up(time, 300));
        world.run(ms(100));
        assert_eq!(world.up.len(), before + 1, "after {time} times");
    }
}

#[test]
fn an_uplink_beyond_the_path_limit_is_reported_as_that_and_not_as_blocked() {
    let links = (0..17).map(|number| link(5, 20 + number)).collect();
    let mut world = World::joined(plan("xnc", links));
    world.run(ms(60_000));
    let blocked = count(world.notices(), |notice| matches!(notice, Notice::Blocked { .. }));
    let without_path = count(world.notices(), |notice| {
        matches!(notice, Notice::NoPath { paths: 16, of_server: false, .. })
    });
    assert_eq!((blocked, without_path), (0, 1), "{:?}", world.notices());
}
