//! `roadweave bench coding`: how fast coded packets are made and solved, with each kernel of this
//! processor.
//!
//! ```text
//! packets (1,280 bytes, the same for all)
//!    > kernel by kernel: Encoder, Decoder > in turns, slice by slice > medians > figures
//! ```
//!
//! Encoding makes n + 3 coded packets of n, or one of 10, into datagrams that are there. Decoding
//! solves a run of 10 packets of which all, or 3, are lost. All speeds are bytes of source packets
//! per second: for a decoder, those of the whole run, whether they arrived or were solved for.

mod ours;
mod packets;
mod results;
mod rounds;

use std::io;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use roadweave_coding::kernel::Kernel;
use roadweave_terminal::out;

use self::packets::{EXTRA, PACKET_BYTES, Packets};
use self::results::{Figures, Results};
use self::rounds::{Entry, Rounds};

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

impl CodingArgs {
    /// Runs the bench.
    ///
    /// # Errors
    /// When the figures cannot be printed.
    pub fn run(&self) -> anyhow::Result<()> {
        let results = measure(Duration::from_secs(self.seconds.into()));
        if self.json { out::json(&results) } else { Ok(out::line(results.render())?) }
    }
}

/// Something that makes coded packets.
#[derive(Debug)]
pub struct Encode {
    /// Its name in JSON.
    pub key: &'static str,
    sources: usize,
    coded: usize,
}

/// Something that solves for packets of a run of 10.
#[derive(Debug)]
pub struct Decode {
    /// Its name in JSON.
    pub key: &'static str,
    lost: &'static [usize],
}

/// What is encoded.
pub const ENCODES: [Encode; 4] = [
    Encode { key: "4", sources: 4, coded: 4 + EXTRA },
    Encode { key: "10", sources: 10, coded: 10 + EXTRA },
    Encode { key: "32", sources: 32, coded: 32 + EXTRA },
    Encode { key: "one_of_10", sources: 10, coded: 1 },
];

/// What is decoded.
pub const DECODES: [Decode; 2] = [
    Decode { key: "10", lost: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9] },
    Decode { key: "3_of_10", lost: &[2, 5, 8] },
];

/// The packets of a run that is decoded.
const DECODED: usize = 10;

/// The packets of all tasks.
struct Ground {
    /// For each of [`ENCODES`].
    encoded: [Packets; ENCODES.len()],
    decoded: Packets,
}

impl Ground {
    fn new() -> Self {
        let encoded = ENCODES.each_ref().map(|encode| Packets::new(encode.sources));
        Self { encoded, decoded: Packets::new(DECODED) }
    }

    fn encodes(&self) -> impl Iterator<Item = (&'static Encode, &Packets)> {
        ENCODES.iter().zip(&self.encoded)
    }
}

fn measure(time: Duration) -> Results {
    let ground = Ground::new();
    let mut rounds = Rounds::default();
    let kernels: Vec<Contestant> = Kernel::available()
        .into_iter()
        .map(|kernel| Contestant::new(kernel, &ground, &mut rounds))
        .collect();

    let bar = progress(time);
    rounds.run(time, |done, of| {
        bar.set_length(of.into());
        bar.set_position(done.into());
    });
    bar.finish_and_clear();
    Results { kernels: kernels.iter().map(|kernel| kernel.figures(&rounds)).collect() }
}

/// A kernel whose speed is measured, and where in the rounds.
struct Contestant {
    name: &'static str,
    encodes: Vec<(&'static Encode, Entry)>,
    decodes: Vec<(&'static Decode, Entry)>,
}

impl Contestant {
    fn new(kernel: Kernel, ground: &Ground, rounds: &mut Rounds<'_>) -> Self {
        let mut contestant = Self { name: kernel.name(), encodes: Vec::new(), decodes: Vec::new() };
        for (encode, packets) in ground.encodes() {
            let entry = rounds.add(ours::encode(kernel, packets, encode.coded));
            contestant.encodes.push((encode, entry));
        }
        for decode in &DECODES {
            let entry = rounds.add(ours::decode(kernel, &ground.decoded, decode.lost));
            contestant.decodes.push((decode, entry));
        }
        contestant
    }

    fn figures(&self, rounds: &Rounds<'_>) -> Figures {
        let mut figures = Figures { name: self.name, ..Figures::default() };
        let nanos = |entry| rounds.median_ns(entry).expect("all rounds have been run");
        let per_second = |packets: usize, nanos: f64| (packets * PACKET_BYTES) as f64 / nanos * 1e9;
        for (encode, entry) in &self.encodes {
            let nanos = nanos(*entry);
            let speed = per_second(encode.sources, nanos);
            figures.encode_bytes_per_second.insert(encode.key, speed);
            figures.coded_packet_ns.insert(encode.key, nanos / encode.coded as f64);
        }
        for (decode, entry) in &self.decodes {
            let speed = per_second(DECODED, nanos(*entry));
            figures.decode_bytes_per_second.insert(decode.key, speed);
        }
        figures
    }
}

/// A bar on a terminal, a line elsewhere.
fn progress(time: Duration) -> ProgressBar {
    use io::IsTerminal as _;

    if !io::stderr().is_terminal() {
        out::note(format_args!("coding: {} s", time.as_secs()));
    }
    let style = ProgressStyle::with_template("coding {bar:32.cyan/dim} {pos}/{len} rounds")
        .expect("the template is constant");
    ProgressBar::new(0).with_style(style.progress_chars("━━─"))
}
