//! Whose frames count at an anchor, and for which streams.

use roadweave_proto::Rate;
use roadweave_proto::wire::{LegMessage, Passed, StreamsEpoch};
use roadweave_quic::ConnectionId;

use super::super::legs::Leg;
use super::*;
use crate::leg::LegEnd;
use crate::testing::{self, at, key, signed};

const BOX: u8 = 1;
const OTHER_BOX: u8 = 2;
const PROXIES: [u8; 2] = [50, 51];
const MEMORY: usize = 32 << 20;

/// With one of two boxes attached.
fn anchor() -> Anchor {
    let mut anchor = anchor_with(&[BOX, OTHER_BOX], None);
    attach(&mut anchor, at(10), (BOX, 1), on(0, 0), 7);
    anchor
}

fn anchor_with(devices: &[u8], rate_limit: Option<Rate>) -> Anchor {
    let mut anchor = testing::anchor(devices, &PROXIES, rate_limit);
    for (leg, proxy) in (0..).zip(PROXIES) {
        let end = LegEnd::new(None);
        let leg_of = Leg { proxy: key(proxy), name: proxy.to_string(), end };
        anchor.start(at(5), ConnectionId(leg), leg_of);
    }
    anchor
}

/// A box goes to a proxy with its `number`th binding; its streams are called `epoch` there.
fn attach(anchor: &mut Anchor, now: Instant, (device, number): (u8, u64), to: At, epoch: u64) {
    let binding = signed(device, 9, PROXIES[to.leg.0 as usize], number);
    let streams = Some(StreamsOffer {
        epoch: StreamsEpoch(epoch),
        takes_priorities: true,
        takes_early: true,
    });
    let (handle, device) = (to.handle, *key(device).as_bytes());
    let attach = LegMessage::Attach { handle, device, binding, streams };
    anchor.on_message(now, to.leg, Ok(attach));
}

fn on(leg: u64, handle: u32) -> At {
    At { leg: ConnectionId(leg), handle }
}

fn open(anchor: &mut Anchor, now: Instant, by: At, id: u8) -> Option<StreamsOwner> {
    let frames = [0x20, 1, id, 9, 4, 192, 0, 2, 1, 0, 80, 0];
    pass(anchor, now, by, &frames);
    anchor.hand_over_symbols(now);
    let (owner, event) = anchor.poll_stream_event(now)?;
    assert!(matches!(event, Event::Opened { .. }), "{event:?}");
    Some(owner)
}

fn pass(anchor: &mut Anchor, now: Instant, by: At, frames: &[u8]) {
    let passed = Passed { handle: by.handle, packet: Bytes::copy_from_slice(frames) };
    anchor.on_passed(now, by.leg, passed);
}

fn unbound(anchor: &Anchor) -> u64 {
    anchor.status().drops().get(DropReason::Unbound)
}

#[test]
fn frames_count_by_attachments_that_the_client_has_signed_for() {
    let mut anchor = anchor();
    attach(&mut anchor, at(10), (OTHER_BOX, 1), on(0, 1), 7);
    let first = open(&mut anchor, at(20), on(0, 0), 0).expect("its own");
    let other = open(&mut anchor, at(20), on(0, 1), 0).expect("its own");
    assert_ne!(first, other, "of equal names");
    // A proxy without a signature, and an unknown handle.
    assert_eq!(open(&mut anchor, at(20), on(1, 0), 2), None);
    assert_eq!(open(&mut anchor, at(20), on(0, 2), 2), None);
    assert_eq!(unbound(&anchor), 2);

    attach(&mut anchor, at(30), (BOX, 2), on(1, 0), 7);
    assert_eq!(open(&mut anchor, at(40), on(1, 0), 2), Some(first));
    assert_eq!(open(&mut anchor, at(50), on(0, 0), 4), Some(first));
    assert_eq!(open(&mut anchor, at(2_040), on(0, 0), 6), None);
    assert_eq!(unbound(&anchor), 3);
    assert_eq!(anchor.poll_streams_over(), None);
}

#[test]
fn frames_of_former_streams_are_not_taken_for_those_of_today() {
    let mut anchor = anchor();
    let first = open(&mut anchor, at(20), on(0, 0), 0).expect("its own");
    attach(&mut anchor, at(30), (BOX, 2), on(1, 0), 8);
    assert_eq!(anchor.poll_streams_over(), Some(first));
    assert_eq!(open(&mut anchor, at(40), on(0, 0), 2), None, "by the former attachment");
    assert_eq!(unbound(&anchor), 1);
    let second = open(&mut anchor, at(40), on(1, 0), 0).expect("another first stream");
    assert_ne!(first, second);
    let (device, binding) = (*key(BOX).as_bytes(), signed(BOX, 9, PROXIES[1], 3));
    let attach = LegMessage::Attach { handle: 1, device, binding, streams: None };
    anchor.on_message(at(50), ConnectionId(1), Ok(attach));
    assert_eq!(anchor.poll_streams_over(), Some(second));
    assert_eq!(open(&mut anchor, at(60), on(1, 1), 2), None);
}

#[test]
fn a_client_that_breaks_the_rules_loses_its_own_streams() {
    let mut anchor = anchor();
    attach(&mut anchor, at(10), (OTHER_BOX, 1), on(0, 1), 7);
    let first = open(&mut anchor, at(20), on(0, 0), 0).expect("its own");
    let other = open(&mut anchor, at(20), on(0, 1), 0).expect("its own");
    // Reports a stream open that the anchor never opened.
    pass(&mut anchor, at(30), on(0, 0), &[0x20, 0x0a, 1]);
    anchor.turn_streams(at(30));
    assert_eq!(anchor.poll_streams_over(), Some(first));
    assert_eq!(anchor.poll_streams_over(), None);
    assert_eq!(anchor.attached(), 1, "it has to sign again");
    assert_eq!(anchor.status().refusals.get(crate::anchor::BROKEN), Some(&1));
    assert_eq!(open(&mut anchor, at(40), on(0, 1), 2), Some(other));
    attach(&mut anchor, at(50), (BOX, 2), on(0, 2), 7);
    assert!(open(&mut anchor, at(60), on(0, 2), 0).is_some_and(|owner| owner != first));
}

#[test]
fn streams_wait_for_their_client_two_minutes_and_no_longer() {
    let mut anchor = anchor();
    let first = open(&mut anchor, at(20), on(0, 0), 0).expect("its own");
    anchor.end_leg(at(1_000), ConnectionId(0), "the proxy is gone");
    anchor.turn_streams(at(100_000));
    attach(&mut anchor, at(100_000), (BOX, 2), on(1, 0), 7);
    assert_eq!(open(&mut anchor, at(100_010), on(1, 0), 2), Some(first));
    anchor.on_message(at(100_020), ConnectionId(1), Ok(LegMessage::Detach { handle: 0 }));
    anchor.turn_streams(at(220_000));
    assert_eq!(anchor.poll_streams_over(), None);
    anchor.turn_streams(at(220_021));
    assert_eq!(anchor.poll_streams_over(), Some(first));
}

#[test]
fn the_newest_proxy_alone_says_what_it_takes() {
    let mut anchor = anchor();
    attach(&mut anchor, at(20), (BOX, 2), on(1, 0), 7);
    let until = |anchor: &Anchor| {
        let all = anchor.streams.as_ref().expect("it takes some");
        all.ways.values().map(|way| way.room.until).sum::<u64>()
    };
    let room = |until| LegRoom { handle: 0, until, size: 1_200, wait: WAIT };
    anchor.on_room(at(30), on(0, 0), room(70_000));
    assert_eq!(until(&anchor), 0);
    anchor.on_room(at(30), on(1, 0), room(70_000));
    anchor.on_room(at(30), on(1, 0), room(60_000));
    assert_eq!(until(&anchor), 70_000, "it does not shrink");
    anchor.on_room(at(30), on(1, 9), room(90_000));
    assert_eq!((until(&anchor), unbound(&anchor)), (70_000, 1));
}

#[test]
fn a_client_opens_no_more_streams_than_its_share() {
    let mut anchor = anchor();
    let mut opened = 0;
    for id in 0..1_000_u16 {
        let [high, low] = (id << 1).to_be_bytes();
        let frames = [0x20, 1, 0x40 | high, low, 9, 4, 192, 0, 2, 1, 0, 80, 0];
        pass(&mut anchor, at(20), on(0, 0), &frames);
        anchor.hand_over_symbols(at(20));
        while let Some((_, event)) = anchor.poll_stream_event(at(20)) {
            opened += usize::from(matches!(event, Event::Opened { .. }));
        }
    }
    assert_eq!(opened, StreamsConfig::default().streams_max);
}

#[test]
fn what_a_tenants_rate_holds_back_counts_for_the_memory_of_all() {
    let devices: Vec<u8> = (1..40).collect();
    let mut anchor = anchor_with(&devices, Some(Rate::from_kbps(8)));
    let mut frames = vec![0x20, 3, 0, 0, 0x44, 0];
    frames.resize(frames.len() + 1_024, 0);
    for (handle, device) in (0..).zip(&devices) {
        attach(&mut anchor, at(10), (*device, 1), on(0, handle), 7);
        (0..1_700).for_each(|_| pass(&mut anchor, at(20), on(0, handle), &frames));
        anchor.turn_streams(at(20));
        assert!(anchor.stream_memory() <= MEMORY, "{}", anchor.stream_memory());
    }
    assert!(anchor.stream_memory() > MEMORY / 2, "{}", anchor.stream_memory());
    let dropped = anchor.status().drops().get(DropReason::ReceiveMemory);
    assert!(dropped > 20_000, "what was let go of is counted: {dropped}");
}
