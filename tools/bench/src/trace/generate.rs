//! `roadweave trace generate`: synthetic cellular links.

use std::path::{Path, PathBuf};
use std::time::Duration;

use roadweave_emulate::{Direction, Drive, DriveLink, DriveSet, Operator, format_csv};
use roadweave_lab::drive_set::DrivesByClass;
use roadweave_proto::Rate;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

use super::info::Info;
use super::inputs::{RecordedLink, Recording};
use super::outputs;
use crate::rate;

/// Makes synthetic drives: cellular uplinks with the statistics of real ones
///
/// Equal options give equal bytes. The statistics are those of the NUWiNS PAM 2025 driving data:
/// quantiles and memory of the capacity, round-trip times with their spikes, loss in bursts,
/// handovers, pauses of LTE's scheduler; links of a drive depend on each other weakly. With --set,
/// the statistics are those of 59 recorded drives, which differ from each other.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct GenerateArgs {
    /// The directory to create, with a file NAME.csv per link
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The operators of the links: att, verizon, tmobile, lte; an operator may be repeated
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', default_value = "att,verizon,tmobile,lte",
        value_parser = parse_operator)]
    operators: Vec<Operator>,
    /// Generate a set like the recorded drives, whose links are good or bad for a whole drive, with
    /// the same classes: 59 drives of att, lte, tmobile and verizon, unless --drives is given
    #[arg(long, conflicts_with = "operators")]
    set: bool,
    /// The seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The duration of a drive
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// The number of drives, each in a directory drive-SEED, counting up from --seed
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    drives: Option<u32>,
    /// The rate of a video, which decides the printed class
    #[arg(long, value_name = "RATE", default_value = "30M", value_parser = rate::parse_video)]
    bitrate: Rate,
    /// Write into a directory that is not empty
    #[arg(long)]
    force: bool,
    /// Print what the links are like as JSON, as `trace info` does
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  roadweave trace generate --out drive-1
  roadweave trace generate --operators lte,lte --seconds 600 --seed 7 --out two-lte
  roadweave trace generate --set --seed 1 --out drives && roadweave lab compare --drives drives";

impl GenerateArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        outputs::make_directory(&self.out, self.force)?;
        let length = Duration::from_secs(self.seconds.into());
        let mut recordings = Vec::new();
        match (self.set, self.drives) {
            (true, count) => {
                let drives = DrivesByClass::of(DriveSet { seed: self.seed, length });
                for (index, drive) in (0..count.unwrap_or(DriveSet::DRIVES)).zip(drives) {
                    let directory = self.out.join(format!("drive-{index:03}"));
                    let origin = format!("drive {index} of set {}", self.seed);
                    recordings.push(self.write(drive, &origin, &directory)?);
                }
            }
            (false, None) => recordings.push(self.write_seed(self.seed, &self.out)?),
            (false, Some(count)) => {
                for number in 0..u64::from(count) {
                    let seed = self.seed.wrapping_add(number);
                    let directory = self.out.join(format!("drive-{seed:03}"));
                    recordings.push(self.write_seed(seed, &directory)?);
                }
            }
        }
        let info = Info::of(&recordings, self.bitrate);
        if self.set && !self.json { Ok(out::print(info.classes())?) } else { info.print(self.json) }
    }

    fn write_seed(&self, seed: u64, directory: &Path) -> anyhow::Result<Recording> {
        let length = Duration::from_secs(self.seconds.into());
        let drive = Drive::synthetic(seed, &self.operators, length);
        self.write(drive, &format!("seed {seed}"), directory)
    }

    fn write(&self, drive: Drive, origin: &str, directory: &Path) -> anyhow::Result<Recording> {
        outputs::make_directory(directory, self.force)?;
        let mut links = Vec::new();
        for DriveLink { name, up, .. } in drive.links {
            let file = directory.join(format!("{name}.csv"));
            let text = format!(
                "# roadweave trace generate: {name}, {origin}, {} s, roadweave {}\n{}",
                self.seconds,
                env!("CARGO_PKG_VERSION"),
                format_csv(&up)
            );
            outputs::check_size(&file.display().to_string(), &text)?;
            outputs::write(&file, &text, self.force)?;
            links.push(RecordedLink { name, first: (Direction::Up, up), down: None });
        }
        let name = directory.file_name().unwrap_or(directory.as_os_str());
        let name = name.to_string_lossy().into_owned();
        Ok(Recording { name, path: directory.to_owned(), links })
    }
}

fn parse_operator(name: &str) -> Result<Operator, BadInput> {
    Operator::by_name(name).ok_or_else(|| {
        let known: Vec<&str> = Operator::ALL.iter().map(|operator| operator.name).collect();
        BadInput::new(format!("unknown operator; there are {}", known.join(", ")))
    })
}
