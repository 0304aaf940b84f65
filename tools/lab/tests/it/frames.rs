//! A video in a lane with `frames`: a repaired loss makes its frame late and not broken.

use std::collections::BTreeMap;

use crate::world::{Plan, World, link, ms, packet_up};
use roadweave_proto::{Instant, Order};
use roadweave_tunnel::{LaneConfig, Strategy};

const FRAMES: u16 = 60;
const PACKETS: u16 = 6;
const INTERVAL_MS: u64 = 33;
/// Frames until the flow is recognised as RTP with markers.
const LEAD: u16 = 4;
/// This frame loses a part.
const BROKEN: u16 = 30;
const DEADLINE_MS: u64 = 100;
const DECODE_MS: u64 = 10;
/// Delay of the fastest path, which does not count, and a margin for pacers and clocks.
const ONE_WAY_MS: u64 = 15 + 5;

fn rtp(number: u16) -> Vec<u8> {
    let mut packet = packet_up(number.into(), 1200);
    let frame = u32::from(number / PACKETS);
    let marker = u8::from(number % PACKETS == PACKETS - 1) << 7;
    let sequence = number.wrapping_add(u16::MAX - 100).to_be_bytes();
    let header = [&[0x80, 96 | marker][..], &sequence, &(frame * 2970).to_be_bytes(), b"ssrc"];
    packet[28..40].copy_from_slice(&header.concat());
    packet
}

fn number_of(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[30], packet[31]]).wrapping_sub(u16::MAX - 100)
}

/// Packets of a frame that arrived: their number, and ms until the first and the last.
type Frame = (usize, u64, u64);

/// A video over two links; the faster one loses its queue in the middle of one frame.
fn play(strategy: &str) -> (World, BTreeMap<u16, Frame>) {
    let [deadline, decode] = [DEADLINE_MS, DECODE_MS].map(ms);
    let order = Order::Frames { deadline, decode, max_buffer: Order::DEFAULT_BUFFER };
    let strategy = strategy.parse::<Strategy>().expect("known");
    let lanes = vec![LaneConfig { order, ..LaneConfig::new("default", strategy) }];
    let links = vec![link(20, 15), link(20, 30)];
    let mut world = Plan::new("xnc", links).build_with(lanes.clone(), lanes).join();
    let mut sent = Vec::new();
    for frame in 0..FRAMES {
        sent.push(world.now);
        (0..PACKETS).for_each(|at| world.send_up(&rtp(frame * PACKETS + at)));
        let dies_ms = 3;
        world.run(ms(dies_ms));
        if frame == BROKEN {
            world.set_dead(0, true);
            world.set_dead(0, false);
        }
        world.run(ms(INTERVAL_MS - dies_ms));
    }
    world.run(ms(1_500));
    let mut frames = BTreeMap::<u16, Frame>::new();
    for arrival in &world.up {
        let frame = number_of(&arrival.packet) / PACKETS;
        let after =
            |at: Instant| at.since(sent[usize::from(frame)]).as_micros().div_ceil(1000) as u64;
        let (packets, _, last) = frames.entry(frame).or_insert((0, after(arrival.at), 0));
        (*packets, *last) = (*packets + 1, after(arrival.at));
    }
    (world, frames)
}

fn is_in_order(world: &World) -> bool {
    let numbers = world.up.iter().map(|arrival| number_of(&arrival.packet));
    numbers.skip_while(|number| *number < LEAD * PACKETS).is_sorted()
}

#[test]
fn a_frame_that_lost_something_comes_whole_and_in_order_once_it_is_repaired() {
    let (world, frames) = play("xnc");
    assert!(is_in_order(&world));
    let latest = DEADLINE_MS + INTERVAL_MS - DECODE_MS + ONE_WAY_MS;
    for (frame, (packets, first, last)) in frames.iter().skip(LEAD.into()) {
        assert_eq!((*packets, first), (usize::from(PACKETS), last), "{frame} came at one moment");
        assert!(*last <= latest, "{frame} after {last} ms");
    }
    assert_eq!(frames.len(), usize::from(FRAMES));
    let (_, _, broken) = frames[&BROKEN];
    assert!(broken > 3 * ONE_WAY_MS, "it was repaired: {broken} ms");
    let received = &world.inner.server_status()[0].stats.lanes[0].received;
    assert!(received.order.waited_packets > 100, "{received:?}");
    assert_eq!((received.order.order.as_str(), received.order.timeouts), ("frames", 0));
}
