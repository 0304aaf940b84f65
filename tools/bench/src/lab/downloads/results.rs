//! Results of downloads, as a table.

use roadweave_emulate::Quantiles;
use roadweave_lab::downloads::Downloaded;
use roadweave_quic::CongestionControl;
use serde::Serialize;

use crate::table::{bare, right_aligned};

#[derive(Debug, Serialize)]
pub(super) struct DownloadResults {
    pub(super) seeds: u16,
    pub(super) cases: Vec<DownloadCase>,
}

#[derive(Debug, Serialize)]
pub(super) struct DownloadCase {
    pub(super) name: String,
    pub(super) alone: [Vec<DownloadRun>; 2],
    pub(super) all: Vec<DownloadRun>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct DownloadRun {
    #[serde(flatten)]
    pub(super) stream: Downloaded,
    /// Without a tunnel, by congestion control; empty for both links.
    pub(super) tcp: Vec<ByTcp>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ByTcp {
    pub(super) congestion: CongestionControl,
    pub(super) goodput_mbps: f64,
}

impl DownloadResults {
    pub(super) fn in_words(&self) -> String {
        let best = |case: &DownloadCase, of: &dyn Fn(&DownloadRun) -> f64| {
            case.alone.iter().map(|runs| median(runs, of)).fold(0.0, f64::max)
        };
        let goodput = |run: &DownloadRun| run.stream.goodput_mbps;
        let first = self.cases.first().and_then(|case| case.alone[0].first());
        let by_tcp = first.map_or(&[][..], |run| &run.tcp);
        let heading = ["Mbit/s", "best link", "both", "by best", "redundant"].map(String::from);
        let tcp_heading = by_tcp.iter().map(|tcp| format!("TCP by {}", tcp.congestion));
        let mut table = bare();
        table.set_header(heading.into_iter().chain(tcp_heading));
        for case in &self.cases {
            let (one, both) = (best(case, &goodput), median(&case.all, goodput));
            let cells = [
                case.name.clone(),
                format!("{one:.1}"),
                format!("{both:.1}"),
                format!("{:.2}", both / one),
                format!("{:.1} %", 100.0 * median(&case.all, |run| run.stream.redundant)),
            ];
            let tcp_cells = (0..by_tcp.len()).map(|at| {
                format!("{:.1}", best(case, &|run: &DownloadRun| run.tcp[at].goodput_mbps))
            });
            table.add_row(cells.into_iter().chain(tcp_cells));
        }
        format!("medians of {} seeds\n{}\n", self.seeds, right_aligned(table, 1))
    }
}

/// The lower median.
fn median(runs: &[DownloadRun], of: impl Fn(&DownloadRun) -> f64) -> f64 {
    Quantiles::of(runs.iter().map(of).collect()).at(0.5)
}
