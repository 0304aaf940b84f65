//! `roadweave trace plot`: draws a recording.

use std::path::PathBuf;
use std::time::Duration;

use roadweave_emulate::{LENGTH_MAX, RoundTripStatistics, Trace, TraceStatistics, UNKNOWN_RTT};
use roadweave_lab::class::Class;
use roadweave_lab::figures::Timeline;
use roadweave_lab::report::charts::{self, Curve};
use roadweave_lab::report::page::{self, NOTHING, escape, link_class, millis, percent, swatch};
use roadweave_lab::report::strips;
use roadweave_lab::report::timeline::{Figure, Layer, Merge, Strip};
use roadweave_proto::Rate;
use roadweave_terminal::out;

use super::inputs::{self, RecordedLink, Recording, direction_name};
use super::{Section, outputs};
use crate::rate;

/// Draws a recording: capacity, round trip and loss of each link over time
///
/// An HTML page adds a table and the distribution of the round trips. Page and drawing are
/// self-contained files.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct PlotArgs {
    /// A recording or a drive
    #[arg(value_name = "FILE|DIR")]
    recording: PathBuf,
    /// What to write: a page, or, if it ends in .svg, only the drawing
    #[arg(long, value_name = "FILE", default_value = "trace.html")]
    out: PathBuf,
    #[command(flatten)]
    part: Section,
    /// The rate of a video, dashed in the drawing, and for the class
    #[arg(long, value_name = "RATE", default_value = "30M", value_parser = rate::parse_video)]
    bitrate: Rate,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

const EXAMPLES: &str = "\
Examples:
  roadweave trace plot drive-1 --out drive-1.html
  roadweave trace plot modem.csv --from 60 --seconds 10 --out ten-seconds.svg";

impl PlotArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let recording = inputs::read_one(&self.recording, UNKNOWN_RTT)?.part(self.part)?;
        let is_svg = self.out.extension().is_some_and(|it| it.eq_ignore_ascii_case("svg"));
        let text = match is_svg {
            true => page::standalone(&time_line(&recording, self.bitrate).draw()),
            false => self.page(&recording),
        };
        outputs::write(&self.out, &text, self.force)?;
        out::note(format_args!("The drawing is in {}", self.out.display()));
        Ok(())
    }

    fn page(&self, recording: &Recording) -> String {
        let mut html =
            page::begin(&format!("Recording {}", recording.name), &self.subtitle(recording));
        html += &table(recording);
        html += "<h2>Over time</h2>\n<p class=\"muted\">Round trips and loss are the highest of each column, \
                 capacities its mean.</p>\n";
        let links = recording.links.iter().enumerate();
        let links = links.map(|(index, link)| (link_class(index), link.name.as_str()));
        html += &page::legend(links.chain(MARKS.map(|(class, name)| (class.to_owned(), name))));
        html += &page::drawing(&time_line(recording, self.bitrate).draw());
        html += "<h2>Round trip of the idle link</h2>\n<p class=\"muted\">Share of the time with \
                 at most this round trip; each line of the grid is a tenth of what the one below \
                 left.</p>\n";
        html += &page::drawing(&charts::delays(&round_trips(recording)));
        html += page::END;
        html
    }

    fn subtitle(&self, recording: &Recording) -> String {
        let length = recording.length();
        let uplinks = recording.uplinks();
        let class = match uplinks.is_empty() {
            true => String::new(),
            false => {
                let class = Class::of(&uplinks, self.bitrate, length.min(LENGTH_MAX));
                format!(", {class} for a video of {}", self.bitrate)
            }
        };
        let links = match recording.links.len() {
            1 => "1 link".to_owned(),
            links => format!("{links} links"),
        };
        let begin = match self.part.from {
            Some(from) => format!(" from {} s on", from.as_secs_f64()),
            None => String::new(),
        };
        format!("{links}, {:.0} s{begin}{class}", length.as_secs_f64())
    }
}

fn time_line(recording: &Recording, bitrate: Rate) -> Figure {
    let length = recording.length().min(LENGTH_MAX);
    let steps = length.as_nanos().div_ceil(Timeline::STEP.as_nanos()) as usize;
    let group = strips::group(steps, COLUMNS_MAX);
    let mut all = Vec::new();
    if recording.uplinks().len() > 1 {
        let series: Vec<(String, Vec<f64>)> = recording
            .links
            .iter()
            .map(|link| (link.name.clone(), rates(&link.first.1, length)))
            .collect();
        let mbps = bitrate.as_bps() as f64 / 1e6;
        let title = format!("all together, Mbit/s, stacked; dashed: {mbps} Mbit/s");
        all.push(Strip {
            mark: Some(mbps),
            height: 130.0,
            ..strips::rates(&title, &series, group)
        });
    }
    for (index, link) in recording.links.iter().enumerate() {
        all.extend(strips_of(link, index, length, group));
    }
    let names: Vec<&str> = recording.links.iter().map(|link| link.name.as_str()).collect();
    let label = format!("Capacity, round trip and loss over time of {}", names.join(", "));
    Figure { label, steps, group, strips: all, stalls: Vec::new() }
}

fn strips_of(link: &RecordedLink, index: usize, length: Duration, group: usize) -> Vec<Strip> {
    let name = &link.name;
    let strip = |title: String, height: f64, class: String, values: Vec<f64>| Strip {
        title,
        height,
        above: vec![Layer { class, values }],
        ..Strip::default()
    };
    let several = link.down.is_some();
    let mut all = Vec::new();
    for (way, trace) in link.ways() {
        let way = if several { format!(" {}", direction_name(way)) } else { String::new() };
        let rates = Merge::Mean.columns(rates(trace, length), group);
        all.push(strip(format!("{name}{way}: capacity, Mbit/s"), 64.0, link_class(index), rates));
    }
    let (there, back) = link.round_trip();
    let rtt =
        samples(length, |at| millis_of(there.delay().at(at).saturating_add(back.delay().at(at))));
    let rtt = Merge::Max.columns(rtt, group);
    all.push(strip(format!("{name}: round trip, ms"), 44.0, MARKS[0].0.to_owned(), rtt));
    for (way, trace) in link.ways() {
        let loss = Merge::Max.columns(samples(length, |at| trace.loss().at(at) * 100.0), group);
        if loss.iter().any(|loss| *loss > 0.0) {
            let way = if several { format!(" {}", direction_name(way)) } else { String::new() };
            all.push(strip(format!("{name}{way}: loss, %"), 32.0, MARKS[1].0.to_owned(), loss));
        }
    }
    all
}

fn table(recording: &Recording) -> String {
    let headings = [
        "link",
        "way",
        "mean",
        "p5",
        "p50",
        "p95 Mbit/s",
        "dips below 1 Mbit/s per min",
        "round trip p50",
        "p99",
        "p99.9",
        "loss",
        "of it in a row",
    ];
    let mut rows = Vec::new();
    for (index, link) in recording.links.iter().enumerate() {
        let Some(rtt) = RoundTripStatistics::of([link.round_trip()]).map(|it| it.rtt_ms) else {
            continue;
        };
        for (way, trace) in link.ways() {
            let Some(statistics) = TraceStatistics::of([trace]) else { continue };
            let mbps = |bps: f64| format!("{:.2}", bps / 1e6);
            let TraceStatistics { capacity_bps: capacity, dips, loss, .. } = &statistics;
            rows.push(vec![
                format!("{}{}", swatch(&link_class(index)), escape(&link.name)),
                direction_name(way).to_owned(),
                mbps(capacity.mean),
                mbps(capacity.p5),
                mbps(capacity.p50),
                mbps(capacity.p95),
                format!("{:.1}", dips.per_minute),
                millis(rtt.p50),
                millis(rtt.p99),
                millis(rtt.p999),
                percent(loss.share),
                loss.burst_probes.map_or(NOTHING.to_owned(), |probes| format!("{probes:.1}")),
            ]);
        }
    }
    page::table(&headings, &rows)
}

fn round_trips(recording: &Recording) -> Vec<Curve> {
    let length = recording.length().min(LENGTH_MAX);
    let curve = |(index, link): (usize, &RecordedLink)| {
        let (there, back) = link.round_trip();
        let rtt = |at| millis_of(there.delay().at(at).saturating_add(back.delay().at(at)));
        let mut rtts = samples(length, rtt);
        rtts.sort_unstable_by(f64::total_cmp);
        let count = rtts.len() as f64;
        let points = rtts.iter().enumerate().map(|(rank, ms)| (*ms, (rank + 1) as f64 / count));
        Curve { name: link.name.clone(), class: link_class(index), points: points.collect() }
    };
    recording.links.iter().enumerate().map(curve).collect()
}

fn rates(trace: &Trace, length: Duration) -> Vec<f64> {
    let rates = trace.capacity().mean_rates(Timeline::STEP, length);
    rates.into_iter().map(|bps| bps / 1e6).collect()
}

fn samples(length: Duration, value_at: impl Fn(Duration) -> f64) -> Vec<f64> {
    let steps = length.as_nanos().div_ceil(Timeline::STEP.as_nanos());
    (0..u32::try_from(steps).unwrap_or(u32::MAX))
        .map(|step| value_at(Timeline::STEP * step))
        .collect()
}

fn millis_of(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

const COLUMNS_MAX: usize = 450;
/// Class and name of the colours that are not of links.
const MARKS: [(&str, &str); 2] = [("lane", "round trip"), ("missing", "loss")];
