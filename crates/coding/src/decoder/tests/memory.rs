//! What the decoder keeps, and for how long.

use super::*;

/// The sums of long coded packets are short packets, and are counted as short.
#[test]
fn padding_keeps_no_memory() {
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    for id in 0..100 {
        let mut payload = symbol(1, id.into()).to_vec();
        payload.resize(SYMBOL_BYTES_MAX, 0);
        decoder.on_coded(at(0), range(id, 1, 0), payload.into(), &mut out);
    }
    assert_eq!((out.len(), decoder.bytes()), (100, 100 * (3 + 128)));
    decoder.expire(at(2000));
    for (id, symbol) in out {
        let room = symbol.try_into_mut().expect("the decoder has forgotten it").capacity();
        assert!(room < 100, "{id} keeps {room} bytes");
    }
}

/// Whether more than `bytes` are allocated for a packet without other owners.
fn has_room_beyond(symbol: Bytes, bytes: usize) -> bool {
    let mut symbol = symbol.try_into_mut().expect("nobody else holds it");
    symbol.clear();
    symbol.try_reclaim(bytes + 1)
}

#[test]
fn packets_solved_together_share_memory_in_small_groups() {
    let symbols: Vec<Bytes> = (0..60).map(|seed| symbol(1_400, seed)).collect();
    let encoder = encoder(PacketId(0), &symbols);
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    for seed in 0..61 {
        let range = range(0, 60, seed);
        decoder.on_coded(at(0), range, coded(&encoder, range), &mut out);
    }
    assert_eq!(out.len(), 60);
    decoder.expire(at(2_000));
    let (_, last) = out.pop().expect("60 packets");
    drop(out);
    assert!(!has_room_beyond(last, 32 << 10));
}

/// Of 20 packets solved together one is delivered; the others were before.
#[test]
fn a_packet_does_not_keep_the_memory_of_those_that_it_was_solved_with() {
    let symbols: Vec<Bytes> = (0..20).map(|seed| symbol(1_400, seed)).collect();
    let encoder = encoder(PacketId(0), &symbols);
    let config = DecoderConfig { known_bytes_max: 0, ..DecoderConfig::default() };
    let (mut decoder, mut out) = (Decoder::new(config), Delivered::new());
    for id in 1..20 {
        decoder.on_source(at(0), PacketId(id), symbols[id as usize].clone(), &mut out);
    }
    out.clear();
    for seed in 0..20 {
        let range = range(0, 20, seed);
        decoder.on_coded(at(0), range, coded(&encoder, range), &mut out);
    }
    let (id, symbol) = out.pop().expect("packet 0 is determined");
    assert_eq!((id, &symbol), (PacketId(0), &symbols[0]));
    assert!(!has_room_beyond(symbol, 2_000));
    assert_conservation(&decoder);
}

/// Of 20 packets solved together an equation covers the last one, and keeps it.
#[test]
fn an_equation_does_not_keep_more_than_the_packets_that_it_covers() {
    let symbols: Vec<Bytes> = (0..22).map(|seed| symbol(1_400, seed)).collect();
    let encoder = encoder(PacketId(0), &symbols);
    let config = DecoderConfig { known_bytes_max: 0, ..DecoderConfig::default() };
    let (mut decoder, mut out) = (Decoder::new(config), Delivered::new());
    let waiting = range(19, 3, 1);
    decoder.on_coded(at(0), waiting, coded(&encoder, waiting), &mut out);
    for seed in 0..20 {
        let range = range(0, 20, seed);
        decoder.on_coded(at(0), range, coded(&encoder, range), &mut out);
    }
    assert_eq!((decoder.pending(), out.len()), (1, 20));
    let (_, first) = out.swap_remove(0);
    drop(out);
    assert!(first.is_unique(), "the decoder keeps packet 19 alone");
}

#[test]
fn a_long_packet_does_not_keep_the_padding_of_short_ones() {
    let symbols: Vec<Bytes> =
        (0..20).map(|seed| symbol(if seed == 7 { 1_400 } else { 5 }, seed)).collect();
    let encoder = encoder(PacketId(0), &symbols);
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    for seed in 0..20 {
        let range = range(0, 20, seed);
        decoder.on_coded(at(0), range, coded(&encoder, range), &mut out);
    }
    decoder.expire(at(2_000));
    assert!(!has_room_beyond(out.swap_remove(7).1, 2_000));
}

#[test]
fn a_flood_of_equations_costs_bounded_memory() {
    let config = DecoderConfig { equation_bytes_max: 200_000, ..DecoderConfig::default() };
    let mut decoder = Decoder::new(config);
    let mut noise = Noise::new(6);
    let mut out = Delivered::new();
    for step in 0..20_000 {
        let start = if step % 2 == 0 { step } else { noise.below(20_000) as u32 };
        let payload = Bytes::from(noise.bytes(100));
        decoder.on_coded(at(0), range(start, 64, step), payload, &mut out);
        assert!(decoder.bytes() <= 200_000 + config.known_bytes_max);
    }
    assert!(decoder.pending() > 0);
    assert!(decoder.stats().drops.get(DropReason::ReceiveMemory) > 10_000);
    assert_conservation(&decoder);
}

/// An equation keeps its packets; a new one, and one that corrects another, exceed the memory.
#[test]
fn known_packets_of_equations_have_a_bound() {
    for is_first in [true, false] {
        let config = DecoderConfig {
            equation_bytes_max: 1024 + 640 + 1_000 + 500,
            ..DecoderConfig::default()
        };
        let (mut decoder, mut out) = (Decoder::new(config), Delivered::new());
        if !is_first {
            decoder.on_coded(at(0), range(1, 1, 1), symbol(9, 1), &mut out);
        }
        decoder.on_coded(at(0), range(0, 3, 1), vec![1; 1_000].into(), &mut out);
        assert_eq!(decoder.pending(), 1);
        decoder.on_source(at(0), PacketId(1), symbol(900, 1), &mut out);
        assert_eq!(decoder.pending(), 0);
        assert_eq!(decoder.stats().drops.get(DropReason::ReceiveMemory), 1);
        assert_conservation(&decoder);
    }
}
