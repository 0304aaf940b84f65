//! Encoder and decoder, by their public interface, against the definition of the code.
//!
//! ```text
//! packets > sources in order, coded packets anywhere > loss, reordering, duplicates > Decoder
//!                          |                                     |                      |
//!                     model::combine                        model::Model  <-- equal --> +
//! ```

mod model;

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use model::Model;
use proptest::prelude::*;
use roadweave_coding::kernel::Kernel;
use roadweave_coding::{
    COUNT_MAX, CodedOutcome, CodedRange, Decoder, DecoderConfig, Encoder, EncoderConfig,
    SourceOutcome,
};
use roadweave_proto::{Instant, PacketId};

#[derive(Clone, Debug)]
enum Sent {
    Source { index: usize },
    Coded { first: usize, count: usize, seed: u32 },
}

/// A run of packets, and the datagrams that arrive, in their order.
#[derive(Clone, Debug)]
struct Session {
    start: PacketId,
    symbols: Vec<Bytes>,
    arrivals: Vec<Sent>,
}

impl Session {
    fn encoder(&self, kernel: Kernel) -> Encoder {
        let mut encoder = Encoder::with_kernel(EncoderConfig::default(), kernel);
        for (offset, symbol) in self.symbols.iter().enumerate() {
            encoder.insert(Instant::ZERO, self.start.plus(offset as u32), symbol.clone());
        }
        encoder
    }

    fn range(&self, first: usize, count: usize, seed: u32) -> CodedRange {
        CodedRange { start: self.start.plus(first as u32), count: count as u16, seed }
    }
}

fn symbols() -> impl Strategy<Value = Vec<Bytes>> {
    let lengths = prop_oneof![
        7 => prop::collection::vec(1usize..60, 1..=90),
        1 => prop::collection::vec(1usize..1_440, 1..=12),
    ];
    let symbol = |(length, filler): (usize, u64)| {
        let noise =
            (0..).map(|at: u64| (filler.wrapping_add(at).wrapping_mul(filler | 1) >> 40) as u8);
        let body: Vec<u8> = noise.take(length).collect();
        Bytes::from(model::symbol(filler as u8 % 4, &body))
    };
    lengths.prop_flat_map(move |lengths| {
        let bodies: Vec<_> =
            lengths.into_iter().map(|length| (Just(length), any::<u64>())).collect();
        bodies.prop_map(move |bodies| bodies.into_iter().map(symbol).collect())
    })
}

/// The delay of each copy of a datagram, in places; empty if it is lost.
fn copies() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        4 => Just(vec![]),
        5 => (0usize..8).prop_map(|late| vec![late]),
        1 => prop::collection::vec(0usize..60, 2),
    ]
}

fn session() -> impl Strategy<Value = Session> {
    let starts = prop_oneof![(0u32..80).prop_map(|before| u32::MAX - before), any::<u32>()];
    (starts, symbols()).prop_flat_map(|(start, symbols)| {
        let packets = symbols.len();
        let counts = prop_oneof![5 => 1usize..12, 1 => 12..=usize::from(COUNT_MAX)];
        let coded = (0..packets, counts, any::<u32>(), 0..packets + 20, copies());
        let sources = prop::collection::vec(copies(), packets);
        let coded = prop::collection::vec(coded, 0..80);
        (Just(symbols), sources, coded).prop_map(move |(symbols, sources, coded)| {
            let mut placed = Vec::new();
            for (index, copies) in sources.into_iter().enumerate() {
                placed.extend(copies.iter().map(|late| (index + late, Sent::Source { index })));
            }
            for (first, count, seed, place, copies) in coded {
                let sent = Sent::Coded { first, count: count.min(symbols.len() - first), seed };
                placed.extend(copies.iter().map(|late| (place + late, sent.clone())));
            }
            placed.sort_by_key(|(place, _)| *place);
            let arrivals = placed.into_iter().map(|(_, sent)| sent).collect();
            Session { start: PacketId(start), symbols, arrivals }
        })
    })
}

fn assert_conservation(decoder: &Decoder) {
    let stats = decoder.stats();
    let used = stats.new_sources + stats.recovered + stats.redundant;
    let all = used + stats.drops.total() + decoder.pending() as u64;
    assert_eq!(stats.sources + stats.coded, all, "{stats:?}, {} pending", decoder.pending());
}

/// 1,024 cases, four times the usual number, unless the environment sets another.
fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: 4 * usual.cases, ..usual }
}

fn any_kernel() -> impl Strategy<Value = Kernel> {
    prop::sample::select(Kernel::available())
}

/// The examples of docs/wire.md, and FIPS 197 section 4.2.
#[test]
fn the_model_is_that_of_the_documents() {
    assert_eq!(model::coefficients(0, 9), [1, 0xaf, 0xcd, 0x1d, 0x7b, 0x39, 0xa8, 0x20, 0xe2]);
    assert_eq!(model::mul(0x57, 0x83), 0xc1);
    assert!((1..=255).all(|a| model::mul(a, model::invert(a)) == 1));
    assert_eq!(model::symbol(3, b"abc"), [0xc0, 3, b'a', b'b', b'c']);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_coded_packet_is_what_its_header_says(
        symbols in symbols(),
        (first, count) in (any::<prop::sample::Index>(), 1..=usize::from(COUNT_MAX)),
        seeds in prop::collection::vec(any::<u32>(), 1..8),
        kernel in any_kernel(),
    ) {
        let first = first.index(symbols.len());
        let count = count.min(symbols.len() - first);
        let session = Session { start: PacketId(u32::MAX), symbols, arrivals: Vec::new() };
        let encoder = session.encoder(kernel);
        let covered = &session.symbols[first..first + count];
        let expected: Vec<Vec<u8>> =
            seeds.iter().map(|seed| model::combine(covered, *seed)).collect();
        for (seed, expected) in seeds.iter().zip(&expected) {
            let mut coded = BytesMut::new();
            let length = encoder.encode(session.range(first, count, *seed), &mut coded);
            prop_assert_eq!((length, &coded[..]), (Ok(expected.len()), &expected[..]));
        }
        let range = encoder.range(session.start.plus(first as u32), count as u16);
        let range = range.expect("the encoder holds all packets");
        let mut coded = vec![vec![0xee; range.coded_len()]; seeds.len()];
        let mut outputs: Vec<&mut [u8]> = coded.iter_mut().map(|coded| &mut coded[..]).collect();
        range.encode_all(&seeds, &mut outputs);
        prop_assert_eq!(coded, expected);
    }

    /// After each datagram, whatever the order, the receiver has delivered what the datagrams so
    /// far determine, byte for byte, once, and nothing else.
    #[test]
    fn a_receiver_delivers_exactly_what_it_can_know(session in session(), kernel in any_kernel()) {
        let mut model = Model::new(session.symbols.len());
        let mut decoder = Decoder::with_kernel(DecoderConfig::default(), kernel);
        let mut delivered = BTreeMap::new();
        for (millis, sent) in session.arrivals.iter().enumerate() {
            let now = Instant::from_millis(millis as u64);
            let mut out = Vec::new();
            match *sent {
                Sent::Source { index } => {
                    let symbol = &session.symbols[index];
                    model.take_source(index, symbol);
                    let is_new = !delivered.contains_key(&index);
                    let id = session.start.plus(index as u32);
                    let outcome = decoder.on_source(now, id, symbol.clone(), &mut out);
                    let expected =
                        if is_new { SourceOutcome::New } else { SourceOutcome::Duplicate };
                    prop_assert_eq!(outcome, expected);
                }
                Sent::Coded { first, count, seed } => {
                    let payload = model::combine(&session.symbols[first..first + count], seed);
                    let is_new = model.take_coded(first, count, seed, &payload);
                    let range = session.range(first, count, seed);
                    let outcome = decoder.on_coded(now, range, payload.into(), &mut out);
                    let expected = match (is_new, out.len()) {
                        (false, _) => CodedOutcome::Redundant,
                        (true, 0) => CodedOutcome::Kept,
                        (true, determined) => CodedOutcome::Determined(determined),
                    };
                    prop_assert_eq!(outcome, expected);
                }
            }
            for (id, symbol) in out {
                let index = id.distance(session.start) as usize;
                prop_assert!(delivered.insert(index, symbol).is_none(), "{} came twice", id);
            }
            let known = delivered.iter().map(|(index, symbol)| (*index, &symbol[..]));
            prop_assert_eq!(known.collect::<BTreeMap<_, _>>(), model.determined());
            prop_assert_eq!(decoder.pending(), model.rank() - delivered.len());
            assert_conservation(&decoder);
        }
    }
}
