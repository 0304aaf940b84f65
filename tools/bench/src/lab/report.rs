//! `roadweave lab report`: a comparison as an HTML page.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use roadweave_lab::compare::{Compared, ComparedStrategy, Comparison, Pooled};
use roadweave_lab::histogram::Histogram;
use roadweave_lab::report::charts::Curve;
use roadweave_lab::report::page::{self, BOUND_CLASS, escape, link_class, strategy_class, swatch};
use roadweave_lab::report::strips;
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

use super::table::{self, Group, bound, groups, times};
use crate::demo::report::{drawn, time_line};
use crate::demo::table::{millis, percent};
use crate::table::{Column, html};

/// Writes an HTML page from the output of `lab compare --json --details`
///
/// The page is self-contained: the tables of `lab compare` with the distributions of delays, and,
/// for each drive, the figures and the time line of each strategy.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// The output of `lab compare --json --details`
    results: PathBuf,
    /// The file to write the report to
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
}

impl ReportArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let page = render(&self.read()?);
        fs::write(&self.out, page)
            .with_context(|| format!("cannot write {}", self.out.display()))?;
        out::note(format_args!("The report is in {}", self.out.display()));
        Ok(())
    }

    fn read(&self) -> anyhow::Result<Comparison> {
        let path = self.results.display();
        let bytes = fs::read(&self.results)
            .map_err(|error| BadInput::new(format!("cannot read {path}: {error}")))?;
        match serde_json::from_slice(&bytes) {
            Ok(comparison) => Ok(comparison),
            Err(error) => bail!(BadInput::new(format!(
                "{path}: not the output of `roadweave lab compare --json --details`: {error}"
            ))),
        }
    }
}

fn render(comparison: &Comparison) -> String {
    let colours = Colours(comparison.pooled.iter().map(|it| &it.figures.strategy[..]).collect());
    let Comparison { version, setting, .. } = comparison;
    let subtitle = format!("roadweave {version}, congestion control {}", setting.congestion);
    let mut text = page::begin("Roadweave lab: a comparison", &subtitle);
    for Group { heading, drives, pooled } in groups(comparison) {
        text += &format!("<h2>{}</h2>\n", escape(&heading));
        text += &html(table::COLUMNS, pooled, |row| colours.mark(&pooled[row].figures.strategy));
        text += &format!("<p class=\"muted\">{}</p>\n", escape(&bound(&drives)));
        text += &delays(&drives, pooled, &colours);
    }
    text += "<h2>Drives</h2>\n";
    text += &comparison.drives.iter().map(|drive| of_drive(drive, &colours)).collect::<String>();
    text += "<h2>Meaning of the figures</h2>\n";
    text += &page::definitions(MEANINGS);
    text + page::END
}

/// The strategies, whose positions decide their colours.
struct Colours<'a>(Vec<&'a str>);

impl Colours<'_> {
    fn class(&self, strategy: &str) -> String {
        let index = self.0.iter().position(|name| *name == strategy);
        strategy_class(index.unwrap_or(self.0.len()))
    }

    fn mark(&self, strategy: &str) -> String {
        swatch(&self.class(strategy))
    }
}

/// Nothing without details.
fn delays(drives: &[&Compared], pooled: &[Pooled], colours: &Colours<'_>) -> String {
    let of_strategy = |pooled: &Pooled| {
        let name = &pooled.figures.strategy;
        let entries = drives.iter().flat_map(|drive| &drive.strategies);
        let mut delays = Histogram::default();
        for entry in entries.filter(|entry| strategy(entry) == name) {
            entry.measured.detail.iter().for_each(|detail| delays.merge(&detail.delays));
        }
        let count = delays.count() as f64;
        let points = delays.cumulative().map(|(ms, below)| (ms, below as f64 / count));
        Curve { name: name.clone(), class: colours.class(name), points: points.collect() }
    };
    let curves = pooled.iter().map(of_strategy).chain([bound_curve(drives)]);
    let curves: Vec<Curve> = curves.filter(|curve| !curve.points.is_empty()).collect();
    if curves.is_empty() { String::new() } else { drawn(&curves) }
}

/// The bounds of `drives`, weighted by their packets.
fn bound_curve(drives: &[&Compared]) -> Curve {
    let packets = |drive: &Compared| {
        let mut details = drive.strategies.iter().filter_map(|it| it.measured.detail.as_ref());
        details.next().map_or(0, |detail| detail.delays.count()) as f64
    };
    let weighted: Vec<_> =
        drives.iter().map(|drive| (&drive.bound_within, packets(drive))).collect();
    let all: f64 = weighted.iter().map(|(_, packets)| packets).sum();
    let share = |ms: f64| {
        weighted.iter().map(|(within, packets)| share_within(within, ms) * packets / all).sum()
    };
    let mut delays: Vec<f64> =
        weighted.iter().flat_map(|(within, _)| within.iter().map(|point| point.0)).collect();
    delays.sort_unstable_by(f64::total_cmp);
    delays.dedup();
    // Each share is reached right behind the delay before.
    let before = delays.first().into_iter().chain(&delays).copied();
    Curve {
        name: "bound".to_owned(),
        class: BOUND_CLASS.to_owned(),
        points: before.zip(delays.iter().map(|ms| share(*ms))).collect(),
    }
}

/// The share of the first delay not below `ms`; rounds in favour of the bound.
fn share_within(within: &[(f64, f64)], ms: f64) -> f64 {
    let at = within.partition_point(|point| point.0 < ms);
    within.get(at).or(within.last()).map_or(0.0, |point| point.1)
}

fn of_drive(drive: &Compared, colours: &Colours<'_>) -> String {
    let mut text = format!(
        "<details><summary>{}, seed {}, {}</summary>\n{}",
        escape(&drive.name),
        drive.seed,
        drive.class,
        html(ENTRY_COLUMNS, &drive.strategies, |row| {
            colours.mark(strategy(&drive.strategies[row]))
        })
    );
    let details = drive.strategies.iter().filter(|entry| !strategy(entry).starts_with("single:"));
    let details =
        details.filter_map(|entry| Some((strategy(entry), entry.measured.detail.as_ref()?)));
    for (index, (name, detail)) in details.enumerate() {
        if index == 0 {
            let links = detail.timeline.capacities.iter().enumerate();
            let links = links.map(|(index, (name, _))| (link_class(index), name.as_str()));
            let marks = strips::MARKS.map(|(class, name)| (class.to_owned(), name));
            text += &page::legend(links.chain(marks));
        }
        let time = |ms: f64| Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default();
        let stalls: Vec<_> =
            detail.stalls_ms.iter().map(|(from, to)| (time(*from), time(*to))).collect();
        let label = format!("{name} on {}", drive.name);
        text += &format!("<h3>{}</h3>\n", escape(name));
        text += &page::drawing(&time_line(&label, &detail.timeline, &stalls).draw());
    }
    text + "</details>\n"
}

fn strategy(entry: &ComparedStrategy) -> &str {
    &entry.measured.figures.strategy
}

const ENTRY_COLUMNS: &[Column<ComparedStrategy>] = &[
    ("strategy", |it| match &it.link {
        Some(link) => format!("{} ({link})", strategy(it)),
        None => strategy(it).to_owned(),
    }),
    ("fps", |it| format!("{:.2}", it.measured.figures.fps)),
    ("stall", |it| percent(it.measured.figures.stall_ratio)),
    ("delay p50", |it| millis(it.measured.figures.delay_ms.p50)),
    ("p99", |it| millis(it.measured.figures.delay_ms.p99)),
    ("p99 of bound", |it| times(it.delay_p99_over_bound)),
    ("residual loss", |it| percent(it.measured.figures.residual_loss)),
    ("redundancy", |it| percent(it.measured.figures.redundancy)),
];

const MEANINGS: [(&str, &str); 4] = [
    (
        "easy, decisive, tight, starved",
        "one link is enough 99 % of the time; all together are 98 % of the time; 90 %; less",
    ),
    ("bound", "no scheduler can be better, even one that knows the future"),
    ("95 %", "confidence interval of the mean over drives"),
    ("delay", "of all packets sent; a packet that is lost or later than 700 ms counts as 700 ms"),
];

#[cfg(test)]
mod tests {
    use roadweave_lab::bound::Bound;
    use roadweave_lab::compare::{Measured, RunDetail};
    use roadweave_lab::figures::Figures;

    use super::*;

    fn compared(name: &str, packets: usize, bound_within: Vec<(f64, f64)>) -> Compared {
        let delays = Histogram::new(&vec![Duration::from_millis(5); packets]);
        let detail = Some(Box::new(RunDetail { delays, ..RunDetail::default() }));
        let figures = Figures { strategy: name.to_owned(), ..Figures::default() };
        let measured = Measured { figures, detail, ..Measured::default() };
        Compared {
            name: name.to_owned(),
            seed: 1,
            class: roadweave_lab::class::Class::Easy,
            bound: Bound::default(),
            bound_within,
            strategies: vec![ComparedStrategy { measured, ..ComparedStrategy::default() }],
        }
    }

    #[test]
    fn the_bound_of_drives_is_weighted_and_errs_to_its_own_side() {
        let one = compared("one", 1, vec![(1.0, 0.0), (2.0, 0.5), (4.0, 1.0)]);
        let other = compared("other", 3, vec![(3.0, 0.8)]);
        let curve = bound_curve(&[&one]).points;
        assert_eq!(curve, [(1.0, 0.0), (1.0, 0.5), (2.0, 1.0)]);
        // Between two delays the share of the longer one counts, behind all that of the last.
        let both = bound_curve(&[&one, &other]).points;
        let shares = [0.6, 0.125 + 0.6, 0.25 + 0.6, 0.25 + 0.6];
        assert_eq!(both.iter().map(|point| point.0).collect::<Vec<_>>(), [1.0, 1.0, 2.0, 3.0]);
        for (point, share) in both.iter().zip(shares) {
            assert!((point.1 - share).abs() < 1e-12, "{both:?}");
        }
    }

    #[test]
    fn names_are_escaped() {
        let text = of_drive(&compared("<script>", 1, Vec::new()), &Colours(Vec::new()));
        assert!(text.contains("&lt;script&gt;") && !text.contains("<script"), "{text}");
    }
}
