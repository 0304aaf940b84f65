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
    nodes: &mut Nodes,
    vehicles: &[usize],
    (interval, time): (Duration, Duration),
    mut meanwhile: impl FnMut(&mut Nodes),
) -> (usize, BTreeMap<usize, [usize; 2]>) {
    let end = nodes.now() + time;
    let mut count = 0;
    while nodes.now() < end {
        for vehicle in vehicles {
            let inner = inner_address(*vehicle).octets();
            let now = nodes.now();
            let up = udp_v4(inner, OUTSIDE, count, 1_000);
            nodes.client(*vehicle).unwrap().handle_inner(now, &up);
            nodes.server(0).handle_inner(now, &udp_v4(OUTSIDE, inner, count, 1_000));
        }
        count += 1;
        meanwhile(nodes);
        nodes.flush();
        nodes.run(interval);
    }
    nodes.run(ms(1_000));
    let mut came: BTreeMap<usize, [BTreeSet<u64>; 2]> = BTreeMap::new();
    for arrival in nodes.arrivals() {
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

fn status_of(nodes: &mut Nodes, vehicle: usize) -> Option<SessionStatus> {
    let key = key(ClientId::from(vehicle).into()).to_string();
    nodes.server(0).status().into_iter().find(|status| status.public_key == key)
}

fn names(nodes: &Nodes, of: fn(&ServerEvent) -> Option<&String>) -> Vec<String> {
    nodes.server_events(0).iter().filter_map(|(_, event)| of(event).cloned()).collect()
}

fn joins(nodes: &Nodes) -> Vec<String> {
    names(nodes, |event| match event {
        ServerEvent::Joined { peer, .. } => Some(peer),
        _ => None,
    })
}

fn connect(nodes: &mut Nodes, vehicle: usize, uplink: u32) -> ConnectionId {
    let now = nodes.now();
    let (endpoint, server) = (nodes.bare(vehicle).unwrap(), key(NodeId::Server(0)));
    let id = endpoint.connect(now, UplinkId(uplink), SERVER, server).unwrap();
    nodes.flush();
    id
}

fn say(nodes: &mut Nodes, vehicle: usize, id: ConnectionId, message: &Control) {
    let connection = nodes.bare(vehicle).unwrap().connection_mut(id).unwrap();
    connection.send_message(message.to_bytes()).unwrap();
    nodes.flush();
}

fn say_hello(nodes: &mut Nodes, vehicle: usize, id: ConnectionId) {
    say(nodes, vehicle, id, &Control::Hello(Hello { name: "any".into(), ..Hello::default() }));
}

fn say_hello_and_name(nodes: &mut Nodes, vehicle: usize, id: ConnectionId) {
    say_hello(nodes, vehicle, id);
    say(nodes, vehicle, id, &Control::PathName { path: PathId(0), uplink: "lte".into() });
}

fn fate(nodes: &mut Nodes, vehicle: usize, id: ConnectionId) -> (bool, Option<CloseReason>) {
    let (mut welcomed, mut closed) = (false, None);
    let Some(connection) = nodes.bare(vehicle).unwrap().connection_mut(id) else {
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
    let mut nodes = Nodes::new(Config {
        client_memory_max: share,
        // Two such shares exceed the memory.
        memory_max: 6 << 20,
        ..Config::direct(4, "minrtt")
    });
    let honest = [0, 1];
    honest.iter().for_each(|vehicle| nodes.start(*vehicle));
    let mut hostile = [2, 3].map(|vehicle| Hostile::start(&mut nodes, vehicle));
    nodes.run(ms(1_000));
    let (mut most, mut most_in_all) = ([0; 2], 0);
    let (sent, came) = converse(&mut nodes, &honest, (ms(4), ms(4_000)), |nodes| {
        for (hostile, most) in hostile.iter_mut().zip(&mut most) {
            hostile.press(nodes);
            let status = status_of(nodes, hostile.vehicle());
            *most = status.map_or(0, |status| status.stats.memory.total()).max(*most);
        }
        most_in_all = most_in_all.max(nodes.server(0).memory());
    });
    for vehicle in honest {
        assert_eq!(came[&vehicle], [sent, sent], "vehicle {vehicle} has lost nothing");
        let status = status_of(&mut nodes, vehicle).unwrap();
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
        let status = status_of(&mut nodes, hostile.vehicle()).unwrap();
        let lanes = status.stats.lanes.iter();
        let shed = |lane: &LaneStats| lane.received.drops.get(DropReason::MemoryShare);
        assert!(lanes.map(shed).sum::<u64>() > 0, "{status:#?}");
    }
}

#[test]
fn connections_without_end_drive_out_only_those_of_their_own_key() {
    let mut nodes = Nodes::new(Config::direct(2, "minrtt"));
    nodes.start_bare(0);
    nodes.start_bare(1);
    let silent = connect(&mut nodes, 0, 0);
    nodes.run(ms(200));
    let greedy: Vec<_> = (0..40)
        .map(|_| {
            let id = connect(&mut nodes, 1, 0);
            nodes.run(ms(20));
            id
        })
        .collect();
    nodes.run(ms(300));
    for id in &greedy[..24] {
        let (_, closed) = fate(&mut nodes, 1, *id);
        assert!(closed.is_some(), "the oldest are closed");
    }
    for id in &greedy[24..] {
        assert_eq!(fate(&mut nodes, 1, *id).1, None, "16 may wait");
    }
    say_hello_and_name(&mut nodes, 0, silent);
    nodes.run(ms(200));
    assert_eq!(fate(&mut nodes, 0, silent), (true, None));
    nodes.run(ms(5_000));
    assert_eq!(nodes.server(0).status().len(), 1, "who says nothing goes");
    assert!(fate(&mut nodes, 1, greedy[39]).1.is_some());
}

#[test]
fn one_session_after_the_other_is_more_than_a_client_may_begin() {
    let mut nodes = Nodes::new(Config::direct(2, "minrtt"));
    nodes.start_bare(0);
    let mut fates = Vec::new();
    for _ in 0..30 {
        let id = connect(&mut nodes, 0, 0);
        nodes.run(ms(130));
        say_hello_and_name(&mut nodes, 0, id);
        nodes.run(ms(70));
        fates.push(fate(&mut nodes, 0, id));
    }
    // Twelve at once, and one more in five seconds.
    assert_eq!(joins(&nodes).len(), 13, "{fates:?}");
    assert_eq!(nodes.server(0).refusals()["too-many-sessions"], 17);
    let Some((_, Some(CloseReason::ByPeer { reason, .. }))) = fates.last() else {
        panic!("{fates:?}")
    };
    assert_eq!(reason, "this client begins too many sessions");
    assert_eq!(nodes.server(0).status().len(), 1, "the last one that it began lives on");
    nodes.start(1);
    nodes.start(0);
    nodes.run(ms(500));
    assert!(status_of(&mut nodes, 1).is_some(), "others begin theirs");
    nodes.run(ms(10_000));
    assert_eq!(nodes.joined(), 2, "who rests in between is let in");
}

#[test]
fn displaced_handshakes_are_counted_and_reported() {
    let mut nodes = Nodes::new(Config::direct(2, "minrtt"));
    nodes.start_bare(0);
    let (now, server) = (nodes.now(), key(NodeId::Server(0)));
    for _ in 0..400 {
        nodes.bare(0).unwrap().connect(now, UplinkId(0), SERVER, server).unwrap();
    }
    nodes.flush();
    // All have proved their address; nothing reaches them from now on.
    nodes.run(ms(45));
    nodes.set_dead(0, 0, true);
    nodes.run(ms(30));
    let refusals = nodes.server(0).refusals();
    let expected = [("asked-to-retry", 400 - 16), ("crowded-out", 400 - 16 - 256)];
    assert!(expected.iter().all(|(kind, count)| refusals[kind] == *count), "{refusals:?}");
    let logged = nodes.server_events(0).iter().filter_map(|(_, event)| match event {
        ServerEvent::Refused { reason } => Some(reason.as_str()),
        _ => None,
    });
    assert_eq!(logged.collect::<Vec<_>>(), ["128, not logged individually: crowded-out"]);
    nodes.start(1);
    nodes.run(ms(500));
    assert_eq!(nodes.joined(), 1, "a client at another address is let in");
}

#[test]
fn a_second_attempt_of_the_same_race_ends_no_session() {
    let mut nodes = Nodes::new(Config::direct(1, "minrtt"));
    nodes.start_bare(0);
    let [first, second] = [0, 1].map(|uplink| connect(&mut nodes, 0, uplink));
    nodes.run(ms(200));
    say_hello_and_name(&mut nodes, 0, first);
    nodes.run(ms(10));
    say_hello(&mut nodes, 0, second);
    nodes.run(ms(3_000));
    assert_eq!(fate(&mut nodes, 0, first), (true, None), "it lives on");
    nodes.run(ms(4_000));
    assert!(fate(&mut nodes, 0, second).1.is_some(), "nobody used it");
    assert_eq!(joins(&nodes), ["box-0"]);
}

#[test]
fn a_rate_limit_holds_in_both_directions_and_for_its_client_only() {
    let mut nodes = Nodes::new(Config {
        rate_limits: BTreeMap::from([(0, Rate::from_kbps(4_000))]),
        ..Config::direct(2, "minrtt")
    });
    nodes.start(0);
    nodes.start(1);
    nodes.run(ms(2_000));
    // 8 Mbit/s.
    let (sent, came) = converse(&mut nodes, &[0, 1], (ms(1), ms(2_000)), |_| {});
    // 1 MB in two seconds, and a burst.
    assert!(came[&0].iter().all(|came| (1_000..1_200).contains(came)), "{came:?} of {sent}");
    assert_eq!(came[&1], [sent, sent]);
    let drops = status_of(&mut nodes, 0).unwrap().stats.drops;
    let passed: usize = came[&0].iter().sum();
    assert_eq!(drops.get(DropReason::RateLimited) as usize, 2 * sent - passed);
}

#[test]
fn clients_that_change_leave_and_others_stay() {
    let mut config = Config::direct(6, "minrtt");
    let mut nodes = Nodes::new(config.clone());
    (0..6).for_each(|vehicle| nodes.start(vehicle));
    nodes.run(ms(2_000));
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
    nodes.server(0).replace_peers(change);
    nodes.flush();
    nodes.run(ms(2_000));
    let mut left = names(&nodes, |event| match event {
        ServerEvent::Left { peer, .. } => Some(peer),
        _ => None,
    });
    left.sort();
    left.dedup();
    assert_eq!(left, ["box-0", "box-1"]);
    assert_eq!(nodes.server(0).status().len(), 5, "the one with another address is back");
    let (sent, came) = converse(&mut nodes, &[2, 3], (ms(1), ms(1_000)), |_| {});
    assert_eq!(came[&2][0], sent);
    assert!(came[&3][0] < sent / 2, "the limit holds for the session that goes on");
}

#[test]
fn a_key_that_expires_ends_its_session_and_no_other() {
    let config = Config::direct(2, "minrtt");
    let mut nodes = Nodes::new(config.clone());
    (0..2).for_each(|vehicle| nodes.start(vehicle));
    nodes.run(ms(2_000));
    let former: Peers = config.peers().collect();
    let peers = (0..2).map(|vehicle| {
        let (key, peer) = config.peer(vehicle);
        let expires_unix = (vehicle == 0).then_some(1_800_000_000);
        (key, Peer { expires_unix, ..peer })
    });
    nodes.server(0).replace_peers(Peers::after(&former, peers));
    nodes.set_unix_time(1_799_999_999);
    nodes.run(ms(1_000));
    assert_eq!(nodes.joined(), 2, "it has a second left");
    nodes.set_unix_time(1_800_000_000);
    nodes.run(ms(500));
    assert_eq!(nodes.joined(), 1);
    assert!(status_of(&mut nodes, 0).is_none() && status_of(&mut nodes, 1).is_some());
}
