//! `roadweave trace convert`: other formats of recordings, parts of them, and coarser steps.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use roadweave_emulate::{
    Capacity, Direction, FILE_BYTES_MAX, Opportunities, Trace, format_csv, format_mahimahi,
};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

use super::inputs::{self, Recording, direction_name};
use super::{Section, outputs};

/// Converts recordings between CSV and Mahimahi's format, whole or in part, at the same or a
/// coarser step
///
/// Converts one file to one file, or to standard output without --out. Converts a drive or several
/// files to a directory. Mahimahi's format has neither delay nor loss.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ConvertArgs {
    /// A recording, several, or a drive
    #[arg(required = true, value_name = "FILE|DIR")]
    inputs: Vec<PathBuf>,
    /// The file or directory to write; a file that does not end in .csv gets Mahimahi's format
    #[arg(long, value_name = "FILE|DIR")]
    out: Option<PathBuf>,
    /// The format to write; default: by the ending of --out, else csv
    #[arg(long, value_enum)]
    to: Option<Format>,
    #[command(flatten)]
    part: Section,
    /// Even steps of this many ms, with the mean capacity, delay and loss of each. Default if the
    /// kind of capacity changes: 100 for rates, 1 for bytes
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    step: Option<u32>,
    /// The round-trip time, ms, of links without a recorded one
    #[arg(long, value_name = "MS", default_value_t = 50.0, value_parser = parse_rtt)]
    rtt: f64,
    /// Overwrite existing files
    #[arg(long)]
    force: bool,
}

const EXAMPLES: &str = "\
Examples:
  roadweave trace convert modem.csv --out modem.up            for mahimahi's mm-link
  roadweave trace convert Verizon_up.mm Verizon_down.mm --out verizon --rtt 60
  roadweave trace convert drive-1 --out quiet --from 20 --seconds 30 --step 500
  roadweave trace convert drive-1 --out mm --to mahimahi";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// CSV with the capacity as in the input: rates or bytes
    Csv,
    /// CSV with the capacity as rates: t_ms,capacity_kbps,delay_ms,loss
    Rates,
    /// CSV with the capacity as delivery opportunities: t_ms,bytes,delay_ms,loss
    Bytes,
    /// A line per delivery opportunity of 1500 bytes, its time in ms
    Mahimahi,
}

impl ConvertArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let rtt = Duration::from_secs_f64(self.rtt / 1e3);
        let recordings = inputs::read_all(&self.inputs, rtt)?;
        let is_file =
            matches!((&self.inputs[..], &recordings[..]), ([input], [_]) if !input.is_dir());
        match &self.out {
            None if is_file => self.print(recordings),
            None => {
                bail!(BadInput::new("--out: a directory is needed for a drive or several files"))
            }
            Some(out) if is_file && !is_directory(out) => self.write_file(recordings, out),
            Some(out) => self.write_directory(recordings, out),
        }
    }

    fn print(&self, recordings: Vec<Recording>) -> anyhow::Result<()> {
        for recording in recordings {
            let recording = recording.part(self.part)?;
            let format = self.to.unwrap_or(Format::Csv);
            out::print(self.text(&recording.links[0].first.1, format)?)?;
        }
        Ok(())
    }

    fn write_file(&self, recordings: Vec<Recording>, out: &Path) -> anyhow::Result<()> {
        let is_csv = out.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv"));
        let format = self.to.unwrap_or(if is_csv { Format::Csv } else { Format::Mahimahi });
        if is_csv == (format == Format::Mahimahi) {
            let ending = if is_csv { "another ending than .csv" } else { "the ending .csv" };
            let problem = format!("--out {}: this format needs {ending}", out.display());
            bail!(BadInput::new(problem));
        }
        for recording in recordings {
            let recording = recording.part(self.part)?;
            let text = self.text(&recording.links[0].first.1, format)?;
            outputs::check_size(&out.display().to_string(), &text)?;
            outputs::write(out, &text, self.force)?;
        }
        self.warn(format);
        Ok(())
    }

    fn write_directory(&self, recordings: Vec<Recording>, out: &Path) -> anyhow::Result<()> {
        let format = self.to.unwrap_or(Format::Csv);
        // All texts precede the first write: an error must not leave half a drive.
        let mut files: BTreeMap<PathBuf, (PathBuf, String)> = BTreeMap::new();
        let is_one_drive = recordings.iter().all(|it| !it.path.is_dir()) || recordings.len() == 1;
        for recording in recordings {
            let folder = if is_one_drive { out.to_owned() } else { out.join(&recording.name) };
            let source = recording.path.clone();
            for link in recording.part(self.part)?.links {
                for (way, trace) in link.ways() {
                    let file = folder.join(file_name(&link.name, way, format));
                    let text = self.text(trace, format)?;
                    outputs::check_size(&file.display().to_string(), &text)?;
                    if let Some((other, _)) = files.insert(file, (source.clone(), text)) {
                        let (one, other) = (other.display(), source.display());
                        let link = &link.name;
                        let problem = format!(
                            "{one} and {other}: both are link {link}, {}",
                            direction_name(way)
                        );
                        bail!(BadInput::new(problem));
                    }
                }
            }
        }
        outputs::make_directory(out, self.force)?;
        for (file, (_, text)) in &files {
            let folder = file.parent().unwrap_or(out);
            if folder != out && !folder.exists() {
                outputs::make_directory(folder, self.force)?;
            }
            outputs::write(file, text, self.force)?;
        }
        self.warn(format);
        Ok(())
    }

    fn text(&self, trace: &Trace, format: Format) -> Result<String, BadInput> {
        let is_rates = matches!(**trace.capacity(), Capacity::Rates(_));
        let step = |default: u32| Duration::from_millis(self.step.unwrap_or(default).into());
        let wants_rates = match format {
            Format::Csv | Format::Mahimahi => is_rates,
            Format::Rates => true,
            Format::Bytes => false,
        };
        let default = if wants_rates { 100 } else { 1 };
        let length = trace.length().unwrap_or(Duration::from_secs(1));
        let steps = length.as_nanos() / step(default).as_nanos();
        let mut trace = trace.clone();
        if self.step.is_some() || wants_rates != is_rates {
            if steps > STEPS_MAX {
                return Err(BadInput::new(format!(
                    "{steps} steps are too many, {STEPS_MAX} at most; use fewer --seconds or a \
                     longer --step"
                )));
            }
            trace = match wants_rates {
                true => trace.with_rates(step(default)),
                false => trace.with_opportunities(step(default)),
            };
        }
        if let Some(step) = self.step {
            trace = trace.smoothed(Duration::from_millis(step.into()));
        }
        let bits = trace.capacity().mean_rate().as_bps() as f64 * length.as_secs_f64();
        let lines = bits / 8.0 / Opportunities::BYTES as f64;
        if format == Format::Mahimahi && lines > FILE_BYTES_MAX as f64 / LINE_BYTES_MIN {
            return Err(BadInput::new(format!(
                "{:.0} million delivery opportunities are too many for a file; use fewer --seconds",
                lines / 1e6
            )));
        }
        Ok(match format {
            Format::Mahimahi => format_mahimahi(&trace),
            Format::Csv | Format::Rates | Format::Bytes => format_csv(&trace),
        })
    }

    fn warn(&self, format: Format) {
        if format == Format::Mahimahi {
            out::note("Delay and loss are dropped: Mahimahi's format has none");
        }
    }
}

fn is_directory(path: &Path) -> bool {
    path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/")
}

fn file_name(link: &str, way: Direction, format: Format) -> String {
    let ending = match (format, way) {
        (Format::Mahimahi, Direction::Up) => "up",
        (Format::Mahimahi, Direction::Down) => "down",
        (_, Direction::Up) => "csv",
        (_, Direction::Down) => "down.csv",
    };
    format!("{link}.{ending}")
}

fn parse_rtt(text: &str) -> Result<f64, String> {
    let rtt = text.parse::<f64>().ok().filter(|rtt| (0.0..=10_000.0).contains(rtt));
    rtt.ok_or_else(|| "0 to 10000 ms, such as 60".into())
}

const LINE_BYTES_MIN: f64 = 2.0;
const STEPS_MAX: u128 = 10_000_000;
