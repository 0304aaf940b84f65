//! Log messages about outages, and lanes that wait for their uplink.

#[path = "../../../../scripts/golden.rs"]
mod golden;

use std::time::Duration;

use crate::world::*;
use roadweave_proto::{DropReason, Instant};
use roadweave_tunnel::{
    Caps, ClientEvent, LaneConfig, LaneRule, Notice, PathStatusReport, ServerEvent, UplinkPolicy,
};

fn count(world: &World, wanted: fn(&Notice) -> bool) -> usize {
    world.inner.notices().iter().filter(|(_, notice)| wanted(notice)).count()
}

fn log(world: &World) -> String {
    let client = world.client_events.iter().map(|(at, event)| match event {
        ClientEvent::Joined { server, .. } => (at, format!("joined {server}")),
        ClientEvent::Left { reason, rest } => (at, format!("left: {reason}; rests {rest:.1?}")),
        other => (at, format!("{other:?}")),
    });
    let server = world.server_events.iter().map(|(at, event)| match event {
        ServerEvent::Joined { peer, .. } => (at, format!("server: joined {peer}")),
        ServerEvent::Left { peer, reason, .. } => (at, format!("server: left {peer}: {reason}")),
        other => (at, format!("{other:?}")),
    });
    let notices = world.inner.notices().iter();
    let notices = notices.map(|(at, notice)| (at, format!("{}: {notice}", notice.name())));
    let mut lines: Vec<_> = client.chain(server).chain(notices).collect();
    lines.sort();
    let seconds = |at: &Instant| at.since(Instant::ZERO).as_secs_f64();
    lines.iter().map(|(at, text)| format!("{:.1} {text}\n", seconds(at))).collect()
}

#[test]
fn a_session_with_outages_and_its_end_are_logged_once_each() {
    let plan = || Plan::new("xnc", vec![link(20, 20), link(20, 30)]);
    let mut world = plan().build().join();
    for dead in [&[1][..], &[0, 1]] {
        dead.iter().for_each(|index| world.set_dead(*index, true));
        stream(&mut world, 150, 2);
        dead.iter().for_each(|index| world.set_dead(*index, false));
        stream(&mut world, 60, 2);
    }
    world.close_server();
    world.run(ms(1_000));
    golden::assert_golden("log-session.txt", &log(&world));

    let mut world = plan().build();
    world.set_dead(1, true);
    let mut world = world.join();
    world.run(ms(60_000));
    golden::assert_golden("log-blocked.txt", &log(&world));

    let mut plan = plan();
    let caps = Caps { monthly_bytes: Some(200_000), ..Caps::default() };
    plan.policies.insert("wwan0".into(), UplinkPolicy { caps, ..UplinkPolicy::default() });
    let mut world = plan.build().join();
    stream(&mut world, 120, 4);
    golden::assert_golden("log-cap.txt", &log(&world));
}

#[test]
fn without_a_session_it_is_told_why() {
    let why = |world: &mut World| {
        let now = world.now;
        world.inner.ends_mut().0.why_no_session(now)
    };
    let mut world = Plan::new("xnc", vec![link(20, 20), link(20, 30)]).build();
    (0..2).for_each(|index| world.set_dead(index, true));
    world.run(ms(5000));
    assert!(why(&mut world).is_some_and(|why| why.contains("nothing has come in")));
    let reports = world.inner.uplinks();
    assert!(reports.iter().all(|uplink| !uplink.heard && uplink.servers[0].attempts >= 2));
    (0..2).for_each(|index| world.inner.remove_uplink(index));
    assert!(why(&mut world).is_some_and(|why| why.contains("no uplink")));

    let plan = Plan { wrong_client: true, ..Plan::new("xnc", vec![link(20, 20)]) };
    let mut world = plan.build();
    world.run(ms(5000));
    assert!(why(&mut world).is_some_and(|why| why.contains("none with a welcome")));
    let pair = world.inner.uplinks()[0].servers[0].clone();
    assert!(pair.last.is_some_and(|last| last.contains("does not know this client's key")));
    assert!(pair.rest_seconds.is_some_and(|rest| (4.0..8.0).contains(&rest)));

    let mut world = Plan::new("xnc", vec![link(20, 20)]).build().join();
    assert_eq!(why(&mut world), None);
}

/// A lane for 203.0.113.0/24 over wwan1 alone, and one for all other packets.
fn bound_lanes() -> Vec<LaneConfig> {
    let strategy = |name: &str| name.parse().expect("known");
    let destination = Some(vec!["203.0.113.0/24".parse().expect("a network")]);
    let mut bound = LaneConfig::new("bound", strategy("single:wwan1"));
    bound.rule = LaneRule { destination, ..LaneRule::default() };
    vec![bound, LaneConfig::new("default", strategy("xnc"))]
}

fn bound_packet(number: u64) -> Vec<u8> {
    udp_v4([10, 77, 0, 2], [203, 0, 113, 1], number, 300)
}

/// Sends 50 packets in each lane; returns the number that arrived by lane.
fn send_both(world: &mut World, first: u64) -> [usize; 2] {
    let before = world.up.len();
    for number in first..first + 50 {
        world.send_up(&bound_packet(number));
        world.send_up(&packet_up(number + 1_000_000, 300));
        world.run(ms(20));
    }
    world.run(ms(1500));
    let came = &world.up[before..];
    let default = came.iter().filter(|arrival| number(&arrival.packet) >= 1_000_000).count();
    [came.len() - default, default]
}

#[test]
fn a_lane_waits_for_its_uplink_and_the_others_work() {
    let plan = Plan::new("xnc", vec![link(20, 20), link(20, 30)]);
    let lanes_down = vec![LaneConfig::new("default", "xnc".parse().expect("known"))];
    let mut world = plan.build_with(bound_lanes(), lanes_down);
    world.inner.remove_uplink(1);
    let mut world = world.join();
    assert_eq!(send_both(&mut world, 0), [0, 50], "the uplink is not there");
    let drops = |world: &World| world.client_status().stats.lanes[0].sent.drops.clone();
    assert_eq!(drops(&world).get(DropReason::QueueExpired), 50, "and what waited is counted");
    world.inner.add_uplink(1);
    world.run(ms(1000));
    assert_eq!(send_both(&mut world, 100), [50, 50], "plugged in, in the same session");
    world.inner.remove_uplink(1);
    world.run(ms(500));
    assert_eq!(send_both(&mut world, 200), [0, 50], "unplugged");
    world.inner.add_uplink(1);
    world.run(ms(1000));
    assert_eq!(send_both(&mut world, 300), [50, 50], "and back");
    assert_eq!(world.client_events.len(), 1, "one session: {:?}", world.client_events);
    let waits = count(&world, |notice| matches!(notice, Notice::LaneWaits { .. }));
    let served = count(&world, |notice| matches!(notice, Notice::LaneServed { .. }));
    assert!(waits == served && (1..=2).contains(&waits), "{:?}", world.inner.notices());
}

#[test]
fn a_lane_may_be_set_to_an_uplink_that_is_not_there_yet() {
    let mut world = Plan::new("xnc", vec![link(20, 20), link(20, 30)]).build();
    world.inner.remove_uplink(1);
    let mut world = world.join();
    let now = world.now;
    let single = || "single:wwan1".parse().expect("known");
    world.inner.ends_mut().0.set_strategy(now, "default", single()).expect("it waits");
    let waiting: Vec<(String, String)> = {
        let client = world.inner.ends_mut().0;
        client.waiting_lanes().map(|(lane, uplink)| (lane.into(), uplink.into())).collect()
    };
    assert_eq!(waiting, [("default".to_owned(), "wwan1".to_owned())]);
    world.send_up(&packet_up(1, 300));
    world.run(ms(300));
    assert_eq!(world.up.len(), 0);
    world.inner.add_uplink(1);
    world.run(ms(1000));
    world.send_up(&packet_up(2, 300));
    world.run(Duration::from_secs(1));
    assert!(world.up.iter().any(|arrival| number(&arrival.packet) == 2));
}

#[test]
fn a_session_that_answers_for_a_moment_now_and_then_keeps_nothing_from_being_tried() {
    let mut world = Plan::new("xnc", vec![link(20, 20), link(20, 30)]).build();
    world.set_dead(1, true);
    let mut world = world.join();
    let attempts = |world: &World| world.inner.uplinks()[1].servers[0].attempts;
    let before = attempts(&world);
    // Shorter than the time after which a silent port is replaced.
    for _ in 0..2 {
        world.set_dead(0, true);
        world.run(ms(3_800));
        world.set_dead(0, false);
        world.run(ms(260));
    }
    assert!(attempts(&world) > before, "beside a session that is of no use");
    world.run(ms(5_000));
    let settled = attempts(&world);
    world.run(ms(15_000));
    assert_eq!(attempts(&world), settled, "it is of use again");
    assert_eq!(world.sessions().1, 0, "{:?}", world.client_events);
}

#[test]
fn an_uplink_that_comes_and_goes_all_day_is_known_by_its_name_at_both_ends() {
    let lane = |strategy: &str| vec![LaneConfig::new("default", strategy.parse().expect("known"))];
    let plan = Plan::new("xnc", vec![link(20, 20), link(20, 30)]);
    let mut world = plan.build_with(lane("single:wwan1"), lane("xnc")).join();
    let names = |paths: Vec<PathStatusReport>| {
        paths.into_iter().map(|path| path.uplink.expect("it is named")).collect::<Vec<_>>()
    };
    // More often than the number of names kept for one client.
    for time in 0..80 {
        world.inner.remove_uplink(1);
        world.run(ms(1_500));
        world.inner.add_uplink(1);
        world.run(ms(1_500));
        let server = world.inner.server_status().remove(0).paths;
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
fn an_uplink_beyond_the_most_paths_is_told_as_that_and_not_as_blocked() {
    let links = (0..17).map(|number| link(5, 20 + number)).collect();
    let mut world = Plan::new("xnc", links).build().join();
    world.run(ms(60_000));
    let blocked = count(&world, |notice| matches!(notice, Notice::Blocked { .. }));
    let without_path = count(&world, |notice| {
        matches!(notice, Notice::NoPath { paths: 16, of_server: false, .. })
    });
    assert_eq!((blocked, without_path), (0, 1), "{:?}", world.inner.notices());
}
