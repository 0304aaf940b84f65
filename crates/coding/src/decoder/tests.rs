//! The decoder against plain Gauss-Jordan elimination, and against broken or hostile peers.

use std::collections::BTreeSet;

use bytes::BytesMut;
use proptest::prelude::*;

use super::block::COMBINED_BYTES;
use super::*;
use crate::Encoder;
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

/// Packets, what a receiver knows of them by the reference, and what the decoder delivered.
struct Schedule {
    start: PacketId,
    symbols: Vec<Bytes>,
    encoder: Encoder,
    reference: Reference,
    delivered: BTreeSet<usize>,
    /// By packet, what was delivered otherwise than sent.
    wrong: BTreeSet<usize>,
}

impl Schedule {
    fn new(start: PacketId, lengths: &[usize]) -> Self {
        let symbols: Vec<Bytes> =
            lengths.iter().zip(0..).map(|(length, seed)| symbol(*length, seed)).collect();
        let encoder = encoder(start, &symbols);
        let reference = Reference::default();
        let (delivered, wrong) = (BTreeSet::new(), BTreeSet::new());
        Self { start, symbols, encoder, reference, delivered, wrong }
    }

    /// Hands an arrival to the decoder, with one byte inverted if that is asked for.
    fn arrive_unchecked(&mut self, decoder: &mut Decoder, arrival: Arrival, byte: Option<usize>) {
        let mut coefficients = vec![0; self.symbols.len()];
        let mut out = Vec::new();
        match arrival {
            Arrival::Source(index) => {
                coefficients[index] = 1;
                let id = self.start.plus(index as u32);
                decoder.on_source(at(0), id, self.symbols[index].clone(), &mut out);
            }
            Arrival::Coded { first, count, seed } => {
                let start = self.start.plus(first as u32);
                let range = CodedRange { start, count: count as u16, seed };
                coefficients::fill(seed, &mut coefficients[first..first + count]);
                let mut payload = coded(&self.encoder, range).to_vec();
                if let Some(byte) = byte {
                    payload[byte] ^= 0xff;
                }
                decoder.on_coded(at(0), range, payload.into(), &mut out);
            }
        }
        self.reference.rows.push(coefficients);
        for (id, symbol) in out {
            let index = id.distance(self.start) as usize;
            assert!(self.delivered.insert(index), "{id} was delivered twice");
            if symbol != self.symbols[index] {
                self.wrong.insert(index);
            }
        }
    }

    /// Hands a true arrival to the decoder.
    fn arrive(&mut self, decoder: &mut Decoder, arrival: Arrival) -> Result<(), TestCaseError> {
        self.arrive_unchecked(decoder, arrival, None);
        prop_assert!(self.wrong.is_empty(), "wrong packets: {:?}", self.wrong);
        assert_conservation(decoder);
        Ok(())
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
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any mix of sources and coded packets, overlapping, repeated, in any order, across the wrap.
    #[test]
    fn packets_are_delivered_exactly_when_they_are_determined(
        start in prop_oneof![Just(u32::MAX - 10), any::<u32>()],
        lengths in prop::collection::vec(1usize..60, 30),
        arrivals in arrivals(30, 60),
    ) {
        let (mut schedule, mut decoder) = (Schedule::new(PacketId(start), &lengths), decoder());
        for arrival in arrivals {
            schedule.arrive(&mut decoder, arrival)?;
            prop_assert_eq!(&schedule.delivered, &schedule.reference.determined());
        }
    }

    /// When the bytes of delivered packets are forgotten, less may be determined, but nothing false.
    #[test]
    fn what_is_forgotten_makes_no_packet_wrong(
        lengths in prop::collection::vec(1usize..60, 60),
        known_bytes_max in 0usize..3_000,
        equation_bytes_max in 0usize..20_000,
        arrivals in arrivals(60, 120),
    ) {
        let config = DecoderConfig { known_bytes_max, equation_bytes_max, ..DecoderConfig::default() };
        let (mut schedule, mut decoder) = (Schedule::new(PacketId(0), &lengths), Decoder::new(config));
        for arrival in arrivals {
            schedule.arrive(&mut decoder, arrival)?;
        }
        prop_assert!(schedule.delivered.is_subset(&schedule.reference.determined()));
    }

    /// The ranges of a sender do not overlap. One coded packet is wrong in bytes that no check sees.
    #[test]
    fn a_false_coded_packet_corrupts_no_more_than_its_range(
        lengths in prop::collection::vec(20usize..30, 60),
        arrivals in arrivals(60, 150),
        wrong in any::<prop::sample::Index>(),
        byte in 10usize..20,
    ) {
        let (mut schedule, mut decoder) = (Schedule::new(PacketId(0), &lengths), decoder());
        let wrong = wrong.index(arrivals.len());
        let mut touched = BTreeSet::new();
        for (index, arrival) in arrivals.into_iter().enumerate() {
            match arrival {
                Arrival::Source(_) => schedule.arrive_unchecked(&mut decoder, arrival, None),
                Arrival::Coded { first, seed, .. } => {
                    let first = first / 10 * 10;
                    let arrival = Arrival::Coded { first, count: 10, seed };
                    let flipped = (index == wrong).then_some(byte);
                    if index == wrong {
                        touched.extend(first..first + 10);
                    }
                    schedule.arrive_unchecked(&mut decoder, arrival, flipped);
                }
            }
            assert_conservation(&decoder);
        }
        for packet in schedule.wrong {
            prop_assert!(touched.contains(&packet), "packet {} is wrong", packet);
        }
    }

    /// A false coded packet over garbage, ranges of any kind: sources that come are as they were
    /// sent, and packets that no chain of overlapping ranges connects to the false one. Two ranges
    /// are not connected by packets that came as they are before both ranges were there.
    #[test]
    fn an_error_travels_no_further_than_ranges_overlap(
        lengths in prop::collection::vec(20usize..30, 60),
        arrivals in arrivals(60, 80),
        wrong in any::<prop::sample::Index>(),
        byte in 0usize..20,
    ) {
        let (mut schedule, mut decoder) = (Schedule::new(PacketId(0), &lengths), decoder());
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
            schedule.arrive_unchecked(&mut decoder, arrival, (index == wrong).then_some(byte));
            assert_conservation(&decoder);
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

/// A lane of single packets: takes in a source packet, or a coded packet over one other.
fn arrive(decoder: &mut Decoder, millis: u64, id: u32, is_source: bool) -> bool {
    let mut out = Delivered::new();
    let body = symbol(9, id.into());
    if is_source {
        let outcome = decoder.on_source(at(millis), PacketId(id), body, &mut out);
        assert_eq!(outcome == SourceOutcome::New, !out.is_empty());
    } else {
        decoder.on_coded(at(millis), range(id, 2, 1), body, &mut out);
    }
    assert_conservation(decoder);
    !out.is_empty()
}

#[test]
fn a_jump_is_refused_while_packets_come_and_after_a_silence_believed_the_second_time() {
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    let mut source =
        |millis, id| decoder.on_source(at(millis), PacketId(id), symbol(9, 9), &mut out);
    assert_eq!(source(0, 7), SourceOutcome::New);
    assert_eq!(source(1, 2_000_000_000), SourceOutcome::FarAhead);
    assert_eq!(source(2, 8), SourceOutcome::New);
    assert_eq!(source(3, 7), SourceOutcome::Duplicate);
    assert_eq!(source(702, 70_000), SourceOutcome::FarAhead);
    assert_eq!(source(703, 200_000), SourceOutcome::FarAhead);
    assert_eq!(source(703, 200_000), SourceOutcome::FarAhead, "the same again is no second one");
    assert_eq!(source(704, 200_001), SourceOutcome::New);
    assert_eq!(source(705, 199_000), SourceOutcome::New);
    assert_eq!(source(706, 9), SourceOutcome::Late);
    assert_eq!(source(707, 10), SourceOutcome::Late);
    assert_eq!(decoder.stats().drops.get(DropReason::IdJump), 4);
    let behind = range(199_999 - 131_072, 3, 1);
    assert_eq!(decoder.on_coded(at(707), behind, symbol(9, 9), &mut out), CodedOutcome::Late);
    let far = range(1_000_000, 2, 1);
    let outcome = decoder.on_coded(at(707), far, symbol(9, 9), &mut out);
    assert_eq!(outcome, CodedOutcome::FarAhead);
    assert_conservation(&decoder);
}

/// After a second of silence, on a lane of a packet each second, and as the very first of a lane.
#[test]
fn one_broken_id_costs_a_lane_no_more_than_one_packet() {
    for (before, pause) in [(100, 800), (100, 1), (0, 1), (0, 1_000), (1, 1), (1, 1_000)] {
        for is_source in [false, true] {
            for wild in [1 << 30, 3 << 30, 200_000, u32::MAX - 200_000] {
                let mut decoder = decoder();
                assert!((0..before).all(|id| arrive(&mut decoder, id.into(), id, true)));
                let mut millis = 100 + pause;
                arrive(&mut decoder, millis, wild, is_source);
                let mut refused = 0;
                for id in before..before + 1_000 {
                    millis += pause;
                    refused += u32::from(!arrive(&mut decoder, millis, id, true));
                }
                let most = u32::from(before == 0);
                assert!(refused <= most, "{refused} lost: {before}, {pause}, {is_source}, {wild}");
            }
        }
    }
}

#[test]
fn ids_are_near_one_another_within_half_a_window() {
    for (distance, is_near) in [(1, true), (65_535, true), (65_536, false), (1 << 31, false)] {
        for is_ascending in [true, false] {
            let mut decoder = decoder();
            assert!(arrive(&mut decoder, 0, 0, true));
            let ids = [1 << 30, (1 << 30) + distance];
            let [first, second] = if is_ascending { ids } else { [ids[1], ids[0]] };
            assert!(!arrive(&mut decoder, 1, first, true));
            assert_eq!(arrive(&mut decoder, 1, second, true), is_near, "{distance}");
        }
    }
}

#[test]
fn broken_ids_with_good_ones_between_them_move_no_window() {
    let mut decoder = decoder();
    assert!((0..100).all(|id| arrive(&mut decoder, 0, id, true)));
    for id in 0..10 {
        let millis = 1_000 * u64::from(id + 1);
        assert!(!arrive(&mut decoder, millis, (1 << 30) + id, true));
        assert!(arrive(&mut decoder, millis, 100 + id, true));
    }
}

/// Two broken IDs near one another move a lane's window; its own packets move it back, and nothing
/// that was delivered before is delivered again.
#[test]
fn a_window_that_was_moved_away_returns_after_a_silence() {
    for wild in [1 << 30, 3 << 30] {
        let mut decoder = decoder();
        assert!((0..100).all(|id| arrive(&mut decoder, 0, id, true)));
        assert!(!arrive(&mut decoder, 800, wild, true));
        assert!(arrive(&mut decoder, 800, wild + 1, true));
        assert!((100..110).all(|id| !arrive(&mut decoder, 900, id, true)), "no silence yet");
        assert!(!arrive(&mut decoder, 1_501, 111, true));
        assert!((112..500).all(|id| arrive(&mut decoder, 1_502, id, true)));
        assert!((0..111).all(|id| !arrive(&mut decoder, 1_503, id, true)));
    }
}

#[test]
fn a_window_of_ids_that_never_start_again_waits_before_it_moves_back() {
    let config =
        DecoderConfig { rewind_after: Duration::from_secs(120), ..DecoderConfig::default() };
    let mut decoder = Decoder::new(config);
    assert!(arrive(&mut decoder, 0, 200_000, true));
    for id in 10..13 {
        assert!(!arrive(&mut decoder, 1, id, true), "it is the only one, and higher");
    }
    assert!(arrive(&mut decoder, 2, 200_001, true));
    for quiet in [1_000, 100_000] {
        for id in 10..13 {
            assert!(!arrive(&mut decoder, quiet, id, true), "after {quiet} ms");
        }
    }
    assert!(!arrive(&mut decoder, 100_001, 1_000_000, true));
    assert!(!arrive(&mut decoder, 100_001, 20, true));
    assert!(arrive(&mut decoder, 100_001, 1_000_001, true), "ahead the second is believed at once");
    assert!(!arrive(&mut decoder, 220_002, 10, true));
    assert!(arrive(&mut decoder, 220_002, 11, true), "no copy lives for so long");
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

/// Two false equations over packets 0 and 1 contradict one another; a third, which overlaps them, is
/// not involved.
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

/// A packet that comes determines two others at once, one of them by a false equation.
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

/// A false coded packet determines packet 1, packet 1 itself comes late, and then equations cover it.
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

/// A decoder with an equation over each two neighbours of so many packets, and what the first of them
/// takes for packet 0, which is no symbol and determines all others.
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

/// One false packet, repeated, determines 128 packets with the same 127 equations, the first of them
/// impossible.
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

/// The sum of two long packets may end in zeros; without these it is shorter than they are, which
/// the format forbids, and nothing may follow from it.
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

/// A repaired packet that is longer than a coded packet over it, and that coded packet, exclude one
/// another.
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

/// Long coded packets whose sums are short packets: what is kept is as small as what is counted.
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

/// Whether more than `bytes` are allocated for a packet that nobody else holds.
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

/// Of 20 packets that are solved together, one is delivered; the others were before.
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

/// Of 20 packets that are solved together, an equation covers the last one, and keeps it.
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

/// Of 20 packets that are solved together, one is long.
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

/// An equation keeps the packets that it covers: the one that comes, and the one that comes instead of
/// a false one, are more than there is memory for.
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

#[test]
fn a_packet_that_comes_brings_no_old_equation_back() {
    let symbols = symbols(2);
    let encoder = encoder(PacketId(0), &symbols);
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    decoder.on_coded(at(10), range(0, 2, 1), coded(&encoder, range(0, 2, 1)), &mut out);
    decoder.expire(at(700));
    decoder.on_source(at(711), PacketId(0), symbols[0].clone(), &mut out);
    assert_eq!(out, [(PacketId(0), symbols[0].clone())]);
    assert_eq!((decoder.pending(), decoder.stats().drops.get(DropReason::Late)), (0, 1));
}

/// A decoder with memory for one delivered symbol, which knows packet 10 because of an equation over
/// it, and 11 and 12 not yet; and true coded packets of what was sent.
fn forgetful() -> (Decoder, impl Fn(CodedRange) -> Bytes) {
    let config = DecoderConfig { known_bytes_max: 160, ..DecoderConfig::default() };
    let mut decoder = Decoder::new(config);
    let symbols = symbols(21);
    let encoder = encoder(PacketId(0), &symbols);
    let mut out = Delivered::new();
    decoder.on_source(at(0), PacketId(10), symbols[10].clone(), &mut out);
    let equation = range(10, 3, 1);
    let outcome = decoder.on_coded(at(0), equation, coded(&encoder, equation), &mut out);
    assert_eq!(outcome, CodedOutcome::Kept);
    decoder.on_source(at(0), PacketId(20), symbols[20].clone(), &mut out);
    assert!(decoder.known.get(decoder.window.as_ref().unwrap().position(PacketId(10))).is_none());
    (decoder, move |range| coded(&encoder, range))
}

#[test]
fn a_symbol_is_known_while_an_equation_covers_it() {
    let (mut decoder, coded) = forgetful();
    let mut out = Delivered::new();
    let outcome = decoder.on_coded(at(0), range(10, 3, 2), coded(range(10, 3, 2)), &mut out);
    assert_eq!(outcome, CodedOutcome::Determined(2));
    assert_conservation(&decoder);
}

#[test]
fn a_symbol_that_no_equation_covers_any_more_costs_nothing() {
    let symbols = symbols(4);
    let encoder = encoder(PacketId(0), &symbols);
    let (mut decoder, mut out) = (decoder(), Delivered::new());
    decoder.on_source(at(0), PacketId(0), symbols[0].clone(), &mut out);
    decoder.on_coded(at(0), range(0, 3, 1), coded(&encoder, range(0, 3, 1)), &mut out);
    let younger = coded(&encoder, range(1, 3, 1));
    decoder.on_coded(at(500), range(1, 3, 1), younger.clone(), &mut out);
    decoder.expire(at(800));
    assert_eq!((decoder.pending(), decoder.bytes()), (1, younger.len() + 640 + 1024));
}

#[test]
fn blocks_that_join_share_what_each_of_them_knows() {
    let (mut decoder, coded) = forgetful();
    let mut out = Delivered::new();
    let outcome = decoder.on_coded(at(0), range(8, 3, 1), coded(range(8, 3, 1)), &mut out);
    assert_eq!(outcome, CodedOutcome::Kept, "packet 10 counts as missing here");
    let outcome = decoder.on_coded(at(0), range(10, 2, 1), coded(range(10, 2, 1)), &mut out);
    assert_eq!(outcome, CodedOutcome::Determined(2));
    assert_eq!(out.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [11, 12]);
    assert_eq!(decoder.pending(), 1);
    assert_conservation(&decoder);
}

/// A false equation is found out when its block is joined with one that knows packet 10; the equation
/// that joins them is not to blame.
#[test]
fn an_equation_that_joins_blocks_does_not_answer_for_theirs() {
    let (mut decoder, coded) = forgetful();
    let mut out = Delivered::new();
    let garbage = Bytes::from(Noise::new(8).bytes(30));
    let outcome = decoder.on_coded(at(0), range(9, 2, 1), garbage, &mut out);
    assert_eq!(outcome, CodedOutcome::Kept, "packet 10 counts as missing here");
    let outcome = decoder.on_coded(at(0), range(10, 4, 2), coded(range(10, 4, 2)), &mut out);
    assert_eq!((outcome, decoder.pending()), (CodedOutcome::Kept, 2));
    assert_eq!(decoder.stats().drops.get(DropReason::Inconsistent), 1);
    assert_conservation(&decoder);
}

/// Packet 0 was delivered and forgotten; two equations over packets that are missing determine it and
/// nothing else.
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
    let symbols = symbols(3);
    let encoder = encoder(PacketId(0), &symbols);
    let config = DecoderConfig { known_bytes_max: 0, ..DecoderConfig::default() };
    let (mut decoder, mut out) = (Decoder::new(config), Delivered::new());
    decoder.on_source(at(0), PacketId(0), symbols[0].clone(), &mut out);
    let [first, second] = [range(0, 3, 1), range(1, 2, seed)];
    let outcome = decoder.on_coded(at(0), first, coded(&encoder, first), &mut out);
    assert_eq!(outcome, CodedOutcome::Kept);
    let outcome = decoder.on_coded(at(0), second, coded(&encoder, second), &mut out);
    assert_eq!((outcome, decoder.pending()), (CodedOutcome::Redundant, 1));
    assert_eq!(out.len(), 1);
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
