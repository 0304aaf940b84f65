//! What becomes of sessions and their packets when the anchor does not answer.

use std::net::SocketAddr;
use std::sync::Arc;

use roadweave_quic::TransportConfig;

use super::*;
use crate::StreamsConfig;
use crate::proxy::{ProxyConfig, ProxyTenant};
use crate::testing::{at, epoch, identity, key};

const SESSION: ConnectionId = ConnectionId(7);

fn legs() -> Legs {
    let addresses = vec![SocketAddr::from(([203, 0, 113, 1], 4434))];
    let (name, anchor, gateways, rate_limit) = ("acme".into(), key(3), Vec::new(), None);
    let tenant = ProxyTenant { name, anchor, addresses, gateways, rate_limit };
    let config = ProxyConfig { tenants: vec![tenant], leg_rate: None };
    let lane = Some(StreamsConfig::default().lane());
    let transport = TransportConfig::new([1; 32]);
    Legs::new(epoch(), &transport, Arc::new(identity(2)), config, lane).unwrap()
}

fn run(legs: &mut Legs, end: Instant) {
    while let Some(now) = legs.poll_timeout().filter(|now| *now <= end) {
        legs.handle_timeout(now);
        while legs.endpoint.poll_transmit().is_some() {}
    }
    legs.handle_timeout(end);
}

fn events(legs: &mut Legs) -> Vec<LegEvent> {
    let is_text = |event: &LegEvent| matches!(event, LegEvent::Text(_));
    std::iter::from_fn(|| legs.events.pop_front()).filter(|event| !is_text(event)).collect()
}

#[test]
fn a_session_that_begins_while_the_anchor_is_away_learns_it_like_earlier_ones() {
    let mut legs = legs();
    legs.handle_timeout(at(0));
    legs.begin(at(10), SESSION, "acme", key(1));
    assert_eq!(events(&mut legs), [], "there is patience at the start");
    run(&mut legs, at(1_500));
    assert_eq!(events(&mut legs), [LegEvent::Away(SESSION), LegEvent::StandbysAway]);
    legs.begin(at(1_600), ConnectionId(8), "acme", key(1));
    assert_eq!(events(&mut legs), [LegEvent::Away(ConnectionId(8))]);
}

#[test]
fn packets_that_wait_for_an_attachment_expire_and_are_counted() {
    let mut legs = legs();
    legs.handle_timeout(at(0));
    legs.begin(at(10), SESSION, "acme", key(1));
    (0..10).for_each(|ms| legs.pass(at(10 + ms), SESSION, &[7; 1_000]));
    let drops = |legs: &Legs| legs.status().tenants["acme"].drops.clone();
    assert_eq!((drops(&legs).total(), legs.waiting() / 10_000), (0, 1));
    run(&mut legs, at(315));
    assert_eq!(drops(&legs).get(DropReason::Unbound), 6);
    legs.end(at(316), SESSION);
    assert_eq!((drops(&legs).get(DropReason::Unbound), legs.waiting()), (10, 0));
    legs.begin(at(320), SESSION, "acme", key(1));
    run(&mut legs, at(1_500));
    legs.pass(at(1_500), SESSION, &[7; 1_000]);
    assert_eq!((drops(&legs).get(DropReason::LegAway), legs.waiting()), (1, 0));
}
