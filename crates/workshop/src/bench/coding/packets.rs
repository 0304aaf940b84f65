//! The packets that all kernels work on, and room for what they make of them.

use bytes::{BufMut as _, Bytes, BytesMut};
use rand_core::{RngCore as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use roadweave_wire::{CODED_HEADER, FragmentPosition, Symbol};

/// The length of a source packet, and so of a coded one, bytes.
pub const PACKET_BYTES: usize = 1280;
/// Coded packets beyond the number of sources: n' = n + 3.
pub const EXTRA: usize = 3;
/// Runs of packets that are worked on in turn, so that no figure is that of one lucky place in
/// memory. With what is made of them they stay in a second-level cache.
pub const RUNS: usize = 8;

/// Runs of source packets.
#[derive(Debug)]
pub struct Packets(Vec<Vec<Bytes>>);

impl Packets {
    /// [`RUNS`] runs of `count` packets each, all different and without a pattern.
    pub fn new(count: usize) -> Self {
        let mut noise = Pcg64Mcg::seed_from_u64(count as u64);
        let mut packet = || {
            let mut body = vec![0; PACKET_BYTES - 2];
            noise.fill_bytes(&mut body);
            let mut packet = BytesMut::with_capacity(PACKET_BYTES);
            Symbol { position: FragmentPosition::Whole, body: &body }.write(&mut packet);
            debug_assert_eq!(packet.len(), PACKET_BYTES);
            packet.freeze()
        };
        Self((0..RUNS).map(|_| (0..count).map(|_| packet()).collect()).collect())
    }

    /// The runs.
    pub fn runs(&self) -> &[Vec<Bytes>] {
        &self.0
    }
}

/// Datagrams for the coded packets of every run, as a lane makes them: behind one another in one
/// buffer, each with a header.
#[derive(Debug)]
pub struct Datagrams(Vec<BytesMut>);

impl Datagrams {
    /// Room for `count` coded packets of each run.
    pub fn new(count: usize) -> Self {
        let run = |_| {
            let mut buffer = BytesMut::new();
            buffer.put_bytes(0, count * (CODED_HEADER + PACKET_BYTES));
            buffer
        };
        Self((0..RUNS).map(run).collect())
    }

    /// The rooms behind the headers, run by run.
    pub fn rooms(&mut self) -> Vec<Vec<&mut [u8]>> {
        let datagrams = |buffer| <[u8]>::chunks_exact_mut(buffer, CODED_HEADER + PACKET_BYTES);
        let rooms = |buffer| datagrams(buffer).map(|datagram| &mut datagram[CODED_HEADER..]);
        self.0.iter_mut().map(|buffer| rooms(buffer).collect()).collect()
    }
}
