//! Coded packets that are sent without a loss.

use proptest::prelude::*;
use roadweave_coding::{Decoder, DecoderConfig};
use roadweave_recovery::Premium;

use super::*;

fn after_frame(percent: u8, lengths: &[usize], carrier: &mut TwoPaths) -> LaneSender {
    let config =
        LaneConfig { insurance_percent: percent, ..LaneConfig::new("a", crate::Strategy::xnc()) };
    let lane = roadweave_proto::LaneId(0);
    let mut sender = LaneSender::new(lane, config, 1, false).expect("xnc needs no uplink");
    for (index, length) in lengths.iter().enumerate() {
        let marker = index + 1 == lengths.len();
        let rtp = RtpHeader { marker, sequence: index as u16, timestamp: 2, ssrc: 3 };
        sender.handle_inner(at(0), &vec![index as u8 + 1; *length], 1, Some(rtp));
    }
    sender.transmit(at(0), carrier);
    assert!(!sender.has_backlog(), "the path takes all of it");
    sender
}

#[test]
fn insurance_leaves_at_once_or_never() {
    let mut carrier = TwoPaths::new([900_000, 900_000]);
    let mut sender = after_frame(100, &[900; 10], &mut carrier);
    let premium = Premium { start: PacketId(0), count: 10, shares: vec![(PathId(1), 3)] };
    sender.send_premium(at(1), &premium, &mut carrier);
    assert_eq!((sender.stats().coded_datagrams, sender.has_backlog()), (3, false));
    carrier.hold_back();
    sender.send_premium(at(2), &premium, &mut carrier);
    let stats = sender.stats();
    assert_eq!((stats.coded_datagrams, sender.has_backlog()), (3, false));
    assert_eq!(stats.drops.get(DropReason::CopyUnsent), 3);
    assert!(stats.recovery.lost == 0, "nobody takes it for a packet");
}

#[test]
fn it_yields_to_what_waits() {
    let mut carrier = TwoPaths::new([900_000, 900_000]);
    let mut sender = after_frame(100, &[900; 10], &mut carrier);
    let mut other = after_frame(100, &[900; 10], &mut carrier);
    other.handle_inner(at(120), &[7; 900], 1, None);
    sender.handle_inner(at(120), &[7; 900], 1, None);
    sender.insure(at(120), &mut carrier);
    assert_eq!(sender.stats().coded_datagrams, 0);
    sender.transmit(at(120), &mut carrier);
    sender.insure(at(120), &mut carrier);
    assert!(sender.stats().coded_datagrams > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Any n packets of a block of n and its coded packets suffice; one more is needed once in 254
    /// cases, two more once in 65,000 (CellFusion theorem 4.1).
    #[test]
    fn any_n_of_a_block_and_its_insurance_bring_it_back(
        lengths in prop::collection::vec(40_usize..1200, 1..60),
        extra in 2_u16..20,
        order in any::<u64>(),
    ) {
        let mut carrier = TwoPaths::new([900_000, 900_000]);
        let mut sender = after_frame(100, &lengths, &mut carrier);
        let count = lengths.len() as u16;
        let shares = vec![(PathId(0), extra / 2), (PathId(1), extra - extra / 2)];
        sender.send_premium(at(1), &Premium { start: PacketId(0), count, shares }, &mut carrier);
        let mut datagrams = carrier.datagrams();
        prop_assert_eq!(datagrams.len(), lengths.len() + usize::from(extra));
        let mut random = roadweave_proto::SplitMix64::new(order);
        for index in (1..datagrams.len()).rev() {
            datagrams.swap(index, random.below(index + 1));
        }
        let mut heard = 0;
        let (mut decoder, mut out) = (Decoder::new(DecoderConfig::default()), Vec::new());
        for datagram in datagrams {
            if out.len() == lengths.len() {
                break;
            }
            heard += 1;
            decode(&mut decoder, datagram, &mut out);
        }
        out.sort_by_key(|(id, _)| id.0);
        prop_assert_eq!(out.len(), lengths.len());
        prop_assert!(heard <= lengths.len() + 2, "{} of {}", heard, lengths.len());
        for (index, (id, symbol)) in out.iter().enumerate() {
            let Symbol { position, body } = Symbol::parse(symbol).expect("well-formed");
            prop_assert_eq!((id.0 as usize, position), (index, FragmentPosition::Whole));
            prop_assert_eq!(body, &vec![index as u8 + 1; lengths[index]][..]);
            prop_assert_eq!(symbol.len(), SYMBOL_HEADER + lengths[index]);
        }
    }
}
