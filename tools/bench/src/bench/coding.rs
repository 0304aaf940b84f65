//! `roadweave bench coding`: speed of coding and decoding with each kernel of this CPU.
//!
//! ```text
//! round 1    a a a a | b b | c c c c c c ...     a slice of equal time for each kernel and task
//! round 2    a a a a | b b | c c c c c c ...
//! ...        median  | median | median
//! ```
//!
//! Encoding makes n + 3 coded packets of n, or one of 10, in preallocated datagrams. Decoding
//! solves a run of 10 packets with all, or 3, lost. Speeds are bytes of source packets per second;
//! for a decoder, of the whole run. Time is CPU time, so that other programs do not count.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use roadweave_coding::kernel::Kernel;
use roadweave_coding::{CodedRange, Decoder, DecoderConfig, Encoder, EncoderConfig};
use roadweave_proto::wire::{CODED_HEADER, FragmentPosition, Symbol};
use roadweave_proto::{Instant, PacketId, SplitMix64};
use roadweave_terminal::out;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::table;

/// Name in JSON, number of sources, number of coded packets.
const ENCODES: [(&str, usize, usize); 4] =
    [("4", 4, 7), ("10", 10, 13), ("32", 32, 35), ("one_of_10", 10, 1)];
/// Name in JSON, and the lost packets of a run of [`DECODED`].
const DECODES: [(&str, &[u32]); 2] =
    [("10", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), ("3_of_10", &[2, 5, 8])];
const DECODED: usize = 10;
const PACKET_BYTES: usize = 1280;
/// Runs are used in turn, so that no figure depends on a lucky memory location. With their results
/// they fit a second-level cache.
const RUNS: usize = 8;
/// Time between two runs at the decoder, which keeps a few runs until they expire.
const RUN_INTERVAL: Duration = Duration::from_millis(100);
const SLICE: Duration = Duration::from_millis(1);
const ROUNDS_MIN: u32 = 3;

/// Measures how fast coded packets are made and solved, with each kernel of this processor
#[derive(Debug, clap::Args)]
pub struct CodingArgs {
    /// Print the figures as one JSON object
    #[arg(long)]
    json: bool,
    /// Duration of the whole measurement, seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
}

#[derive(Debug, Serialize)]
struct Results {
    kernels: Vec<Figures>,
}

#[derive(Debug, Default, Serialize)]
struct Figures {
    name: &'static str,
    encode_bytes_per_second: BTreeMap<&'static str, f64>,
    coded_packet_ns: BTreeMap<&'static str, f64>,
    decode_bytes_per_second: BTreeMap<&'static str, f64>,
}

impl CodingArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        out::note(format_args!("coding: {} s", self.seconds));
        let results = measure(Duration::from_secs(self.seconds.into()));
        if self.json { out::json(&results) } else { Ok(out::line(results.render())?) }
    }
}

fn measure(time: Duration) -> Results {
    let mut tasks: Vec<Task> = Vec::new();
    for kernel in Kernel::available() {
        tasks.extend(ENCODES.map(|(_, of, coded)| Task::new(encode(kernel, of, coded))));
        tasks.extend(DECODES.map(|(_, lost)| Task::new(decode(kernel, lost))));
    }
    let rounds = time.as_secs_f64() / (SLICE.as_secs_f64() * tasks.len() as f64);
    for _ in 0..(rounds as u32).max(ROUNDS_MIN) {
        tasks.iter_mut().for_each(Task::run_slice);
    }
    let mut nanos = tasks.into_iter().map(Task::median_ns);
    let mut next = || nanos.next().expect("each kernel has each task");
    let speed = |packets: usize, nanos: f64| (packets * PACKET_BYTES) as f64 / nanos * 1e9;
    let figures = |kernel: Kernel| {
        let mut figures = Figures { name: kernel.name(), ..Figures::default() };
        for (key, of, coded) in ENCODES {
            let nanos = next();
            figures.encode_bytes_per_second.insert(key, speed(of, nanos));
            figures.coded_packet_ns.insert(key, nanos / coded as f64);
        }
        for (key, _) in DECODES {
            figures.decode_bytes_per_second.insert(key, speed(DECODED, next()));
        }
        figures
    };
    Results { kernels: Kernel::available().into_iter().map(figures).collect() }
}

struct Task {
    work: Box<dyn FnMut(u32)>,
    repetitions: u32,
    nanos: Vec<f64>,
}

impl Task {
    /// Warms caches and finds the number of repetitions in a slice.
    fn new(work: impl FnMut(u32) + 'static) -> Self {
        let mut task = Self { work: Box::new(work), repetitions: 1, nanos: Vec::new() };
        (task.work)(1);
        while task.time_slice() < SLICE / 2 && task.repetitions < u32::MAX / 2 {
            task.repetitions *= 2;
        }
        task
    }

    fn run_slice(&mut self) {
        let nanos = self.time_slice().as_secs_f64() * 1e9 / f64::from(self.repetitions);
        self.nanos.push(nanos);
    }

    fn time_slice(&mut self) -> Duration {
        let begin = processor_time();
        (self.work)(self.repetitions);
        processor_time().saturating_sub(begin)
    }

    fn median_ns(mut self) -> f64 {
        self.nanos.sort_by(f64::total_cmp);
        self.nanos[self.nanos.len() / 2]
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn packets(count: usize) -> Vec<Vec<Bytes>> {
    let mut noise = SplitMix64::new(count as u64);
    let mut packet = || {
        let body: Vec<u8> = (2..PACKET_BYTES).map(|_| noise.next_u64() as u8).collect();
        let mut packet = BytesMut::with_capacity(PACKET_BYTES);
        Symbol { position: FragmentPosition::Whole, body: &body }.write(&mut packet);
        debug_assert_eq!(packet.len(), PACKET_BYTES);
        packet.freeze()
    };
    (0..RUNS).map(|_| (0..count).map(|_| packet()).collect()).collect()
}

fn filled_encoder(kernel: Kernel, runs: &[Vec<Bytes>]) -> Encoder {
    let mut encoder = Encoder::with_kernel(EncoderConfig::default(), kernel);
    for (id, symbol) in (0..).zip(runs.iter().flatten()) {
        encoder.insert(Instant::ZERO, PacketId(id), symbol.clone());
    }
    encoder
}

fn start(run: usize, count: usize) -> PacketId {
    PacketId((run * count) as u32)
}

fn encode(kernel: Kernel, count: usize, coded: usize) -> impl FnMut(u32) + use<> {
    let encoder = filled_encoder(kernel, &packets(count));
    // A lane writes datagrams the same way: consecutively in one buffer, each with a header.
    let mut datagrams = vec![vec![0; coded * (CODED_HEADER + PACKET_BYTES)]; RUNS];
    let mut seeds: Vec<u32> = (0..coded as u32).collect();
    move |times| {
        let rooms = datagrams.iter_mut().map(|buffer| {
            let datagrams = buffer.chunks_exact_mut(CODED_HEADER + PACKET_BYTES);
            datagrams.map(|datagram| &mut datagram[CODED_HEADER..]).collect()
        });
        let mut rooms: Vec<Vec<&mut [u8]>> = rooms.collect();
        for run in (0..RUNS).cycle().take(times as usize) {
            seeds.iter_mut().for_each(|seed| *seed = seed.wrapping_add(coded as u32));
            let range = encoder.range(start(run, count), count as u16);
            range.expect("every run was inserted").encode_all(&seeds, &mut rooms[run]);
        }
    }
}

type Arrived = [Vec<(u32, Bytes)>; 2];

/// Decodes runs that lack the packets at `lost` and have as many coded packets instead.
fn decode(kernel: Kernel, lost: &'static [u32]) -> impl FnMut(u32) + use<> {
    let all = packets(DECODED);
    let (encoder, count) = (filled_encoder(Kernel::fastest(), &all), DECODED as u16);
    let arrived = |run: usize| {
        let coded = |seed| {
            let mut payload = BytesMut::new();
            let range = CodedRange { start: start(run, DECODED), count, seed };
            encoder.encode(range, &mut payload).expect("every run was inserted");
            (seed, payload.freeze())
        };
        let sources = (0..).zip(all[run].iter().cloned());
        let seeds = (0..lost.len() as u32).map(|seed| 1000 * run as u32 + seed);
        [sources.filter(|(place, _)| !lost.contains(place)).collect(), seeds.map(coded).collect()]
    };
    let runs: Vec<Arrived> = (0..RUNS).map(arrived).collect();
    let mut decoder = Decoder::with_kernel(DecoderConfig::default(), kernel);
    let (mut now, mut start) = (Instant::ZERO, PacketId(0));
    let mut delivered = Vec::new();
    move |times| {
        for [sources, coded] in runs.iter().cycle().take(times as usize) {
            delivered.clear();
            for (place, symbol) in sources {
                decoder.on_source(now, start.plus(*place), symbol.clone(), &mut delivered);
            }
            for (seed, payload) in coded {
                let range = CodedRange { start, count, seed: *seed };
                decoder.on_coded(now, range, payload.clone(), &mut delivered);
            }
            assert_eq!(delivered.len(), DECODED, "the coded packets are independent");
            start = start.plus(u32::from(count));
            now += RUN_INTERVAL;
        }
    }
}

impl Results {
    fn render(&self) -> String {
        let encodes = ENCODES.map(|(_, of, coded)| format!("{coded} of {of}"));
        let decodes = DECODES.map(|(_, lost)| format!("{} of 10 lost", lost.len()));
        let mut header = vec!["GB/s of sources".to_owned()];
        header.extend(encodes.into_iter().chain(decodes).chain(["1 of 10, each".to_owned()]));
        let mut table = table::bare();
        table.set_header(header);
        for figures in &self.kernels {
            let speed = |speed: &f64| format!("{:.2}", speed / 1e9);
            let mut row = vec![figures.name.to_owned()];
            row.extend(ENCODES.map(|(key, ..)| speed(&figures.encode_bytes_per_second[key])));
            row.extend(DECODES.map(|(key, _)| speed(&figures.decode_bytes_per_second[key])));
            row.push(format!("{:.0} ns", figures.coded_packet_ns["one_of_10"]));
            table.add_row(row);
        }
        table::right_aligned(table, 1)
    }
}
