//! Equations and packets that contradict one another.

use super::*;

#[test]
fn an_equation_shorter_than_a_packet_it_covers_is_inconsistent() {
    let mut bench = Bench::new(vec![symbol(50, 1)]);
    let short = vec![1; 20];
    assert_eq!(bench.coded_with(0, range(0, 3, 1), short.clone()), CodedOutcome::Kept);
    bench.source(0, 0);
    assert_eq!(bench.pending(), 0);
    assert_eq!(bench.coded_with(0, range(0, 3, 2), short), CodedOutcome::Inconsistent);
    assert_eq!(bench.drops(DropReason::Inconsistent), 2);
    assert_eq!(bench.out, [bench.sent(0)]);
    assert_conservation(&bench.decoder);
}

/// Every range has one false equation.
#[test]
fn false_equations_corrupt_neither_known_packets_nor_other_ranges() {
    let mut bench = Bench::new(symbols(400));
    let mut noise = Noise::new(5);
    for start in (0..400).step_by(10) {
        let is_poisoned = start % 20 == 0;
        (start..start + 7).for_each(|id| _ = bench.source(0, id));
        if is_poisoned {
            bench.coded_with(0, range(start, 10, 77), noise.bytes(28));
        }
        (0..3).for_each(|seed| _ = bench.coded(0, range(start, 10, seed)));
    }
    assert!(bench.out.iter().all(|delivered| *delivered == bench.sent(delivered.0.0)));
    let good = bench.out.iter().filter(|(id, _)| id.0 / 10 % 2 == 1).count();
    assert_eq!(good, 200);
    assert!(bench.drops(DropReason::Inconsistent) >= 20 * 3);
    assert_conservation(&bench.decoder);
}

#[test]
fn a_range_is_repaired_after_a_contradiction() {
    let mut bench = Bench::new(symbols(3));
    bench.coded_with(0, range(0, 3, 100), Noise::new(3).bytes(24));
    (0..5).for_each(|seed| _ = bench.coded(0, range(0, 3, seed)));
    assert_eq!(bench.drops(DropReason::Inconsistent), 3);
    assert_eq!(bench.out.len(), 3);
    assert!(bench.out.iter().all(|delivered| *delivered == bench.sent(delivered.0.0)));
}

/// False equations over packets 0 and 1 contradict one another; a third, overlapping one does not.
#[test]
fn a_contradiction_costs_the_equations_that_it_may_be_due_to() {
    let mut bench = Bench::new(symbols(6));
    bench.coded(0, range(1, 5, 7));
    let mut noise = Noise::new(8);
    bench.coded_with(0, range(0, 2, 1), noise.bytes(24));
    let outcome = bench.coded_with(0, range(0, 2, 2), noise.bytes(24));
    assert_eq!(outcome, CodedOutcome::Inconsistent);
    assert_eq!((bench.pending(), bench.out.len()), (1, 0));
    assert_eq!(bench.drops(DropReason::Inconsistent), 2);
    [1, 2, 4, 5].into_iter().for_each(|id| _ = bench.source(0, id));
    assert_eq!(bench.out.last(), Some(&bench.sent(3)));
    assert_conservation(&bench.decoder);
}

/// An arriving packet determines two others, one of them by a false equation.
#[test]
fn a_contradiction_does_not_hold_back_what_has_nothing_to_do_with_it() {
    let mut bench = Bench::new(symbols(3));
    bench.coded(0, range(0, 2, 1));
    bench.coded_with(0, range(1, 2, 1), Noise::new(8).bytes(24));
    bench.source(0, 1);
    assert_eq!(bench.out, [1, 0].map(|id| bench.sent(id)));
    assert_eq!(bench.drops(DropReason::Inconsistent), 1);
    assert_conservation(&bench.decoder);
}

/// A false coded packet determines packet 1, packet 1 arrives late, and then equations cover it.
#[test]
fn a_source_packet_is_believed_although_it_was_determined_before() {
    for is_covered in [false, true] {
        let mut bench = Bench::new(vec![symbol(20, 0), symbol(24, 1), symbol(20, 2)]);
        bench.coded_with(0, range(1, 1, 0), symbol(20, 99));
        let [early, late] = [5, 6].map(|seed| range(0, 3, seed));
        if is_covered {
            assert_eq!(bench.coded(0, early), CodedOutcome::Kept);
            bench.coded_with(0, range(1, 3, 7), vec![1; 22]);
            assert_eq!(bench.pending(), 2);
        }
        assert_eq!(bench.source(1, 1), SourceOutcome::Duplicate);
        assert_eq!(bench.pending(), usize::from(is_covered), "one is too short for packet 1");
        if !is_covered {
            bench.coded(1, early);
        }
        bench.coded(2, late);
        assert_eq!(bench.out[1..], [0, 2].map(|id| bench.sent(id)));
        assert_conservation(&bench.decoder);
        bench.decoder.expire(at(2_000));
        assert_eq!(bench.decoder.bytes(), 0);
    }
}

/// A decoder with an equation over each two neighbours of `packets` packets, and a false packet 0,
/// which is no symbol and determines all others.
fn with_false_pairs(packets: u32) -> (Bench, Bytes) {
    let mut bench = Bench::new((0..packets).map(|seed| symbol(100, seed.into())).collect());
    let impossible = Bytes::from_static(&[0, 0, 1]);
    for start in 0..packets - 1 {
        let pair = range(start, 2, start);
        let mut payload = coded(&bench.encoder, pair).to_vec();
        if start == 0 {
            // Its coefficient is 1.
            payload.iter_mut().zip(&bench.symbols[0]).for_each(|(sum, byte)| *sum ^= byte);
            payload.iter_mut().zip(&impossible).for_each(|(sum, byte)| *sum ^= byte);
        }
        bench.coded_with(0, pair, payload);
    }
    assert!(bench.out.is_empty());
    (bench, impossible)
}

/// One repeated false packet determines 128 packets by 127 equations; the first is impossible.
#[test]
fn repeated_contradictions_do_not_repeat_the_work() {
    let (mut bench, impossible) = with_false_pairs(128);
    assert_eq!(bench.pending(), 127);
    let before = COMBINED_BYTES.get();
    for _ in 0..100 {
        let outcome = bench.coded_with(1, range(0, 1, 0), impossible.clone());
        assert_eq!(outcome, CodedOutcome::Inconsistent);
    }
    let once = 128 * 128 * 102;
    let work = COMBINED_BYTES.get() - before;
    assert!(work <= 4 * once + 100 * 3, "{} times", work as f64 / once as f64);
    assert!(bench.out.is_empty(), "{:?}", bench.out);
    assert_eq!(bench.pending(), 0);
    assert_conservation(&bench.decoder);
}

#[test]
fn contradictions_are_not_forgotten_when_blocks_join() {
    let (mut bench, impossible) = with_false_pairs(10);
    (0..3).for_each(|_| _ = bench.coded_with(1, range(0, 1, 0), impossible.clone()));
    assert_eq!((bench.pending(), bench.out.len()), (9, 0));
    for (start, count) in [(20, 2), (9, 12)] {
        bench.coded_with(1, range(start, count, 1), symbol(100, 1));
    }
    assert_eq!(bench.pending(), 11);
    bench.coded_with(1, range(0, 1, 0), impossible);
    assert_eq!((bench.pending(), bench.out.len()), (0, 0));
    assert_conservation(&bench.decoder);
}

/// The sum of two long packets may end in zeros; without these it is too short for anything.
#[test]
fn an_equation_cut_short_is_refused_before_and_after_the_packet_that_it_contradicts() {
    let mut coefficients = [0; 2];
    coefficients::fill(1, &mut coefficients);
    let first = symbol(50, 1);
    let mut second = symbol(50, 2).to_vec();
    for (second, first) in second.iter_mut().zip(&first).skip(20) {
        *second = gf256::mul(gf256::invert(coefficients[1]), *first);
    }
    for source_first in [true, false] {
        let mut bench = Bench::new(vec![first.clone(), second.clone().into()]);
        let sum = coded(&bench.encoder, range(0, 2, 1));
        assert!(sum[20..].iter().all(|byte| *byte == 0));
        if source_first {
            bench.source(0, 0);
        }
        bench.coded_with(0, range(0, 2, 1), sum.slice(..20));
        bench.source(0, 0);
        assert_eq!(bench.out, [bench.sent(0)]);
        assert_eq!(bench.drops(DropReason::Inconsistent), 1);
        assert_conservation(&bench.decoder);
    }
}

/// A repaired packet and a shorter coded packet over it exclude one another.
#[test]
fn a_repaired_packet_does_not_outgrow_an_equation_over_it() {
    let mut bench = Bench::new(vec![symbol(9, 0), symbol(9, 1), symbol(40, 2)]);
    bench.coded_with(0, range(2, 3, 1), vec![1; 20]);
    (0..3).for_each(|seed| _ = bench.coded(0, range(0, 3, seed)));
    assert_eq!(bench.pending(), 0);
    assert_eq!(bench.drops(DropReason::Inconsistent), 4);
    assert!(bench.out.is_empty(), "{:?}", bench.out);
    assert_conservation(&bench.decoder);
}
