//! Is a stream slower than TCP, and where?
//!
//! ```text
//! Measured ─► Beside: one case, TCP by one congestion control ─► Ratio: all cases of a kind
//! ```

use std::collections::BTreeSet;

use comfy_table::Table;
use roadweave_lab::class::Class;
use roadweave_lab::tcp::Algorithm;
use serde::{Serialize, Serializer};

use super::results::{Measured, Run, geometric_mean, median};
use crate::lab::profiles::ROUNDING;
use crate::table::{bare, right_aligned};

/// What kind of links a case has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A pair of links that lose nothing and keep the order.
    Clean,
    /// A pair of which one does not.
    Rough,
    /// A drive.
    Drive(Class),
    /// All of them together.
    All,
}

/// What a stream over all links is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Rival {
    /// TCP without a tunnel over the link that it is the fastest over, as is known afterwards.
    BestLink,
    /// TCP through the tunnel over all links.
    Tunnel,
    /// Both over that link alone.
    LinkAlone,
}

/// A case beside TCP by one congestion control, medians over the seeds.
#[derive(Debug)]
pub(super) struct Beside<'a> {
    congestion: Algorithm,
    measured: &'a Measured,
    /// The link that TCP is the fastest over.
    best: &'a str,
    /// Mbit/s: of TCP over that link and through the tunnel, of streams over all and over that.
    best_mbps: f64,
    tunnel_mbps: f64,
    stream_mbps: f64,
    alone_mbps: f64,
}

/// Streams by one rival, over all cases of a kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Ratio {
    pub(super) rival: Rival,
    pub(super) congestion: Algorithm,
    pub(super) class: Kind,
    pub(super) cases: usize,
    /// The geometric mean.
    pub(super) mean: f64,
    /// The least, and the case that has it.
    pub(super) least: f64,
    pub(super) least_at: String,
    /// How many are below 1, rounded.
    pub(super) below_one: usize,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Rough => "rough",
            Self::Drive(class) => class.as_str(),
            Self::All => "all",
        }
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Rival {
    const ALL: [Self; 3] = [Self::BestLink, Self::Tunnel, Self::LinkAlone];

    fn name(self) -> &'static str {
        match self {
            Self::BestLink => "TCP over the best link",
            Self::Tunnel => "TCP through the tunnel",
            Self::LinkAlone => "that link, both over it alone",
        }
    }
}

impl<'a> Beside<'a> {
    /// Of each congestion control that was measured.
    pub(super) fn all_of(measured: &'a Measured) -> Vec<Self> {
        let first = measured.all.first().map_or(&[][..], |run| &run.tcp);
        (0..first.len()).map(|at| Self::of(measured, at, first[at].congestion)).collect()
    }

    fn of(measured: &'a Measured, at: usize, congestion: Algorithm) -> Self {
        let tcp = |runs: &[Run]| median(runs, |run| run.tcp[at].goodput_mbps);
        let goodput = |runs: &[Run]| median(runs, |run| run.stream.goodput_mbps);
        let links = measured.links.iter().zip(&measured.alone);
        let links = links.map(|(link, runs)| (link, runs, tcp(runs)));
        let best = links.max_by(|(.., one), (.., other)| one.total_cmp(other));
        let (best, runs, best_mbps) = best.map_or(("", &[][..], 0.0), |(link, runs, mbps)| {
            (link.as_str(), runs.as_slice(), mbps)
        });
        Self {
            congestion,
            measured,
            best,
            best_mbps,
            tunnel_mbps: tcp(&measured.all),
            stream_mbps: goodput(&measured.all),
            alone_mbps: goodput(runs),
        }
    }

    fn class(&self) -> Kind {
        self.measured.class
    }

    fn row(&self) -> [String; 10] {
        [
            self.measured.name.clone(),
            self.class().name().to_owned(),
            self.best.to_owned(),
            format!("{:.1}", self.best_mbps),
            format!("{:.1}", self.tunnel_mbps),
            format!("{:.1}", self.stream_mbps),
            format!("{:.2}", self.by(Rival::BestLink)),
            format!("{:.2}", self.by(Rival::Tunnel)),
            format!("{:.1}", self.alone_mbps),
            format!("{:.2}", self.by(Rival::LinkAlone)),
        ]
    }

    /// The stream by a rival.
    fn by(&self, rival: Rival) -> f64 {
        let (stream, tcp) = match rival {
            Rival::BestLink => (self.stream_mbps, self.best_mbps),
            Rival::Tunnel => (self.stream_mbps, self.tunnel_mbps),
            Rival::LinkAlone => (self.alone_mbps, self.best_mbps),
        };
        stream.max(NOTHING_MBPS) / tcp.max(NOTHING_MBPS)
    }
}

impl Ratio {
    /// By rival, congestion control and kind of links; of several kinds there is one for all, too.
    pub(super) fn all_of(cases: &[Beside<'_>]) -> Vec<Self> {
        let mut ratios = Vec::new();
        for rival in Rival::ALL {
            for congestion in Algorithm::ALL {
                let cases = cases.iter().filter(|case| case.congestion == congestion);
                let mut kinds: BTreeSet<Kind> = cases.clone().map(Beside::class).collect();
                if kinds.len() > 1 {
                    kinds.insert(Kind::All);
                }
                for class in kinds {
                    let is_of = |case: &&Beside<'_>| class == Kind::All || class == case.class();
                    let values = cases.clone().filter(is_of);
                    let values = values.map(|case| (case.by(rival), case.measured.name.as_str()));
                    ratios.push(Self::of((rival, congestion, class), &values.collect::<Vec<_>>()));
                }
            }
        }
        ratios
    }

    /// Of the ratios of at least one case, and what it is called.
    fn of((rival, congestion, class): (Rival, Algorithm, Kind), of: &[(f64, &str)]) -> Self {
        let least = of.iter().min_by(|(one, _), (other, _)| one.total_cmp(other));
        let &(least, least_at) = least.expect("there are kinds of cases alone");
        Self {
            rival,
            congestion,
            class,
            cases: of.len(),
            mean: geometric_mean(of.iter().map(|(ratio, _)| *ratio)),
            least,
            least_at: least_at.to_owned(),
            below_one: of.iter().filter(|(ratio, _)| *ratio < 1.0 - ROUNDING).count(),
        }
    }
}

/// A table for each congestion control, with a row for each case.
pub(super) fn beside_in_words(cases: &[Beside<'_>]) -> String {
    let mut text = String::new();
    for congestion in Algorithm::ALL {
        let of = cases.iter().filter(|case| case.congestion == congestion);
        let rows: Vec<_> = of.map(Beside::row).collect();
        if !rows.is_empty() {
            let mut table = bare();
            table.set_header(HEADING).add_rows(rows);
            text += &format!("beside TCP by {congestion}\n{}\n", right_aligned(table, 3));
        }
    }
    text
}

/// A table with a row for each ratio.
pub(super) fn ratios_in_words(ratios: &[Ratio]) -> String {
    let mut table: Table = bare();
    table.set_header(["a stream by", "TCP's", "class", "cases", "mean", "below 1", "least", "on"]);
    for ratio in ratios {
        table.add_row([
            ratio.rival.name().to_owned(),
            ratio.congestion.to_string(),
            ratio.class.name().to_owned(),
            ratio.cases.to_string(),
            format!("{:.2}", ratio.mean),
            ratio.below_one.to_string(),
            format!("{:.2}", ratio.least),
            ratio.least_at.clone(),
        ]);
    }
    right_aligned(table, 3)
}

const HEADING: [&str; 10] = [
    "links",
    "class",
    "TCP's best",
    "Mbit/s",
    "tunnel",
    "stream",
    "by best",
    "by tunnel",
    "over TCP's best: Mbit/s",
    "by TCP",
];
/// Less is taken for so much, so that there is a ratio wherever nothing came.
const NOTHING_MBPS: f64 = 1e-3;

#[cfg(test)]
mod tests;
