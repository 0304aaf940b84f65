//! Any sequence of packets and pauses: no panic, no growth, no uncounted loss, no double delivery.
//!
//! ```text
//! known_bytes_max/16:2 | equation_bytes_max/16:2 | kernel:1 | start:4 | { step:1 | arguments }
//! ```

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::{Buf as _, Bytes, TryGetError};
use roadweave_coding::kernel::Kernel;
use roadweave_coding::{CodedRange, Decoder, DecoderConfig, SourceOutcome, symbol_len};
use roadweave_proto::{Instant, PacketId};

use crate::{model, take};

/// A true source packet: index:1.
const TRUE_SOURCE: u8 = 0;
/// A true coded packet: first:1, count:1, seed:4.
const TRUE_CODED: u8 = 1;
/// A well-formed source packet with any body: offset:2, length:1, body.
const SOURCE: u8 = 2;
/// Any bytes as a source packet: offset:2, length:1, bytes.
const BROKEN_SOURCE: u8 = 3;
/// Any bytes as a coded packet, zeros added: offset:2, count:2, seed:4, length:2, held:1, bytes.
const CODED: u8 = 4;
/// Time passes: milliseconds:2.
const PAUSE: u8 = 5;
/// A source packet with an ID from anywhere: id:4.
const WILD_SOURCE: u8 = 6;
/// A coded packet with an ID from anywhere: id:4, count:2, seed:4.
const WILD_CODED: u8 = 7;
const STEPS: u8 = 8;

/// Number of packets with a true symbol, from the start.
const TRUE_PACKETS: usize = 256;

struct World {
    decoder: Decoder,
    bytes_max: usize,
    start: PacketId,
    now: Instant,
    /// Packets delivered since a source packet was last refused for its ID: that packet and the
    /// next such packet may move the decoder's window, and a packet that has left the window on one
    /// side may enter it on the other.
    delivered: BTreeSet<u32>,
    out: Vec<(PacketId, Bytes)>,
}

pub fn run(data: &[u8]) {
    let mut script = data;
    let Ok(mut world) = World::new(&mut script) else { return };
    while world.step(&mut script).is_ok() {
        world.check();
    }
}

impl World {
    fn new(script: &mut &[u8]) -> Result<Self, TryGetError> {
        let config = DecoderConfig {
            known_bytes_max: 16 * usize::from(script.try_get_u16()?),
            equation_bytes_max: 16 * usize::from(script.try_get_u16()?),
            ..DecoderConfig::default()
        };
        let kernels = Kernel::available();
        let kernel = kernels[usize::from(script.try_get_u8()?) % kernels.len()];
        Ok(Self {
            decoder: Decoder::with_kernel(config, kernel),
            bytes_max: config.known_bytes_max + config.equation_bytes_max,
            start: PacketId(script.try_get_u32()?),
            now: Instant::ZERO,
            delivered: BTreeSet::new(),
            out: Vec::new(),
        })
    }

    fn step(&mut self, script: &mut &[u8]) -> Result<(), TryGetError> {
        match script.try_get_u8()? % STEPS {
            TRUE_SOURCE => {
                let index = script.try_get_u8()?;
                self.source(
                    self.start.plus(index.into()),
                    TRUE_SYMBOLS[usize::from(index)].clone(),
                );
            }
            TRUE_CODED => {
                let (first, count, seed) =
                    (script.try_get_u8()?, script.try_get_u8()?, script.try_get_u32()?);
                let first = usize::from(first);
                let count = usize::from(count).clamp(1, TRUE_PACKETS - first);
                let payload = model::combine(&TRUE_SYMBOLS[first..first + count], seed);
                self.coded(self.start.plus(first as u32), count as u16, seed, payload);
            }
            SOURCE => {
                let (id, length) = (self.near(script.try_get_u16()?), script.try_get_u8()?);
                self.source(id, model::symbol(length % 4, take(script, length)));
            }
            BROKEN_SOURCE => {
                let (id, length) = (self.near(script.try_get_u16()?), script.try_get_u8()?);
                self.source(id, take(script, length).to_vec());
            }
            CODED => {
                let (id, count, seed) = (
                    self.near(script.try_get_u16()?),
                    script.try_get_u16()?,
                    script.try_get_u32()?,
                );
                let (length, held) = (script.try_get_u16()?, script.try_get_u8()?);
                let mut payload = take(script, held).to_vec();
                payload.resize(length.into(), 0);
                self.coded(id, count, seed, payload);
            }
            PAUSE => {
                self.now += Duration::from_millis(script.try_get_u16()?.into());
                self.decoder.expire(self.now);
            }
            WILD_SOURCE => {
                let id = PacketId(script.try_get_u32()?);
                self.source(id, model::symbol(0, &[1]));
            }
            _ => {
                let (id, count, seed) =
                    (PacketId(script.try_get_u32()?), script.try_get_u16()?, script.try_get_u32()?);
                self.coded(id, count, seed, vec![1; 9]);
            }
        }
        Ok(())
    }

    /// An ID up to 32,768 before or after the start, all within the decoder's window.
    fn near(&self, offset: u16) -> PacketId {
        self.start.plus(i32::from(offset.cast_signed()).cast_unsigned())
    }

    fn source(&mut self, id: PacketId, symbol: Vec<u8>) {
        let outcome = self.decoder.on_source(self.now, id, symbol.into(), &mut self.out);
        if matches!(outcome, SourceOutcome::FarAhead | SourceOutcome::Late) {
            self.delivered.clear();
        }
    }

    fn coded(&mut self, start: PacketId, count: u16, seed: u32, payload: Vec<u8>) {
        let range = CodedRange { start, count, seed };
        self.decoder.on_coded(self.now, range, payload.into(), &mut self.out);
    }

    fn check(&mut self) {
        for (id, symbol) in self.out.drain(..) {
            assert_eq!(symbol_len(&symbol), Some(symbol.len()), "{id} is no symbol");
            assert!(self.delivered.insert(id.0), "{id} was delivered twice");
        }
        assert!(self.decoder.bytes() <= self.bytes_max, "{} bytes", self.decoder.bytes());
        let stats = self.decoder.stats();
        let used = stats.new_sources + stats.recovered + stats.redundant;
        let all = used + stats.drops.total() + self.decoder.pending() as u64;
        assert_eq!(stats.sources + stats.coded, all, "{stats:?}");
    }
}

pub(crate) static TRUE_SYMBOLS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let symbol = |index: usize| {
        let body: Vec<u8> = (0..1 + index % 37).map(|at| (index * 31 + at * 7) as u8).collect();
        model::symbol(index as u8 % 4, &body)
    };
    (0..TRUE_PACKETS).map(symbol).collect()
});

/// Losses across the wrap, repaired by coded packets; many equations in little memory; packets
/// determined again after they were discarded; and false packets of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let world = |known: u16, equations: u16, start: u32| {
        let [known, equations] = [known, equations].map(u16::to_be_bytes);
        [&known[..], &equations, &[0], &start.to_be_bytes()].concat()
    };
    let coded = |first: u8, count: u8, seed: u32| {
        [&[TRUE_CODED, first, count][..], &seed.to_be_bytes()].concat()
    };
    let sources =
        |indices: &[u8]| -> Vec<u8> { indices.iter().flat_map(|at| [TRUE_SOURCE, *at]).collect() };
    let mut losses = world(u16::MAX, u16::MAX, u32::MAX - 3);
    losses.extend(sources(&[0, 2, 3, 5, 6, 8, 9]));
    (0..3).for_each(|seed| losses.extend(coded(0, 10, seed)));
    let mut floods = world(60, 400, 7);
    (0..30).for_each(|first| floods.extend(coded(first * 4, 9, first.into())));
    let mut forgotten = world(20, u16::MAX, 0);
    let all_but_4: Vec<u8> = (0..20).filter(|index| *index != 4).collect();
    forgotten.extend(sources(&all_but_4));
    (0..5).for_each(|seed| forgotten.extend(coded(2, 4, seed)));
    let mut falsehoods = world(u16::MAX, u16::MAX, 0);
    for seed in 0..4_u32 {
        let [seed, wild, far] = [seed, 1 << 30, 1 << 31].map(u32::to_be_bytes);
        // 701 ms.
        let pause = [PAUSE, 2, 189];
        let all = [
            &[&[CODED, 0, 0, 0, 3][..], &seed, &[0, 20, 4, 0, 5, 1, 2]].concat()[..],
            &[SOURCE, 0, 1, 2, b'a', b'b', BROKEN_SOURCE, 0, 2, 3, 0, 9, 1],
            &[&[TRUE_CODED, 0, 1][..], &seed, &[WILD_SOURCE], &wild, &pause].concat(),
            &[&[WILD_CODED][..], &far, &[0, 64], &seed].concat(),
        ];
        falsehoods.extend(all.concat());
    }
    vec![losses, floods, forgotten, falsehoods]
}
