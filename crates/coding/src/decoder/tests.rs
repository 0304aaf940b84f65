//! The decoder with little memory or hostile peers; `tests/it/reference.rs` has Gauss-Jordan.

mod contradictions;
mod jumps;
mod memory;

use std::collections::BTreeSet;

use bytes::BytesMut;
use proptest::prelude::*;

use super::block::solve::COMBINED_BYTES;
use super::*;
use crate::Encoder;
use crate::gf256;
use crate::test_support::{Noise, at, coded, encoder, symbol};

fn range(start: u32, count: u16, seed: u32) -> CodedRange {
    CodedRange { start: PacketId(start), count, seed }
}

fn symbols(count: u64) -> Vec<Bytes> {
    (0..count).map(|seed| symbol(20 + seed as usize % 7, seed)).collect()
}

fn assert_conservation(decoder: &Decoder) {
    let stats = decoder.stats();
    let used = stats.new_sources + stats.recovered + stats.redundant;
    let all = used + stats.drops.total() + decoder.pending() as u64;
    assert_eq!(stats.sources + stats.coded, all, "{stats:?}, {} pending", decoder.pending());
}

/// A decoder and a sender whose first packet is packet 0.
struct Bench {
    symbols: Vec<Bytes>,
    encoder: Encoder,
    decoder: Decoder,
    out: Vec<(PacketId, Bytes)>,
}

impl Bench {
    fn new(symbols: Vec<Bytes>) -> Self {
        Self::with(DecoderConfig::default(), symbols)
    }

    fn with(config: DecoderConfig, symbols: Vec<Bytes>) -> Self {
        let encoder = encoder(PacketId(0), &symbols);
        Self { symbols, encoder, decoder: Decoder::new(config), out: Vec::new() }
    }

    fn source(&mut self, millis: u64, id: u32) -> SourceOutcome {
        let symbol = self.symbols[id as usize].clone();
        self.decoder.on_source(at(millis), PacketId(id), symbol, &mut self.out)
    }

    fn coded(&mut self, millis: u64, range: CodedRange) -> CodedOutcome {
        let payload = coded(&self.encoder, range);
        self.coded_with(millis, range, payload)
    }

    fn coded_with(
        &mut self,
        millis: u64,
        range: CodedRange,
        payload: impl Into<Bytes>,
    ) -> CodedOutcome {
        self.decoder.on_coded(at(millis), range, payload.into(), &mut self.out)
    }

    fn pending(&self) -> usize {
        self.decoder.pending()
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.decoder.stats().drops.get(reason)
    }

    fn sent(&self, id: u32) -> (PacketId, Bytes) {
        (PacketId(id), self.symbols[id as usize].clone())
    }
}

#[derive(Clone, Debug)]
enum Arrival {
    Source(usize),
    Coded { first: usize, count: usize, seed: u32 },
}

struct Schedule {
    bench: Bench,
    delivered: BTreeSet<usize>,
    /// By packet: delivered with other bytes than sent.
    wrong: BTreeSet<usize>,
}

impl Schedule {
    fn new(config: DecoderConfig, lengths: &[usize]) -> Self {
        let symbols = lengths.iter().zip(0..).map(|(length, seed)| symbol(*length, seed));
        let bench = Bench::with(config, symbols.collect());
        Self { bench, delivered: BTreeSet::new(), wrong: BTreeSet::new() }
    }

    /// Gives an arrival to the decoder, with the byte at `byte` inverted.
    fn arrive(&mut self, arrival: Arrival, byte: Option<usize>) {
        match arrival {
            Arrival::Source(index) => _ = self.bench.source(0, index as u32),
            Arrival::Coded { first, count, seed } => {
                let range = range(first as u32, count as u16, seed);
                let mut payload = coded(&self.bench.encoder, range).to_vec();
                if let Some(byte) = byte {
                    payload[byte] ^= 0xff;
                }
                self.bench.coded_with(0, range, payload);
            }
        }
        for (id, symbol) in std::mem::take(&mut self.bench.out) {
            let index = id.0 as usize;
            assert!(self.delivered.insert(index), "{id} was delivered twice");
            if symbol != self.bench.symbols[index] {
                self.wrong.insert(index);
            }
        }
        assert_conservation(&self.bench.decoder);
    }
}

fn arrivals(packets: usize, most: usize) -> impl Strategy<Value = Vec<Arrival>> {
    let source = (0..packets).prop_map(Arrival::Source);
    let counts = prop_oneof![8 => 1usize..12, 1 => 12usize..=64];
    let coded = (0..packets, counts, any::<u32>()).prop_map(move |(first, count, seed)| {
        Arrival::Coded { first, count: count.min(packets - first), seed }
    });
    prop::collection::vec(prop_oneof![1 => source, 3 => coded], 1..most)
}

/// A packet of a faulty or hostile peer.
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
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_forgotten_makes_no_packet_wrong(
        lengths in prop::collection::vec(1usize..60, 60),
        known_bytes_max in 0usize..3_000,
        equation_bytes_max in 0usize..20_000,
        arrivals in arrivals(60, 120),
    ) {
        let config = DecoderConfig { known_bytes_max, equation_bytes_max, ..DecoderConfig::default() };
        let mut schedule = Schedule::new(config, &lengths);
        for arrival in arrivals {
            schedule.arrive(arrival, None);
            prop_assert!(schedule.wrong.is_empty(), "wrong packets: {:?}", schedule.wrong);
        }
    }

    /// Ranges do not overlap. One coded packet is wrong in bytes that no check covers.
    #[test]
    fn a_false_coded_packet_corrupts_no_more_than_its_range(
        lengths in prop::collection::vec(20usize..30, 60),
        arrivals in arrivals(60, 150),
        wrong in any::<prop::sample::Index>(),
        byte in 10usize..20,
    ) {
        let mut schedule = Schedule::new(DecoderConfig::default(), &lengths);
        let wrong = wrong.index(arrivals.len());
        let mut touched = BTreeSet::new();
        for (index, arrival) in arrivals.into_iter().enumerate() {
            match arrival {
                Arrival::Source(_) => schedule.arrive(arrival, None),
                Arrival::Coded { first, seed, .. } => {
                    let first = first / 10 * 10;
                    let arrival = Arrival::Coded { first, count: 10, seed };
                    let flipped = (index == wrong).then_some(byte);
                    if index == wrong {
                        touched.extend(first..first + 10);
                    }
                    schedule.arrive(arrival, flipped);
                }
            }
        }
        for packet in schedule.wrong {
            prop_assert!(touched.contains(&packet), "packet {} is wrong", packet);
        }
    }

    /// Sources are delivered as sent, and so are packets that no chain of overlapping ranges
    /// connects to the false coded packet. Packets that arrive unchanged before both ranges do not
    /// connect them.
    #[test]
    fn an_error_travels_no_further_than_ranges_overlap(
        lengths in prop::collection::vec(20usize..30, 60),
        arrivals in arrivals(60, 80),
        wrong in any::<prop::sample::Index>(),
        byte in 0usize..20,
    ) {
        let mut schedule = Schedule::new(DecoderConfig::default(), &lengths);
        let wrong = wrong.index(arrivals.len());
        let mut came = vec![usize::MAX; 60];
        let (mut ranges, mut reached) = (Vec::new(), Vec::new());
        for (index, arrival) in arrivals.into_iter().enumerate() {
            match arrival {
                Arrival::Source(packet) => came[packet] = came[packet].min(index),
                Arrival::Coded { first, count, .. } if index == wrong => {
                    reached.push((index, first..first + count));
                }
                Arrival::Coded { first, count, .. } => ranges.push((index, first..first + count)),
            }
            schedule.arrive(arrival, (index == wrong).then_some(byte));
        }
        let mut touched = BTreeSet::new();
        while let Some((at, packets)) = reached.pop() {
            let connects = |(other, others): &mut (usize, std::ops::Range<usize>)| {
                let both_there = at.max(*other);
                packets.clone().any(|packet| others.contains(&packet) && came[packet] > both_there)
            };
            reached.extend(ranges.extract_if(.., connects));
            touched.extend(packets);
        }
        for packet in schedule.wrong {
            prop_assert!(touched.contains(&packet), "packet {} is wrong", packet);
        }
    }

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

#[test]
fn equations_older_than_the_expiry_count_no_more() {
    let mut bench = Bench::new(symbols(3));
    for (millis, seed) in [(0, 1), (10, 2), (705, 3)] {
        assert_eq!(bench.coded(millis, range(0, 3, seed)), CodedOutcome::Kept);
    }
    assert_eq!(bench.drops(DropReason::Late), 1);
    assert_eq!(bench.coded(709, range(0, 3, 4)), CodedOutcome::Determined(3));
    assert_eq!(bench.pending(), 0);
    bench.decoder.expire(at(2000));
    assert_eq!(bench.decoder.bytes(), 0);
}

#[test]
fn malformed_input_is_refused() {
    let mut bench = Bench::new(vec![]);
    for bytes in [&b""[..], &[0], &[0, 0], &[0, 2, 1], &[0, 1, 1, 0]] {
        let symbol = Bytes::copy_from_slice(bytes);
        let outcome = bench.decoder.on_source(at(0), PacketId(0), symbol, &mut bench.out);
        assert_eq!(outcome, SourceOutcome::Malformed, "{bytes:?}");
    }
    for (count, length) in [(0, 9), (65, 9), (u16::MAX, 9), (2, 0), (2, 2), (2, 16_386)] {
        let outcome = bench.coded_with(0, range(0, count, 1), vec![1; length]);
        assert_eq!(outcome, CodedOutcome::Malformed, "{length} bytes over {count}");
    }
    assert_eq!(bench.drops(DropReason::MalformedMessage), 11);
    assert!(bench.out.is_empty());
}

#[test]
fn a_packet_that_comes_brings_no_old_equation_back() {
    let mut bench = Bench::new(symbols(2));
    bench.coded(10, range(0, 2, 1));
    bench.decoder.expire(at(700));
    bench.source(711, 0);
    assert_eq!(bench.out, [bench.sent(0)]);
    assert_eq!((bench.pending(), bench.drops(DropReason::Late)), (0, 1));
}

/// The decoder has memory for one delivered symbol. It knows packet 10, because an equation covers
/// it; packets 11 and 12 are missing.
fn forgetful() -> Bench {
    let config = DecoderConfig { known_bytes_max: 160, ..DecoderConfig::default() };
    let mut bench = Bench::with(config, symbols(21));
    bench.source(0, 10);
    assert_eq!(bench.coded(0, range(10, 3, 1)), CodedOutcome::Kept);
    bench.source(0, 20);
    let decoder = &bench.decoder;
    assert!(decoder.known.get(decoder.window.as_ref().unwrap().full_id(PacketId(10))).is_none());
    bench.out.clear();
    bench
}

#[test]
fn a_symbol_is_known_while_an_equation_covers_it() {
    let mut bench = forgetful();
    assert_eq!(bench.coded(0, range(10, 3, 2)), CodedOutcome::Determined(2));
    assert_conservation(&bench.decoder);
}

#[test]
fn a_symbol_that_no_equation_covers_any_more_costs_nothing() {
    let mut bench = Bench::new(symbols(4));
    bench.source(0, 0);
    bench.coded(0, range(0, 3, 1));
    let younger = range(1, 3, 1);
    bench.coded(500, younger);
    bench.decoder.expire(at(800));
    let length = coded(&bench.encoder, younger).len();
    assert_eq!((bench.pending(), bench.decoder.bytes()), (1, length + 640 + 1024));
}

#[test]
fn blocks_that_join_share_what_each_of_them_knows() {
    let mut bench = forgetful();
    let outcome = bench.coded(0, range(8, 3, 1));
    assert_eq!(outcome, CodedOutcome::Kept, "packet 10 counts as missing here");
    assert_eq!(bench.coded(0, range(10, 2, 1)), CodedOutcome::Determined(2));
    assert_eq!(bench.out.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [11, 12]);
    assert_eq!(bench.pending(), 1);
    assert_conservation(&bench.decoder);
}

/// The false equation is detected when its block joins one that knows packet 10.
#[test]
fn an_equation_that_joins_blocks_does_not_answer_for_theirs() {
    let mut bench = forgetful();
    let outcome = bench.coded_with(0, range(9, 2, 1), Noise::new(8).bytes(30));
    assert_eq!(outcome, CodedOutcome::Kept, "packet 10 counts as missing here");
    let outcome = bench.coded(0, range(10, 4, 2));
    assert_eq!((outcome, bench.pending()), (CodedOutcome::Kept, 2));
    assert_eq!(bench.drops(DropReason::Inconsistent), 1);
    assert_conservation(&bench.decoder);
}

/// Packet 0 was delivered and dropped; two equations over missing packets determine it alone.
#[test]
fn a_coded_packet_that_determines_only_what_was_delivered_is_redundant() {
    let coefficients = |count, seed| {
        let mut coefficients = [0; 3];
        coefficients::fill(seed, &mut coefficients[..count]);
        coefficients
    };
    let [_, one, two] = coefficients(3, 1);
    let is_multiple = |seed: &u32| gf256::mul(one, coefficients(2, *seed)[1]) == two;
    let seed = (0..10_000).find(is_multiple).expect("one of 255 is");
    let config = DecoderConfig { known_bytes_max: 0, ..DecoderConfig::default() };
    let mut bench = Bench::with(config, symbols(3));
    bench.source(0, 0);
    assert_eq!(bench.coded(0, range(0, 3, 1)), CodedOutcome::Kept);
    let outcome = bench.coded(0, range(1, 2, seed));
    assert_eq!((outcome, bench.pending()), (CodedOutcome::Redundant, 1));
    assert_eq!(bench.out.len(), 1);
    assert_conservation(&bench.decoder);
}

#[test]
fn packets_delivered_long_ago_are_unknown_but_not_delivered_again() {
    let config = DecoderConfig { known_bytes_max: 500, ..DecoderConfig::default() };
    let mut bench = Bench::with(config, symbols(20));
    (1..20).for_each(|id| _ = bench.source(0, id));
    (0..4).for_each(|seed| _ = bench.coded(0, range(0, 4, seed)));
    assert_eq!(bench.out.len(), 20);
    assert_eq!(bench.out[19], bench.sent(0));
    assert_eq!((bench.decoder.stats().recovered, bench.decoder.stats().redundant), (1, 3));
    assert_conservation(&bench.decoder);
}
