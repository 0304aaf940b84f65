//! Repairs as a recovery asks for them.

use std::collections::VecDeque;

use roadweave_coding::{Decoder, DecoderConfig};
use roadweave_recovery::Repair;

use super::*;
use crate::lane::copies::SourceCopy;

#[test]
fn a_repair_gives_each_path_its_share_of_coded_packets() {
    let mut sender = sender_with_pool([4, 900, 60]);
    repair_all(&mut sender, &[(PathId(1), 2), (PathId(3), 1)]);
    assert_eq!((sender.stats.coded_datagrams, sender.stats.coded_bytes), (3, 3 * 914));
    assert_eq!(sender.sent.encoder.len(), 3, "the repair may be lost as well");
    let shares = |path| sender.resends.repairs.get(&PathId(path)).map_or(0, VecDeque::len);
    assert_eq!([0, 1, 2, 3].map(shares), [0, 2, 0, 1]);

    let mut decoder = Decoder::new(DecoderConfig::default());
    let mut delivered = Vec::new();
    for repair in sender.resends.repairs.values().flatten() {
        let lane = decode(&mut decoder, repair.datagram.bytes.clone(), &mut delivered);
        assert_eq!(lane, LaneId(5));
    }
    let lengths: Vec<usize> = delivered.iter().map(|(_, symbol)| symbol.len()).collect();
    assert_eq!(lengths, [6, 902, 62]);
}

#[test]
fn a_repair_with_a_hole_sends_nothing_and_is_counted() {
    let mut sender = sender_with_pool([4, 900, 60]);
    assert!(sender.sent.encoder.forget(PacketId(1)));
    let before = sender.sent.seeds.clone();
    repair_all(&mut sender, &[(PathId(1), 2)]);
    assert!(sender.resends.repairs.is_empty());
    assert_eq!(sender.stats.coded_datagrams, 0);
    assert_eq!(sender.stats.drops.get(DropReason::RepairExpired), 3);
    assert_eq!(sender.sent.seeds, before);
}

#[test]
fn all_that_waits_can_be_let_go_of() {
    let mut sender = sender_with_pool([4, 900, 60]);
    sender.handle_inner(Instant::ZERO, &[7; 500], 1, None);
    repair_all(&mut sender, &[(PathId(1), 2), (PathId(3), 1)]);
    for (number, path) in [(0, 1), (1, 3), (2, 1)] {
        let id = PacketId(number);
        let symbol = Symbol { position: FragmentPosition::Whole, body: &[7; 600 - 8] };
        let datagram = LaneDatagram::of_symbol(LaneId(5), id, &symbol);
        let since = Instant::from_millis(number.into());
        let copy = SourceCopy::again(since, id, datagram, Instant::ZERO);
        sender.resends.copies.push(PathId(path), copy);
    }
    let held = sender.memory().queue_bytes;
    sender.shed(Instant::ZERO, 1_000);
    let left = sender.memory().queue_bytes;
    assert!((held - 2_000..=held - 1_000).contains(&left), "{left} of {held}");
    sender.shed(Instant::ZERO, u64::MAX);
    assert_eq!((sender.memory().queue_bytes, sender.resends.repairs.len()), (0, 0));
    let counted = [DropReason::MemoryShare, DropReason::CopyUnsent, DropReason::RepairExpired]
        .map(|reason| sender.stats.drops.get(reason));
    assert_eq!(counted, [1, 3, 3]);
}

#[test]
fn scattered_losses_come_back_from_combinations_that_span_what_has_arrived() {
    let at = Instant::from_millis;
    let config = LaneConfig::new("default", crate::Strategy::xnc());
    let mut sender = LaneSender::new(LaneId(0), config, 1, false).expect("no uplink");
    let mut carrier = TwoPaths::new([100_000, 100_000]);
    for id in 0..10 {
        sender.handle_inner(at(0), &[id; 500], 1, None);
    }
    sender.transmit(at(0), &mut carrier);
    let lost = [3, 5, 7];
    for id in (0..10).filter(|id| !lost.contains(id)) {
        acknowledge(&mut sender, at(100), PathId(0), id);
    }
    assert_eq!(sender.sent.encoder.len(), 10, "the others may be part of a combination");
    let known = |id| sender.sent.encoder.symbol(PacketId(id)).expect("it is kept").clone();
    let mut decoder = Decoder::new(DecoderConfig::default());
    let mut delivered = Vec::new();
    for id in (0..10).filter(|id| !lost.contains(id)) {
        decoder.on_source(at(0), PacketId(id), known(id), &mut delivered);
    }
    delivered.clear();

    lose(&mut sender, at(100), lost);
    carrier.hold_back();
    sender.transmit(at(105), &mut carrier);
    let repairs = sender.resends.repairs.values().flatten();
    let repairs: Vec<Bytes> = repairs.map(|repair| repair.datagram.bytes.clone()).collect();
    assert_eq!(repairs.len(), 6, "three, and three more");
    for repair in repairs.into_iter().skip(3) {
        decode(&mut decoder, repair, &mut delivered);
    }
    let ids: Vec<u32> = delivered.iter().map(|(id, _)| id.0).collect();
    assert_eq!(ids, lost, "one path of the two is enough");
    for _ in lost {
        acknowledge_as(&mut sender, at(200), TokenKind::Repair, PathId(1), PacketId(3));
    }
    assert_eq!(sender.sent.encoder.len(), 0, "nothing is kept that nobody needs");
}

fn repair_all(sender: &mut LaneSender, shares: &[(PathId, u16)]) {
    let (start, shares) = (PacketId(0), shares.to_vec());
    let repair = Repair::Coded { start, count: 3, lost: 0b111, shares };
    sender.repair(Instant::ZERO, repair, &mut TwoPaths::new([0, 0]));
}

fn sender_with_pool(lengths: [usize; 3]) -> LaneSender {
    let config = LaneConfig::new("default", crate::Strategy::xnc());
    let mut sender = LaneSender::new(LaneId(5), config, 1, false).expect("xnc needs no uplink");
    for (length, id) in lengths.into_iter().zip(0..) {
        let symbol = Symbol { position: FragmentPosition::Whole, body: &vec![7; length] };
        let datagram = SourceDatagram::new(LaneId(5), &symbol).finish(PacketId(id));
        sender.sent.encoder.insert(Instant::ZERO, PacketId(id), datagram.slice(SOURCE_HEADER..));
    }
    sender
}
