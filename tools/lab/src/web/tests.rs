use std::time::Duration;

use roadweave_emulate::{DuplexLink, LinkSettings, Trace};
use roadweave_proto::Rate;
use roadweave_proto::wire::StreamPriority;
use roadweave_tunnel::{LaneConfig, Strategy, StreamsConfig};

use super::*;
use crate::world::{World, WorldConfig};

fn world() -> World {
    world_over(Trace::constant(Rate::from_kbps(20_000), Duration::from_millis(20)))
}

fn world_over(trace: Trace) -> World {
    let settings = |seed| LinkSettings::new(trace.clone(), seed);
    let link = |name: &str, seed| DuplexLink {
        name: name.into(),
        up: settings(seed),
        down: settings(seed + 1),
    };
    let lanes = vec![LaneConfig::new("default", Strategy::xnc())];
    let mut world = World::joined(WorldConfig {
        streams: Some(StreamsConfig::default()),
        ..WorldConfig::plain(vec![link("a", 1), link("b", 3)], lanes, 1)
    })
    .unwrap();
    world.run_until(Instant::from_millis(3_000));
    world
}

fn run(world: &mut World, browser: &mut Browser, host: &mut Host) -> Vec<BrowserEvent> {
    let end = world.now() + Duration::from_secs(1);
    let mut events = Vec::new();
    while let Some(due) = world.poll_timeout().filter(|due| *due <= end) {
        world.handle_timeout(due.max(world.now()));
        events.extend(browser.poll(world));
        host.act(world);
        world.flush();
    }
    events
}

fn came(events: &[BrowserEvent], wanted: ConnectionId) -> u64 {
    let of = |event: &BrowserEvent| match event {
        BrowserEvent::Came(id, bytes) if *id == wanted => *bytes,
        _ => 0,
    };
    events.iter().map(of).sum()
}

#[test]
fn a_request_is_answered_when_it_has_come_whole_and_several_over_one_connection() {
    let (mut world, mut browser, mut host) = (world(), Browser::default(), Host::default());
    let one = browser.open(&mut world, StreamPriority::default()).unwrap();
    let other = browser.open(&mut world, StreamPriority::default()).unwrap();
    browser.ask(&mut world, one, 3, 50_000);
    browser.ask(&mut world, one, 0, 7);
    browser.ask(&mut world, one, 200_000, 11);
    browser.ask(&mut world, other, 0, 0);
    world.flush();
    let events = run(&mut world, &mut browser, &mut host);
    assert_eq!((came(&events, one), came(&events, other)), (50_018, 0));
    browser.ask(&mut world, other, 1, 300_000);
    browser.finish(&mut world, other);
    world.flush();
    let events = run(&mut world, &mut browser, &mut host);
    assert_eq!((came(&events, one), came(&events, other)), (0, 300_000));
    assert!(!events.contains(&BrowserEvent::Over(other)), "it was finished in order");
}

#[test]
fn a_cancelled_request_brings_no_more_data_and_one_lost_by_the_server_is_reported() {
    let (mut world, mut browser, mut host) = (world(), Browser::default(), Host::default());
    let one = browser.open(&mut world, StreamPriority::default()).unwrap();
    let other = browser.open(&mut world, StreamPriority::default()).unwrap();
    browser.ask(&mut world, one, 10, 20_000_000);
    browser.ask(&mut world, other, 10, 20_000_000);
    world.flush();
    let before = run(&mut world, &mut browser, &mut host);
    assert!(came(&before, one) > 0 && came(&before, other) > 0);
    browser.cancel(&mut world, one);
    world.flush();
    let after = run(&mut world, &mut browser, &mut host);
    assert_eq!(came(&after, one), 0);
    assert!(came(&after, other) > 3_000_000, "there is room now: {}", came(&after, other));
    world.restart_server().unwrap();
    let end: Vec<BrowserEvent> =
        (0..5).flat_map(|_| run(&mut world, &mut browser, &mut Host::default())).collect();
    assert!(end.contains(&BrowserEvent::Over(other)), "nobody knows it any more");
}

fn upload(world: &mut World, bytes: u32) -> Duration {
    let (mut browser, mut host) = (Browser::default(), Host::default());
    let begun = world.now();
    let id = browser.open(world, StreamPriority::default()).unwrap();
    browser.ask(world, id, bytes, 7);
    browser.finish(world, id);
    world.flush();
    while let Some(due) = world.poll_timeout().filter(|due| due.since(begun).as_secs() < 10) {
        world.handle_timeout(due.max(world.now()));
        let events = browser.poll(world);
        host.act(world);
        world.flush();
        if came(&events, id) == 7 {
            return world.now().since(begun);
        }
    }
    panic!("{bytes} bytes were not answered");
}

/// Sending 16 kB first and the rest a round trip later would take 80 ms longer.
#[test]
fn an_upload_takes_one_round_trip_and_what_the_links_need() {
    let round_trip = Duration::from_millis(80);
    let mut world = world_over(Trace::constant(Rate::from_kbps(50_000), round_trip / 2));
    upload(&mut world, 4_000_000);
    world.run_until(world.now() + Duration::from_secs(1));
    let took = upload(&mut world, 200_000);
    let links = Rate::from_kbps(100_000).time_for(200_000);
    assert!(took < round_trip + links + round_trip / 2, "{took:?}");
}
