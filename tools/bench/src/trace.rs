//! `roadweave trace`: statistics, drawings and conversions of recordings, and synthetic ones.
//!
//! ```text
//!   FILE|DIR ─> inputs ─┬─> info      tables, JSON
//!                       ├─> plot      HTML, SVG
//!                       └─> convert ─┬─> files
//!   seed ──────────────────> generate ┘
//! ```
//!
//! Formats and statistics are in `roadweave_emulate`; this module has files and output.

mod convert;
mod generate;
mod info;
mod inputs;
mod outputs;
mod plot;

use std::time::Duration;

use roadweave_terminal::seconds;

/// Summarises, draws and converts recordings of links, and generates synthetic ones
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

const EXAMPLES: &str = "\
A recording is a file per link and direction: CSV (t_ms,capacity_kbps,rtt_ms,loss and others) or \
Mahimahi's format. A drive is a directory of them: NAME.csv and NAME.down.csv, or NAME.up and NAME.down.

Examples:
  roadweave trace info drive-1                      a summary of its links, alone and together
  roadweave trace plot drive-1 --out drive-1.html   the same as a drawing
  roadweave trace convert modem.csv --out modem.up  for mahimahi's mm-link
  roadweave trace generate --seed 7 --out drive-7   four cellular links that never existed";

#[derive(Debug, clap::Subcommand)]
enum TraceCommand {
    Info(info::InfoArgs),
    Plot(plot::PlotArgs),
    Convert(convert::ConvertArgs),
    Generate(generate::GenerateArgs),
}

impl TraceArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        match &self.command {
            TraceCommand::Info(args) => args.run(),
            TraceCommand::Plot(args) => args.run(),
            TraceCommand::Convert(args) => args.run(),
            TraceCommand::Generate(args) => args.run(),
        }
    }
}

/// The part of a recording that is wanted.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
struct Section {
    /// Start this many seconds into the recording
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    from: Option<Duration>,
    /// Use this many seconds; beyond its end, a recording starts again
    #[arg(long, value_name = "SECONDS", value_parser = parse_length)]
    seconds: Option<Duration>,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    seconds::parse_seconds(text, &(0.0..=DAY))
}

fn parse_length(text: &str) -> Result<Duration, String> {
    let length = parse_seconds(text).ok().filter(|length| !length.is_zero());
    length.ok_or_else(|| "above 0, up to 86400 seconds, such as 90".into())
}

const DAY: f64 = 86_400.0;
