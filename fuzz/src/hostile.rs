//! An honest sender among false packets: only packets that these touch may be wrong.
//!
//! ```text
//! packets:1 | start:4 | { step:1 | arguments }
//!
//! honest ranges      [-----]   [------]      [------]
//! false ranges           [--]                           [---]
//! may be wrong       [------]                           [---]
//! exactly right                [------]      [------]
//! ```
//!
//! An accepted false packet makes the receiver misread true coded packets that cover the same
//! packets, and so on. So a packet may be wrong if a chain of overlapping ranges connects it to a
//! false one. An unchanged source packet does not connect ranges if one of them came later, since
//! the packet is known by then. All other packets are delivered as without false packets: byte for
//! byte, when the true ones determine them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use bytes::{Buf as _, Bytes, TryGetError};
use roadweave_coding::{CodedRange, Decoder, DecoderConfig};
use roadweave_proto::{Instant, PacketId};

use crate::decoder::TRUE_SYMBOLS;
use crate::model::{self, Model};
use crate::take;

/// A source packet of the sender: index:1.
const SOURCE: u8 = 0;
/// A coded packet of the sender: first:1, count:1, seed:4.
const CODED: u8 = 1;
/// A false source packet: offset:1, length:1, body.
const FALSE_SOURCE: u8 = 2;
/// A false coded packet: offset:1, count:1, seed:4, length:1, bytes.
const FALSE_CODED: u8 = 3;
/// A coded packet of the sender with one byte changed: first:1, count:1, seed:4, at:1, change:1.
const CHANGED_CODED: u8 = 4;
const STEPS: u8 = 5;

/// The decoder keeps at most 128 missing packets together; more need not be solved.
const PACKETS_MAX: usize = 100;
/// All within half of the decoder's expiry, so that no packet is too old.
const STEPS_MAX: u64 = 1_000;
const STEP: Duration = Duration::from_micros(300);
/// False packets may precede the first true one by up to this many IDs.
const BEFORE: i64 = 64;

struct World {
    decoder: Decoder,
    start: PacketId,
    now: Instant,
    symbols: &'static [Vec<u8>],
    model: Model,
    came: usize,
    /// The sender's source packets: time and index.
    sources: Vec<(usize, i64)>,
    honest: Vec<Covered>,
    hostile: Vec<Covered>,
    out: Vec<(PacketId, Bytes)>,
}

struct Covered {
    at: usize,
    packets: Range<i64>,
    /// A source packet is accepted at once and replaces the known one.
    is_source: bool,
}

pub fn run(data: &[u8]) {
    let mut script = data;
    let Ok(mut world) = World::new(&mut script) else { return };
    for _ in 0..STEPS_MAX {
        if world.step(&mut script).is_err() {
            break;
        }
        world.now += STEP;
    }
    world.check();
}

impl World {
    fn new(script: &mut &[u8]) -> Result<Self, TryGetError> {
        let packets = 1 + usize::from(script.try_get_u8()?) % PACKETS_MAX;
        Ok(Self {
            decoder: Decoder::new(DecoderConfig::default()),
            start: PacketId(script.try_get_u32()?),
            now: Instant::ZERO,
            symbols: &TRUE_SYMBOLS[..packets],
            model: Model::new(packets),
            came: 0,
            sources: Vec::new(),
            honest: Vec::new(),
            hostile: Vec::new(),
            out: Vec::new(),
        })
    }

    fn step(&mut self, script: &mut &[u8]) -> Result<(), TryGetError> {
        self.came += 1;
        match script.try_get_u8()? % STEPS {
            SOURCE => {
                let index = usize::from(script.try_get_u8()?) % self.symbols.len();
                let symbol = self.symbols[index].clone();
                self.model.take_source(index, &symbol);
                self.sources.push((self.came, index as i64));
                self.source(index as i64, symbol);
            }
            CODED => {
                let (first, count, seed) = self.range(script)?;
                let payload = model::combine(&self.symbols[first..first + count], seed);
                self.model.take_coded(first, count, seed, &payload);
                self.honest.push(self.covered(first as i64, count as i64, false));
                self.coded(first as i64, count as u16, seed, payload);
            }
            FALSE_SOURCE => {
                let (at, length) = (i64::from(script.try_get_u8()?) - BEFORE, script.try_get_u8()?);
                self.hostile.push(self.covered(at, 1, true));
                self.source(at, model::symbol(length % 4, take(script, length)));
            }
            FALSE_CODED => {
                let at = i64::from(script.try_get_u8()?) - BEFORE;
                let (count, seed, length) =
                    (script.try_get_u8()?, script.try_get_u32()?, script.try_get_u8()?);
                self.hostile.push(self.covered(at, count.into(), false));
                let payload = take(script, length).to_vec();
                self.coded(at, count.into(), seed, payload);
            }
            _ => {
                let (first, count, seed) = self.range(script)?;
                let (at, change) = (usize::from(script.try_get_u8()?), script.try_get_u8()?);
                let mut payload = model::combine(&self.symbols[first..first + count], seed);
                let at = at % payload.len();
                payload[at] ^= change;
                self.hostile.push(self.covered(first as i64, count as i64, false));
                self.coded(first as i64, count as u16, seed, payload);
            }
        }
        Ok(())
    }

    fn range(&self, script: &mut &[u8]) -> Result<(usize, usize, u32), TryGetError> {
        let (first, count, seed) =
            (script.try_get_u8()?, script.try_get_u8()?, script.try_get_u32()?);
        let first = usize::from(first) % self.symbols.len();
        Ok((first, (1 + usize::from(count) % 64).min(self.symbols.len() - first), seed))
    }

    fn covered(&self, first: i64, count: i64, is_source: bool) -> Covered {
        Covered { at: self.came, packets: first..first + count, is_source }
    }

    fn id(&self, index: i64) -> PacketId {
        self.start.plus(index as u32)
    }

    fn source(&mut self, index: i64, symbol: Vec<u8>) {
        self.decoder.on_source(self.now, self.id(index), symbol.into(), &mut self.out);
    }

    fn coded(&mut self, first: i64, count: u16, seed: u32, payload: Vec<u8>) {
        let range = CodedRange { start: self.id(first), count, seed };
        self.decoder.on_coded(self.now, range, payload.into(), &mut self.out);
    }

    fn check(self) {
        let mut delivered = BTreeMap::new();
        for (id, symbol) in &self.out {
            let index = i64::from(id.distance(self.start));
            assert!(delivered.insert(index, &symbol[..]).is_none(), "{id} was delivered twice");
        }
        let touched = touched(&self.sources, self.honest, self.hostile);
        let is_touched = |index: i64| touched.iter().any(|other| other.packets.contains(&index));
        delivered.retain(|index, _| !is_touched(*index));
        let determined = self.model.determined().into_iter();
        let expected: BTreeMap<i64, &[u8]> = determined
            .map(|(index, symbol)| (index as i64, symbol))
            .filter(|(index, _)| !is_touched(*index))
            .collect();
        assert_eq!(delivered, expected);
    }
}

/// The hostile ranges, and the honest ranges connected to them by a chain of overlaps.
fn touched(
    sources: &[(usize, i64)],
    mut rest: Vec<Covered>,
    mut touched: Vec<Covered>,
) -> Vec<Covered> {
    let mut next = 0;
    while let Some(wrong) = touched.get(next) {
        // A false source packet replaces an earlier true one.
        let since = if wrong.is_source { wrong.at } else { 0 };
        let joins = |other: &mut Covered| {
            let until = wrong.at.max(other.at);
            let is_known = |index: i64| {
                sources.iter().any(|(at, source)| *source == index && (since..until).contains(at))
            };
            wrong.packets.clone().any(|index| other.packets.contains(&index) && !is_known(index))
        };
        let more: Vec<Covered> = rest.extract_if(.., joins).collect();
        touched.extend(more);
        next += 1;
    }
    touched
}

pub fn seeds() -> Vec<Vec<u8>> {
    let begin = |packets: u8, start: u32| [&[packets - 1][..], &start.to_be_bytes()].concat();
    let packet = |kind: u8, first: u8, count: u8, seed: u32, more: &[u8]| {
        [&[kind, first, count][..], &seed.to_be_bytes(), more].concat()
    };
    let mut beside = begin(40, u32::MAX - 12);
    for seed in 0..6 {
        beside.extend(packet(CODED, 0, 4, seed, &[]));
        beside.extend(packet(CHANGED_CODED, 20, 4, seed, &[seed as u8, 1]));
        beside.extend(packet(CODED, 10, 3, seed, &[]));
        beside.extend([FALSE_SOURCE, 30 + BEFORE as u8, 2, b'n', b'o']);
        beside.extend(packet(FALSE_CODED, 0, 63, seed, b"\x0512345"));
    }
    let mut between = begin(10, 0);
    for index in [0, 2, 3, 7, 8] {
        between.extend([SOURCE, index, FALSE_SOURCE, index + 70, 1, b'x']);
    }
    (0..6).for_each(|seed| between.extend(packet(CODED, 0, 9, seed, &[])));
    vec![beside, between]
}
