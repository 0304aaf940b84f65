use super::loads::{LinkLoad, load};
use super::*;

fn recording(rtts_ms: [u64; 2], seconds: u64) -> Drive {
    let link = |(index, rtt_ms): (usize, u64)| {
        let half = Duration::from_micros(rtt_ms * 500);
        let steps = (0..seconds)
            .map(|second| (Duration::from_secs(second), half + Duration::from_millis(second % 3)));
        let delay = Timeline::new(steps, Duration::from_secs(seconds), AtEnd::Repeat);
        let trace = Trace::constant(CAPACITY, half).with_delay(delay.expect("ascending"));
        DriveLink::symmetric(format!("net{index}"), trace)
    };
    Drive { links: rtts_ms.into_iter().enumerate().map(link).collect() }
}

#[test]
fn recordings_are_joined_one_behind_the_other() {
    let recordings: Vec<(String, Drive)> =
        (0..5).map(|n| (format!("run{n}"), recording([40 + 20 * n, 80], 10 + n))).collect();
    let routes = routes(&recordings, 2).expect("five recordings");
    let lengths = routes.iter().map(|route| route.length().map(|length| length.as_secs()));
    assert_eq!(lengths.collect::<Vec<_>>(), [Some(10 + 11), Some(12 + 13 + 14)]);
    let delay = |ms: u64| routes[0].links[0].up.delay().at(Duration::from_millis(ms));
    assert_eq!(delay(0), Duration::from_millis(20));
    assert_eq!(delay(10_000), Duration::from_millis(30));
    assert_eq!(super::routes(&recordings[..1], 2), Err(RouteError::TooFew(1, 2)));
}

fn talk(traffic_world: &mut TrafficWorld, seconds: u32) {
    let end = traffic_world.world.now() + Duration::from_secs(seconds.into());
    while traffic_world.world.now() < end {
        for direction in [Direction::Up, Direction::Down] {
            let packet = inner::udp(direction, FIRST_PORT, &[7; 200]);
            traffic_world.world.handle_inner(direction, &packet);
        }
        traffic_world.world.flush();
        traffic_world.run_until(traffic_world.world.now() + Duration::from_millis(100));
    }
}

fn on(drive: &Drive) -> RavenRoute<'_> {
    RavenRoute { name: "first", drive, loss: None }
}

#[test]
fn what_is_learned_outlives_sessions_and_the_program() {
    let route = recording([50, 55], 60);
    let strategy: Strategy = "raven".parse().expect("known");
    let scenario = Scenario::new("talk", on(&route).links(1), strategy);
    let mut traffic_world = TrafficWorld::new(scenario.world().expect("two links"));
    warm_up(&mut traffic_world, &scenario);
    talk(&mut traffic_world, 30);
    traffic_world.world.restart_server().expect("it could be started before");
    traffic_world.run_until(traffic_world.world.now() + Duration::from_secs(10));
    assert!(traffic_world.world.is_joined(), "the client has a new session");
    talk(&mut traffic_world, 1);
    let (client, server) = traffic_world.world.ends_mut();
    server.ask_all_learned();
    let of_client = client.learned().values().next().expect("one server").clone();
    for learned in [&of_client, server.learned().values().next().expect("one client")] {
        assert!(learned[LANE].contains("\"net0\":{") && learned[LANE].contains("\"net1\":{"));
    }
    assert!(of_client[LANE].contains("lambda_s"), "30 s are enough to learn from");

    let scenario = Scenario { learned: of_client.clone(), ..scenario };
    let mut world = scenario.world().expect("two links");
    world.run_until(Instant::from_millis(1_000));
    let kept = world.ends_mut().0.learned().values().next().expect("one server").clone();
    let tables = |learned: &str| learned.split("\"log\"").next().map(str::to_owned);
    assert_eq!(tables(&kept[LANE]), tables(&of_client[LANE]));
}

#[test]
fn encoders_get_targets_under_every_strategy() {
    let route = recording([50, 55], 60);
    let single = format!("single:{}", on(&route).links(1)[1].name);
    for strategy in ["lola", "xnc", "redundant", "bonding", &single, "raven"] {
        let strategy = crate::strategies::strategy(strategy).expect("known");
        let scenario = Scenario::new("frames", on(&route).links(1), strategy.clone());
        let mut traffic_world = TrafficWorld::new(scenario.world().expect("two links"));
        warm_up(&mut traffic_world, &scenario);
        talk(&mut traffic_world, 1);
        let now = traffic_world.world.now();
        let (client, server) = traffic_world.world.ends_mut();
        let (targets, of_clients) = (client.encoder_targets(now), server.encoder_targets(now));
        let target = targets[LANE];
        assert!(target.frame_bytes > 10_000, "{strategy}: {target:?}");
        assert!(target.bitrate > Rate::from_kbps(500), "{strategy}: {target:?}");
        assert!(of_clients["vehicle"].contains_key(LANE), "{of_clients:?}");
        let reported = traffic_world.world.client_status().expect("joined").stats.lanes[0].encoder;
        assert_eq!(reported, Some(target));
    }
}

/// Copying all packets on two networks would be 50 %.
#[test]
fn confidence_costs_few_bytes_of_large_loads() {
    let route = recording([50, 52], 40);
    let learned = learn([&route]);
    let strategy = "raven:100".parse().expect("known");
    for (what, most) in [(LinkLoad::Video, 0.1), (LinkLoad::Unbroken, 0.001)] {
        let loaded = load(on(&route), what, &strategy, &learned, 1).expect("two links");
        assert_eq!((loaded.whole, loaded.parts), (what.parts(), what.parts()), "{loaded:?}");
        assert!(0.0 < loaded.copies && loaded.copies < most, "{loaded:?}");
    }
}
