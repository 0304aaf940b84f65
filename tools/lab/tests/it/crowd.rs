//! Many clients at one server: isolation from one another.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::nodes::{ClientId, Config, Hostile, NodeId, Nodes, inner_address, key};
use crate::world::{ms, number, udp_v4};
use roadweave_lab::world::SERVER;
use roadweave_proto::wire::{Control, Hello};
use roadweave_proto::{DropReason, PathId, Rate, UplinkId};
use roadweave_quic::{CloseReason, ConnectionId, Event};
use roadweave_tunnel::{LaneStats, Node as _, Peer, Peers, ServerEvent, SessionStatus};

const OUTSIDE: [u8; 4] = [198, 51, 100, 1];

/// Sends 1,000 bytes from and to each of `vehicles` every `interval` for `time`; returns the number
/// sent each way, and by vehicle the numbers that arrived from it and at it.
fn converse(
    crowd: &mut Nodes,
    vehicles: &[usize],
    (interval, time): (Duration, Duration),
    mut meanwhile: impl FnMut(&mut Nodes),
) -> (usize, BTreeMap<usize, [usize; 2]>) {
    let end = crowd.now() + time;
    let mut count = 0;
    while crowd.now() < end {
        for vehicle in vehicles {
            let inner = inner_address(*vehicle).octets();
            let now = crowd.now();
            let up = udp_v4(inner, OUTSIDE, count, 1_000);
            crowd.client(*vehicle).unwrap().handle_inner(now, &up);
            crowd.server(0).handle_inner(now, &udp_v4(OUTSIDE, inner, count, 1_000));
        }
        count += 1;
        meanwhile(crowd);
        crowd.flush();
        crowd.run(interval);
    }
    crowd.run(ms(1_000));
    let mut came: BTreeMap<usize, [BTreeSet<u64>; 2]> = BTreeMap::new();
    for arrival in crowd.arrivals() {
        let own = if let NodeId::Client(_) = arrival.node { 16..20 } else { 12..16 };
        let own = &arrival.packet[own];
        if let Some(of) = vehicles.iter().find(|of| inner_address(**of).octets() == own) {
            let way = usize::from(arrival.node != NodeId::Server(0));
            came.entry(*of).or_default()[way].insert(number(&arrival.packet));
        }
    }
    let counts = came.into_iter().map(|(of, ways)| (of, ways.map(|numbers| numbers.len())));
    (count as usize, counts.collect())
}

fn status_of(crowd: &mut Nodes, vehicle: usize) -> Option<SessionStatus> {
    let key = key(ClientId::from(vehicle).into()).to_string();
    crowd.server(0).status().into_iter().find(|status| status.public_key == key)
}

fn names(crowd: &Nodes, of: fn(&ServerEvent) -> Option<&String>) -> Vec<String> {
    crowd.server_events(0).iter().filter_map(|(_, event)| of(event).cloned()).collect()
}

fn joins(crowd: &Nodes) -> Vec<String> {
    names(crowd, |event| match event {
        ServerEvent::Joined { peer, .. } => Some(peer),
        _ => None,
    })
}

fn connect(crowd: &mut Nodes, vehicle: usize, uplink: u32) -> ConnectionId {
    let now = crowd.now();
    let (endpoint, server) = (crowd.bare(vehicle).unwrap(), key(NodeId::Server(0)));
    let id = endpoint.connect(now, UplinkId(uplink), SERVER, server).unwrap();
    crowd.flush();
    id
}

fn say(crowd: &mut Nodes, vehicle: usize, id: ConnectionId, message: &Control) {
    let connection = crowd.bare(vehicle).unwrap().connection_mut(id).unwrap();
    connection.send_message(message.to_bytes()).unwrap();
    crowd.flush();
}

fn say_hello(crowd: &mut Nodes, vehicle: usize, id: ConnectionId) {
    say(crowd, vehicle, id, &Control::Hello(Hello { name: "any".into(), ..Hello::default() }));
}

fn say_hello_and_name(crowd: &mut Nodes, vehicle: usize, id: ConnectionId) {
    say_hello(crowd, vehicle, id);
    say(crowd, vehicle, id, &Control::PathName { path: PathId(0), uplink: "lte".into() });
}

fn fate(crowd: &mut Nodes, vehicle: usize, id: ConnectionId) -> (bool, Option<CloseReason>) {
    let (mut welcomed, mut closed) = (false, None);
    let Some(connection) = crowd.bare(vehicle).unwrap().connection_mut(id) else {
        return (false, Some(CloseReason::Local));
    };
    while let Some(event) = connection.poll_event() {
        match event {
            Event::Message(message) => {
                welcomed |= matches!(Control::parse(message), Ok(Control::Welcome(_)));
            }
            Event::Closed(reason) => closed = Some(reason),
            _ => {}
        }
    }
    (welcomed, closed)
}

#[test]
fn a_client_that_fills_all_lanes_uses_up_only_its_own_share() {
    let share = 4 << 20;
    let mut crowd = Nodes::new(Config {
        client_memory_max: share,
        // Two such shares exceed the memory.
        memory_max: 6 << 20,
        ..Config::crowd(4, "minrtt")
    });
    let honest = [0, 1];
    honest.iter().for_each(|vehicle| crowd.start(*vehicle));
    let mut hostile = [2, 3].map(|vehicle| Hostile::start(&mut crowd, vehicle));
    crowd.run(ms(1_000));
    let (mut most, mut most_in_all) = ([0; 2], 0);
    let (sent, came) = converse(&mut crowd, &honest, (ms(4), ms(4_000)), |crowd| {
        for (hostile, most) in hostile.iter_mut().zip(&mut most) {
            hostile.press(crowd);
            let status = status_of(crowd, hostile.vehicle());
            *most = status.map_or(0, |status| status.stats.memory.total()).max(*most);
        }
        most_in_all = most_in_all.max(crowd.server(0).memory());
    });
    for vehicle in honest {
        assert_eq!(came[&vehicle], [sent, sent], "vehicle {vehicle} has lost nothing");
        let status = status_of(&mut crowd, vehicle).unwrap();
        let drops = |lane: &LaneStats| [lane.received.drops.clone(), lane.sent.drops.clone()];
        let drops = status.stats.lanes.iter().flat_map(drops);
        let shed: u64 = drops.map(|drops| drops.get(DropReason::MemoryShare)).sum();
        assert_eq!((shed, status.stats.drops.total()), (0, 0), "{status:#?}");
    }
    // The sum is only checked from time to time.
    let allowance = 512 << 10;
    assert!(most.iter().any(|held| *held > 2 << 20), "they got somewhere: {most:?}");
    assert!(most.iter().all(|held| *held < share as u64 + allowance), "{most:?}");
    assert!(most_in_all < (6 << 20) + 2 * allowance, "{most_in_all}");
    for hostile in hostile {
        let status = status_of(&mut crowd, hostile.vehicle()).unwrap();
        let lanes = status.stats.lanes.iter();
        let shed = |lane: &LaneStats| lane.received.drops.get(DropReason::MemoryShare);
        assert!(lanes.map(shed).sum::<u64>() > 0, "{status:#?}");
    }
}

#[test]
fn connections_without_end_drive_out_only_those_of_their_own_key() {
    let mut crowd = Nodes::new(Config::crowd(2, "minrtt"));
    crowd.start_bare(0);
    crowd.start_bare(1);
    let silent = connect(&mut crowd, 0, 0);
    crowd.run(ms(200));
    let greedy: Vec<_> = (0..40)
        .map(|_| {
            let id = connect(&mut crowd, 1, 0);
            crowd.run(ms(20));
            id
        })
        .collect();
    crowd.run(ms(300));
    for id in &greedy[..24] {
        let (_, closed) = fate(&mut crowd, 1, *id);
        assert!(closed.is_some(), "the oldest are closed");
    }
    for id in &greedy[24..] {
        assert_eq!(fate(&mut crowd, 1, *id).1, None, "16 may wait");
    }
    say_hello_and_name(&mut crowd, 0, silent);
    crowd.run(ms(200));
    assert_eq!(fate(&mut crowd, 0, silent), (true, None));
    crowd.run(ms(5_000));
    assert_eq!(crowd.server(0).status().len(), 1, "who says nothing goes");
    assert!(fate(&mut crowd, 1, greedy[39]).1.is_some());
}

#[test]
fn one_session_after_the_other_is_more_than_a_client_may_begin() {
    let mut crowd = Nodes::new(Config::crowd(2, "minrtt"));
    crowd.start_bare(0);
    let mut fates = Vec::new();
    for _ in 0..30 {
        let id = connect(&mut crowd, 0, 0);
        crowd.run(ms(130));
        say_hello_and_name(&mut crowd, 0, id);
        crowd.run(ms(70));
        fates.push(fate(&mut crowd, 0, id));
    }
    // Twelve at once, and one more in five seconds.
    assert_eq!(joins(&crowd).len(), 13, "{fates:?}");
    assert_eq!(crowd.server(0).refusals()["too-many-sessions"], 17);
    let Some((_, Some(CloseReason::ByPeer { reason, .. }))) = fates.last() else {
        panic!("{fates:?}")
    };
    assert_eq!(reason, "this client begins too many sessions");
    assert_eq!(crowd.server(0).status().len(), 1, "the last one that it began lives on");
    crowd.start(1);
    crowd.start(0);
    crowd.run(ms(500));
    assert!(status_of(&mut crowd, 1).is_some(), "others begin theirs");
    crowd.run(ms(10_000));
    assert_eq!(crowd.joined(), 2, "who rests in between is let in");
}

#[test]
fn displaced_handshakes_are_counted_and_reported() {
    let mut crowd = Nodes::new(Config::crowd(2, "minrtt"));
    crowd.start_bare(0);
    let (now, server) = (crowd.now(), key(NodeId::Server(0)));
    for _ in 0..400 {
        crowd.bare(0).unwrap().connect(now, UplinkId(0), SERVER, server).unwrap();
    }
    crowd.flush();
    // All have proved their address; nothing reaches them from now on.
    crowd.run(ms(45));
    crowd.set_dead(0, 0, true);
    crowd.run(ms(30));
    let refusals = crowd.server(0).refusals();
    let expected = [("asked-to-retry", 400 - 16), ("crowded-out", 400 - 16 - 256)];
    assert!(expected.iter().all(|(kind, count)| refusals[kind] == *count), "{refusals:?}");
    let told = crowd.server_events(0).iter().filter_map(|(_, event)| match event {
        ServerEvent::Refused { reason } => Some(reason.as_str()),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), ["128, not logged individually: crowded-out"]);
    crowd.start(1);
    crowd.run(ms(500));
    assert_eq!(crowd.joined(), 1, "a client at another address is let in");
}

#[test]
fn a_second_attempt_of_the_same_race_ends_no_session() {
    let mut crowd = Nodes::new(Config::crowd(1, "minrtt"));
    crowd.start_bare(0);
    let [first, second] = [0, 1].map(|uplink| connect(&mut crowd, 0, uplink));
    crowd.run(ms(200));
    say_hello_and_name(&mut crowd, 0, first);
    crowd.run(ms(10));
    say_hello(&mut crowd, 0, second);
    crowd.run(ms(3_000));
    assert_eq!(fate(&mut crowd, 0, first), (true, None), "it lives on");
    crowd.run(ms(4_000));
    assert!(fate(&mut crowd, 0, second).1.is_some(), "nobody used it");
    assert_eq!(joins(&crowd), ["box-0"]);
}

#[test]
fn a_rate_limit_holds_in_both_directions_and_for_its_client_only() {
    let mut crowd = Nodes::new(Config {
        rate_limits: BTreeMap::from([(0, Rate::from_kbps(4_000))]),
        ..Config::crowd(2, "minrtt")
    });
    crowd.start(0);
    crowd.start(1);
    crowd.run(ms(2_000));
    // 8 Mbit/s.
    let (sent, came) = converse(&mut crowd, &[0, 1], (ms(1), ms(2_000)), |_| {});
    // 1 MB in two seconds, and a burst.
    assert!(came[&0].iter().all(|came| (1_000..1_200).contains(came)), "{came:?} of {sent}");
    assert_eq!(came[&1], [sent, sent]);
    let drops = status_of(&mut crowd, 0).unwrap().stats.drops;
    let passed: usize = came[&0].iter().sum();
    assert_eq!(drops.get(DropReason::RateLimited) as usize, 2 * sent - passed);
}

#[test]
fn clients_that_change_leave_and_others_stay() {
    let mut config = Config::crowd(6, "minrtt");
    let mut crowd = Nodes::new(config.clone());
    (0..6).for_each(|vehicle| crowd.start(vehicle));
    crowd.run(ms(2_000));
    let former: Peers = config.peers().collect();
    config.rate_limits.insert(3, Rate::from_kbps(1_000));
    // 0 is removed, 1 gets another address, 3 a limit.
    let peers = (1..6).map(|vehicle| {
        let (key, mut peer) = config.peer(vehicle);
        if vehicle == 1 {
            peer.addresses = vec!["10.77.9.9/32".parse().unwrap()];
        }
        (key, peer)
    });
    let change = Peers::after(&former, peers);
    assert_eq!(change.changed.len(), 3);
    crowd.server(0).replace_peers(change);
    crowd.flush();
    crowd.run(ms(2_000));
    let mut left = names(&crowd, |event| match event {
        ServerEvent::Left { peer, .. } => Some(peer),
        _ => None,
    });
    left.sort();
    left.dedup();
    assert_eq!(left, ["box-0", "box-1"]);
    assert_eq!(crowd.server(0).status().len(), 5, "the one with another address is back");
    let (sent, came) = converse(&mut crowd, &[2, 3], (ms(1), ms(1_000)), |_| {});
    assert_eq!(came[&2][0], sent);
    assert!(came[&3][0] < sent / 2, "the limit holds for the session that goes on");
}

#[test]
fn a_key_that_expires_ends_its_session_and_no_other() {
    let config = Config::crowd(2, "minrtt");
    let mut crowd = Nodes::new(config.clone());
    (0..2).for_each(|vehicle| crowd.start(vehicle));
    crowd.run(ms(2_000));
    let former: Peers = config.peers().collect();
    let peers = (0..2).map(|vehicle| {
        let (key, peer) = config.peer(vehicle);
        let expires_unix = (vehicle == 0).then_some(1_800_000_000);
        (key, Peer { expires_unix, ..peer })
    });
    crowd.server(0).replace_peers(Peers::after(&former, peers));
    crowd.set_unix_time(1_799_999_999);
    crowd.run(ms(1_000));
    assert_eq!(crowd.joined(), 2, "it has a second left");
    crowd.set_unix_time(1_800_000_000);
    crowd.run(ms(500));
    assert_eq!(crowd.joined(), 1);
    assert!(status_of(&mut crowd, 0).is_none() && status_of(&mut crowd, 1).is_some());
}
