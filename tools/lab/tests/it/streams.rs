//! Streams over simulated links: requests and answers while links and sessions fail.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::world::apps::{Apps, FetchId};
use crate::world::*;
use roadweave_emulate::Direction;
use roadweave_proto::{Instant, Policy};
use roadweave_tunnel::{ClientEvent, LaneConfig, Qoe, Strategy, StreamsConfig, UplinkPolicy};

fn run(apps: &mut Apps, world: &mut World, time: Duration) {
    run_while(apps, world, time, |apps| !apps.all_over());
}

fn run_while(apps: &mut Apps, world: &mut World, time: Duration, goes_on: impl Fn(&Apps) -> bool) {
    let end = world.inner.now() + time;
    apps.act(&mut world.inner);
    while let Some(due) = world.inner.poll_timeout().filter(|due| *due <= end) {
        world.inner.handle_timeout(due.max(world.inner.now()));
        apps.act(&mut world.inner);
        if !goes_on(apps) {
            return;
        }
    }
    world.inner.run_until(end);
}

fn fetch(apps: &mut Apps, world: &mut World, length: u64) -> FetchId {
    apps.fetch(&mut world.inner, length).expect("the server takes streams")
}

fn took(apps: &Apps, id: FetchId) -> Duration {
    let fetch = &apps.fetches[&id];
    fetch.done.unwrap_or_else(|| panic!("{fetch:?}")).since(fetch.begun)
}

fn plan(links: Vec<LinkPlan>) -> Plan {
    Plan { streams: Some(StreamsConfig::default()), ..Plan::new("xnc", links) }
}

#[test]
fn an_answer_takes_the_rate_of_all_links_together() {
    let mut world = plan(vec![link(20, 20), link(20, 25), link(10, 30)]).build().join();
    let mut apps = Apps::new();
    let id = fetch(&mut apps, &mut world, 20_000_000);
    run(&mut apps, &mut world, ms(20_000));
    let mbps = 20e6 * 8.0 / took(&apps, id).as_secs_f64() / 1e6;
    assert!(mbps > 0.8 * 50.0, "{mbps:.1} of 50 Mbit/s");
}

#[test]
fn a_stream_survives_the_loss_of_any_path_and_of_all_for_a_while() {
    for dead in [vec![0], vec![1], vec![0, 1]] {
        let mut world = plan(vec![link(10, 20), link(10, 30)]).build().join();
        let mut apps = Apps::new();
        let id = fetch(&mut apps, &mut world, 4_000_000);
        run(&mut apps, &mut world, ms(700));
        dead.iter().for_each(|link| world.set_dead(*link, true));
        run(&mut apps, &mut world, ms(3_000));
        dead.iter().for_each(|link| world.set_dead(*link, false));
        run(&mut apps, &mut world, ms(20_000));
        assert!(took(&apps, id) < ms(10_000), "{dead:?}: {:?}", took(&apps, id));
    }
}

#[test]
fn streams_go_on_in_the_next_session_with_the_same_server() {
    let mut world = plan(vec![link(10, 20), link(10, 30)]).build().join();
    let mut apps = Apps::new();
    let ids = [0; 5].map(|_| fetch(&mut apps, &mut world, 1_000_000));
    run(&mut apps, &mut world, ms(1_000));
    let now = world.inner.now();
    let lanes = vec![LaneConfig::new("another", Strategy::xnc())];
    world.inner.ends_mut().0.set_lanes(now, lanes).expect("lanes");
    run(&mut apps, &mut world, ms(20_000));
    let joined = |event: &&(Instant, ClientEvent)| matches!(event.1, ClientEvent::Joined { .. });
    let joins = world.inner.client_events().iter().filter(joined).count();
    assert!(joins > 1, "another session was needed");
    ids.iter().for_each(|id| assert!(took(&apps, *id) < ms(5_000), "{:?}", apps.fetches[id]));
    assert!(apps.over.is_empty());
}

#[test]
fn a_server_that_restarts_resets_streams_at_once_and_takes_new_ones() {
    let mut world = plan(vec![link(10, 20), link(10, 30)]).build().join();
    let mut apps = Apps::new();
    let id = fetch(&mut apps, &mut world, 50_000_000);
    run(&mut apps, &mut world, ms(1_000));
    let restarted = world.inner.now();
    world.restart_server();
    apps.on_server_restart();
    run(&mut apps, &mut world, ms(10_000));
    let at = apps.fetches[&id].reset.expect("nobody knows the stream");
    assert!(at.since(restarted) < ms(2_000), "after {:?}", at.since(restarted));
    // More than the initial credit, which both ends count from the start.
    let next = fetch(&mut apps, &mut world, 3_000_000);
    run(&mut apps, &mut world, ms(20_000));
    assert!(took(&apps, next) < ms(5_000), "{:?}", took(&apps, next));
}

#[test]
fn streams_leave_room_to_packets_that_rank_before_them() {
    let delays_beside = |bytes: Option<u64>| {
        let mut world = plan(vec![link(10, 20), link(10, 30)]).build().join();
        let mut apps = Apps::new();
        bytes.into_iter().for_each(|bytes| _ = fetch(&mut apps, &mut world, bytes));
        run(&mut apps, &mut world, ms(2_000));
        let mut sent = BTreeMap::new();
        for number in 0..300 {
            sent.insert(number, world.inner.now());
            world.inner.handle_inner(Direction::Down, &packet_down(number, 1_000));
            run_while(&mut apps, &mut world, ms(10), |_| true);
        }
        world.flush();
        let delays = delays(&sent, &arrivals(&world.down));
        assert!(delays.len() > 295, "{} of 300 came", delays.len());
        percentile(&delays, 0.95)
    };
    let (alone, beside) = (delays_beside(None), delays_beside(Some(50_000_000)));
    assert!(beside < alone + 40.0, "p95 {alone:.1} ms alone, {beside:.1} beside a transfer");
}

#[test]
fn the_first_bytes_of_an_answer_go_before_what_others_have_waiting() {
    let small_beside_large = |head| {
        let streams = Some(StreamsConfig { head, ..StreamsConfig::default() });
        let links = vec![link(10, 20), link(10, 30)];
        let mut world = Plan { streams, ..Plan::new("xnc", links) }.build().join();
        let mut apps = Apps::new();
        (0..8).for_each(|_| _ = fetch(&mut apps, &mut world, 20_000_000));
        run(&mut apps, &mut world, ms(2_000));
        let small = fetch(&mut apps, &mut world, 90_000);
        run(&mut apps, &mut world, ms(5_000));
        took(&apps, small)
    };
    let (in_turn, first) = (small_beside_large(0), small_beside_large(100_000));
    assert!(first < in_turn / 2, "{first:?}, in turn with the others {in_turn:?}");
}

/// Requests over a fast and a slow path with this redundancy budget, while a player reports a
/// buffer of `seconds`.
fn beside_a_player(seconds: u64, redundancy_percent: Option<u8>) -> World {
    let lane = LaneConfig::new(StreamsConfig::LANE, "xlink".parse().expect("a strategy"));
    let streams = Some(StreamsConfig { lane, ..StreamsConfig::default() });
    let links = vec![link(20, 10), link(20, 120)];
    let policy = Policy { redundancy_percent, ..Policy::default() };
    let policy = UplinkPolicy { policy, ..UplinkPolicy::default() };
    let policies = [0, 1].map(|index| (name(index), policy)).into();
    let mut world = Plan { streams, policies, ..Plan::new("xnc", links) }.build().join();
    let mut apps = Apps::new();
    for _ in 0..20 {
        let qoe = Qoe { cached_bytes: 0, cached_frames: 30 * seconds, bps: 0, fps: 30.0 };
        let now = world.inner.now();
        let client = world.inner.ends_mut().0;
        assert!(client.tell_player(now, StreamsConfig::LANE, 7, qoe));
        assert!(!client.tell_player(now, StreamsConfig::LANE, 7, qoe), "not twice at once");
        fetch(&mut apps, &mut world, 300_000);
        run_while(&mut apps, &mut world, ms(300), |_| true);
    }
    world
}

fn copies(world: &World) -> u64 {
    let status = &world.inner.server_status()[0];
    status.stats.lanes.last().expect("lanes").sent.duplicate_datagrams
}

#[test]
fn what_a_player_has_cached_decides_at_the_server_whether_copies_are_sent() {
    let [rich, poor] = [60, 0].map(|seconds| copies(&beside_a_player(seconds, None)));
    // Losses are always repaired.
    assert!(poor > 5 * rich, "{rich} copies with a minute in the buffer, {poor} with nothing");
}

#[test]
fn a_player_that_lies_gets_no_more_copies_than_the_uplinks_are_to_carry() {
    let world = beside_a_player(0, Some(1));
    assert!(copies(&world) > 0, "it has copies sent to itself");
    for path in world.inner.server_status().remove(0).paths {
        let (source, redundant) = (path.counters.source_bytes, path.counters.redundant_bytes);
        assert!(redundant * 100 <= source, "{:?}: {redundant} of {source}", path.uplink);
    }
    let unbounded = beside_a_player(0, None).inner.server_status().remove(0).paths;
    let mut counters = unbounded.iter().map(|it| it.counters);
    assert!(counters.any(|it| it.redundant_bytes * 100 > it.source_bytes), "{unbounded:?}");
}
