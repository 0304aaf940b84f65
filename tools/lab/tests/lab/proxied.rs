//! Inner flows over proxies and an anchor: they survive failures, and tenants are isolated.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::dice::{self, Dice};
use crate::nodes::{ANY, Arrival, ClientId, Config, LEG_DELAY, NodeId, Nodes, key};
use crate::world::{count, ms, number, udp_v4};
use roadweave_proto::{DropReason, Instant, Rate};
use roadweave_tunnel::{AnchorEvent, ClientEvent, Notice, ProxyTenant, ServerEvent};

const OUTSIDE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// A UDP packet of `length` bytes with a number and the index of its box.
fn packet(from: Ipv4Addr, to: Ipv4Addr, (number, of): (u64, usize), length: usize) -> Vec<u8> {
    let mut packet = udp_v4(from.octets(), to.octets(), number, length);
    packet[36..44].copy_from_slice(&(of as u64).to_be_bytes());
    packet
}

fn of(packet: &[u8]) -> usize {
    u64::from_be_bytes(packet[36..44].try_into().unwrap()) as usize
}

/// Sends a packet from and to box 0 every 2 ms for `time`; returns their consecutive numbers.
fn converse(nodes: &mut Nodes, time: Duration, proxy: usize) -> BTreeSet<u64> {
    let inner = nodes.config().inner_address(0);
    let first = nodes.now().as_nanos();
    let numbers = (0..time.as_millis() as u64 / 2).map(|at| first + at);
    for number in numbers.clone() {
        nodes.send_up((0, proxy), &packet(inner, OUTSIDE, (number, 0), 900));
        nodes.send_down(0, &packet(OUTSIDE, inner, (number, 0), 900));
        nodes.run(ms(2));
    }
    numbers.collect()
}

fn missing(nodes: &mut Nodes, sent: &BTreeSet<u64>) -> [usize; 2] {
    nodes.run(ms(500));
    let arrivals = nodes.arrivals();
    [true, false].map(|is_anchor| {
        let there = arrivals.iter().filter(|it| (it.node == NodeId::Anchor) == is_anchor);
        let came: BTreeSet<u64> = there.map(|it| number(&it.packet)).collect();
        sent.difference(&came).count()
    })
}

/// Packets from and to box 0 arrive for half a second.
fn check_flow(nodes: &mut Nodes, proxy: usize) {
    let sent = converse(nodes, ms(500), proxy);
    assert_eq!(missing(nodes, &sent), [0, 0], "of {}, up and down", sent.len());
}

fn joined(config: Config) -> Nodes {
    let boxes = config.boxes;
    let mut nodes = Nodes::new(config);
    nodes.run(ms(500));
    (0..boxes).for_each(|number| nodes.start((number, 0)));
    nodes.run(ms(1_000));
    nodes
}

/// A box that chooses among all proxies, with a session.
fn roaming(config: Config) -> Nodes {
    let mut nodes = Nodes::new(config);
    nodes.run(ms(500));
    nodes.start(0);
    nodes.run(ms(2_000));
    nodes
}

fn has_session(nodes: &mut Nodes, number: usize) -> bool {
    nodes.client((number, 0)).unwrap().status().is_some()
}

fn attached(nodes: &Nodes) -> Vec<String> {
    let events = nodes.anchor_events().iter().filter_map(|(_, event)| match event {
        AnchorEvent::Attached { proxy, .. } => Some(proxy.clone()),
        _ => None,
    });
    events.collect()
}

#[test]
fn an_inner_flow_goes_through_proxy_and_anchor_both_ways() {
    let mut nodes = joined(Config::proxied(1));
    let sent = converse(&mut nodes, ms(1_000), 0);
    assert_eq!(missing(&mut nodes, &sent), [0, 0]);
    assert_eq!(attached(&nodes), ["proxy-0"]);
    let status = nodes.server(0).proxy_status().unwrap();
    assert!(status.legs[0].is_up && status.legs[0].attachments == 1, "{status:?}");
    let round_trips = nodes.server(0).anchor_round_trips();
    let [(tenant, round_trip)] = &round_trips[..] else { panic!("{round_trips:?}") };
    let there_and_back = 2 * LEG_DELAY;
    assert!(tenant == "tenant-0", "{round_trips:?}");
    assert!((there_and_back..2 * there_and_back).contains(round_trip), "{round_trips:?}");
    assert_eq!(status.tenants["tenant-0"].packets_up, sent.len() as u64);
    let anchor = nodes.anchor().unwrap().status();
    assert_eq!(anchor.tenants["tenant-0"].packets_down, sent.len() as u64);
}

#[test]
fn a_crash_of_the_proxy_costs_what_was_under_way_and_the_flow_goes_on() {
    let mut nodes = joined(Config::proxied(1));
    converse(&mut nodes, ms(300), 0);
    nodes.kill_server(0);
    nodes.start((0, 1));
    nodes.run(ms(300));
    check_flow(&mut nodes, 1);
}

#[test]
fn a_crash_of_the_anchor_is_over_when_it_is_back_without_the_box_doing_anything() {
    let mut nodes = joined(Config::proxied(1));
    converse(&mut nodes, ms(300), 0);
    nodes.kill_anchor();
    nodes.run(ms(200));
    nodes.start_anchor();
    converse(&mut nodes, ms(500), 0);
    check_flow(&mut nodes, 0);
    assert!(!has_left(&nodes));
}

fn has_left(nodes: &Nodes) -> bool {
    count(nodes.client_events((0, 0)), |event| matches!(event, ClientEvent::Left { .. })) > 0
}

#[test]
fn a_box_that_knows_no_other_proxy_says_that_nothing_passes_and_goes_on_when_it_does() {
    let mut nodes = joined(Config::proxied(1));
    converse(&mut nodes, ms(300), 0);
    nodes.cut_leg(0, true);
    nodes.run(ms(8_000));
    let kinds = |nodes: &Nodes| {
        let kinds = nodes.client_events((0, 0)).iter().filter_map(|(_, event)| match event {
            ClientEvent::Notice(Notice::Stays { drains: false }) => Some("stays"),
            ClientEvent::Notice(Notice::Stays { drains: true }) => Some("drains"),
            ClientEvent::Notice(Notice::Passes { .. }) => Some("passes"),
            _ => None,
        });
        kinds.collect::<Vec<_>>()
    };
    assert_eq!(kinds(&nodes), ["stays"]);
    nodes.cut_leg(0, false);
    // A new backhaul is attempted within 5 s.
    nodes.run(ms(10_000));
    check_flow(&mut nodes, 0);
    assert_eq!(kinds(&nodes), ["stays", "passes"]);
    // A drain is reported once, however often the proxy asks.
    nodes.drain(0);
    nodes.run(ms(25_000));
    assert_eq!(kinds(&nodes), ["stays", "passes", "drains"]);
    assert!(!has_left(&nodes));
}

#[test]
fn an_anchor_with_persisted_bindings_refuses_older_ones_after_a_restart() {
    let mut nodes = joined(Config::proxied(1));
    nodes.start((0, 1));
    nodes.run(ms(500));
    let kept = nodes.anchor().unwrap().bindings();
    assert_eq!(kept.len(), 1);
    nodes.kill((0, 1));
    nodes.kill_anchor();
    nodes.run(ms(100));
    nodes.start_anchor();
    nodes.anchor().unwrap().restore(kept.clone());
    // The former proxy still has a session, with an older binding.
    nodes.run(ms(2_000));
    assert_eq!(nodes.anchor().unwrap().bindings(), kept);
    assert!(attached(&nodes)[2..].iter().all(|proxy| proxy == "proxy-1"));
}

#[test]
fn a_proxy_whose_leg_is_cut_says_so_and_takes_no_new_boxes() {
    let mut nodes = Nodes::new(Config::proxied(2));
    nodes.run(ms(500));
    nodes.start((0, 0));
    nodes.run(ms(500));
    nodes.cut_leg(0, true);
    // Keep-alives of the backhaul detect it, a second after the first one without an answer.
    nodes.run(ms(4_000));
    let reports = count(nodes.server_events(0), |event| matches!(event, ServerEvent::Leg { .. }));
    assert!(reports > 0);
    nodes.start((1, 0));
    nodes.run(ms(1_000));
    assert!(!has_session(&mut nodes, 1), "it is refused");
    nodes.cut_leg(0, false);
    nodes.run(ms(20_000));
    assert!(has_session(&mut nodes, 1), "and let in when the leg is back");
    let inner = nodes.config().inner_address(1);
    nodes.arrivals();
    nodes.send_up((1, 0), &packet(inner, OUTSIDE, (5, 1), 200));
    nodes.run(ms(200));
    assert_eq!(nodes.arrivals().len(), 1);
}

#[test]
fn an_anchor_that_no_proxy_reaches_is_waited_for_and_the_flow_goes_on() {
    for seconds in [2, 20, 90] {
        let mut nodes = roaming(Config::proxied(1));
        converse(&mut nodes, ms(300), ANY);
        (0..2).for_each(|proxy| nodes.cut_leg(proxy, true));
        nodes.run(ms(seconds * 1_000));
        (0..2).for_each(|proxy| nodes.cut_leg(proxy, false));
        nodes.run(ms(30_000));
        check_flow(&mut nodes, ANY);
    }
}

#[test]
fn packets_larger_than_the_leg_takes_come_in_parts() {
    let mut nodes = joined(Config { leg_mtu: 1_252, ..Config::proxied(1) });
    let inner = nodes.config().inner_address(0);
    nodes.send_up((0, 0), &packet(inner, OUTSIDE, (1, 0), 1_400));
    nodes.send_down(0, &packet(OUTSIDE, inner, (2, 0), 1_400));
    nodes.run(ms(300));
    let came: Vec<usize> = nodes.arrivals().iter().map(|it| it.packet.len()).collect();
    assert_eq!(came, [1_400, 1_400]);
}

/// 30 Mbit/s in frames of 33 ms: the longest delay, the share that is lost, and that of the leg.
fn send_frames(leg_loss: f64) -> (Duration, f64, f64) {
    let mut nodes = joined(Config { leg_loss, ..Config::proxied(1) });
    let (inner, start) = (nodes.config().inner_address(0), nodes.now());
    for frame in 0..100_u64 {
        for at in 0..104 {
            nodes.send_up((0, 0), &packet(inner, OUTSIDE, (frame * 104 + at, 0), 1_200));
        }
        nodes.run(ms(33));
    }
    nodes.run(ms(500));
    let came = nodes.arrivals();
    let most = came.iter().map(|it| it.at - (start + ms(33 * (number(&it.packet) / 104)))).max();
    let leg = nodes.server(0).proxy_status().unwrap().legs[0].clone();
    let counted = leg.datagrams_lost as f64 / leg.datagrams_sent as f64;
    (most.unwrap(), 1.0 - came.len() as f64 / (100.0 * 104.0), counted)
}

#[test]
fn a_leg_that_loses_one_in_a_hundred_costs_that_and_no_delay() {
    let ((without, ..), (with, lost, counted)) = (send_frames(0.0), send_frames(0.01));
    assert!(with <= without + ms(5), "{with:?}, without loss {without:?}");
    assert!((0.005..0.015).contains(&lost), "{lost}");
    assert!((0.5 * lost..2.0 * lost).contains(&counted), "{counted} of {lost}");
}

#[test]
fn a_tenants_limit_changes_while_the_proxy_runs() {
    let mut nodes = joined(Config::proxied(1));
    let inner = nodes.config().inner_address(0);
    let came = |nodes: &mut Nodes, kbps: Option<u64>| {
        let (now, mut tenants) = (nodes.now(), nodes.config().proxy_tenants());
        tenants.iter_mut().for_each(|it| it.rate_limit = kbps.map(Rate::from_kbps));
        nodes.server(0).set_tenants(now, tenants);
        for at in 0..1_000 {
            nodes.send_up((0, 0), &packet(inner, OUTSIDE, (at, 0), 1_000));
            nodes.run(ms(1));
        }
        nodes.run(ms(300));
        nodes.arrivals().len()
    };
    assert_eq!(came(&mut nodes, None), 1_000);
    assert!((480..650).contains(&came(&mut nodes, Some(4_000))));
    assert!((240..400).contains(&came(&mut nodes, Some(2_000))));
    assert_eq!(came(&mut nodes, Some(0)), 0);
    assert_eq!(came(&mut nodes, None), 1_000);
}

#[test]
fn who_stands_by_at_a_proxy_whose_leg_fails_stands_by_elsewhere() {
    let mut nodes =
        roaming(Config { sites: ["a", "b", "c"].map(String::from).into(), ..Config::proxied(1) });
    assert_eq!((nodes.proxy_of_last(), nodes.server(1).standbys()), (0, 1));
    nodes.cut_leg(1, true);
    nodes.run(ms(5_000));
    let standbys = [1, 2].map(|proxy| nodes.server(proxy).standbys());
    assert_eq!(standbys, [0, 1]);
    nodes.kill_server(0);
    nodes.run(ms(3_000));
    assert_eq!(nodes.proxy_of_last(), 2);
}

#[test]
fn what_a_box_sends_before_the_anchor_knows_where_it_is_waits_for_that() {
    for seed in 1..=12 {
        let mut nodes = roaming(Config { loss: 0.05, leg_loss: 0.05, seed, ..Config::proxied(1) });
        converse(&mut nodes, ms(500), ANY);
        // A loss may have sent it to the second proxy.
        let first = nodes.proxy_of_last();
        nodes.drain(first);
        converse(&mut nodes, ms(1_500), ANY);
        assert_eq!(nodes.proxy_of_last(), 1 - first);
        let tenants = nodes.server(1 - first).proxy_status().unwrap().tenants;
        assert_eq!(tenants["tenant-0"].drops.get(DropReason::Unbound), 0, "seed {seed}");
        let legs = nodes.anchor().unwrap().status().legs;
        let unbound: u64 = legs.iter().map(|(_, leg)| leg.drops.get(DropReason::Unbound)).sum();
        assert_eq!(unbound, 0, "seed {seed}");
    }
}

#[test]
fn a_drain_of_a_proxy_loses_nothing() {
    for seed in 1..=6 {
        let mut nodes = roaming(Config {
            seed,
            lanes: Config::direct(1, "minrtt").lanes,
            ..Config::proxied(1)
        });
        let mut sent = converse(&mut nodes, ms(300 + 7 * seed), ANY);
        assert_eq!(nodes.proxy_of_last(), 0);
        nodes.drain(0);
        sent.append(&mut converse(&mut nodes, ms(3_000), ANY));
        nodes.run(ms(500));
        assert_eq!(missing(&mut nodes, &sent), [0, 0], "seed {seed}");
    }
}

#[test]
fn an_anchor_that_closes_legs_at_once_is_asked_ever_less_often_and_counts_as_away() {
    let mut nodes = Nodes::new(Config::proxied(1));
    let mut legs = 0;
    while nodes.now() < Instant::from_millis(20_000) {
        nodes.run(ms(1));
        let up = count(nodes.anchor_events(), |it| matches!(it, AnchorEvent::LegUp { .. }));
        if up > legs {
            legs = up;
            nodes.close_legs();
        }
    }
    // For each of two proxies after 0.2, 0.4 .. 5 s.
    assert!((10..=24).contains(&legs), "{legs}");
    nodes.run(ms(1));
    nodes.start((0, 0));
    nodes.run(ms(100));
    assert!(!has_session(&mut nodes, 0), "it takes nobody");
    nodes.run(ms(20_000));
    assert!(has_session(&mut nodes, 0), "it is back");
}

#[test]
fn of_two_boxes_with_one_key_the_former_is_notified_and_backs_off() {
    let mut nodes = joined(Config::proxied(1));
    nodes.start((0, 1));
    nodes.run(ms(500));
    let since = nodes.anchor_events().last().unwrap().0;
    nodes.run(ms(3_000));
    let left = |(at, event): &(_, ClientEvent)| match event {
        ClientEvent::Left { reason, rest } => Some((*at, reason.clone(), *rest)),
        _ => None,
    };
    let (at, reason, rest) =
        nodes.client_events((0, 0)).iter().find_map(left).expect("it was told");
    assert!((ms(3_000)..ms(3_100)).contains(&(at - since)), "{:?}", at - since);
    assert!(reason.contains("newer session elsewhere") && rest >= ms(1_000), "{reason}, {rest:?}");
    nodes.run(ms(600_000));
    let changes = attached(&nodes).len();
    assert!((4..=40).contains(&changes), "{changes} in ten minutes");
}

/// Each box sends with its own and with a foreign source; each tenant's network sends to boxes.
fn send_all(nodes: &mut Nodes, number: u64) {
    let config = nodes.config().clone();
    for of in 0..config.boxes {
        let inner = config.inner_address(of);
        let strange = Ipv4Addr::from(inner.to_bits() ^ 1);
        for proxy in 0..2 {
            nodes.send_up((of, proxy), &packet(inner, OUTSIDE, (number, of), 300));
            nodes.send_up((of, proxy), &packet(strange, OUTSIDE, (number, of), 300));
        }
        nodes.send_down(of % config.tenants, &packet(OUTSIDE, inner, (number, of), 300));
    }
}

/// `ROADWEAVE_SEED=<seed> cargo test -p roadweave-lab --test lab no_packet_of_a` replays one.
#[test]
fn no_packet_of_a_tenant_comes_out_at_another() {
    for seed in dice::seeds(24) {
        let mut dice = Dice::new(seed);
        let loss = dice.one_of(&[0.0, 0.05]);
        let mut nodes =
            Nodes::new(Config { tenants: 2, leg_loss: loss, loss, seed, ..Config::proxied(4) });
        nodes.run(ms(300));
        for step in 0..dice.within(1..30) {
            let (number, proxy) = (dice.within(0..4) as usize, dice.within(0..2) as usize);
            match dice.within(0..16) {
                0..4 => nodes.start((number, proxy)),
                4 => nodes.kill((number, proxy)),
                5 => nodes.kill_server(proxy),
                6..8 => nodes.start_server(proxy),
                8 => nodes.start_anchor(),
                9 => nodes.cut_leg(proxy, dice.once_in(2)),
                _ => send_all(&mut nodes, step),
            }
            nodes.run(dice.ms(0..400));
        }
        // After all repairs everything must arrive.
        for proxy in 0..2 {
            nodes.cut_leg(proxy, false);
            nodes.start_server(proxy);
        }
        for number in 0..4 {
            nodes.kill((number, 0));
            nodes.start((number, 1));
        }
        nodes.run(ms(8_000));
        (0..3).for_each(|_| send_all(&mut nodes, u64::MAX));
        nodes.run(ms(1_000));
        let mut ends = BTreeSet::new();
        for Arrival { node, tenant, packet, .. } in nodes.arrivals() {
            let of = of(&packet);
            assert_eq!(of % 2, tenant, "seed {seed}: {node:?}");
            match node {
                NodeId::Client(ClientId { number, .. }) => assert_eq!(of, number, "seed {seed}"),
                NodeId::Server(_) => panic!("seed {seed}: a proxy has no device"),
                NodeId::Anchor => {
                    let inner = nodes.config().inner_address(of).octets();
                    assert_eq!(packet[12..16], inner, "seed {seed}");
                }
            }
            if number(&packet) == u64::MAX {
                ends.insert((node == NodeId::Anchor, of));
            }
        }
        assert_eq!(ends.len(), 8, "seed {seed}: all four boxes, both ways: {ends:?}");
    }
}

#[test]
fn tenants_come_and_go_and_change_their_anchor_while_a_proxy_runs() {
    let mut nodes = joined(Config { tenants: 2, ..Config::proxied(2) });
    let all = nodes.config().proxy_tenants();
    let set = |nodes: &mut Nodes, tenants: Vec<ProxyTenant>, time| {
        let now = nodes.now();
        nodes.server(0).set_tenants(now, tenants);
        nodes.flush();
        nodes.run(time);
        let proxy = nodes.server(0);
        let legs = proxy.proxy_status().unwrap().legs;
        (proxy.sessions(), legs.iter().map(|leg| leg.attachments).collect::<Vec<_>>())
    };
    let events = nodes.server_events(0).len();
    assert_eq!(set(&mut nodes, all.clone(), ms(2_000)), (2, vec![2]));
    assert_eq!(nodes.server_events(0).len(), events);
    assert_eq!(set(&mut nodes, all[..1].to_vec(), ms(2_000)), (1, vec![1]));
    // No anchor has this key. The client starts again at the only proxy that it knows.
    let stranger = ProxyTenant { anchor: key(NodeId::Server(1)), ..all[0].clone() };
    assert_eq!(set(&mut nodes, vec![stranger], ms(5_000)), (1, vec![0]));
    assert_eq!(set(&mut nodes, Vec::new(), ms(5_000)), (0, vec![0]));
    assert_eq!(set(&mut nodes, all, ms(90_000)), (2, vec![2]));
}
