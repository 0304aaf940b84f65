//! `roadweave trace info`: statistics of recordings.

use std::fmt::Write as _;
use std::path::PathBuf;

use roadweave_emulate::{
    Direction, PairStatistics, RoundTripStatistics, Trace, TraceStatistics, UNKNOWN_RTT,
};
use roadweave_lab::class::Class;
use roadweave_proto::Rate;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;
use serde::Serialize;

use super::Section;
use super::inputs::{self, RecordedLink, Recording};
use crate::rate;
use crate::table::{self, Column, bare, right_aligned};

/// Summarises recorded links: capacity, delay and loss, alone and together
///
/// For several drives it also summarises all their links together. docs/traces.md explains the
/// figures.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct InfoArgs {
    /// Recordings, drives, or directories of drives
    #[arg(required = true, value_name = "FILE|DIR")]
    recordings: Vec<PathBuf>,
    /// The rate of a video, which decides the class: one link can carry it, or only all together
    #[arg(long, value_name = "RATE", default_value = "30M", value_parser = rate::parse_video)]
    bitrate: Rate,
    #[command(flatten)]
    part: Section,
    /// Print everything as one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  roadweave trace info drive-1
  roadweave trace info drives --bitrate 8M          all drives of a directory
  roadweave trace info modem.csv --json | jq '.recordings[].links[].up.capacity_bps'";

#[derive(Debug, Serialize)]
pub struct Info {
    bitrate_bps: u64,
    recordings: Vec<RecordingInfo>,
    /// All links together; absent for a single link.
    #[serde(skip_serializing_if = "Option::is_none")]
    all: Option<LinkInfo>,
}

#[derive(Debug, Serialize)]
struct RecordingInfo {
    name: String,
    path: PathBuf,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<Class>,
    links: Vec<LinkInfo>,
    /// All pairs of links, in the direction that all have.
    pairs: Vec<PairInfo>,
}

#[derive(Debug, Serialize)]
struct LinkInfo {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    up: Option<TraceStatistics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    down: Option<TraceStatistics>,
    round_trip: RoundTripStatistics,
}

struct TraceRow<'a> {
    name: String,
    direction: &'static str,
    of: &'a TraceStatistics,
}

#[derive(Debug, Serialize)]
struct PairInfo {
    links: [String; 2],
    #[serde(flatten)]
    statistics: PairStatistics,
}

impl InfoArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let recordings = inputs::read_all(&self.recordings, UNKNOWN_RTT)?;
        let parts = recordings.into_iter().map(|it| it.part(self.part));
        let recordings = parts.collect::<Result<Vec<Recording>, BadInput>>()?;
        Info::of(&recordings, self.bitrate).print(self.json)
    }
}

impl Info {
    pub fn of(recordings: &[Recording], bitrate: Rate) -> Self {
        let links: Vec<&RecordedLink> = recordings.iter().flat_map(|it| &it.links).collect();
        Self {
            bitrate_bps: bitrate.as_bps(),
            recordings: recordings.iter().map(|it| RecordingInfo::of(it, bitrate)).collect(),
            all: (links.len() > 1).then(|| LinkInfo::of("all", &links)),
        }
    }

    pub fn print(&self, json: bool) -> anyhow::Result<()> {
        if json { out::json(self) } else { Ok(out::print(self.in_words())?) }
    }

    pub fn classes(&self) -> String {
        let drives = self.recordings.len();
        let shares = Class::ALL.map(|class| {
            let count = self.recordings.iter().filter(|it| it.class == Some(class)).count();
            format!("{count} {class}")
        });
        let mbps = self.bitrate_bps as f64 / 1e6;
        format!("{drives} drives; at {mbps} Mbit/s {}\n", shares.join(", "))
    }

    fn in_words(&self) -> String {
        let parts = [
            (
                "Capacity over half seconds, Mbit/s; r: autocorrelation at that lag; dips below 1 \
                 Mbit/s; gaps of 100 ms",
                self.capacities(),
            ),
            (
                "One-way delay; loss of probes, one every 200 ms; loss after a lost probe; lost in \
                 a row",
                self.losses(),
            ),
            (
                "Round trip of the idle link; spikes of more than 100 ms above its median",
                self.round_trips(),
            ),
            (
                "Links together; correlation of the capacities of two links; both below 1 Mbit/s",
                self.together(),
            ),
        ];
        let mut text = String::new();
        for (title, table) in parts {
            let _ = writeln!(text, "{title}\n{table}\n");
        }
        if let [RecordingInfo { pairs, .. }] = &self.recordings[..]
            && pairs.len() > 1
        {
            let _ = writeln!(text, "{}\n", pair_table(pairs));
        }
        text.pop();
        text
    }

    fn links(&self) -> impl Iterator<Item = (String, &LinkInfo)> {
        let several = self.recordings.len() > 1;
        let named = move |recording: &RecordingInfo, link: &LinkInfo| match several {
            true if recording.links.len() > 1 => format!("{}/{}", recording.name, link.name),
            true => recording.name.clone(),
            false => link.name.clone(),
        };
        let links = self
            .recordings
            .iter()
            .flat_map(move |it| it.links.iter().map(move |link| (named(it, link), link)));
        links.chain(self.all.iter().map(|all| ("all".to_owned(), all)))
    }

    fn ways(&self) -> impl Iterator<Item = TraceRow<'_>> {
        self.links().flat_map(|(name, link)| {
            let ways = [("up", &link.up), ("down", &link.down)];
            ways.into_iter().filter_map(move |(direction, of)| {
                Some(TraceRow { name: name.clone(), direction, of: of.as_ref()? })
            })
        })
    }

    fn capacities(&self) -> String {
        let columns: &[Column<TraceRow<'_>>] = &[
            ("link", |way| way.name.clone()),
            ("way", |way| way.direction.to_owned()),
            ("s", |way| format!("{:.0}", way.of.seconds)),
            ("mean", |way| mbps(way.of.capacity_bps.mean)),
            ("p5", |way| mbps(way.of.capacity_bps.p5)),
            ("p50", |way| mbps(way.of.capacity_bps.p50)),
            ("p95", |way| mbps(way.of.capacity_bps.p95)),
            ("r 0.5 s", |way| known(way.of.autocorrelation.after_500_ms, 2)),
            ("5 s", |way| known(way.of.autocorrelation.after_5_s, 2)),
            ("10 s", |way| known(way.of.autocorrelation.after_10_s, 2)),
            ("dips/min", |way| format!("{:.1}", way.of.dips.per_minute)),
            ("p50 s", |way| known(way.of.dips.seconds.map(|it| it.p50), 1)),
            ("p90 s", |way| known(way.of.dips.seconds.map(|it| it.p90), 1)),
            ("max s", |way| known(way.of.dips.seconds.map(|it| it.max), 1)),
            ("gaps/min", |way| format!("{:.1}", way.of.gaps.of_100_ms_per_minute)),
            ("max ms", |way| format!("{:.0}", way.of.gaps.longest_ms)),
        ];
        table::of(columns, self.ways(), 2)
    }

    fn losses(&self) -> String {
        let columns: &[Column<TraceRow<'_>>] = &[
            ("link", |way| way.name.clone()),
            ("way", |way| way.direction.to_owned()),
            ("p50 ms", |way| millis(way.of.delay_ms.p50)),
            ("p99 ms", |way| millis(way.of.delay_ms.p99)),
            ("p99.9 ms", |way| millis(way.of.delay_ms.p999)),
            ("max ms", |way| millis(way.of.delay_ms.max)),
            ("loss %", |way| format!("{:.2}", way.of.loss.share * 100.0)),
            ("after one %", |way| known(way.of.loss.after_a_loss.map(|it| it * 100.0), 0)),
            ("in a row", |way| known(way.of.loss.burst_probes, 1)),
            ("longest s", |way| known(Some(way.of.loss.longest_seconds).filter(|it| *it > 0.0), 1)),
        ];
        table::of(columns, self.ways(), 2)
    }

    fn round_trips(&self) -> String {
        let columns: &[Column<(String, &LinkInfo)>] = &[
            ("link", |link| link.0.clone()),
            ("min ms", |link| millis(link.1.round_trip.rtt_ms.min)),
            ("p50 ms", |link| millis(link.1.round_trip.rtt_ms.p50)),
            ("p95 ms", |link| millis(link.1.round_trip.rtt_ms.p95)),
            ("p99 ms", |link| millis(link.1.round_trip.rtt_ms.p99)),
            ("p99.9 ms", |link| millis(link.1.round_trip.rtt_ms.p999)),
            ("max ms", |link| millis(link.1.round_trip.rtt_ms.max)),
            ("spikes/min", |link| format!("{:.1}", link.1.round_trip.spikes_per_minute)),
            ("p50 s", |link| known(link.1.round_trip.spike_seconds.map(|it| it.p50), 1)),
            ("p90 s", |link| known(link.1.round_trip.spike_seconds.map(|it| it.p90), 1)),
        ];
        table::of(columns, self.links(), 1)
    }

    fn together(&self) -> String {
        let video = format!("at {} Mbit/s", self.bitrate_bps as f64 / 1e6);
        let mut table = bare();
        table.set_header([
            "recording",
            &video,
            "links",
            "s",
            "correlation",
            "lowest",
            "highest",
            "both below %",
        ]);
        for it in &self.recordings {
            let pairs: Vec<f64> =
                it.pairs.iter().filter_map(|pair| pair.statistics.correlation).collect();
            let lowest = pairs.iter().copied().reduce(f64::min);
            let highest = pairs.iter().copied().reduce(f64::max);
            let low = mean(it.pairs.iter().map(|pair| pair.statistics.both_low * 100.0));
            table.add_row([
                it.name.clone(),
                it.class.map_or("-", Class::name).to_owned(),
                it.links.len().to_string(),
                format!("{:.0}", it.seconds),
                known(mean(pairs.iter().copied()), 2),
                known(lowest, 2),
                known(highest, 2),
                known(low, 1),
            ]);
        }
        right_aligned(table, 2)
    }
}

impl RecordingInfo {
    fn of(recording: &Recording, bitrate: Rate) -> Self {
        let length = recording.length();
        let uplinks = recording.uplinks();
        let links = recording.links.iter();
        Self {
            name: recording.name.clone(),
            path: recording.path.clone(),
            seconds: length.as_secs_f64(),
            class: (!uplinks.is_empty())
                .then(|| Class::of(&uplinks, bitrate, length.min(roadweave_emulate::LENGTH_MAX))),
            links: links.map(|link| LinkInfo::of(&link.name, &[link])).collect(),
            pairs: pairs(&recording.links),
        }
    }
}

impl LinkInfo {
    fn of(name: &str, links: &[&RecordedLink]) -> Self {
        let way = |wanted: Direction| {
            let ways = links.iter().flat_map(|link| link.ways());
            let traces = ways.filter(|(way, _)| *way == wanted).map(|(_, trace)| trace);
            TraceStatistics::of(traces)
        };
        let round_trips = links.iter().map(|link| link.round_trip());
        Self {
            name: name.to_owned(),
            up: way(Direction::Up),
            down: way(Direction::Down),
            round_trip: RoundTripStatistics::of(round_trips).expect("there is a link"),
        }
    }
}

fn pairs(links: &[RecordedLink]) -> Vec<PairInfo> {
    let pair = |(one, other): (&RecordedLink, &RecordedLink)| {
        let trace = |link: &RecordedLink| -> Trace { link.first.1.clone() };
        PairInfo {
            links: [one.name.clone(), other.name.clone()],
            statistics: PairStatistics::of(&trace(one), &trace(other)),
        }
    };
    let all = links.iter().enumerate();
    all.flat_map(|(index, one)| links[index + 1..].iter().map(move |other| (one, other)))
        .map(pair)
        .collect()
}

fn pair_table(pairs: &[PairInfo]) -> String {
    let columns: &[Column<PairInfo>] = &[
        ("links", |pair| pair.links[0].clone()),
        ("", |pair| pair.links[1].clone()),
        ("correlation", |pair| known(pair.statistics.correlation, 2)),
        ("both below %", |pair| format!("{:.1}", pair.statistics.both_low * 100.0)),
    ];
    table::of(columns, pairs, 2)
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> Option<f64> {
    let count = values.len();
    (count > 0).then(|| values.sum::<f64>() / count as f64)
}

fn mbps(bps: f64) -> String {
    let mbps = bps / 1e6;
    if mbps < 10.0 { format!("{mbps:.2}") } else { format!("{mbps:.1}") }
}

fn millis(ms: f64) -> String {
    if ms < 100.0 { format!("{ms:.1}") } else { format!("{ms:.0}") }
}

fn known(figure: Option<f64>, decimals: usize) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.decimals$}"))
}
