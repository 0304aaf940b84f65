//! Theorem 4.1 of CellFusion as an experiment: encoder, real seeds, decoder.
//!
//! One trial sends coded packets of n lost packets until all are decoded, which shows for every k
//! whether n + k suffice. The bench of the same name makes many more trials, by rank alone.

mod law;

use bytes::{Bytes, BytesMut};
use law::{COUNTS, EXTRA_MAX, Tally};
use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;
use roadweave_coding::{CodedRange, Decoder, DecoderConfig, Encoder, EncoderConfig};
use roadweave_proto::{Instant, PacketId};

const START: PacketId = PacketId(u32::MAX - 5);

/// For each n, and for all of them together.
const CELLS: usize = (*COUNTS.end() - *COUNTS.start() + 2) * (EXTRA_MAX + 1);

fn symbol(length: u8) -> Bytes {
    [&[0, length][..], &vec![length; length.into()]].concat().into()
}

/// The coded packets beyond `symbols` that it takes to decode them with these seeds.
fn extra_needed(
    symbols: &[Bytes],
    encoder: &Encoder,
    mut seeds: impl FnMut() -> u32,
) -> Option<usize> {
    let mut decoder = Decoder::new(DecoderConfig::default());
    let mut out = Vec::with_capacity(symbols.len());
    for sent in 1..=symbols.len() + EXTRA_MAX {
        let range = CodedRange { start: START, count: symbols.len() as u16, seed: seeds() };
        let mut coded = BytesMut::new();
        encoder.encode(range, &mut coded).expect("the encoder holds all packets");
        decoder.on_coded(Instant::ZERO, range, coded.freeze(), &mut out);
        if out.len() == symbols.len() {
            for (id, symbol) in &out {
                assert_eq!(symbol, &symbols[id.distance(START) as usize], "{id}");
            }
            return Some(sent - symbols.len());
        }
    }
    None
}

fn check(trials: u64, mut seed: impl FnMut() -> u32) {
    let mut all = Tally::default();
    let mut deviations = Vec::new();
    for count in COUNTS {
        let symbols: Vec<Bytes> = (1..=count as u8).map(symbol).collect();
        let mut encoder = Encoder::new(EncoderConfig::default());
        for (offset, symbol) in symbols.iter().enumerate() {
            encoder.insert(Instant::ZERO, START.plus(offset as u32), symbol.clone());
        }
        let mut tally = Tally::default();
        for _ in 0..trials {
            tally.count(extra_needed(&symbols, &encoder, &mut seed));
        }
        let found = tally.deviations(CELLS);
        deviations.extend(found.into_iter().map(|deviation| format!("n = {count}, {deviation}")));
        all.add(&tally);
    }
    deviations
        .extend(all.deviations(CELLS).into_iter().map(|deviation| format!("all n, {deviation}")));
    assert!(deviations.is_empty(), "{deviations:#?}");
}

#[test]
fn coded_packets_decode_as_often_as_the_theorem_says() {
    let mut generator = Pcg64Mcg::new(41);
    check(1_500, || generator.next_u32());
}

/// Consecutive seeds are the hardest for a generator that starts from its seed.
#[test]
fn seeds_in_sequence_are_as_good_as_random_ones() {
    let mut seed = u32::MAX - 1_000_000;
    check(500, || {
        seed = seed.wrapping_add(1);
        seed
    });
}

/// The experiment must notice coefficients that are a little worse, or too good.
#[test]
fn a_deviation_is_noticed_on_either_side() {
    let tally = |trials, failures| Tally { trials, failures: [failures, 0, 0, 0, 0] };
    assert!(tally(100_000, 390).deviations(CELLS).is_empty());
    assert!(tally(100_000, 530).deviations(CELLS)[0].contains("more than 3.937e-3"));
    assert!(tally(100_000, 265).deviations(CELLS)[0].contains("less than 3.906e-3"));
    assert!(tally(100, 0).deviations(CELLS).is_empty(), "too few trials to tell");
    for extra in 0..=EXTRA_MAX {
        let (least, most) = (law::failure_min(extra), law::failure_max(extra));
        assert!(
            COUNTS.into_iter().all(|n| (least..most).contains(&law::failure_with_zeros(n, extra)))
        );
    }
}
