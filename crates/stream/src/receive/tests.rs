//! Reassembly against a plain model, and against a peer that lies.

use proptest::prelude::*;

use super::*;

fn byte(offset: u64) -> u8 {
    (offset * 31 % 251) as u8
}

fn data(range: Range<u64>) -> Vec<u8> {
    range.map(byte).collect()
}

proptest! {
    #[test]
    fn bytes_come_out_in_order_and_once(
        parts in prop::collection::vec((0..400_u64, 0..120_u64, 0..200_usize), 0..60),
    ) {
        let mut receive = ReceiveBuffer::new(true);
        let (mut held, mut out) = (std::collections::BTreeSet::new(), Vec::new());
        for (start, length, room) in parts {
            let range = start..start + length;
            prop_assert!(receive.growth(range.end, false).is_ok());
            receive.receive(start, &data(range.clone()), false, true);
            held.extend(range);
            let contiguous = (0..).find(|offset| !held.contains(offset)).unwrap_or(0);
            prop_assert_eq!(receive.contiguous(), contiguous);
            let mut read = receive.peek().concat();
            read.truncate(room);
            receive.consume(read.len());
            out.extend(read);
            prop_assert_eq!(&out, &data(0..out.len() as u64));
            let ranges: Vec<_> = receive.ranges().into_iter().flatten().collect();
            let above: Vec<_> = held.range(contiguous..).copied().collect();
            prop_assert_eq!(ranges, above);
        }
    }
}

#[test]
fn what_comes_twice_counts_as_it_came_first() {
    let mut receive = ReceiveBuffer::new(true);
    assert_eq!(receive.receive(2, b"cd", false, true), Received::New);
    assert_eq!(receive.receive(0, b"xxyyee", false, true), Received::New);
    assert_eq!(receive.receive(0, b"zzzz", false, true), Received::Duplicate);
    assert_eq!(receive.peek().concat(), b"xxcdee");
}

#[test]
fn a_final_size_does_not_change() {
    let mut receive = ReceiveBuffer::new(true);
    receive.receive(0, &[0; 100], false, true);
    assert_eq!(receive.growth(99, true), Err(Violation::FinalSize), "below what has come");
    assert_eq!(receive.growth(100, true), Ok(0));
    receive.receive(100, &[], true, true);
    for (end, fin) in [(101, false), (101, true), (99, true)] {
        assert_eq!(receive.growth(end, fin), Err(Violation::FinalSize), "{end} {fin}");
    }
    assert_eq!(receive.growth(50, false), Ok(0), "an old segment");
}

#[test]
fn what_is_beyond_the_credit_is_refused() {
    let mut receive = ReceiveBuffer::new(true);
    assert_eq!(receive.growth(STREAM_CREDIT, false), Ok(STREAM_CREDIT));
    assert_eq!(receive.growth(STREAM_CREDIT + 1, false), Err(Violation::StreamCredit));
    assert_eq!(receive.extend_credit(1 << 17), 1 << 17);
    assert_eq!(receive.growth(1 << 17, false), Ok(1 << 17));
    assert_eq!(receive.extend_credit(1), 1 << 17, "credit never shrinks");
}

#[test]
fn of_a_stream_of_the_peer_more_is_taken_untold_and_claims_what_it_is() {
    let mut receive = ReceiveBuffer::new(false);
    assert_eq!(receive.growth(EARLY_CREDIT + 1, false), Err(Violation::StreamCredit));
    assert_eq!(receive.claim(), STREAM_CREDIT);
    let early = vec![7; 100_000];
    assert_eq!(receive.growth(100_000, false), Ok(100_000));
    assert_eq!(receive.receive(0, &early, false, true), Received::New);
    assert_eq!((receive.claim(), receive.extend_credit(1)), (100_000, 100_000));
}

#[test]
fn gaps_are_bounded() {
    let mut receive = ReceiveBuffer::new(true);
    let mut dropped = 0;
    for at in 1..1000 {
        let received = receive.receive(2 * at, &[1], false, false);
        dropped += u64::from(received == Received::Dropped);
    }
    assert_eq!((receive.records(), dropped), (RANGES_MIN, 999 - RANGES_MIN as u64));
    assert_eq!(receive.highest, 2 * RANGES_MIN as u64 + 1, "what is dropped never came");
    assert_eq!(receive.receive(5, &[1], false, false), Received::New, "it joins two ranges");
    assert_eq!(receive.receive(0, &[1, 1], false, false), Received::New);
    assert_eq!((receive.contiguous(), receive.records()), (3, RANGES_MIN - 1));
    let end = receive.highest;
    assert_eq!(receive.receive(end + 1, &[1], false, false), Received::New);
    assert_eq!(receive.receive(end + 3, &[1], false, false), Received::Dropped);
    assert_eq!(receive.receive(end + 3, &[1], false, true), Received::New);
}
