//! Figures of each way, compared with those of the best single link.

use roadweave_emulate::Quantiles;
use roadweave_lab::applications::{AppFigures, Application};
use serde::Serialize;

use crate::table::{bare, right_aligned};

#[derive(Debug, Serialize)]
pub(super) struct AppResults {
    ways: Vec<AppWay>,
    runs: Vec<AppRun>,
}

/// One run; `way` is the link's name if `is_link`.
#[derive(Debug, Serialize)]
pub(super) struct AppRun {
    pub(super) drive: String,
    pub(super) application: Application,
    pub(super) way: String,
    pub(super) is_link: bool,
    pub(super) seed: u64,
    #[serde(flatten)]
    pub(super) figures: AppFigures,
}

/// One application over one way, on all drives; means over the seeds of each drive. The best single
/// link is that with the highest rate.
#[derive(Debug, Serialize)]
struct AppWay {
    application: Application,
    way: String,
    mean_mbps: f64,
    best_link_mbps: f64,
    /// Rate divided by the best single link's: median, least, and the share of drives below 1. 1
    /// where neither carries anything.
    by_best_median: f64,
    by_best_least: f64,
    worse: f64,
    /// Mean over drives, and that of the best single links.
    freezes: [f64; 2],
    frozen: [f64; 2],
    frame_delay_p95_ms: [f64; 2],
    nacked: [f64; 2],
}

impl AppResults {
    /// `runs` in order of drives, applications, ways and seeds.
    pub(super) fn of(runs: Vec<AppRun>) -> Self {
        let of_drive = |run: &AppRun| (run.drive.clone(), run.application);
        let of_way = |run: &AppRun| (of_drive(run), run.way.clone(), run.is_link);
        let seeds = runs.chunk_by(|a, b| of_way(a) == of_way(b));
        let means: Vec<_> = seeds.map(|seeds| (&seeds[0], mean_of(seeds))).collect();
        let mut ways: Vec<(&AppRun, Vec<[AppFigures; 2]>)> = Vec::new();
        for drive in means.chunk_by(|(a, _), (b, _)| of_drive(a) == of_drive(b)) {
            let links = drive.iter().filter(|(run, _)| run.is_link).map(|(_, mean)| mean);
            let best = links.max_by(|a, b| a.rate_mbps.total_cmp(&b.rate_mbps));
            for (run, mean) in drive.iter().filter(|(run, _)| !run.is_link) {
                let pair = [mean.clone(), best.cloned().unwrap_or_default()];
                let same = |(first, _): &&mut (&AppRun, _)| {
                    (&first.way, first.application) == (&run.way, run.application)
                };
                match ways.iter_mut().find(same) {
                    Some((_, pairs)) => pairs.push(pair),
                    None => ways.push((run, vec![pair])),
                }
            }
        }
        let ways = ways.iter().map(|(run, pairs)| AppWay::of(run, pairs)).collect();
        Self { ways, runs }
    }

    pub(super) fn in_words(&self) -> String {
        let mut table = bare();
        table.set_header([
            "application, way",
            "Mbit/s",
            "best link",
            "by best: median",
            "least",
            "worse on",
            "freezes",
            "frozen, %",
            "p95, ms",
            "NACKs",
        ]);
        for it in &self.ways {
            let pair = |[way, best]: [f64; 2], digits| format!("{way:.digits$} ({best:.digits$})");
            let is_call = it.application == Application::Call;
            let of_call = |text: String| if is_call { text } else { "-".to_owned() };
            table.add_row([
                format!("{}, {}", it.application, it.way),
                format!("{:.2}", it.mean_mbps),
                format!("{:.2}", it.best_link_mbps),
                format!("{:.2}", it.by_best_median),
                format!("{:.2}", it.by_best_least),
                format!("{:.0} %", it.worse * 100.0),
                of_call(pair(it.freezes, 1)),
                of_call(pair(it.frozen.map(|share| share * 100.0), 2)),
                of_call(pair(it.frame_delay_p95_ms, 0)),
                of_call(pair(it.nacked, 0)),
            ]);
        }
        let note = "in brackets: the best single link, the one with the highest rate in hindsight";
        format!("{}\n{note}\n", right_aligned(table, 1))
    }
}

impl AppWay {
    fn of(run: &AppRun, drives: &[[AppFigures; 2]]) -> Self {
        let means = |of: fn(&AppFigures) -> f64| {
            let mean = |at: usize| {
                drives.iter().map(|pair| of(&pair[at])).sum::<f64>() / drives.len().max(1) as f64
            };
            [mean(0), mean(1)]
        };
        let [mean_mbps, best_link_mbps] = means(|it| it.rate_mbps);
        let by_best = drives.iter().map(|[way, best]| ratio(way.rate_mbps, best.rate_mbps));
        let worse = by_best.clone().filter(|ratio| *ratio < 1.0).count() as f64;
        let by_best = Quantiles::of(by_best.collect());
        Self {
            application: run.application,
            way: run.way.clone(),
            mean_mbps,
            best_link_mbps,
            by_best_median: by_best.at(0.5),
            by_best_least: by_best.at(0.0),
            worse: worse / drives.len().max(1) as f64,
            freezes: means(|it| it.freezes),
            frozen: means(|it| it.frozen),
            frame_delay_p95_ms: means(|it| it.frame_delay_p95_ms),
            nacked: means(|it| it.nacked),
        }
    }
}

fn ratio(way: f64, best: f64) -> f64 {
    if way == best { 1.0 } else { way / best.max(RATE_MIN_MBPS) }
}

fn mean_of(seeds: &[AppRun]) -> AppFigures {
    let mean = |of: fn(&AppFigures) -> f64| {
        seeds.iter().map(|run| of(&run.figures)).sum::<f64>() / seeds.len().max(1) as f64
    };
    AppFigures {
        rate_mbps: mean(|it| it.rate_mbps),
        freezes: mean(|it| it.freezes),
        frozen: mean(|it| it.frozen),
        frame_delay_p50_ms: mean(|it| it.frame_delay_p50_ms),
        frame_delay_p95_ms: mean(|it| it.frame_delay_p95_ms),
        late: mean(|it| it.late),
        nacked: mean(|it| it.nacked),
    }
}

/// Below that a link carries nothing.
const RATE_MIN_MBPS: f64 = 0.01;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(drive: &str, way: &str, is_link: bool, seed: u64, rate_mbps: f64) -> AppRun {
        AppRun {
            drive: drive.into(),
            application: Application::Call,
            way: way.into(),
            is_link,
            seed,
            figures: AppFigures { rate_mbps, freezes: seed as f64, ..AppFigures::default() },
        }
    }

    #[test]
    fn a_way_is_compared_with_the_best_link_of_each_drive_by_the_means_over_seeds() {
        let mut runs = Vec::new();
        for (drive, [a, b, way]) in
            [("one", [[4.0, 4.0], [2.0, 4.0], [8.0, 4.0]]), ("two", [[0.0; 2]; 3])]
        {
            for (name, is_link, rates) in
                [("a", true, a), ("default", true, b), ("default", false, way)]
            {
                let rates = (1..).zip(rates);
                runs.extend(rates.map(|(seed, rate)| run(drive, name, is_link, seed, rate)));
            }
        }
        let results = AppResults::of(runs);
        let [way] = &results.ways[..] else { panic!("{:?}", results.ways) };
        assert_eq!((way.mean_mbps, way.best_link_mbps), (3.0, 2.0));
        assert_eq!((way.by_best_median, way.by_best_least, way.worse), (1.0, 1.0, 0.0));
        assert_eq!(way.freezes, [1.5, 1.5]);
        assert!(results.in_words().contains("call, default"), "{}", results.in_words());
    }
}
