//! `roadweave demo`: real video over emulated links with several strategies, as the viewer sees it.
//!
//! ```text
//!   clip (once) --> per strategy: [world of namespaces: camera > client = links = server > viewer]
//!                                   --> logs --> quality, decode --> Run --> table, report, JSON
//! ```
//!
//! Everything runs in a sandbox (`roadweave_linux::netns::Sandbox`) with its own file system,
//! which the kernel removes with the program. A run starts in [`setup`]; the figures are defined in
//! [`roadweave_lab::video::quality`].

pub(crate) mod clip;
pub(crate) mod decode;
pub(crate) mod ffmpeg;
mod keep;
mod live;
mod progress;
pub(crate) mod report;
pub(crate) mod sampler;
pub(crate) mod scenario;
mod setup;
mod sink;
mod source;
pub(crate) mod table;
mod ways;
mod world;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use roadweave_lab::figures::{Results, Run, Scene};
use roadweave_lab::video::quality::Player;
use roadweave_proto::Rate;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use serde::Serialize;

use self::clip::ClipSpec;
use self::keep::KeepFolder;
use self::live::{LiveFigures, LiveRun, LiveSetup};
use self::progress::Display;
use self::scenario::Scenario;
use self::setup::DemoSetup;
use self::ways::{LeftOut, Way, Ways};
use self::world::DemoWorld;
use crate::product;
use crate::rate;
use crate::sandbox;
use crate::writable;

pub use self::sink::SinkArgs;
pub use self::source::SourceArgs;

const DEFAULT_BITRATE: &str = "30M";
const DEFAULT_SECONDS: u32 = 20;
/// The first seed whose links suffice together but not alone.
const DEFAULT_SEED: u64 = 10;
const DIRECTORY: &str = "/run/roadweave-demo";

#[derive(Clone, Debug, Default)]
struct Runs {
    clip: Vec<Run>,
    live: Vec<LiveRun>,
    left_out: Vec<LeftOut>,
}

#[derive(Serialize)]
struct DemoReport<'a> {
    #[serde(flatten)]
    results: &'a Results,
    live: &'a [&'a LiveFigures],
    left_out: &'a [LeftOut],
}

const LIVE_TITLE: &str = "\nLive encoder (roadweave-video, 640x360), against what its camera saw; frame delay to the screen";

/// Streams video through the tunnel over emulated links, with one strategy after another
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// A recorded drive: a directory with one or two files per link, as in docs/traces.md; default:
    /// synthetic links of att, verizon, tmobile and lte
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    drive: Option<PathBuf>,
    /// A file that describes the links, as for `roadweave emulate`; its namespaces and addresses
    /// are ignored
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Duration of the stream in each run, seconds
    #[arg(long, default_value_t = DEFAULT_SECONDS, value_parser = clap::value_parser!(u32).range(2..=600))]
    seconds: u32,
    /// The seed of everything random; default: that of the --config file, else 10
    #[arg(long)]
    seed: Option<u64>,
    /// Rate of the video, as 8M or 800k; 30 is 30M
    #[arg(long, value_name = "RATE", default_value = DEFAULT_BITRATE, value_parser = rate::parse_video)]
    bitrate: Rate,
    /// Strategies, in the order of the runs. `single` is the best single link; NAME-adaptive adds a
    /// live encoder that follows the tunnel, NAME@8M one at a constant 8 Mbit/s. Default:
    /// single,minrtt,xnc,lola-adaptive
    #[arg(long, value_delimiter = ',', value_name = "NAME,..")]
    strategies: Option<Vec<String>>,
    /// Stream this video instead of a generated one
    #[arg(long, value_name = "FILE")]
    video: Option<PathBuf>,
    /// Stream this H.264 byte stream unchanged, such as the clip that --keep wrote
    #[arg(long, value_name = "FILE", conflicts_with_all = ["video", "bitrate"])]
    clip: Option<PathBuf>,
    /// Do not decode and compare the pictures; with --clip, this needs no ffmpeg
    #[arg(long)]
    no_ssim: bool,
    /// Write to DIR what `roadweave qoe` reads: the clip, and the packets of each run
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// The file to write the report to
    #[arg(long, value_name = "FILE", default_value = "roadweave-demo.html")]
    report: PathBuf,
    /// Also draw the runs of the clip as an SVG file
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Print the figures as one JSON object
    #[arg(long)]
    json: bool,
}

impl DemoArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let seed = self.seed.unwrap_or(DEFAULT_SEED);
        let scenario = match (&self.config, &self.drive) {
            (Some(file), _) => Scenario::described(file, self.seed),
            (None, Some(directory)) => Scenario::recorded(directory, seed),
            (None, None) => Scenario::synthetic(seed),
        };
        let scenario = scenario.map_err(|error| BadInput::new(format!("{error:#}")))?;
        writable::check("--report", &self.report)?;
        self.picture.iter().try_for_each(|file| writable::check("--picture", file))?;
        let bitrate_bps = self.bitrate_bps()?;
        let (best, _) = scenario.best_link(bitrate_bps, self.seconds);
        let ways = Ways::choose(self.strategies.as_deref(), best, live::find)?;
        if self.clip.is_none() || !self.no_ssim {
            ffmpeg::check()?;
        }
        sandbox::enter()?;
        self.run_inside(scenario, bitrate_bps, ways)
    }

    fn run_inside(&self, scenario: Scenario, bitrate_bps: u64, ways: Ways) -> anyhow::Result<()> {
        let directory = Path::new(DIRECTORY);
        fs::create_dir_all(directory).context("cannot create a directory for the demo")?;
        let Ways { ways, video, left_out } = ways;
        for LeftOut { strategy, why } in &left_out {
            out::note(format_args!("{strategy} is left out: {why}"));
        }
        let display = Display::new(ways.len());
        let clip = match &self.clip {
            Some(clip) => Some(clip.clone()),
            None if ways.iter().all(Way::is_live) => None,
            None => Some(self.encode_clip(directory, bitrate_bps, &display)?),
        };
        let source = self.video.as_deref().or(self.clip.as_deref());
        let film = |program| LiveSetup::new(program, source, self.seconds, directory);
        let live = video.map(film).transpose()?;
        let film = live.as_ref().map(|live| live.film.as_path());
        let keep = |keep: &Path| KeepFolder::new(keep, clip.as_deref(), film);
        let setup = DemoSetup {
            keep: self.keep.as_deref().map(keep).transpose()?,
            scenario,
            world: DemoWorld::build()?,
            directory: directory.to_owned(),
            clip: clip.unwrap_or_default(),
            bitrate_bps,
            seconds: self.seconds,
            player: Player::default(),
            compare_pictures: !self.no_ssim,
            program: std::env::current_exe().context("cannot find this program")?,
            product: product::program()?,
        };
        let mut runs = Runs { left_out, ..Runs::default() };
        for (index, way) in ways.iter().enumerate() {
            let bar = display.run(index, way.name(), self.seconds);
            let on_progress = |progress| bar.show(progress);
            let done = match (way, &live) {
                (Way::Clip(strategy), _) => {
                    setup.run(strategy, on_progress).map(|run| runs.clip.push(run))
                }
                (Way::Live(way), Some(live)) => {
                    live.run(&setup, way, on_progress).map(|run| runs.live.push(run))
                }
                (Way::Live(_), None) => unreachable!("live encoders have their program"),
            };
            done.with_context(|| format!("the run with {} failed", way.name()))?;
        }
        self.present(&setup, &runs)
    }

    fn encode_clip(
        &self,
        directory: &Path,
        bitrate_bps: u64,
        display: &Display,
    ) -> anyhow::Result<PathBuf> {
        let spec = ClipSpec { source: self.video.clone(), seconds: self.seconds, bitrate_bps };
        let path = directory.join("clip.h264");
        let bar = display.encoding(spec.frames());
        spec.encode(&path, |frames| bar.set_position(frames))?;
        bar.finish_and_clear();
        Ok(path)
    }

    fn present(&self, setup: &DemoSetup, runs: &Runs) -> anyhow::Result<()> {
        let results = Results {
            scenario: setup.scenario.name.clone(),
            seed: setup.scenario.file.seed,
            seconds: self.seconds,
            strategies: runs.clip.iter().map(|run| run.figures.clone()).collect(),
        };
        let scene = self.scene(setup);
        fs::write(&self.report, report::render(&results, &scene, runs))
            .with_context(|| format!("cannot write the report {}", self.report.display()))?;
        if let Some(file) = &self.picture {
            fs::write(file, report::picture(&scene, &runs.clip))
                .with_context(|| format!("cannot write the picture {}", file.display()))?;
        }
        let live: Vec<&LiveFigures> = runs.live.iter().map(|run| &run.figures).collect();
        if self.json {
            let left_out = &runs.left_out;
            out::json(&DemoReport { results: &results, live: &live, left_out })?;
        } else {
            if !runs.clip.is_empty() {
                out::line(table::render(&results))?;
            }
            if !live.is_empty() {
                out::line(LIVE_TITLE)?;
                out::line(table::render_live(&live))?;
            }
        }
        out::note(format_args!("The delays and a time line are in {}", self.report.display()));
        Ok(())
    }

    fn scene(&self, setup: &DemoSetup) -> Scene {
        let links = setup.scenario.capacities(self.seconds);
        let rate = |(name, rates): &(String, Vec<f64>)| {
            format!("{name} {:.1}", rates.iter().sum::<f64>() / rates.len().max(1) as f64)
        };
        let (best, share) = setup.scenario.best_link(setup.bitrate_bps, self.seconds);
        let video = match self.video.as_ref().or(self.clip.as_ref()) {
            Some(file) => file.display().to_string(),
            None => "generated".to_owned(),
        };
        let mbps = (setup.bitrate_bps as f64 / 1e5).round() / 10.0;
        let player = &setup.player;
        let facts = [
            ("version", format!("roadweave {}", env!("CARGO_PKG_VERSION"))),
            ("scenario", format!("{}, seed {}", setup.scenario.name, setup.scenario.file.seed)),
            ("links, mean Mbit/s", links.iter().map(rate).collect::<Vec<_>>().join(", ")),
            (
                "best single link",
                format!(
                    "{best}: by its trace it carries {:.0} % of the stream alone",
                    share * 100.0
                ),
            ),
            ("video", format!("{video}, {} fps, H.264 at {mbps} Mbit/s, RTP", clip::FPS)),
            (
                "player",
                format!(
                    "waits {} ms for a missing frame; packets later than {} ms count as lost",
                    player.frame_wait.as_millis(),
                    player.deadline.as_millis()
                ),
            ),
        ];
        let facts = facts.map(|(word, value)| (word.to_owned(), value)).to_vec();
        Scene { links, facts }
    }

    /// Without RTP headers.
    fn bitrate_bps(&self) -> anyhow::Result<u64> {
        let Some(clip) = &self.clip else { return Ok(self.bitrate.as_bps()) };
        let unusable = |problem| BadInput::new(format!("--clip {}: {problem}", clip.display()));
        let units = clip::read(clip).map_err(|error| unusable(format!("{error:#}")))?;
        let frames = ClipSpec { source: None, seconds: self.seconds, bitrate_bps: 0 }.frames();
        if units.len() < frames as usize {
            let problem =
                format!("{} frames, but --seconds {} takes {frames}", units.len(), self.seconds);
            return Err(unusable(problem).into());
        }
        let bytes = units.iter().flat_map(|unit| &unit.nals).map(bytes::Bytes::len).sum::<usize>();
        Ok(bytes as u64 * 8 * u64::from(clip::FPS) / units.len() as u64)
    }
}
