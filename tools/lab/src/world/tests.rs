use roadweave_emulate::{DriveLink, DuplexLink, GilbertElliott, Trace};
use roadweave_proto::Rate;
use roadweave_tunnel::{LaneConfig, Strategy};

use super::*;
use crate::inner;

fn link(name: &str, mbps: u64, delay_ms: u64) -> DuplexLink {
    let trace = Trace::constant(Rate::from_kbps(mbps * 1_000), Duration::from_millis(delay_ms));
    DuplexLink::new(&DriveLink::symmetric(name, trace), delay_ms, 1)
}

fn lossy(mut link: DuplexLink, share: f64) -> DuplexLink {
    link.up.burst_loss = Some(GilbertElliott::bursts(share, 3.0));
    link
}

fn config(strategy: &str, links: Vec<DuplexLink>) -> WorldConfig {
    let strategy: Strategy = strategy.parse().unwrap();
    let lanes_down = vec![LaneConfig::new("default", Strategy::xnc())];
    let lanes = vec![LaneConfig::new("default", strategy)];
    WorldConfig { lanes_down, ..WorldConfig::plain(links, lanes, 1) }
}

fn joined(config: WorldConfig) -> World {
    let mut world = World::new(config).unwrap();
    world.observe_packets();
    let end = world.now() + Duration::from_secs(5);
    while !world.all_paths_usable() && world.now() < end {
        world.run_until(world.now() + Duration::from_millis(10));
    }
    assert!(world.all_paths_usable(), "{:?}", world.client_events());
    world
}

fn numbered(direction: Direction, number: u64) -> Bytes {
    inner::udp(direction, 5_000, &number.to_be_bytes().repeat(130))
}

fn send(world: &mut World, direction: Direction, count: u64) -> Vec<Arrival> {
    let begin = world.now();
    for number in 0..count {
        world.run_until(begin + Duration::from_millis(number));
        world.handle_inner(direction, &numbered(direction, number));
        world.flush();
    }
    world.run_until(world.now() + Duration::from_secs(1));
    std::iter::from_fn(|| world.poll_arrival()).collect()
}

#[test]
fn packets_cross_in_both_directions_in_the_time_that_the_link_takes() {
    let mut world = joined(config("xnc", vec![link("a", 8, 20)]));
    for direction in [Direction::Up, Direction::Down] {
        let begin = world.now();
        let arrived = send(&mut world, direction, 3);
        let packets: Vec<Bytes> = arrived.iter().map(|arrival| arrival.packet.clone()).collect();
        let sent: Vec<Bytes> = (0..3).map(|number| numbered(direction, number)).collect();
        assert_eq!(packets, sent);
        for (number, arrival) in arrived.iter().enumerate() {
            let delay = arrival.at.since(begin + Duration::from_millis(number as u64));
            // 20 ms of propagation; 1,040 bytes and headers take just over a millisecond at 8
            // Mbit/s, and the previous packet may be queued.
            let millis = delay.as_secs_f64() * 1e3;
            assert!((21.04..21.4).contains(&millis), "{direction:?} {number}: {millis} ms");
            let ride = arrival.ride.unwrap();
            assert_eq!((ride.link, ride.propagation), (0, Duration::from_millis(20)));
            let trail = arrival.trail.unwrap();
            assert_eq!((trail.sent, trail.lost, trail.decoded), (ride.boarded, None, false));
        }
    }
}

#[test]
fn trails_show_how_lost_packets_were_recovered() {
    let links = vec![lossy(link("a", 20, 20), 0.1), lossy(link("b", 20, 22), 0.1)];
    let mut world = joined(config("xnc", links));
    let arrived = send(&mut world, Direction::Up, 2_000);
    let trails: Vec<(&Arrival, Trail)> = arrived.iter().map(|a| (a, a.trail.unwrap())).collect();
    let repaired: Vec<_> = trails.iter().filter(|(_, it)| it.repair_asked.is_some()).collect();
    assert!(repaired.len() > 50, "{} of {}", repaired.len(), trails.len());
    assert!(repaired.iter().any(|(_, trail)| trail.decoded), "some came by coded packets");
    for (arrival, trail) in &repaired {
        let lost = trail.lost.unwrap();
        assert!(trail.queued <= trail.sent && trail.sent < lost, "{trail:?}");
        assert!(trail.repair_asked >= Some(lost) && lost < arrival.at, "{trail:?}");
    }
}

#[test]
fn what_goes_to_an_address_that_is_no_more_is_counted() {
    let mut world = joined(config("xnc", vec![link("a", 8, 20), link("b", 8, 30)]));
    world.rebind(0);
    world.rebind(1);
    world.handle_inner(Direction::Down, &numbered(Direction::Down, 0));
    world.flush();
    assert!(world.undeliverable() > 0);
    world.run_until(world.now() + Duration::from_secs(3));
    let arrived = send(&mut world, Direction::Down, 5);
    assert!(arrived.len() >= 5, "the way back is found again: {}", arrived.len());
}

#[test]
fn a_world_without_links_is_refused() {
    assert_eq!(World::new(config("xnc", Vec::new())).err(), Some(WorldError::Links(0)));
}
