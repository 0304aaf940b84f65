//! Shared by the tests of several modules.

use bytes::{BufMut, Bytes, BytesMut};
use roadweave_proto::{Instant, PacketId};

use crate::{CodedRange, Encoder, EncoderConfig};

pub(crate) fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// A small generator (PCG's linear step, high bits out), for bytes without a pattern.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.next() as usize % bound
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// A symbol with `length` noisy bytes behind its prefix.
pub(crate) fn symbol(length: usize, seed: u64) -> Bytes {
    let mut noise = Noise::new(seed);
    let mut symbol = BytesMut::new();
    symbol.put_u16((noise.next() as u16 & 0xc000) | u16::try_from(length).expect("short symbol"));
    symbol.put_slice(&noise.bytes(length));
    symbol.freeze()
}

pub(crate) fn encoder(start: PacketId, symbols: &[Bytes]) -> Encoder {
    let mut encoder = Encoder::new(EncoderConfig::default());
    for (offset, symbol) in symbols.iter().enumerate() {
        encoder.insert(Instant::ZERO, start.plus(offset as u32), symbol.clone());
    }
    encoder
}

pub(crate) fn coded(encoder: &Encoder, range: CodedRange) -> Bytes {
    let mut out = BytesMut::new();
    encoder.encode(range, &mut out).expect("the range is held");
    out.freeze()
}
