//! Equations and packets that contradict one another.

use super::*;

#[test]
fn an_equation_shorter_than_a_packet_it_covers_is_inconsistent() {
    let long = symbol(50, 1);
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    let short = Bytes::from(vec![1; 20]);
    let outcome = decoder.on_coded(at(0), range(0, 3, 1), short.clone(), &mut out);
    assert_eq!(outcome, CodedOutcome::Kept);
    decoder.on_source(at(0), PacketId(0), long.clone(), &mut out);
    assert_eq!(decoder.pending(), 0);
    let outcome = decoder.on_coded(at(0), range(0, 3, 2), short, &mut out);
    assert_eq!(outcome, CodedOutcome::Inconsistent);
    assert_eq!(decoder.stats().drops.get(DropReason::Inconsistent), 2);
    assert_eq!(out, [(PacketId(0), long)]);
    assert_conservation(&decoder);
}

/// Every range has one false equation.
#[test]
fn false_equations_corrupt_neither_known_packets_nor_other_ranges() {
    let symbols = symbols(400);
    let encoder = encoder(PacketId(0), &symbols);
    let mut noise = Noise::new(5);
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    for start in (0..400).step_by(10) {
        let is_poisoned = start % 20 == 0;
        for id in start..start + 7 {
            decoder.on_source(at(0), PacketId(id), symbols[id as usize].clone(), &mut out);
        }
        if is_poisoned {
            let garbage = Bytes::from(noise.bytes(28));
            decoder.on_coded(at(0), range(start, 10, 77), garbage, &mut out);
        }
        for seed in 0..3 {
            let range = range(start, 10, seed);
            decoder.on_coded(at(0), range, coded(&encoder, range), &mut out);
        }
    }
    for (id, symbol) in &out {
        assert_eq!(symbol, &symbols[id.0 as usize], "{id}");
    }
    let good = out.iter().filter(|(id, _)| id.0 / 10 % 2 == 1).count();
    assert_eq!(good, 200);
    assert!(decoder.stats().drops.get(DropReason::Inconsistent) >= 20 * 3);
    assert_conservation(&decoder);
}

#[test]
fn a_range_is_repaired_after_a_contradiction() {
    let symbols = symbols(3);
    let encoder = encoder(PacketId(0), &symbols);
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    let garbage = Bytes::from(Noise::new(3).bytes(24));
    decoder.on_coded(at(0), range(0, 3, 100), garbage, &mut out);
    for seed in 0..5 {
        let range = range(0, 3, seed);
        decoder.on_coded(at(0), range, coded(&encoder, range), &mut out);
    }
    assert_eq!(decoder.stats().drops.get(DropReason::Inconsistent), 3);
    assert_eq!(out.len(), 3);
    assert!(out.iter().all(|(id, symbol)| *symbol == symbols[id.0 as usize]));
}

/// False equations over packets 0 and 1 contradict one another; a third, overlapping one does not.
#[test]
fn a_contradiction_costs_the_equations_that_it_may_be_due_to() {
    let symbols = symbols(6);
    let encoder = encoder(PacketId(0), &symbols);
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    let bystander = range(1, 5, 7);
    decoder.on_coded(at(0), bystander, coded(&encoder, bystander), &mut out);
    let mut noise = Noise::new(8);
    decoder.on_coded(at(0), range(0, 2, 1), noise.bytes(24).into(), &mut out);
    let outcome = decoder.on_coded(at(0), range(0, 2, 2), noise.bytes(24).into(), &mut out);
    assert_eq!(outcome, CodedOutcome::Inconsistent);
    assert_eq!((decoder.pending(), out.len()), (1, 0));
    assert_eq!(decoder.stats().drops.get(DropReason::Inconsistent), 2);
    for id in [1, 2, 4, 5] {
        decoder.on_source(at(0), PacketId(id), symbols[id as usize].clone(), &mut out);
    }
    assert_eq!(out.last(), Some(&(PacketId(3), symbols[3].clone())));
    assert_conservation(&decoder);
}

/// An arriving packet determines two others, one of them by a false equation.
#[test]
fn a_contradiction_does_not_hold_back_what_has_nothing_to_do_with_it() {
    let symbols = symbols(3);
    let encoder = encoder(PacketId(0), &symbols);
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    decoder.on_coded(at(0), range(0, 2, 1), coded(&encoder, range(0, 2, 1)), &mut out);
    decoder.on_coded(at(0), range(1, 2, 1), Noise::new(8).bytes(24).into(), &mut out);
    decoder.on_source(at(0), PacketId(1), symbols[1].clone(), &mut out);
    assert_eq!(out, [(PacketId(1), symbols[1].clone()), (PacketId(0), symbols[0].clone())]);
    assert_eq!(decoder.stats().drops.get(DropReason::Inconsistent), 1);
    assert_conservation(&decoder);
}

/// A false coded packet determines packet 1, packet 1 arrives late, and then equations cover it.
#[test]
fn a_source_packet_is_believed_although_it_was_determined_before() {
    let symbols = [symbol(20, 0), symbol(24, 1), symbol(20, 2)];
    let encoder = encoder(PacketId(0), &symbols);
    for is_covered in [false, true] {
        let (mut decoder, mut out) = (decoder(), Delivered::new());
        decoder.on_coded(at(0), range(1, 1, 0), symbol(20, 99), &mut out);
        let [early, late] = [5, 6].map(|seed| range(0, 3, seed));
        if is_covered {
            let outcome = decoder.on_coded(at(0), early, coded(&encoder, early), &mut out);
            assert_eq!(outcome, CodedOutcome::Kept);
            let short = Bytes::from(vec![1; 22]);
            decoder.on_coded(at(0), range(1, 3, 7), short, &mut out);
            assert_eq!(decoder.pending(), 2);
        }
        let outcome = decoder.on_source(at(1), PacketId(1), symbols[1].clone(), &mut out);
        assert_eq!(outcome, SourceOutcome::Duplicate);
        assert_eq!(decoder.pending(), usize::from(is_covered), "one is too short for packet 1");
        if !is_covered {
            decoder.on_coded(at(1), early, coded(&encoder, early), &mut out);
        }
        decoder.on_coded(at(2), late, coded(&encoder, late), &mut out);
        let [zero, two] = [0, 2].map(|id| (PacketId(id), symbols[id as usize].clone()));
        assert_eq!(out[1..], [zero, two]);
        assert_conservation(&decoder);
        decoder.expire(at(2_000));
        assert_eq!(decoder.bytes(), 0);
    }
}

/// A decoder with an equation over each two neighbours of `packets` packets, and a false packet 0,
/// which is no symbol and determines all others.
fn with_false_pairs(packets: u32) -> (Decoder, Bytes) {
    let symbols: Vec<Bytes> = (0..packets).map(|seed| symbol(100, seed.into())).collect();
    let impossible = Bytes::from_static(&[0, 0, 1]);
    let encoder = encoder(PacketId(0), &symbols);
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    for start in 0..packets - 1 {
        let pair = range(start, 2, start);
        let mut payload = coded(&encoder, pair).to_vec();
        if start == 0 {
            // Its coefficient is 1.
            payload.iter_mut().zip(&symbols[0]).for_each(|(sum, byte)| *sum ^= byte);
            payload.iter_mut().zip(&impossible).for_each(|(sum, byte)| *sum ^= byte);
        }
        decoder.on_coded(at(0), pair, payload.into(), &mut out);
    }
    assert!(out.is_empty());
    (decoder, impossible)
}

/// One repeated false packet determines 128 packets by 127 equations; the first is impossible.
#[test]
fn repeated_contradictions_do_not_repeat_the_work() {
    let (mut decoder, impossible) = with_false_pairs(128);
    let mut out = Delivered::new();
    assert_eq!(decoder.pending(), 127);
    let before = COMBINED_BYTES.get();
    for _ in 0..100 {
        let outcome = decoder.on_coded(at(1), range(0, 1, 0), impossible.clone(), &mut out);
        assert_eq!(outcome, CodedOutcome::Inconsistent);
    }
    let once = 128 * 128 * 102;
    let work = COMBINED_BYTES.get() - before;
    assert!(work <= 4 * once + 100 * 3, "{} times", work as f64 / once as f64);
    assert!(out.is_empty(), "{out:?}");
    assert_eq!(decoder.pending(), 0);
    assert_conservation(&decoder);
}

#[test]
fn contradictions_are_not_forgotten_when_blocks_join() {
    let (mut decoder, impossible) = with_false_pairs(10);
    let mut out = Delivered::new();
    let mut contradict = |decoder: &mut Decoder| {
        decoder.on_coded(at(1), range(0, 1, 0), impossible.clone(), &mut out)
    };
    (0..3).for_each(|_| _ = contradict(&mut decoder));
    assert_eq!(decoder.pending(), 9);
    for (start, count) in [(20, 2), (9, 12)] {
        let payload = symbol(100, 1);
        decoder.on_coded(at(1), range(start, count, 1), payload, &mut Delivered::new());
    }
    assert_eq!(decoder.pending(), 11);
    contradict(&mut decoder);
    assert_eq!((decoder.pending(), out.len()), (0, 0));
    assert_conservation(&decoder);
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
    let encoder = encoder(PacketId(0), &[first.clone(), second.into()]);
    let sum = coded(&encoder, range(0, 2, 1));
    assert!(sum[20..].iter().all(|byte| *byte == 0));
    for source_first in [true, false] {
        let (mut decoder, mut out) = (decoder(), Delivered::new());
        if source_first {
            decoder.on_source(at(0), PacketId(0), first.clone(), &mut out);
        }
        decoder.on_coded(at(0), range(0, 2, 1), sum.slice(..20), &mut out);
        decoder.on_source(at(0), PacketId(0), first.clone(), &mut out);
        assert_eq!(out, [(PacketId(0), first.clone())]);
        assert_eq!(decoder.stats().drops.get(DropReason::Inconsistent), 1);
        assert_conservation(&decoder);
    }
}

/// A repaired packet and a shorter coded packet over it exclude one another.
#[test]
fn a_repaired_packet_does_not_outgrow_an_equation_over_it() {
    let symbols = [symbol(9, 0), symbol(9, 1), symbol(40, 2)];
    let encoder = encoder(PacketId(0), &symbols);
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    decoder.on_coded(at(0), range(2, 3, 1), Bytes::from(vec![1; 20]), &mut out);
    for seed in 0..3 {
        decoder.on_coded(at(0), range(0, 3, seed), coded(&encoder, range(0, 3, seed)), &mut out);
    }
    assert_eq!(decoder.pending(), 0);
    assert_eq!(decoder.stats().drops.get(DropReason::Inconsistent), 4);
    assert!(out.is_empty(), "{out:?}");
    assert_conservation(&decoder);
}
