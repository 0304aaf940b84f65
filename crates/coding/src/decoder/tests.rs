//! The decoder against plain Gauss-Jordan elimination, theorem 4.1, and broken or hostile peers.

use std::collections::BTreeSet;

use bytes::BytesMut;
use proptest::prelude::*;

use super::*;
use crate::gf256;
use crate::test_support::{Noise, coded, encoder, symbol};

type Delivered = Vec<(PacketId, Bytes)>;

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn range(start: u32, count: u16, seed: u32) -> CodedRange {
    CodedRange { start: PacketId(start), count, seed }
}

fn decoder() -> Decoder {
    Decoder::new(DecoderConfig::default())
}

fn symbols(count: u64) -> Vec<Bytes> {
    (0..count).map(|seed| symbol(20 + seed as usize % 7, seed)).collect()
}

/// Nothing appears from nowhere and nothing vanishes uncounted.
fn assert_conservation(decoder: &Decoder) {
    let stats = decoder.stats();
    let used = stats.new_sources + stats.recovered + stats.redundant;
    let all = used + stats.drops.total() + decoder.pending() as u64;
    assert_eq!(stats.sources + stats.coded, all, "{stats:?}, {} pending", decoder.pending());
}

/// The coefficients of all that was ever received, eliminated from scratch: plain Gauss-Jordan.
#[derive(Default)]
struct Reference {
    rows: Vec<Vec<u8>>,
}

impl Reference {
    /// The packets that the rows determine.
    fn determined(&self) -> BTreeSet<usize> {
        let mut rows = self.rows.clone();
        let columns = rows.first().map_or(0, Vec::len);
        let mut rank = 0;
        for column in 0..columns {
            let Some(found) = (rank..rows.len()).find(|row| rows[*row][column] != 0) else {
                continue;
            };
            rows.swap(rank, found);
            let pivot = rows[rank].clone();
            let inverse = gf256::invert(pivot[column]);
            for (index, row) in rows.iter_mut().enumerate() {
                let factor = gf256::mul(inverse, row[column]);
                let factor = if index == rank { inverse ^ 1 } else { factor };
                for (to, from) in row.iter_mut().zip(&pivot) {
                    *to ^= gf256::mul(factor, *from);
                }
            }
            rank += 1;
        }
        let solved = rows[..rank].iter().filter_map(|coefficients| {
            let mut nonzero = (0..columns).filter(|column| coefficients[*column] != 0);
            let column = nonzero.next()?;
            nonzero.next().is_none().then_some(column)
        });
        solved.collect()
    }
}

/// What arrives at the receiver.
#[derive(Clone, Debug)]
enum Arrival {
    Source(usize),
    Coded { first: usize, count: usize, seed: u32 },
}

fn arrivals(packets: usize) -> impl Strategy<Value = Vec<Arrival>> {
    let source = (0..packets).prop_map(Arrival::Source);
    let coded = (0..packets, 1usize..12, any::<u32>()).prop_map(move |(first, count, seed)| {
        Arrival::Coded { first, count: count.min(packets - first), seed }
    });
    prop::collection::vec(prop_oneof![1 => source, 3 => coded], 1..60)
}

/// What a peer sends that is broken, or half broken.
#[derive(Clone, Debug)]
struct Input {
    is_source: bool,
    is_true: bool,
    range: CodedRange,
    bytes: Vec<u8>,
    pause: u64,
}

fn input() -> impl Strategy<Value = Input> {
    let starts = prop_oneof![9 => -20i32..80, 1 => any::<i32>()];
    let counts = prop_oneof![9 => 1u16..10, 1 => 0u16..70];
    let bytes = prop::collection::vec(prop_oneof![Just(0), any::<u8>()], 0..40);
    let ranges = (starts, counts, any::<u32>()).prop_map(|(start, count, seed)| CodedRange {
        start: PacketId(start.cast_unsigned()),
        count,
        seed,
    });
    (any::<bool>(), any::<bool>(), ranges, bytes, 0u64..30).prop_map(
        |(is_source, is_true, range, bytes, pause)| Input {
            is_source,
            is_true,
            range,
            bytes,
            pause,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any mix of sources and coded packets, overlapping, repeated, in any order, across the wrap.
    #[test]
    fn packets_are_delivered_exactly_when_they_are_determined(
        start in prop_oneof![Just(u32::MAX - 10), any::<u32>()],
        lengths in prop::collection::vec(1usize..60, 30),
        arrivals in arrivals(30),
    ) {
        let start = PacketId(start);
        let symbols: Vec<Bytes> =
            lengths.iter().enumerate().map(|(i, length)| symbol(*length, i as u64)).collect();
        let encoder = encoder(start, &symbols);
        let (mut decoder, mut reference) = (decoder(), Reference::default());
        let mut delivered = BTreeSet::new();
        for arrival in arrivals {
            let mut coefficients = vec![0; symbols.len()];
            let mut out = Vec::new();
            match arrival {
                Arrival::Source(index) => {
                    coefficients[index] = 1;
                    reference.rows.push(coefficients);
                    let id = start.plus(index as u32);
                    decoder.on_source(at(0), id, symbols[index].clone(), &mut out);
                }
                Arrival::Coded { first, count, seed } => {
                    let id = start.plus(first as u32);
                    let range = CodedRange { start: id, count: count as u16, seed };
                    coefficients::fill(seed, &mut coefficients[first..first + count]);
                    let payload = coded(&encoder, range);
                    reference.rows.push(coefficients);
                    decoder.on_coded(at(0), range, payload, &mut out);
                }
            }
            for (id, symbol) in out {
                let index = id.distance(start) as usize;
                prop_assert!(delivered.insert(index), "{} was delivered twice", id);
                prop_assert_eq!(&symbol, &symbols[index], "{}", id);
            }
            prop_assert_eq!(&delivered, &reference.determined());
            assert_conservation(&decoder);
        }
    }

    /// Arbitrary bytes, ranges and times, among true ones, never panic, exceed memory, deliver twice
    /// or go uncounted.
    #[test]
    fn hostile_input_is_bounded_and_counted(
        inputs in prop::collection::vec(input(), 1..300),
        equation_bytes_max in 0usize..20_000,
    ) {
        let config = DecoderConfig {
            known_bytes_max: 5_000, equation_bytes_max, ..DecoderConfig::default()
        };
        let mut decoder = Decoder::new(config);
        let symbols = symbols(200);
        let encoder = encoder(PacketId(0), &symbols);
        let (mut millis, mut out) = (0, Vec::new());
        for Input { is_source, is_true, range, bytes, pause } in inputs {
            millis += pause;
            let id = range.start;
            if is_source {
                let sent = symbols.get(id.0 as usize).filter(|_| is_true);
                let symbol = sent.cloned().unwrap_or_else(|| symbol(1 + bytes.len(), 1));
                decoder.on_source(at(millis), id, symbol, &mut out);
            } else {
                let mut sent = BytesMut::new();
                let payload = match encoder.encode(range, &mut sent) {
                    Ok(_) if is_true => sent.freeze(),
                    _ => bytes.into(),
                };
                decoder.on_coded(at(millis), range, payload, &mut out);
            }
            prop_assert!(decoder.bytes() <= 5_000 + equation_bytes_max);
            assert_conservation(&decoder);
        }
        let ids: BTreeSet<u32> = out.iter().map(|(id, _)| id.0).collect();
        prop_assert_eq!(ids.len(), out.len(), "a packet was delivered twice");
    }
}

/// Decodes n packets from n + k coded ones; returns whether all came out.
fn decodes(n: u16, k: u16, noise: &mut Noise) -> bool {
    let symbols: Vec<Bytes> = (0..n).map(|i| symbol(4, i.into())).collect();
    let encoder = encoder(PacketId(0), &symbols);
    let (mut decoder, mut out) = (decoder(), Vec::new());
    for _ in 0..n + k {
        let range = range(0, n, noise.next());
        decoder.on_coded(at(0), range, coded(&encoder, range), &mut out);
    }
    out.len() == usize::from(n)
}

/// CellFusion theorem 4.1: n + k coded packets decode n with probability at least
/// 1 - 1/(255^k * 254). The failures may exceed their expectation by four standard deviations.
#[test]
fn theorem_4_1_holds() {
    const TRIALS: u32 = 4_000;
    let mut noise = Noise::new(41);
    for n in 2..=10 {
        for k in 0..=2 {
            let failures = (0..TRIALS).filter(|_| !decodes(n, k, &mut noise)).count() as f64;
            let expected = f64::from(TRIALS) / (255f64.powi(k.into()) * 254.0);
            let allowed = expected + 4.0 * expected.sqrt().max(0.5);
            assert!(
                failures <= allowed,
                "n {n}, k {k}: {failures} failures, {expected:.3} expected"
            );
        }
    }
}

#[test]
fn a_source_completes_a_range_that_lacks_one_packet() {
    let symbols = symbols(10);
    let encoder = encoder(PacketId(0), &symbols);
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    for seed in 0..9 {
        let range = range(0, 10, seed);
        let outcome = decoder.on_coded(at(0), range, coded(&encoder, range), &mut out);
        assert_eq!(outcome, CodedOutcome::Kept);
    }
    assert!(out.is_empty());
    let outcome = decoder.on_source(at(1), PacketId(4), symbols[4].clone(), &mut out);
    assert_eq!(outcome, SourceOutcome::New);
    assert_eq!(out.remove(0), (PacketId(4), symbols[4].clone()));
    let others = (0..10).filter(|id| *id != 4);
    assert_eq!(
        out,
        others.map(|id| (PacketId(id), symbols[id as usize].clone())).collect::<Vec<_>>()
    );
    assert_eq!(decoder.stats().recovered, 9);
    assert_eq!(decoder.pending(), 0);
}

#[test]
fn coded_packets_of_what_is_known_are_redundant() {
    let symbols = symbols(4);
    let encoder = encoder(PacketId(0), &symbols);
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    for seed in 0..7 {
        decoder.on_coded(at(0), range(0, 4, seed), coded(&encoder, range(0, 4, seed)), &mut out);
    }
    assert_eq!(out.len(), 4);
    assert_eq!(decoder.stats().redundant, 3);
    let late = decoder.on_source(at(1), PacketId(2), symbols[2].clone(), &mut out);
    assert_eq!(late, SourceOutcome::Duplicate);
    assert_eq!(out.len(), 4);
}

#[test]
fn equations_older_than_the_expiry_count_no_more() {
    let symbols = symbols(3);
    let encoder = encoder(PacketId(0), &symbols);
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    for (millis, seed) in [(0, 1), (10, 2), (705, 3)] {
        let range = range(0, 3, seed);
        let outcome = decoder.on_coded(at(millis), range, coded(&encoder, range), &mut out);
        assert_eq!(outcome, CodedOutcome::Kept);
    }
    assert_eq!(decoder.stats().drops.get(DropReason::Late), 1);
    let fresh = range(0, 3, 4);
    let outcome = decoder.on_coded(at(709), fresh, coded(&encoder, fresh), &mut out);
    assert_eq!(outcome, CodedOutcome::Determined(3));
    assert_eq!(decoder.pending(), 0);
    decoder.expire(at(2000));
    assert_eq!(decoder.bytes(), 0);
}

#[test]
fn a_jump_ahead_is_refused_while_packets_come_and_believed_after_a_silence() {
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    let mut source =
        |millis, id| decoder.on_source(at(millis), PacketId(id), symbol(9, 9), &mut out);
    assert_eq!(source(0, 7), SourceOutcome::New);
    assert_eq!(source(1, 2_000_000_000), SourceOutcome::FarAhead);
    assert_eq!(source(2, 8), SourceOutcome::New);
    assert_eq!(source(3, 7), SourceOutcome::Duplicate);
    assert_eq!(source(702, 70_000), SourceOutcome::FarAhead);
    assert_eq!(source(703, 200_000), SourceOutcome::New);
    assert_eq!(source(704, 200_001), SourceOutcome::New);
    assert_eq!(source(705, 199_000), SourceOutcome::New);
    assert_eq!(source(706, 9), SourceOutcome::Late);
    assert_eq!(decoder.stats().drops.get(DropReason::IdJump), 2);
    let behind = range(199_999 - 131_072, 3, 1);
    assert_eq!(decoder.on_coded(at(707), behind, symbol(9, 9), &mut out), CodedOutcome::Late);
    let far = range(1_000_000, 2, 1);
    let outcome = decoder.on_coded(at(707), far, symbol(9, 9), &mut out);
    assert_eq!(outcome, CodedOutcome::FarAhead);
    assert_conservation(&decoder);
}

#[test]
fn malformed_input_is_refused() {
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    for bytes in [&b""[..], &[0], &[0, 0], &[0, 2, 1], &[0, 1, 1, 0]] {
        let outcome =
            decoder.on_source(at(0), PacketId(0), Bytes::copy_from_slice(bytes), &mut out);
        assert_eq!(outcome, SourceOutcome::Malformed, "{bytes:?}");
    }
    for (count, length) in [(0, 9), (65, 9), (u16::MAX, 9), (2, 0), (2, 2), (2, 16_386)] {
        let payload = Bytes::from(vec![1; length]);
        let outcome = decoder.on_coded(at(0), range(0, count, 1), payload, &mut out);
        assert_eq!(outcome, CodedOutcome::Malformed, "{length} bytes over {count}");
    }
    assert_eq!(decoder.stats().drops.get(DropReason::MalformedMessage), 11);
    assert!(out.is_empty());
}

#[test]
fn an_equation_shorter_than_a_packet_it_covers_is_inconsistent() {
    let long = symbol(50, 1);
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    let short = Bytes::from(vec![1; 20]);
    let outcome = decoder.on_coded(at(0), range(0, 2, 1), short.clone(), &mut out);
    assert_eq!(outcome, CodedOutcome::Kept);
    decoder.on_source(at(0), PacketId(0), long.clone(), &mut out);
    assert_eq!(decoder.pending(), 0);
    let outcome = decoder.on_coded(at(0), range(0, 2, 2), short, &mut out);
    assert_eq!(outcome, CodedOutcome::Inconsistent);
    assert_eq!(decoder.stats().drops.get(DropReason::Inconsistent), 2);
    assert_eq!(out, [(PacketId(0), long)]);
    assert_conservation(&decoder);
}

/// Every range has one false equation; the packets that came by themselves and the packets of
/// other ranges stay as they were sent.
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

/// A flood of equations, each over packets that never come, in chains that all overlap.
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

/// Delivered symbols leave the memory for them, and equations over them still work.
#[test]
fn packets_delivered_long_ago_are_unknown_but_not_delivered_again() {
    let config = DecoderConfig { known_bytes_max: 500, ..DecoderConfig::default() };
    let mut decoder = Decoder::new(config);
    let symbols = symbols(20);
    let encoder = encoder(PacketId(0), &symbols);
    let mut out = Delivered::new();
    for id in 1..20 {
        decoder.on_source(at(0), PacketId(id), symbols[id as usize].clone(), &mut out);
    }
    for seed in 0..4 {
        let range = range(0, 4, seed);
        decoder.on_coded(at(0), range, coded(&encoder, range), &mut out);
    }
    assert_eq!(out.len(), 20);
    assert_eq!(out[19], (PacketId(0), symbols[0].clone()));
    assert_eq!((decoder.stats().recovered, decoder.stats().redundant), (1, 3));
    assert_conservation(&decoder);
}
