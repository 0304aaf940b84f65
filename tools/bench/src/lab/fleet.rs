//! `roadweave lab fleet`: a day of a whole fleet.

use roadweave_lab::fleet::{FleetConfig, FleetOutcome, run};
use roadweave_terminal::out;

use crate::table::{bare, right_aligned};

/// Simulates a whole fleet in virtual time: boxes, proxies, and the replicas of a controller
///
/// Runs only the control plane, with the product's agents, controller sessions, placement and
/// roll-outs, and injects faults into all of them. Equal arguments give equal results, to the byte.
#[derive(Debug, clap::Args)]
pub struct FleetArgs {
    /// Boxes
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    boxes: u32,
    /// Proxies, in up to five regions with two sites each
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(2..=1_000))]
    proxies: u32,
    /// Hours
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=240))]
    hours: u32,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Encode every message to bytes, and let proxies verify every member of their tables; much
    /// slower
    #[arg(long)]
    thorough: bool,
    /// Print the results as one JSON object, with a time line
    #[arg(long)]
    json: bool,
}

impl FleetArgs {
    pub fn run(&self) -> anyhow::Result<()> {
        let (boxes, proxies) = (self.boxes as usize, self.proxies as usize);
        let outcome = run(&FleetConfig {
            is_thorough: self.thorough,
            ..FleetConfig::new(boxes, proxies, self.hours, self.seed)
        });
        if self.json { out::json(&outcome) } else { Ok(out::print(render(&outcome))?) }
    }
}

fn render(outcome: &FleetOutcome) -> String {
    let mut table = bare();
    table.set_header(["what", "", "figure"]);
    let mut row = |what: &str, of: &str, figure: String| {
        table.add_row([what, of, &figure]);
    };
    let ms = |ms: u64| format!("{ms} ms");
    row("revoke, until a reached proxy ends it", "p50", ms(outcome.revoked.revoke_p50_ms));
    row("", "p99", ms(outcome.revoked.revoke_p99_ms));
    row("", "max", ms(outcome.revoked.revoke_max_ms));
    row("", "keys", outcome.revoked.revocations.to_string());
    row(
        "",
        "handed back to a restored database",
        outcome.revoked.revocations_handed_back.to_string(),
    );
    row("box-hours", "without a proxy", format!("{:.0} ppm", outcome.without_proxy_ppm));
    row("", "on a dead proxy", format!("{:.1} ppm", outcome.on_dead_proxy_ppm));
    row("proxies declared dead", "", outcome.counts.declared_dead.to_string());
    row("", "that lived, with boxes", outcome.counts.declared_dead_falsely.to_string());
    row("", "that lived, cut off and without", outcome.counts.declared_dead_unused.to_string());
    row("boxes", "joined", outcome.counts.joins.to_string());
    row("", "joined again after a restore", outcome.counts.forgotten.to_string());
    row("", "moved without a gap", outcome.counts.moves.to_string());
    for (of, count) in ["begun", "done", "halted", "aborted"].iter().zip(outcome.counts.rollouts) {
        row(if *of == "begun" { "rollouts" } else { "" }, of, count.to_string());
    }
    let outcomes = ["in force", "confirmed", "taken back", "refused"];
    for (of, count) in outcomes.iter().zip(outcome.counts.versions) {
        row(if *of == "in force" { "versions on boxes" } else { "" }, of, count.to_string());
    }
    row("at the end", "boxes cut off by a version", outcome.cut_off.to_string());
    row("", "boxes with another version", outcome.drift.to_string());
    let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    row("a box in a month", "stream", megabytes(outcome.stream_bytes_per_month));
    row("", "measuring", megabytes(outcome.probe_bytes_per_month));
    row("", "messages", outcome.messages_per_month.to_string());
    right_aligned(table, 2)
}
