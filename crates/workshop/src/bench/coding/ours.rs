//! Our own encoder and decoder, as a lane uses them, with a kernel of choice.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_coding::kernel::Kernel;
use roadweave_coding::{CodedRange, Decoder, DecoderConfig, Encoder, EncoderConfig};
use roadweave_types::{Instant, PacketId};

use super::packets::{Datagrams, Packets, RUNS};

/// Time between two runs at the decoder, which keeps what is younger than its expiry: a few runs.
const RUN_INTERVAL: Duration = Duration::from_millis(100);

/// Makes `coded` coded packets of each run, in turn: looks the symbols up, generates the
/// coefficients, of other seeds each time, and writes the packets behind their headers.
pub fn encode(kernel: Kernel, packets: &Packets, coded: usize) -> impl FnMut(u32) + use<> {
    let (encoder, count) = filled_encoder(kernel, packets);
    let mut datagrams = Datagrams::new(coded);
    let mut seeds: Vec<u32> = (0..coded as u32).collect();
    move |times| {
        let mut rooms = datagrams.rooms();
        for run in (0..RUNS).cycle().take(times as usize) {
            seeds.iter_mut().for_each(|seed| *seed = seed.wrapping_add(coded as u32));
            let range = encoder.range(start(run, count), count).expect("every run was inserted");
            range.encode_all(&seeds, &mut rooms[run]);
        }
    }
}

/// Delivers runs of which the packets at the places `lost` do not arrive: takes in the others, then
/// as many coded packets as were lost, and hands out every packet.
pub fn decode(kernel: Kernel, packets: &Packets, lost: &[usize]) -> impl FnMut(u32) + use<> {
    let runs: Vec<Arrived> = (0..RUNS).map(|run| Arrived::new(packets, run, lost)).collect();
    let count = packets.runs()[0].len() as u16;
    let mut decoder = Decoder::with_kernel(DecoderConfig::default(), kernel);
    let (mut now, mut start) = (Instant::ZERO, PacketId(0));
    let mut delivered = Vec::new();
    move |times| {
        for run in runs.iter().cycle().take(times as usize) {
            delivered.clear();
            for (place, symbol) in &run.sources {
                decoder.on_source(now, start.plus(*place), symbol.clone(), &mut delivered);
            }
            for (seed, payload) in &run.coded {
                let range = CodedRange { start, count, seed: *seed };
                decoder.on_coded(now, range, payload.clone(), &mut delivered);
            }
            assert_eq!(delivered.len(), usize::from(count), "the coded packets are independent");
            start = start.plus(u32::from(count));
            now += RUN_INTERVAL;
        }
    }
}

/// What arrives of one run.
struct Arrived {
    /// By their places.
    sources: Vec<(u32, Bytes)>,
    /// By their seeds, as many as sources are missing.
    coded: Vec<(u32, Bytes)>,
}

impl Arrived {
    fn new(packets: &Packets, run: usize, lost: &[usize]) -> Self {
        let (encoder, count) = filled_encoder(Kernel::fastest(), packets);
        let start = start(run, count);
        let coded = |seed| {
            let mut payload = BytesMut::new();
            encoder
                .encode(CodedRange { start, count, seed }, &mut payload)
                .expect("every run was inserted");
            (seed, payload.freeze())
        };
        let sources = (0..).zip(packets.runs()[run].iter().cloned());
        Self {
            sources: sources.filter(|(place, _)| !lost.contains(&(*place as usize))).collect(),
            coded: (0..lost.len()).map(|seed| coded(1000 * run as u32 + seed as u32)).collect(),
        }
    }
}

/// An encoder that holds all runs, one behind the other, and how many packets each has.
fn filled_encoder(kernel: Kernel, packets: &Packets) -> (Encoder, u16) {
    let mut encoder = Encoder::with_kernel(EncoderConfig::default(), kernel);
    for (id, symbol) in (0..).zip(packets.runs().iter().flatten()) {
        encoder.insert(Instant::ZERO, PacketId(id), symbol.clone());
    }
    (encoder, packets.runs()[0].len() as u16)
}

fn start(run: usize, count: u16) -> PacketId {
    PacketId(run as u32 * u32::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_comes_out() {
        let packets = Packets::new(10);
        for lost in [&[2, 5, 8][..], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]] {
            for run in 0..RUNS {
                let arrived = Arrived::new(&packets, run, lost);
                assert_eq!(
                    (arrived.sources.len(), arrived.coded.len()),
                    (10 - lost.len(), lost.len())
                );
                let mut decoder = Decoder::new(DecoderConfig::default());
                let mut delivered = Vec::new();
                for (place, symbol) in arrived.sources {
                    decoder.on_source(Instant::ZERO, PacketId(place), symbol, &mut delivered);
                }
                for (seed, payload) in arrived.coded {
                    let range = CodedRange { start: PacketId(0), count: 10, seed };
                    decoder.on_coded(Instant::ZERO, range, payload, &mut delivered);
                }
                delivered.sort_by_key(|(id, _)| id.0);
                let symbols: Vec<Bytes> = delivered.into_iter().map(|(_, symbol)| symbol).collect();
                assert_eq!(symbols, packets.runs()[run]);
            }
        }
    }
}
