//! Any sequence of packets and pauses: no panic, no growth, no uncounted loss, no double delivery.
//!
//! ```text
//! known_bytes_max/16:2 | equation_bytes_max/16:2 | kernel:1 | start:4 | { step:1 | arguments }
//! ```

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use roadweave_coding::kernel::Kernel;
use roadweave_coding::{CodedRange, Decoder, DecoderConfig, SourceOutcome, symbol_len};
use roadweave_proto::{Instant, PacketId};

use crate::{Script, Writer, model};

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

/// Plays the script.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let Some(mut world) = World::new(&mut script) else { return };
    while world.step(&mut script).is_some() {
        world.check();
    }
}

impl World {
    fn new(script: &mut Script<'_>) -> Option<Self> {
        let config = DecoderConfig {
            known_bytes_max: 16 * usize::from(script.u16()?),
            equation_bytes_max: 16 * usize::from(script.u16()?),
            ..DecoderConfig::default()
        };
        let kernels = Kernel::available();
        let kernel = kernels[usize::from(script.u8()?) % kernels.len()];
        Some(Self {
            decoder: Decoder::with_kernel(config, kernel),
            bytes_max: config.known_bytes_max + config.equation_bytes_max,
            start: PacketId(script.u32()?),
            now: Instant::ZERO,
            delivered: BTreeSet::new(),
            out: Vec::new(),
        })
    }

    fn step(&mut self, script: &mut Script<'_>) -> Option<()> {
        match script.u8()? % STEPS {
            TRUE_SOURCE => {
                let index = script.u8()?;
                self.source(
                    self.start.plus(index.into()),
                    TRUE_SYMBOLS[usize::from(index)].clone(),
                );
            }
            TRUE_CODED => {
                let (first, count, seed) = (script.u8()?, script.u8()?, script.u32()?);
                let first = usize::from(first);
                let count = usize::from(count).clamp(1, TRUE_PACKETS - first);
                let payload = model::combine(&TRUE_SYMBOLS[first..first + count], seed);
                self.coded(self.start.plus(first as u32), count as u16, seed, payload);
            }
            SOURCE => {
                let (id, length) = (self.near(script.u16()?), script.u8()?);
                self.source(id, model::symbol(length % 4, script.bytes(length.into())));
            }
            BROKEN_SOURCE => {
                let (id, length) = (self.near(script.u16()?), script.u8()?);
                self.source(id, script.bytes(length.into()).to_vec());
            }
            CODED => {
                let (id, count, seed) = (self.near(script.u16()?), script.u16()?, script.u32()?);
                let (length, held) = (script.u16()?, script.u8()?);
                let mut payload = script.bytes(held.into()).to_vec();
                payload.resize(length.into(), 0);
                self.coded(id, count, seed, payload);
            }
            PAUSE => {
                self.now += Duration::from_millis(script.u16()?.into());
                self.decoder.expire(self.now);
            }
            WILD_SOURCE => {
                let id = PacketId(script.u32()?);
                self.source(id, model::symbol(0, &[1]));
            }
            _ => {
                let (id, count, seed) = (PacketId(script.u32()?), script.u16()?, script.u32()?);
                self.coded(id, count, seed, vec![1; 9]);
            }
        }
        Some(())
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

static TRUE_SYMBOLS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
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
        Writer::default().u16(known).u16(equations).u8(0).u32(start)
    };
    let mut losses = world(u16::MAX, u16::MAX, u32::MAX - 3);
    for index in (0..10).filter(|index| index % 3 != 1) {
        losses = losses.u8(TRUE_SOURCE).u8(index);
    }
    for seed in 0..3 {
        losses = losses.u8(TRUE_CODED).u8(0).u8(10).u32(seed);
    }
    let mut floods = world(60, 400, 7);
    for first in 0..30 {
        floods = floods.u8(TRUE_CODED).u8(first * 4).u8(9).u32(first.into());
    }
    let mut forgotten = world(20, u16::MAX, 0);
    for index in (0..20).filter(|index| *index != 4) {
        forgotten = forgotten.u8(TRUE_SOURCE).u8(index);
    }
    for seed in 0..5 {
        forgotten = forgotten.u8(TRUE_CODED).u8(2).u8(4).u32(seed);
    }
    let mut falsehoods = world(u16::MAX, u16::MAX, 0);
    for seed in 0..4 {
        falsehoods = falsehoods.u8(CODED).u16(0).u16(3).u32(seed).u16(20);
        falsehoods = falsehoods.u8(4).bytes(&[0, 5, 1, 2]);
        falsehoods = falsehoods.u8(SOURCE).u16(1).u8(2).bytes(b"ab");
        falsehoods = falsehoods.u8(BROKEN_SOURCE).u16(2).u8(3).bytes(&[0, 9, 1]);
        falsehoods = falsehoods.u8(TRUE_CODED).u8(0).u8(1).u32(seed);
        falsehoods = falsehoods.u8(WILD_SOURCE).u32(1 << 30).u8(PAUSE).u16(701);
        falsehoods = falsehoods.u8(WILD_CODED).u32(1 << 31).u16(64).u32(seed);
    }
    vec![losses.finish(), floods.finish(), forgotten.finish(), falsehoods.finish()]
}
