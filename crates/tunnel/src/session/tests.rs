//! Memory of datagrams, promises of lanes, and parts.

use std::time::Duration;

use roadweave_proto::PacketId;
use roadweave_proto::wire::{FragmentPosition, Part, SourceDatagram, Symbol};

use super::*;
use crate::lane::Strategy;

pub(super) fn session() -> Session {
    let lanes = vec![LaneConfig::new("default", Strategy::xnc())];
    let (peer_sources, streams, memory_max) = (None, None, MEMORY_MAX);
    let config = SessionConfig { lanes, peer_sources, streams, memory_max, seed: 1 };
    Session::new(config, false).expect("usable settings")
}

pub(super) fn inner(bytes: u16) -> Vec<u8> {
    let mut packet = vec![0; bytes.into()];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&bytes.to_be_bytes());
    packet[12..16].copy_from_slice(&[192, 168, 50, 9]);
    packet
}

#[test]
fn a_small_datagram_does_not_hold_the_packet_that_brought_it() {
    let symbol = Symbol { position: FragmentPosition::Whole, body: &inner(40) };
    let datagram = SourceDatagram::new(LaneId(0), &symbol).finish(PacketId(0));
    let brought = Bytes::from([&datagram[..], &[0; 1400]].concat());
    let mut session = session();
    session.handle_datagram(Instant::ZERO, brought.slice(..datagram.len()));
    assert!(brought.is_unique(), "nobody else holds it");
    assert_eq!(session.poll_inner(), Some(inner(40).into()));
}

#[test]
fn what_one_lane_asks_of_acknowledgements_holds_until_the_peer_restarts() {
    let mut session = session();
    for (lane, acknowledge_on_all, expected) in [(0, true, true), (1, false, true)] {
        let promise = Promise { acknowledge_on_all, ..Promise::default() };
        session.on_lane_promise(Instant::ZERO, LaneId(lane), promise);
        assert_eq!(session.receiving.acknowledges_on_all, expected);
    }
    session.on_lane_promise(Instant::ZERO, LaneId(0), Promise::default());
    assert!(!session.receiving.acknowledges_on_all);
    let promise = Promise { acknowledge_on_all: true, ..Promise::default() };
    session.on_lane_promise(Instant::ZERO, LaneId(0), promise);
    session.receiving.reset(Instant::ZERO);
    assert!(!session.receiving.acknowledges_on_all);
}

#[test]
fn parts_are_waited_for_as_long_as_the_lane_promises() {
    for (promised, comes) in [(None, false), (Some(10_000), true)] {
        let mut session = session();
        if let Some(age) = promised {
            let promise = Promise { age_max: Duration::from_millis(age), ..Promise::default() };
            session.on_lane_promise(Instant::ZERO, LaneId(0), promise);
        }
        let symbol = Symbol { position: FragmentPosition::Whole, body: &inner(1000) };
        let datagram = SourceDatagram::new(LaneId(0), &symbol).finish(PacketId(0));
        let parts = Part::cut(LaneId(0), 0, &datagram, 700).expect("it is cut");
        for (part, ms) in parts.into_iter().zip([0, 5_000]) {
            session.handle_datagram(Instant::from_millis(ms), part);
        }
        assert_eq!(session.poll_inner().is_some(), comes, "{promised:?}");
    }
}
