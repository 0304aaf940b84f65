//! What the decoder keeps, and for how long.

use super::*;

/// The sums of long coded packets are short packets, and are counted as short.
#[test]
fn padding_keeps_no_memory() {
    let mut bench = Bench::new(vec![]);
    for id in 0..100 {
        let mut payload = symbol(1, id.into()).to_vec();
        payload.resize(SYMBOL_BYTES_MAX, 0);
        bench.coded_with(0, range(id, 1, 0), payload);
    }
    assert_eq!((bench.out.len(), bench.decoder.bytes()), (100, 100 * (3 + 128)));
    bench.decoder.expire(at(2000));
    for (id, symbol) in bench.out {
        let room = symbol.try_into_mut().expect("the decoder has forgotten it").capacity();
        assert!(room < 100, "{id} keeps {room} bytes");
    }
}

fn long_symbols(count: u64) -> Vec<Bytes> {
    (0..count).map(|seed| symbol(1_400, seed)).collect()
}

/// Whether more than `bytes` are allocated for a packet without other owners.
fn has_room_beyond(symbol: Bytes, bytes: usize) -> bool {
    let mut symbol = symbol.try_into_mut().expect("nobody else holds it");
    symbol.clear();
    symbol.try_reclaim(bytes + 1)
}

#[test]
fn packets_solved_together_share_memory_in_small_groups() {
    let mut bench = Bench::new(long_symbols(60));
    (0..61).for_each(|seed| _ = bench.coded(0, range(0, 60, seed)));
    assert_eq!(bench.out.len(), 60);
    bench.decoder.expire(at(2_000));
    let (_, last) = bench.out.pop().expect("60 packets");
    bench.out.clear();
    assert!(!has_room_beyond(last, 32 << 10));
}

/// Of 20 packets solved together one is delivered; the others were before.
#[test]
fn a_packet_does_not_keep_the_memory_of_those_that_it_was_solved_with() {
    let config = DecoderConfig { known_bytes_max: 0, ..DecoderConfig::default() };
    let mut bench = Bench::with(config, long_symbols(20));
    (1..20).for_each(|id| _ = bench.source(0, id));
    bench.out.clear();
    (0..20).for_each(|seed| _ = bench.coded(0, range(0, 20, seed)));
    let delivered = bench.out.pop().expect("packet 0 is determined");
    assert_eq!(delivered, bench.sent(0));
    assert!(!has_room_beyond(delivered.1, 2_000));
    assert_conservation(&bench.decoder);
}

/// Of 20 packets solved together an equation covers the last one, and keeps it.
#[test]
fn an_equation_does_not_keep_more_than_the_packets_that_it_covers() {
    let config = DecoderConfig { known_bytes_max: 0, ..DecoderConfig::default() };
    let mut bench = Bench::with(config, long_symbols(22));
    bench.coded(0, range(19, 3, 1));
    (0..20).for_each(|seed| _ = bench.coded(0, range(0, 20, seed)));
    assert_eq!((bench.pending(), bench.out.len()), (1, 20));
    let (_, first) = bench.out.swap_remove(0);
    bench.out.clear();
    assert!(first.is_unique(), "the decoder keeps packet 19 alone");
}

#[test]
fn a_long_packet_does_not_keep_the_padding_of_short_ones() {
    let length = |seed| if seed == 7 { 1_400 } else { 5 };
    let mut bench = Bench::new((0..20).map(|seed| symbol(length(seed), seed)).collect());
    (0..20).for_each(|seed| _ = bench.coded(0, range(0, 20, seed)));
    bench.decoder.expire(at(2_000));
    assert!(!has_room_beyond(bench.out.swap_remove(7).1, 2_000));
}

#[test]
fn a_flood_of_equations_costs_bounded_memory() {
    let config = DecoderConfig { equation_bytes_max: 200_000, ..DecoderConfig::default() };
    let mut bench = Bench::with(config, vec![]);
    let mut noise = Noise::new(6);
    for step in 0..20_000 {
        let start = if step % 2 == 0 { step } else { noise.below(20_000) as u32 };
        bench.coded_with(0, range(start, 64, step), noise.bytes(100));
        assert!(bench.decoder.bytes() <= 200_000 + config.known_bytes_max);
    }
    assert!(bench.pending() > 0);
    assert!(bench.drops(DropReason::ReceiveMemory) > 10_000);
    assert_conservation(&bench.decoder);
}

/// An equation keeps its packets; a new one, and one that corrects another, exceed the memory.
#[test]
fn known_packets_of_equations_have_a_bound() {
    for is_first in [true, false] {
        let equation_bytes_max = 1024 + 640 + 1_000 + 500;
        let config = DecoderConfig { equation_bytes_max, ..DecoderConfig::default() };
        let mut bench = Bench::with(config, vec![symbol(9, 0), symbol(900, 1)]);
        if !is_first {
            bench.coded_with(0, range(1, 1, 1), symbol(9, 1));
        }
        bench.coded_with(0, range(0, 3, 1), vec![1; 1_000]);
        assert_eq!(bench.pending(), 1);
        bench.source(0, 1);
        assert_eq!(bench.pending(), 0);
        assert_eq!(bench.drops(DropReason::ReceiveMemory), 1);
        assert_conservation(&bench.decoder);
    }
}
